"""A local copy of a repository in cloud storage, model by model.

A model's folder in the copy is a link to the state that was fetched last, so that it changes at once and never partly.
A file that has not changed is not downloaded again. Any thread; blocks. Fetches of one model wait for each other.
"""

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from halimede.errors import Error, Internal, Invalid, NotFound, Unavailable
from halimede.platform.scratch import remove_tree
from halimede.storage.cache import FileCache, new_digest
from halimede.storage.objects import Object

log = logging.getLogger(__name__)

PIECE_BYTES = 16 << 20
"""Size of one request, which must end within `stores.REQUEST_SECONDS`."""
FILES_AT_ONCE = 8
"""Downloads at a time for one repository. Each has a piece in memory."""
PROGRESS_SECONDS = 5.0
"""Time between two log lines on the progress of a download."""
LISTED_SECONDS = 0.5
"""How long a listing of all models is used: one poll looks at every model."""
OUTAGE_SECONDS = 15.0
"""How long the names that were listed last are used without a request, after a request has failed."""

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')

Fingerprint = tuple[tuple[str, tuple[int, int]], ...]


class Storage(Protocol):
    """A bucket, implemented by `stores.Store`."""

    def folders(self, prefix: str) -> list[str]: ...
    def objects(self, prefix: str) -> list[Object]: ...
    def read(self, wanted: Object, start: int, end: int) -> Any: ...


@dataclass(slots=True)
class _State:
    """The copy of a model: its objects by path, and its folder."""

    objects: dict[str, Object] = field(default_factory=dict)
    folder: Path | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Mirror:
    """`url` is the repository, `prefix` its path in the storage, `root` the folder of the copy.

    `ending` returns whether the server ends, so that nobody waits for a fetch any more. `cache` has files that earlier
    servers fetched.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        storage: Storage,
        root: Path,
        ending: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        cache: FileCache | None = None,
    ) -> None:
        self.url = url
        self._prefix = prefix
        self._storage = storage
        self._root = root
        self._ending = ending
        self._clock = clock
        self._cache = cache
        self._pool = ThreadPoolExecutor(FILES_AT_ONCE, "fetch")
        self._states: dict[str, _State] = {}
        self._lock = threading.Lock()
        self._names: list[str] | None = None
        self._failed: tuple[float, Error] | None = None
        self._listed: dict[str, list[Object]] = {}
        self._listed_until = clock()
        self._digests = False
        """Whether an etag of this storage was the MD5 digest of its object once."""

    def close(self) -> None:
        """Ends downloads. Does not wait for them."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def folder_of(self, name: str) -> Path:
        """Where the copy of a model is after `fetch`."""
        return self._root / name

    def names(self) -> list[str]:
        """The names of the models, which are the folders of the repository. While the storage fails, those that were
        listed last. Raises Error if it was never listed."""
        # Each request for the repository index lists the models. It must not wait for a storage that does not answer.
        if self._failed is not None and self._clock() < self._failed[0]:
            return self._known(self._failed[1])
        try:
            names = [name for name in self._storage.folders(self._prefix) if _is_name(name)]
        except Error as error:
            self._failed = (self._clock() + OUTAGE_SECONDS, error)
            log.warning(
                "model repository '%s': listing it failed: %s; the last listing is used, and the next attempt is after "
                "%g s",
                self.url,
                error,
                OUTAGE_SECONDS,
            )
            return self._known(error)
        self._failed, self._names = None, names
        return names

    def _known(self, error: Error) -> list[str]:
        if self._names is None:
            raise error
        return self._names

    def look(self, name: str) -> tuple[Fingerprint, int]:
        """The objects of a model with their stamps, and when the latest was written, in ns of the wall clock.

        While the storage fails, what was listed last. All models are listed at once: a poll looks at all of them.
        """
        with self._lock:
            if self._clock() >= self._listed_until:
                self._list_all()
                self._listed_until = self._clock() + LISTED_SECONDS
            objects = self._listed.get(name, [])
        listed = tuple(sorted((each.path, (_stamp(each), each.size)) for each in objects))
        return listed, max((each.modified_ns for each in objects), default=0)

    def _list_all(self) -> None:
        try:
            found = self._storage.objects(self._prefix)
        except Error as error:
            # To report no objects would unload all models.
            log.warning(
                "model repository '%s': looking for changes failed: %s; its models serve on unchanged", self.url, error
            )
            return
        self._listed = {}
        for each in found:
            name, _, path = each.path.partition("/")
            if path:
                self._listed.setdefault(name, []).append(replace(each, path=path))

    def fetch(self, name: str) -> None:
        """Copies a model as it is now. If that fails it raises Error, and the copy stays as it was."""
        state = self._state(name)
        with state.lock:
            if self._ending():
                raise Unavailable("Server exiting")
            objects = self._objects(name)
            if not objects:
                raise NotFound(f"there is no model '{name}' in '{self.url}'")
            if objects == state.objects and state.folder is not None:
                return
            # A new folder beside the old one. A model that serves may read its files at any time.
            target = self._root / f".{name}.{time.monotonic_ns()}"
            try:
                self._fill(name, target, objects, state)
                self._point(name, target)
            except OSError as error:
                remove_tree(target)
                raise Internal(f"failed to write the copy of '{self.url}/{name}': {error.strerror}") from error
            except BaseException:
                remove_tree(target)
                raise
            before, state.objects, state.folder = state.folder, objects, target
            if before is not None:
                remove_tree(before)

    def _state(self, name: str) -> _State:
        with self._lock:
            return self._states.setdefault(name, _State())

    def _objects(self, name: str) -> dict[str, Object]:
        found = self._storage.objects(f"{self._prefix}/{name}" if self._prefix else name)
        return {each.path: each for each in found if _is_place(each.path, f"{self.url}/{name}")}

    def _fill(self, name: str, target: Path, objects: dict[str, Object], state: _State) -> None:
        target.mkdir()
        parents = {parent.as_posix() for path in objects for parent in PurePosixPath(path).parents}
        todo: list[Object] = []
        for path, each in objects.items():
            place = target / path
            if path in parents or (each.size == 0 and path.isdecimal()):  # an object that stands for a folder
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            # A hard link keeps the file when the old folder is removed, and takes no space.
            if state.folder is not None and state.objects.get(path) == each and (state.folder / path).is_file():
                os.link(state.folder / path, place)
            else:
                todo.append(each)
        began = self._clock()
        fetched = self._download(name, target, todo)
        log.info(
            "fetched model '%s' from '%s': %d files, %.1f MiB, in %.1f s; %d files were there",
            *(name, self.url, len(fetched), _mebibytes(fetched), self._clock() - began, len(objects) - len(fetched)),
        )

    def _download(self, name: str, target: Path, todo: Sequence[Object]) -> list[Object]:
        """Returns those that were not in the cache."""
        progress = _Progress(f"'{name}' from '{self.url}'", todo, self._clock)
        files: dict[Future[_Fetched | None], Object] = {}
        fetched: list[tuple[Object, _Fetched]] = []
        try:
            files = {self._pool.submit(self._download_one, target, each, progress): each for each in todo}
            for done in as_completed(files):
                if (result := done.result()) is not None:
                    fetched.append((files[done], result))
        except (CancelledError, RuntimeError) as error:  # `close` was called
            raise Unavailable("Server exiting") from error
        except BaseException:
            progress.cancelled = True
            for file in files:
                file.cancel()
            wait(files)  # afterwards no thread writes to the folder, and it can be removed
            raise
        for each, result in fetched:
            if not result.as_its_etag:
                self._suspect(each)
        if self._cache is not None:
            for each, result in fetched:
                self._cache.keep(self.url, each, target / each.path, result.digest)
        return [each for each, _ in fetched]

    def _download_one(self, target: Path, wanted: Object, progress: "_Progress") -> "_Fetched | None":
        """Downloads a file, or takes it from the cache: then it returns None."""
        place = target / wanted.path
        if self._cache is not None and self._cache.take(self.url, wanted, place):
            progress.add(wanted.size)
            return None
        digest, lasting = hashlib.md5(usedforsecurity=False), new_digest() if self._cache is not None else None
        with place.open("wb") as out:
            for start in range(0, wanted.size, PIECE_BYTES):
                if progress.cancelled or self._ending():
                    raise Unavailable("Server exiting")
                end = min(start + PIECE_BYTES, wanted.size)
                piece = memoryview(self._storage.read(wanted, start, end))
                if len(piece) != end - start:
                    raise Unavailable(
                        f"'{self.url}' sent {len(piece)} bytes of '{wanted.path}' instead of {end - start}"
                    )
                out.write(piece)
                digest.update(piece)
                if lasting is not None:
                    lasting.update(piece)
                progress.add(len(piece))
        os.utime(place, ns=(wanted.modified_ns, _stamp(wanted)))
        said = _MD5.fullmatch(wanted.etag)
        # If it is none: of an upload in parts, for example; the size was checked.
        same = said is not None and digest.hexdigest() == said[1]
        self._digests |= same
        return _Fetched(said is None or same, "" if lasting is None else lasting.hexdigest())

    def _suspect(self, wanted: Object) -> None:
        """Handles a file that is not what its etag says: if the storage's etags are digests, it raises Unavailable.

        A storage that encrypts has etags that look like digests and are none. If one etag was a digest, all are.
        """
        if self._digests:
            raise Unavailable(f"'{self.url}' sent other bytes of '{wanted.path}' than its etag {wanted.etag} is of")
        log.warning(
            "model repository '%s': its etags are not digests, so only the sizes of downloaded files are checked",
            self.url,
        )

    def _point(self, name: str, target: Path) -> None:
        # To rename a link over the old one is atomic; to create it in its place is not.
        link = self._root / f"{target.name}.link"
        link.symlink_to(target.name, target_is_directory=True)
        link.replace(self._root / name)


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A file that was downloaded. `as_its_etag`: its etag is not one that looks like the digest of another file.
    `digest` is for the cache, and empty without one."""

    as_its_etag: bool
    digest: str


class _Progress:
    """The progress of a download, which is logged now and then."""

    def __init__(self, what: str, todo: Sequence[Object], clock: Callable[[], float]) -> None:
        self.cancelled = False
        self._what = what
        self._all = _mebibytes(todo)
        self._clock = clock
        self._bytes = 0
        self._logged_at = clock()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if self._clock() - self._logged_at < PROGRESS_SECONDS:
                return
            self._logged_at = self._clock()
        log.info("fetching model %s: %.0f of %.0f MiB", self._what, self._bytes / 2**20, self._all)


def _mebibytes(objects: Sequence[Object]) -> float:
    return sum(each.size for each in objects) / 2**20


def _stamp(wanted: Object) -> int:
    """The time of a file's last change. Storages have whole seconds. The fraction is made of the etag, so that two
    contents of one second differ."""
    rest = int.from_bytes(hashlib.blake2b(wanted.etag.encode(), digest_size=8).digest()) % 1_000_000_000
    return wanted.modified_ns // 1_000_000_000 * 1_000_000_000 + rest


def _is_name(name: str) -> bool:
    return bool(name) and "/" not in name and not name.startswith(".")


def _is_place(path: str, where: str) -> bool:
    """Returns True for the path of a file. Raises Invalid if it leads out of the model's folder."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise Invalid(f"'{where}' has an object '{path}', which cannot be the path of a file within a model")
    return True
