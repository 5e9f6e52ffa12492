"""What lies in the model repositories: a catalogue of model directories. Data only; reads directories, opens no model.

Any thread; blocks on the file system.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from errno import ELOOP
from pathlib import Path
from typing import Protocol

from halimede.errors import Invalid

Stamp = tuple[int, int]
"""When a file was written last, in ns, and its size."""
Fingerprint = tuple[tuple[str, Stamp], ...]
"""Every file and directory of a model with its stamp, which is zero for a directory."""

_BYTECODE = "__pycache__"
_NO_STAMP = (0, 0)


class RemoteModel(Protocol):
    """A model that lies elsewhere and is copied to `folder`. The calls block; they raise Error."""

    @property
    def folder(self) -> Path: ...
    def fetch(self) -> None:
        """Makes the copy as the model is now."""
        ...

    def look(self) -> tuple[Fingerprint, int]:
        """As `Look` has it, of the model and not of the copy."""
        ...


Remote = Callable[[str], Mapping[str, RemoteModel] | None]
"""The models of a repository that lies elsewhere, None for one of this machine."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model directory, which is a model's name in a repository (contract R1). `config` is a configuration as JSON
    that counts instead of the one in the directory (contract H113). `namespace` is its repository where one name may be
    that of several models (contract R20). One that is `remote` must be fetched before its folder is read."""

    name: str
    folder: Path
    config: str | None = None
    namespace: str = ""
    remote: RemoteModel | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        """What no other model has: its name, or the name within its namespace."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Catalog:
    """The models found, by key, and the names that more than one repository has where they must not (contract R5).
    `unnamed` are directories whose names are no text, so that nobody could ask for them."""

    models: dict[str, FoundModel]
    duplicates: tuple[str, ...] = ()
    unnamed: tuple[Path, ...] = ()

    def named(self, name: str) -> list[FoundModel]:
        """Those of this name: several only where there are namespaces."""
        found = self.models.get(name)
        if found is not None:
            return [found]
        return [found for found in self.models.values() if found.namespace and found.name == name]


def scan(repositories: Sequence[str], namespaces: bool = False, remote: Remote = lambda repository: None) -> Catalog:
    """Looks through the repositories, each of which is a namespace or none is. Raises Invalid for a path that is no
    directory (contract C8)."""
    models: dict[str, FoundModel] = {}
    duplicates: set[str] = set()
    unnamed: list[Path] = []
    for repository in repositories:
        for found in _found_in(repository, repository if namespaces else "", remote):
            if not _is_text(found.name):
                unnamed.append(found.folder)
                continue
            if found.key in models:
                duplicates.add(found.key)
            models[found.key] = found
    unique = {name: model for name, model in models.items() if name not in duplicates}
    return Catalog(unique, tuple(sorted(duplicates)), tuple(unnamed))


def _found_in(repository: str, namespace: str, remote: Remote) -> list[FoundModel]:
    elsewhere = remote(repository)
    if elsewhere is not None:
        return [
            FoundModel(name, model.folder, namespace=namespace, remote=model)
            for name, model in sorted(elsewhere.items())
        ]
    root = Path(repository)
    try:
        if not repository or not root.is_dir():  # an empty path is not the folder where the server was started
            raise Invalid(f"failed to stat file {repository}: repository path is not a valid directory")
        folders = [root / entry.name for entry in os.scandir(root) if _is_model(entry)]
    except OSError as error:
        raise Invalid(f"failed to stat file {repository}: {error.strerror}") from error
    return [FoundModel(folder.name, folder, namespace=namespace) for folder in sorted(folders)]


def _is_model(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and _is_there(entry.is_dir)


def _is_text(name: str) -> bool:
    """Whether the name of a file, of which the system knows bytes only, is text in UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_there(what: Callable[[], bool]) -> bool:
    """A link that leads to itself is nothing; another error is one."""
    try:
        return what()
    except OSError as error:
        if error.errno != ELOOP:
            raise
        return False


def version_names(folder: Path) -> list[str]:
    """The names of the directories in a model's directory, which may be versions (contract R2)."""
    with os.scandir(folder) as entries:
        return sorted([entry.name for entry in entries if _is_there(entry.is_dir)])


def fingerprint(folder: Path) -> Fingerprint:
    """Equal as long as nothing within the directory has changed (contract R9, R10); symbolic links are followed.

    What Python leaves beside the code that it imports is no change. Raises OSError.
    """
    return look(folder).fingerprint


@dataclass(frozen=True, slots=True)
class Look:
    """A model's directory at one time. `changed_at` is when anything in it was written, moved or renamed last, in ns of
    the wall clock: copies may keep the time of writing of what they copy, this time is their own."""

    fingerprint: Fingerprint
    changed_at: int


def look(folder: Path) -> Look:
    """Raises OSError, also where something vanishes meanwhile."""
    status = folder.stat()
    times = [status.st_ctime_ns]
    found: list[tuple[str, Stamp]] = []
    _add_entries(found, str(folder), "", frozenset({(status.st_dev, status.st_ino)}), times)
    found.sort()
    return Look(tuple(found), max(times))


def _add_entries(
    found: list[tuple[str, Stamp]], folder: str, prefix: str, above: frozenset[tuple[int, int]], times: list[int]
) -> None:
    """`above` are the directories on the way here, this one included: a link to one of them goes round in a circle.
    `times` takes when each entry changed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.name != _BYTECODE and _is_there(entry.is_dir):
                status = entry.stat()
                found.append((name, _NO_STAMP))
                times.append(status.st_ctime_ns)
                here = (status.st_dev, status.st_ino)
                if here not in above:
                    _add_entries(found, entry.path, f"{name}/", above | {here}, times)
            elif _is_there(entry.is_file):
                status = entry.stat()
                times.append(status.st_ctime_ns)
                found.append((name, (status.st_mtime_ns, status.st_size)))
