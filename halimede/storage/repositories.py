"""The server's repositories in cloud storage. Each is opened when it is first needed.

Any thread; blocks. The storage library is slow to import and optional, so it is imported with the first repository.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from halimede.errors import Error, Unavailable
from halimede.platform.scratch import Scratch, remove_leftovers
from halimede.storage.cache import FileCache
from halimede.storage.credentials import MOUNTS, credentials_of
from halimede.storage.locations import Location, is_remote, location_of
from halimede.storage.mirror import Fingerprint, Mirror, Storage

PREFIX = "halimede-cloud-"
"""The prefix of the folders with copies."""
_EXTRA = "cloud"
"""The extra that installs the storage library."""

OpenStorage = Callable[[Location, Mapping[str, str]], Storage]


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model in cloud storage."""

    mirror: Mirror
    name: str

    @property
    def folder(self) -> Path:
        """Where the copy is after `fetch`."""
        return self.mirror.folder_of(self.name)

    def fetch(self) -> None:
        """Copies the model as it is now. Raises Error."""
        self.mirror.fetch(self.name)

    def look(self) -> tuple[Fingerprint, int]:
        """The fingerprint of the model in the storage, and the time of its last change."""
        return self.mirror.look(self.name)


@dataclass(frozen=True, slots=True)
class BrokenRepository:
    """Stands for the models of a repository that was never listed, so that the repository index has the reason."""

    error: Error
    folder: Path = Path("/nonexistent")

    def fetch(self) -> None:
        raise self.error

    def look(self) -> tuple[Fingerprint, int]:
        return (("", (0, 0)),), 0


class RemoteRepositories:
    """`environment` has the credentials and folders. `ending` returns whether the server ends. `open_storage` opens a
    bucket. `cache` is the folder for files that later servers use, or empty."""

    def __init__(
        self,
        environment: Mapping[str, str],
        ending: Callable[[], bool] = lambda: False,
        open_storage: OpenStorage | None = None,
        cache: str = "",
    ) -> None:
        self._environment = environment
        self._ending = ending
        self._open_storage = open_storage or _open_storage
        self._cache_folder = Path(cache) if cache else None
        self._cache: FileCache | None = None
        self._lock = threading.Lock()
        self._mirrors: dict[str, Mirror] = {}
        self._folders: list[Scratch] = []
        self._closed = False

    def models(self, url: str) -> dict[str, RemoteModel | BrokenRepository] | None:
        """The models of a repository, by name. None if its path is a local one.

        A repository that was never listed is one broken model with the URL as its name.
        """
        if not is_remote(url):
            return None
        try:
            mirror = self._mirror(url)
            return {name: RemoteModel(mirror, name) for name in mirror.names()}
        except Error as error:
            return {url: BrokenRepository(error)}

    def _mirror(self, url: str) -> Mirror:
        with self._lock:
            if url not in self._mirrors:
                location = location_of(url)
                storage = self._open_storage(location, credentials_of(location, self._environment))
                root, cache = self._folder(location), self._open_cache(location)
                self._mirrors[url] = Mirror(url, location.prefix, storage, root, self._is_over, cache=cache)
            return self._mirrors[url]

    def _is_over(self) -> bool:
        return self._closed or self._ending()

    def _folder(self, location: Location) -> Path:
        given = self._environment.get(MOUNTS[location.scheme])
        # In the cache's folder a file of the cache and its copies are one.
        parent = Path(given) if given else self._cache_folder
        try:
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            # A server that was killed left its copies.
            remove_leftovers(PREFIX, parent)
            self._folders.append(Scratch(PREFIX, parent))
        except OSError as error:
            raise Unavailable(f"failed to create a folder for the copy of '{location.url}': {error}") from error
        return self._folders[-1].path

    def _open_cache(self, location: Location) -> FileCache | None:
        if self._cache is None and self._cache_folder is not None:
            try:
                self._cache = FileCache(self._cache_folder)
                self._cache.tidy()
            except OSError as error:
                raise Unavailable(f"failed to open the cache of '{location.url}': {error}") from error
        return self._cache

    def close(self) -> None:
        """Ends downloads and removes the copies. May block, and may be called twice."""
        self._closed = True
        for mirror in self._mirrors.values():
            mirror.close()
        while self._folders:
            self._folders.pop().remove()


def _open_storage(location: Location, credentials: Mapping[str, str]) -> Storage:
    try:
        module = import_module("halimede.storage.stores")
    except ImportError as error:
        if (error.name or "").startswith("halimede"):  # a mistake of our own, and not the missing library
            raise
        raise Unavailable(
            f"model repository '{location.url}' cannot be used ({error}); what it needs is installed by: "
            f"pip install 'halimede[{_EXTRA}]'"
        ) from error
    return cast(Storage, module.Store(location, credentials))
