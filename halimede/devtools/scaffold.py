"""`halimede init`: makes a model in a repository out of a file. Blocks.

The model is made beside its final place, under a name that no server reads, and is renamed when it is complete.
"""

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

from halimede.backends.api import Severity
from halimede.backends.registry import formats
from halimede.backends.traits import Format, Traits
from halimede.checking.repository import review_repositories
from halimede.config import ModelConfig
from halimede.config.model_config import DescribedTensor
from halimede.devtools.new_config import VERSION, config_text, declared_by
from halimede.errors import Error, Internal, Invalid, Unavailable
from halimede.models.loader import LoadOptions
from halimede.options import ServerOptions
from halimede.tensors import BYTES, UNKNOWN_DATATYPE, datatype_named

_NAME = re.compile(r"[^./\\\0:][^/\\\0:]*")
_INPUT = re.compile(r"([^=]+):([A-Za-z0-9_]+)\[(-?\d+(?:,-?\d+)*)\]")
_MAX_ELEMENTS = 16
"""Of an input that a command line can have."""


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
    """The model that was made.

    `notes` are warnings about it. `next` is the command that serves it. `run` is the command that runs it without a
    server; it is empty if no input can be typed.
    """

    folder: Path
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    next: str
    run: str


def begin(
    source: Path,
    repository: Path,
    name: str,
    server: ServerOptions,
    gpus: tuple[int, ...] = (),
    inputs: Sequence[str] = (),
) -> Begun:
    """Makes the model `name` of `source` in `repository`; an empty name is taken from the file.

    `gpus` are those of this machine. `inputs` are texts such as "x:FP32[-1,3]", for a file that does not say what its
    inputs are. Raises Error if nothing was made; then nothing is left.
    """
    given = [_input_of(text) for text in inputs]
    kind = kind_of(source)
    name = name or _name_of(source)
    if not _NAME.fullmatch(name):
        raise Invalid(f"'{name}' cannot be the name of a model: give another with --name")
    # A folder of this name in a repository looks like a version, and the repository like a model.
    if name.isdecimal():
        raise Invalid(f"'{name}' is the name of a version and cannot be that of a model: give another with --name")
    folder = repository / name
    # `lexists` sees a link to a missing target too, which a rename would replace.
    if os.path.lexists(folder):
        raise Invalid(f"'{folder}' exists already; --name gives the model another name")
    # A repository that does not exist is made.
    if repository.exists() and not repository.is_dir():
        raise Invalid(f"'{repository}' is not a directory")
    options = LoadOptions(settings=server.backend_settings, gpus=gpus)
    try:
        return _made(source, kind, folder, options, given)
    except OSError as error:
        raise Internal(f"{error.filename or folder}: {error.strerror}") from error


def kind_of(source: Path) -> Kind:
    """The format of a file or directory. Raises Invalid if no backend here opens it."""
    if not source.exists():
        raise Invalid(f"'{source}' does not exist")
    for kind in kinds():
        inside = source / (kind.format.marker or kind.filename)
        if inside.is_file() or (source.is_file() and source.suffix.lower() == kind.format.ending):
            return kind
    endings = " or ".join(kind.format.ending for kind in kinds())
    folders = " or a ".join(kind.format.marker or kind.filename for kind in kinds() if _may_be_directory(kind))
    raise Invalid(f"'{source}' is not a model of a known kind: a file {endings}, or a directory with a {folders}")


def _may_be_directory(kind: Kind) -> bool:
    """Whether a directory is the model itself: its main file with data in files of their own."""
    return kind.format.directory is not False and not kind.format.fills_version


def _name_of(source: Path) -> str:
    """The name of the file, or that of the directory around it if the file is called `model`."""
    if not source.is_dir() and source.stem != "model":
        return source.stem
    folder = source.resolve() if source.is_dir() else source.resolve().parent
    if folder.name in {kind.filename for kind in kinds()}:  # a model with its data
        folder = folder.parent
    if folder.name.isdecimal():  # a version of a model
        folder = folder.parent
    return folder.name or source.stem


def _input_of(text: str) -> DescribedTensor:
    """An input from its text, such as "x:FP32[-1,3]". Raises Invalid."""
    found = _INPUT.fullmatch(text)
    datatype = datatype_named(found[2].upper().removeprefix("TYPE_").replace("STRING", "BYTES")) if found else None
    if found is None or datatype is None or datatype is UNKNOWN_DATATYPE:
        raise Invalid(f"--input '{text}' is not NAME:DATATYPE[SIZES], such as x:FP32[-1,3]; -1 is any size")
    return DescribedTensor(found[1], datatype, tuple(int(size) for size in found[3].split(",")))


def _made(source: Path, kind: Kind, folder: Path, options: LoadOptions, given: Sequence[DescribedTensor]) -> Begun:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _beside(folder) as draft:
        version = draft / str(VERSION)
        version.mkdir(parents=True)
        _copy(source, version, kind)
        config_file = draft / "config.pbtxt"
        # A model file alone does not say which backend is meant.
        platform = "" if kind.format is kind.traits.formats[0] else kind.format.platform
        config_file.write_text(f'backend: "{kind.backend}"\n' + (f'platform: "{platform}"\n' if platform else ""))
        try:
            declared = declared_by(draft, options, given)
        except Error as error:
            # Unavailable: a library is missing, and a hint about the model would mislead.
            hint = "" if isinstance(error, Unavailable) else _hint(source, kind) or _advice(error)
            raise type(error)(str(error).replace(str(draft.parent), str(folder.parent)) + hint) from error
        config_file.write_text(config_text(folder.name, kind.backend, declared, platform), encoding="utf-8")
        config, notes = _reviewed(draft, options)
        # The model's own code may have run for a while. Somebody may have made the folder meanwhile.
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
        companion = source.with_suffix(kind.format.companion)
        if kind.format.companion and companion.is_file():
            shutil.copyfile(companion, (version / kind.filename).with_suffix(kind.format.companion))
        return
    ignored = shutil.ignore_patterns("__pycache__", ".git")
    place = version if kind.format.fills_version else version / kind.filename
    shutil.copytree(source, place, ignore=ignored, dirs_exist_ok=True)


def _hint(source: Path, kind: Kind) -> str:
    if _may_be_directory(kind) and source.is_file():
        return f"\nA model whose data lie in files of their own is given as a directory: {source.parent}"
    return ""


def _advice(error: Error) -> str:
    return f"\n{error.advice}" if error.advice else ""


def _reviewed(draft: Path, options: LoadOptions) -> tuple[ModelConfig | None, tuple[str, ...]]:
    """The configuration as a server reads it, and warnings. Raises Invalid if a server refuses it."""
    [model] = review_repositories([str(draft.parent)], options, False).models
    # A module can still be installed.
    modules = [problem.text for problem in model.problems if problem.module and problem.severity is Severity.ERROR]
    errors = [problem.text for problem in model.problems if problem.severity is Severity.ERROR]
    if len(errors) > len(modules):
        raise Invalid("\n".join(errors).replace(f"{draft.parent}/", ""))
    warnings = [problem.text for problem in model.problems if problem.severity is Severity.WARNING]
    return model.config, (*modules, *warnings)


def _run(folder: Path, config: ModelConfig | None) -> str:
    if config is None or not config.inputs:
        return ""
    words = ["halimede", "model", "run", str(folder)]
    for spec in config.inputs:
        dims = [1 if size == -1 else size for size in spec.dims]
        # A reader would not type such a line, nor understand it.
        if prod(dims) > _MAX_ELEMENTS:
            return ""
        value: object = "text" if spec.datatype is BYTES else 1
        for size in reversed(dims):
            value = [value] * size
        words += ["--input", f"{spec.name}={json.dumps(value, separators=(',', ':'))}"]
    return shlex.join(words)
