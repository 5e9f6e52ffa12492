"""What lies in the model repositories: a catalogue of model directories. Data only; reads directories, opens no model.

Any thread; blocks on the file system.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.errors import Invalid

Fingerprint = tuple[tuple[str, int], ...]
"""Every file and directory of a model with the time of its last change, 0 for a directory."""

_BYTECODE = "__pycache__"


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model directory, which is a model's name in a repository (contract R1). `config` is a configuration as JSON
    that counts instead of the one in the directory (contract H113)."""

    name: str
    folder: Path
    config: str | None = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """The models found, by name, and the names that more than one repository has (contract R5)."""

    models: dict[str, FoundModel]
    duplicates: tuple[str, ...] = ()


def scan(repositories: Sequence[str]) -> Catalog:
    """Looks through the repositories. Raises Invalid for a path that is no directory (contract C8)."""
    models: dict[str, FoundModel] = {}
    duplicates: set[str] = set()
    for repository in repositories:
        root = Path(repository)
        if not root.is_dir():
            raise Invalid(f"failed to stat file {repository}: repository path is not a valid directory")
        try:
            folders = sorted(root.iterdir())
        except OSError as error:
            raise Invalid(f"failed to stat file {repository}: {error.strerror}") from error
        for folder in folders:
            if not folder.is_dir() or folder.name.startswith("."):
                continue
            if folder.name in models:
                duplicates.add(folder.name)
            models[folder.name] = FoundModel(folder.name, folder)
    return Catalog({name: m for name, m in models.items() if name not in duplicates}, tuple(sorted(duplicates)))


def version_names(folder: Path) -> list[str]:
    """The names of the directories in a model's directory, which may be versions (contract R2)."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def fingerprint(folder: Path) -> Fingerprint:
    """Equal as long as nothing within the directory has changed (contract R9, R10); symbolic links are followed.

    What Python leaves beside the code that it imports is no change. Raises OSError.
    """
    return tuple(sorted(_entries(folder, "", frozenset())))


def _entries(folder: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """`above` are the directories on the way here: a link to one of them goes round in a circle."""
    here = folder.stat()
    if (here.st_dev, here.st_ino) in above:
        return
    above |= {(here.st_dev, here.st_ino)}
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir() and entry.name != _BYTECODE:
                yield name, 0
                yield from _entries(folder / entry.name, f"{name}/", above)
            elif entry.is_file():
                yield name, entry.stat().st_mtime_ns
