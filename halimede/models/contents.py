"""Makes a digest of all that a model version is made of. Two servers whose versions have equal digests may share
responses.

Runs on a load thread; reads every file of the version once.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from halimede.backends.api import ModelFolder
from halimede.config import ModelConfig
from halimede.errors import Internal
from halimede.models.repository import fingerprint, version_names

A = TypeVar("A")

_SAMPLES = "warmup"
"""The folder of warm-up samples, which change no response."""


def digest_of(config: ModelConfig, folder: ModelFolder) -> bytes:
    """Covers the configuration, the version's number, its files, the files beside the versions, and the code of a
    Python-based backend. Follows symbolic links. Does not cover what the model reads from other places.

    Raises Internal if a file cannot be read.
    """
    digest = hashlib.sha256(config.message)
    digest.update(repr(folder.number).encode())
    # Other versions are no part of this one.
    others = {name for name in _listed(version_names, folder.model) if name != folder.version.name}
    for path, name in _files(folder.model, {*others, _SAMPLES}):
        _add(digest, name, path)
    # A Python-based backend lies outside of the repository, and another version of it may answer differently.
    if folder.code is not None:
        for path, name in _files(folder.code.parent, set()):
            _add(digest, f"code/{name}", path)
    return digest.digest()


def _listed(listing: Callable[[Path], A], folder: Path) -> A:
    try:
        return listing(folder)
    except OSError as error:
        raise _unread(folder, error) from error


def _files(folder: Path, without: set[str]) -> Iterator[tuple[Path, str]]:
    """The files of a folder that belong to the fingerprint. `without` are names directly in the folder."""
    for name, _ in _listed(fingerprint, folder):
        path = folder / name
        if name.partition("/")[0] not in without and path.is_file():
            yield path, name


def _add(digest: "hashlib._Hash", name: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            of_file = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise _unread(path, error) from error
    # The name too: the same bytes in another file may be another model.
    digest.update(repr(name).encode())
    digest.update(of_file.digest())


def _unread(path: Path, error: OSError) -> Internal:
    return Internal(f"failed to read {error.filename or path}: {error.strerror}")
