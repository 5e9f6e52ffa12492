"""The model files that come with a load request (H114): each load's files are in a temporary directory of their own.

`Upload` writes and removes one directory, on a thread. `Uploads`, on the event loop, knows which versions were opened
from which upload, and removes an upload with the last of them.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from halimede.engine_port import LoadModel
from halimede.errors import Internal, Invalid, Unavailable
from halimede.loading.concurrency import LoadThreads
from halimede.models.loader import LoadedVersion

MAX_NAME_BYTES = 255
"""Of a file or a directory: the limit of Linux's file systems."""
MAX_PATH_BYTES = 1024
"""Of a file within the model's directory. Linux allows 4096, but `mkdir` and `rmtree` of Python are recursive."""
MAX_FOLDERS = 10_000
"""Folders of the files that come with a load. Beyond: 400, INVALID_ARGUMENT."""

MAX_LOADS_UNDER_WAY = 10_000
"""Loads of models by request that are under way or wait. Beyond: 503, UNAVAILABLE."""


class Upload:
    """`folder` is the model's directory."""

    def __init__(self, model: str, files: Sequence[tuple[str, bytes]]) -> None:
        """Writes the files. Raises Invalid for a path that leads out of the directory (H114), Internal if a file cannot
        be written. Blocks."""
        from tempfile import mkdtemp  # slow to import, and few servers need it

        # All paths are checked before anything is written.
        places = [path_within_model(path) for path, _ in files]
        try:
            self._root = Path(mkdtemp(prefix="halimede-model-"))
        except OSError as error:
            raise Internal(f"failed to write the files of model '{model}': {error.strerror}") from error
        self.folder = self._root / model
        try:
            for place, (_, content) in zip(places, files, strict=True):
                file = self.folder / place
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        except OSError as error:
            # The disk may be full: what was written must not stay.
            self.remove()
            raise Internal(f"failed to write the files of model '{model}': {error.strerror}") from error

    def remove(self) -> None:
        """Removes the directory. May block."""
        import shutil

        shutil.rmtree(self._root, ignore_errors=True)


class Uploading:
    """Counts the loads by request that are under way, and the bytes of their files, which wait in memory. `limit` is
    that of the bytes; 0 means no limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._loads = self._bytes = 0

    @contextmanager
    def counted(self, query: LoadModel) -> Iterator[None]:
        """Counts a load. Raises Unavailable if there are too many."""
        size = sum(len(content) for _, content in query.files) + len(query.config or "")
        if self._loads >= MAX_LOADS_UNDER_WAY:
            raise Unavailable(f"{self._loads} loads of models are under way, which is the limit; try again later")
        # A single one is always taken.
        if self._bytes and 0 < self._limit < self._bytes + size:
            raise Unavailable(
                f"the server holds {self._bytes} bytes of models to load (--max-buffered-bytes); try again later"
            )
        self._loads += 1
        self._bytes += size
        try:
            yield
        finally:
            self._loads -= 1
            self._bytes -= size


class Uploads:
    """The uploads that are on disk, and the versions that use them."""

    def __init__(self, threads: LoadThreads) -> None:
        self._threads = threads
        self._on_disk: set[Upload] = set()
        self._of: dict[LoadedVersion, Upload] = {}

    async def receive(self, model: str, files: Sequence[tuple[str, bytes]]) -> Upload:
        """Writes the files of a load. Raises Error."""
        upload = await self._threads.write(Upload, model, files)
        self._on_disk.add(upload)
        return upload

    def use(self, upload: Upload, version: LoadedVersion) -> None:
        """The version was opened from the upload."""
        self._of[version] = upload

    async def version_closed(self, version: LoadedVersion) -> None:
        """Removes the upload of a version that was closed, if no other version uses it."""
        upload = self._of.pop(version, None)
        if upload is not None:
            await self.remove_unused(upload)

    async def remove_unused(self, upload: Upload) -> None:
        """Removes an upload unless a version uses it."""
        if upload in self._on_disk and upload not in self._of.values():
            await self._threads.write(upload.remove)
            self._on_disk.discard(upload)

    def abandon(self) -> None:
        """Removes all uploads at the end of the server. Blocks."""
        for upload in self._on_disk:
            upload.remove()
        self._on_disk.clear()


def path_within_model(path: str) -> str:
    """The normalized path of an uploaded file within the model's directory; `/1/model.py` is `1/model.py`.

    Raises Invalid if it leads out of the directory, or names no file in it.
    """
    normal = os.path.normpath(path.lstrip("/"))
    if path.endswith("/") or normal in (".", "..") or normal.startswith("../") or "\0" in path:
        raise Invalid(
            f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model directory."
        )
    return normal


def check_paths(paths: Sequence[str]) -> None:
    """Raises Invalid for the first path that is too long, or if the paths have too many folders.

    An example of the official client expects `Invalid file path` (H114).
    """
    for path in paths:
        names = path.encode(errors="surrogatepass").split(b"/")
        if any(len(name) > MAX_NAME_BYTES for name in names):
            fault = f"a name in it is longer than {MAX_NAME_BYTES} bytes"
        elif sum(map(len, names)) + len(names) > MAX_PATH_BYTES:
            fault = f"it is longer than {MAX_PATH_BYTES} bytes"
        else:
            continue
        raise Invalid(f"Invalid file path 'file:{_cut(path)}': {fault}")
    # A path of a kilobyte may have five hundred of its own.
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
        if len(folders) > MAX_FOLDERS:
            raise Invalid(f"the files of a model have more than {MAX_FOLDERS} folders")


def _cut(path: str) -> str:
    """An error of gRPC travels in headers, whose size clients limit."""
    return path if len(path) <= 256 else f"{path[:256]}..."
