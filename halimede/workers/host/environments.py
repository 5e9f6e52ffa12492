"""Python environments of models (P71): folders are used in place, archives are unpacked.

An archive is unpacked once per content, for all models, versions and instances. Other threads that need it meanwhile
wait. Unpacked folders are removed at the end. Load threads; blocks.
"""

import hashlib
import logging
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from stat import S_ISDIR, S_ISREG
from time import monotonic
from typing import IO

from halimede.errors import Internal, Unavailable
from halimede.platform.processes import ends_within
from halimede.platform.scratch import Scratch, remove_leftovers, remove_tree
from halimede.workers.host.activation import Ended, activate, outside, python_of
from halimede.workers.host.process import Interpreter
from halimede.workers.host.unpacking import BadArchive, UnpackingAbandoned, unpack

log = logging.getLogger(__name__)

MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_PREFIX = "halimede-environments-"
_RELOCATE = "bin/conda-unpack"
_RELOCATION_LIMIT = 600.0
_CLOSE_LIMIT = 10.0
_CHUNK = 1 << 20


class Environments:
    """The environments of one backend. Archives are unpacked in `parent`, None for the system's temporary folder.
    `variables` are the server's environment variables."""

    def __init__(self, parent: Path | None = None, variables: Mapping[str, str] | None = None) -> None:
        self._parent = parent
        self._variables = os.environ if variables is None else variables
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._scratch: Scratch | None = None
        self._running: set[subprocess.Popen[bytes]] = set()
        self._unpacked: dict[str, Future[Interpreter]] = {}
        self._contents: dict[tuple[object, ...], str] = {}
        threading.Thread(target=self._sweep, name="sweep environments", daemon=True).start()

    def interpreter(self, setting: str, model: Path) -> Interpreter:
        """The interpreter for a value of EXECUTION_ENV_PATH. `model` is the model's folder.

        Raises Internal if there is no such environment or it cannot be used, Unavailable if the server exits.
        """
        path = self._resolve(setting, model)
        kind = path.stat().st_mode
        if S_ISDIR(kind):
            return activate(path, str(path), self._variables, self._run)
        if not S_ISREG(kind):
            raise Internal(f"The Python environment '{path}' is neither a folder nor an archive.")
        return self._of_archive(path)

    def close(self) -> None:
        """Kills programs that run for a load, and removes unpacked environments."""
        self._closed.set()
        with self._lock:
            for child in self._running:
                _kill(child)
        until = monotonic() + _CLOSE_LIMIT
        for future in list(self._unpacked.values()):
            with suppress(Exception):  # the load that waits for it reports the error
                future.result(max(until - monotonic(), 0.0))
        with self._lock:
            if self._scratch is not None:
                self._scratch.remove()
                self._scratch = None

    def _sweep(self) -> None:
        with suppress(OSError):  # no temporary folder: the first archive will fail with that error
            for path in remove_leftovers(_PREFIX, self._parent):
                log.info("removed '%s', which a killed server had left", path)

    @staticmethod
    def _resolve(setting: str, model: Path) -> Path:
        """The absolute path. Relative ones begin at the server's working directory. Raises Internal."""
        text = str(model) + setting[len(MODEL_DIRECTORY) :] if setting.startswith(MODEL_DIRECTORY) else setting
        try:
            return Path(text).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle; ValueError: a null byte
            raise Internal(f"Failed to get the canonical path for {text}.") from error

    # ---- archives

    def _of_archive(self, archive: Path) -> Interpreter:
        self._check_open()
        try:
            content = self._content_of(archive)
        except OSError as error:
            raise _cannot_be_unpacked(archive, error) from error
        mine: Future[Interpreter] = Future()
        future = self._unpacked.setdefault(content, mine)
        if future is mine:
            try:
                mine.set_result(self._prepare(archive, content))
            except BaseException as error:
                self._unpacked.pop(content)  # the next load tries again: the cause may be a full disk
                mine.set_exception(error)
        return future.result()

    def _content_of(self, archive: Path) -> str:
        """The SHA-256 of the archive. It is read again only if the file has changed."""
        found = archive.stat()
        key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if key not in self._contents:
            digest = hashlib.sha256()
            with archive.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    self._check_open()
                    digest.update(chunk)
            self._contents[key] = digest.hexdigest()
        return self._contents[key]

    def _prepare(self, archive: Path, content: str) -> Interpreter:
        began = monotonic()
        folder = None
        log.info("unpacking the Python environment '%s'", archive)
        try:
            folder = self._new_folder(content)
            unpack(archive, folder, self._closed.is_set)
            python = python_of(folder, str(archive))
            if (folder / _RELOCATE).exists():
                self._relocate(archive, folder, python)
            interpreter = activate(folder, str(archive), self._variables, self._run)
        except BaseException as error:
            if folder is not None:
                remove_tree(folder)
            if isinstance(error, UnpackingAbandoned) or self._closed.is_set():
                raise _exiting() from error
            if isinstance(error, BadArchive | OSError):
                raise _cannot_be_unpacked(archive, error) from error
            raise
        log.info("unpacked the Python environment '%s' in %.1f s", archive, monotonic() - began)
        return interpreter

    def _new_folder(self, content: str) -> Path:
        """Raises OSError, and UnpackingAbandoned at the end."""
        with self._lock:
            if self._closed.is_set():
                raise UnpackingAbandoned
            if self._scratch is None:
                self._scratch = Scratch(_PREFIX, self._parent)
            return Path(tempfile.mkdtemp(prefix=f"{content[:8]}-", dir=self._scratch.path))

    def _relocate(self, archive: Path, folder: Path, python: Path) -> None:
        """Runs conda-pack's script, which writes the new path of the environment into its files."""
        ended = self._run([str(python), str(folder / _RELOCATE)], outside(self._variables), _RELOCATION_LIMIT)
        if ended.status != 0:
            raise BadArchive(f"{_RELOCATE} failed, {ended.why()}")

    # ---- programs

    def _run(self, command: Sequence[str], variables: Mapping[str, str], limit: float) -> Ended:
        """Runs a program. Its children end with it. Raises OSError if it cannot be started, Unavailable if the server
        exits."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            with self._lock:
                self._check_open()
                child = subprocess.Popen(
                    command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, process_group=0
                )
                self._running.add(child)
            in_time = ends_within(child.pid, limit)
            with self._lock:
                _kill(child)
                child.wait()
                self._running.discard(child)
            self._check_open()
            return Ended(child.returncode if in_time else None, _content(output), _content(errors))

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise _exiting()


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kills a child and its group. Must come before it is reaped: afterwards its number may belong to another
    process."""
    with suppress(ProcessLookupError, PermissionError):  # PermissionError: of a zombie, on some systems
        os.killpg(child.pid, SIGKILL)


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _exiting() -> Unavailable:
    return Unavailable("the server is exiting")


def _cannot_be_unpacked(archive: Path, error: Exception) -> Internal:
    return Internal(f"The Python environment '{archive}' cannot be unpacked: {error}")
