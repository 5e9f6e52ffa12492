"""Lists the model directories of repositories, and tells whether one has changed. A program may add models without one.

Opens no model. Any thread; blocks on the file system.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from errno import EFBIG, ELOOP
from pathlib import Path
from typing import Protocol

from halimede.errors import Invalid

Stamp = tuple[int, int]
"""The time of a file's last change in ns, and its size."""
Fingerprint = tuple[tuple[str, Stamp], ...]
"""Every file and directory of a model with its stamp."""

MAX_ENTRIES = 200_000
"""Files and folders of a model. Beyond: it is not loaded."""
MAX_DEPTH = 600
"""Folders within each other in a model's directory. Beyond: it is not loaded."""
_BYTECODE = "__pycache__"
_DIRECTORY_STAMP = (0, 0)
"""What a directory has instead of a stamp."""


class RemoteModel(Protocol):
    """A model in cloud storage, with a local copy at `folder`. The methods block and raise Error."""

    @property
    def folder(self) -> Path: ...
    def fetch(self) -> None:
        """Copies the model as it is now."""
        ...

    def look(self) -> tuple[Fingerprint, int]:
        """The fields of `Look` for the model in the storage."""
        ...


Remote = Callable[[str], Mapping[str, RemoteModel] | None]
"""Returns the models of a repository in cloud storage, None if its path is a local one."""


NOWHERE = Path(os.devnull)
"""The parent of the folders of bound models. It is a file, so nothing can be there."""
_BOUND_VERSION = "1"


@dataclass(frozen=True, slots=True)
class BoundModel:
    """What a program gave the server instead of a directory. `content` is for the model's backend. Another content has
    another `stamp`."""

    content: object
    stamp: int


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model directory, or a bound model. The directory's name in the repository is the model's name (R1)."""

    name: str
    folder: Path
    config: str | None = None
    """A configuration as JSON that replaces the one in the directory (H113)."""
    namespace: str = ""
    """The repository, if several models may have one name (R20)."""
    remote: RemoteModel | None = field(default=None, compare=False)
    """Set for a model in cloud storage, which must be fetched before its folder is read."""
    bound: BoundModel | None = None
    """Set for a model without a directory. It has a `config`, and one version."""

    @property
    def key(self) -> str:
        """Unique among all models: the name, or the name within the namespace."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

    def look(self) -> "Look":
        """The model at this time. Raises OSError, and Error for a model in cloud storage."""
        if self.bound is not None:
            return Look((("", (self.bound.stamp, 0)),), 0)
        return look(self.folder) if self.remote is None else Look(*self.remote.look())

    def fingerprint(self) -> Fingerprint:
        """Of the folder; for a model in cloud storage, of its local copy. Raises OSError."""
        return fingerprint(self.folder) if self.bound is None else self.look().fingerprint

    def version_names(self) -> list[str]:
        """As `version_names` of the folder. Raises OSError."""
        return version_names(self.folder) if self.bound is None else [_BOUND_VERSION]


@dataclass(frozen=True, slots=True)
class Catalog:
    """The models of all repositories, by key."""

    models: dict[str, FoundModel]
    duplicates: tuple[str, ...] = ()
    """Names that several repositories have, without namespaces. Such a model cannot be loaded (R5)."""
    unnamed: tuple[Path, ...] = ()
    """Directories whose names are not valid UTF-8, so that no client could ask for them."""

    def named(self, name: str) -> list[FoundModel]:
        """The models of this name: several only if there are namespaces."""
        found = self.models.get(name)
        if found is not None:  # without namespaces the key is the name
            return [found]
        return [found for found in self.models.values() if found.namespace and found.name == name]

    def joined(self, bound: Iterable[FoundModel]) -> "Catalog":
        """The catalog with bound models. A name that a repository has too is a duplicate."""
        added = {found.key: found for found in bound}
        if not added:
            return self
        twice = self.models.keys() & added.keys()
        models = {key: found for key, found in {**self.models, **added}.items() if key not in twice}
        return Catalog(models, tuple(sorted({*self.duplicates, *twice})), self.unnamed)


def scan(repositories: Sequence[str], namespaces: bool = False, remote: Remote = lambda repository: None) -> Catalog:
    """Lists the repositories. With `namespaces` each of them is one. Raises Invalid for a path that is not a directory
    (C8)."""
    models: dict[str, FoundModel] = {}
    duplicates: set[str] = set()
    unnamed: list[Path] = []
    for repository in repositories:
        for found in _found_in(repository, repository if namespaces else "", remote):
            if not _is_text(found.name):
                unnamed.append(found.folder)
                continue
            if found.key in models:  # in another repository, or as a folder and in the cloud
                duplicates.add(found.key)
            models[found.key] = found
    # A client could not say which one it means, so none of them is loaded (R5).
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
        if not repository or not root.is_dir():  # `Path("")` would be the working directory
            raise Invalid(f"failed to stat file {repository}: repository path is not a valid directory")
        folders = [root / entry.name for entry in os.scandir(root) if _is_model(entry)]
    except OSError as error:
        raise Invalid(f"failed to stat file {repository}: {error.strerror}") from error
    return [FoundModel(folder.name, folder, namespace=namespace) for folder in sorted(folders)]


def _is_model(entry: os.DirEntry[str]) -> bool:
    # Version control and editors keep hidden folders next to models.
    return not entry.name.startswith(".") and _is_there(entry.is_dir)


def _is_text(name: str) -> bool:
    """Whether the name of a file is valid UTF-8. The system allows any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_there(what: Callable[[], bool]) -> bool:
    """Returns what the check does. A link that leads to itself counts as nothing there. Raises OSError otherwise."""
    try:
        return what()
    except OSError as error:
        if error.errno != ELOOP:
            raise
        return False


def version_names(folder: Path) -> list[str]:
    """The names of the directories in a model's directory, which may be versions (R2). Raises OSError."""
    with os.scandir(folder) as entries:
        return sorted([entry.name for entry in entries if _is_there(entry.is_dir)])


def fingerprint(folder: Path) -> Fingerprint:
    """Equal as long as nothing within the directory has changed (R9, R10). Follows symbolic links, ignores Python's
    bytecode caches. Raises OSError."""
    return look(folder).fingerprint


@dataclass(frozen=True, slots=True)
class Look:
    """A model's directory at one time."""

    fingerprint: Fingerprint
    changed_at: int
    """When anything in it was written, moved or renamed last, in ns of the wall clock. This is the files' `ctime`: a
    copy may keep the `mtime` of its original."""


def look(folder: Path) -> Look:
    """Looks at a model's directory. Raises OSError, also if a file is removed meanwhile."""
    status = folder.stat()
    times = [status.st_ctime_ns]
    found: list[tuple[str, Stamp]] = []
    _add_entries(found, str(folder), "", frozenset({(status.st_dev, status.st_ino)}), times)
    found.sort()
    return Look(tuple(found), max(times))


def _add_entries(
    found: list[tuple[str, Stamp]], folder: str, prefix: str, above: frozenset[tuple[int, int]], times: list[int]
) -> None:
    """Adds the entries of a folder to `found`, and the times of their changes to `times`.

    `above` are the folder and its parents, by device and inode. A link to one of them is a circle and is not followed.
    Raises OSError, also if there are too many: a link may lead to the root of the file system.
    """
    if len(above) > MAX_DEPTH:
        raise OSError(ELOOP, f"more than {MAX_DEPTH} folders are within each other", folder)
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            # Python writes its cache while the model loads, which is no change of the model.
            if entry.name != _BYTECODE and _is_there(entry.is_dir):
                status = entry.stat()
                found.append((name, _DIRECTORY_STAMP))
                times.append(status.st_ctime_ns)
                here = (status.st_dev, status.st_ino)
                if here not in above:
                    _add_entries(found, entry.path, f"{name}/", above | {here}, times)
            elif _is_there(entry.is_file):
                status = entry.stat()
                times.append(status.st_ctime_ns)
                found.append((name, (status.st_mtime_ns, status.st_size)))
            if len(found) > MAX_ENTRIES:
                raise OSError(EFBIG, f"the model has more than {MAX_ENTRIES} files", folder)
