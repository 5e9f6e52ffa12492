"""What lies in the model repositories: a catalogue of model directories. Data only; reads directories, opens no model.

Any thread; blocks on the file system.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.errors import Invalid


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model directory, which is a model's name in a repository (contract R1)."""

    name: str
    folder: Path


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
