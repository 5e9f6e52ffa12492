"""`halimede init`: a model in a repository, made of a file. Blocks.

It comes about beside its place, under a name that no server looks at, and is moved there when it is whole.
"""

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

from halimede.backends.registry import formats
from halimede.backends.traits import Format, Traits
from halimede.config import ModelConfig, Severity
from halimede.devtools.new_config import config_text
from halimede.errors import Error, Internal, Invalid, Unavailable
from halimede.models.loader import LoadOptions
from halimede.models.repository_review import review_repositories
from halimede.models.scaffold import VERSION, beginning_of
from halimede.options import Init
from halimede.tensors import BYTES

_NAME = re.compile(r"[^./\\\0:][^/\\\0:]*")
_MOST_ELEMENTS = 16


@dataclass(frozen=True, slots=True)
class Kind:
    """A format of which `halimede init` can make a model, and its backend."""

    traits: Traits
    format: Format

    @property
    def backend(self) -> str:
        return self.traits.name

    @property
    def filename(self) -> str:
        return self.format.filename


def kinds() -> list[Kind]:
    """All formats of which a model can be made."""
    return [Kind(traits, each) for traits, each in formats() if traits.served and each.ending]


@dataclass(frozen=True, slots=True)
class Begun:
    """`notes` are what the user should look at, `next` the command that serves the model, `run` one that asks it
    without a server, empty where no line can be typed."""

    folder: Path
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    next: str
    run: str


def begin(order: Init, gpus: tuple[int, ...] = ()) -> Begun:
    """`gpus` are those of this machine. Raises Error where nothing was made; then nothing is left."""
    source, repository = Path(order.source), Path(order.repository)
    kind = _kind_of(source)
    name = order.name or _name_of(source)
    if not _NAME.fullmatch(name):
        raise Invalid(f"'{name}' cannot be the name of a model: write --name")
    if name.isdecimal():
        raise Invalid(f"'{name}' would be taken for a version: write --name")
    folder = repository / name
    if os.path.lexists(folder):
        raise Invalid(f"'{folder}' exists already; --name gives the model another name")
    if repository.exists() and not repository.is_dir():
        raise Invalid(f"'{repository}' is no directory")
    options = LoadOptions(settings=order.server.backend_settings, gpus=gpus)
    try:
        return _made(source, kind, folder, options)
    except OSError as error:
        raise Internal(f"{error.filename or folder}: {error.strerror}") from error


def _kind_of(source: Path) -> Kind:
    if not source.exists():
        raise Invalid(f"'{source}' does not exist")
    for kind in kinds():
        if (source / kind.filename).is_file() or (source.is_file() and source.suffix.lower() == kind.format.ending):
            return kind
    endings = " or ".join(kind.format.ending for kind in kinds())
    folders = " or a ".join(kind.filename for kind in kinds() if _may_be_directory(kind))
    raise Invalid(f"'{source}' is no model that is known here: a file {endings}, or a directory with a {folders}")


def _may_be_directory(kind: Kind) -> bool:
    """Whether a directory is the model itself: its main file with data in files of their own."""
    return kind.format.directory is not False and not kind.format.fills_version


def _name_of(source: Path) -> str:
    """`model` says nothing; its directory may, and that of a version lies in one with the name of its model."""
    if not source.is_dir() and source.stem != "model":
        return source.stem
    folder = source.resolve() if source.is_dir() else source.resolve().parent
    if folder.name in {kind.filename for kind in kinds()}:  # a model with its data
        folder = folder.parent
    if folder.name.isdecimal():
        folder = folder.parent
    return folder.name or source.stem


def _made(source: Path, kind: Kind, folder: Path, options: LoadOptions) -> Begun:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _beside(folder) as draft:
        version = draft / str(VERSION)
        version.mkdir(parents=True)
        _copy(source, version, kind)
        config_file = draft / "config.pbtxt"
        config_file.write_text(f'backend: "{kind.backend}"\n')
        try:
            beginning = beginning_of(draft, options)
        except Error as error:
            hint = "" if isinstance(error, Unavailable) else _hint(source, kind)  # it is not the model that is at fault
            raise type(error)(str(error).replace(str(draft.parent), str(folder.parent)) + hint) from error
        config_file.write_text(config_text(folder.name, kind.backend, beginning), encoding="utf-8")
        config, notes = _reviewed(draft, options)
        if os.path.lexists(folder):
            raise Invalid(f"'{folder}' exists already")
        draft.rename(folder)
    files = tuple(sorted(path for path in folder.rglob("*") if path.is_file()))
    repository = shlex.quote(str(folder.parent))
    return Begun(folder, files, notes, f"halimede serve --model-repository {repository}", _run(folder, config))


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=".halimede-init-", dir=folder.parent) as place:
        yield Path(place) / folder.name


def _copy(source: Path, version: Path, kind: Kind) -> None:
    if source.is_file():
        shutil.copyfile(source, version / kind.filename)
        return
    ignored = shutil.ignore_patterns("__pycache__", ".git")
    place = version if kind.format.fills_version else version / kind.filename
    shutil.copytree(source, place, ignore=ignored, dirs_exist_ok=True)


def _hint(source: Path, kind: Kind) -> str:
    if _may_be_directory(kind) and source.is_file():
        return f"\nA model whose data lie in files of their own is given as a directory: {source.parent}"
    return ""


def _reviewed(draft: Path, options: LoadOptions) -> tuple[ModelConfig | None, tuple[str, ...]]:
    """The configuration as a server would read it, and what there is to say. Raises Invalid where it would not."""
    [model] = review_repositories([str(draft.parent)], options, False).models
    errors = [problem.text for problem in model.problems if problem.severity is Severity.ERROR]
    if errors:
        raise Invalid("\n".join(errors).replace(f"{draft.parent}/", ""))
    return model.config, tuple(problem.text for problem in model.problems if problem.severity is Severity.WARNING)


def _run(folder: Path, config: ModelConfig | None) -> str:
    if config is None or not config.inputs:
        return ""
    words = ["halimede", "model", "run", str(folder)]
    for spec in config.inputs:
        dims = [1 if size == -1 else size for size in spec.dims]
        if prod(dims) > _MOST_ELEMENTS:
            return ""
        value: object = "text" if spec.datatype is BYTES else 1
        for size in reversed(dims):
            value = [value] * size
        words += ["--input", f"{spec.name}={json.dumps(value, separators=(',', ':'))}"]
    return shlex.join(words)
