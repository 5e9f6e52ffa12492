"""The environments that models name for themselves (P71): folders used where they lie, archives unpacked once.

An archive is unpacked once for each content, however many models, versions and instances use it; who asks while another
unpacks it waits. What was unpacked is removed at the end. Load threads; blocks.
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
    """Those of one backend. `parent` is where archives are unpacked, None for the system's temporary folder, and
    `variables` is what the server runs with."""

    def __init__(self, parent: Path | None = None, variables: Mapping[str, str] | None = None) -> None:
        self._parent = parent
        self._variables = os.environ if variables is None else variables
        self._closed = threading.Event()
        self._line = threading.Lock()
        self._scratch: Scratch | None = None
        self._running: set[subprocess.Popen[bytes]] = set()
        self._unpacked: dict[str, Future[Interpreter]] = {}
        self._contents: dict[tuple[object, ...], str] = {}
        threading.Thread(target=self._sweep, name="sweep environments", daemon=True).start()

    def interpreter(self, setting: str, model: Path) -> Interpreter:
        """The interpreter of EXECUTION_ENV_PATH, for a model that lies in the folder `model`.

        Raises Internal if there is no such environment or it cannot be used, Unavailable when the server exits.
        """
        path = self._resolve(setting, model)
        kind = path.stat().st_mode
        if S_ISDIR(kind):
            return activate(path, str(path), self._variables, self._run)
        if not S_ISREG(kind):
            raise Internal(f"The Python environment '{path}' is neither a folder nor an archive.")
        return self._of_archive(path)

    def close(self) -> None:
        """Ends what still works for a load, and removes what was unpacked."""
        self._closed.set()
        with self._line:
            for child in self._running:
                _kill(child)
        until = monotonic() + _CLOSE_LIMIT
        for future in list(self._unpacked.values()):
            with suppress(Exception):  # told by the load that waits for it
                future.result(max(until - monotonic(), 0.0))
        with self._line:
            if self._scratch is not None:
                self._scratch.remove()
                self._scratch = None

    def _sweep(self) -> None:
        with suppress(OSError):  # there is no temporary folder: who needs it says so
            for path in remove_leftovers(_PREFIX, self._parent):
                log.info("removed '%s', left behind by a server that was killed", path)

    @staticmethod
    def _resolve(setting: str, model: Path) -> Path:
        """Relative paths begin where the server was started."""
        text = str(model) + setting[len(MODEL_DIRECTORY) :] if setting.startswith(MODEL_DIRECTORY) else setting
        try:
            return Path(text).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:  # the others: links in a circle, a null byte
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
                self._unpacked.pop(content)  # the next load tries again: the disk may have room by then
                mine.set_exception(error)
        return future.result()

    def _content_of(self, archive: Path) -> str:
        """A digest of the bytes, read once for as long as the file is the same."""
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
        with self._line:
            if self._closed.is_set():
                raise UnpackingAbandoned
            if self._scratch is None:
                self._scratch = Scratch(_PREFIX, self._parent)
            return Path(tempfile.mkdtemp(prefix=f"{content[:8]}-", dir=self._scratch.path))

    def _relocate(self, archive: Path, folder: Path, python: Path) -> None:
        """Has conda-pack's own script write the new place of the environment into its files."""
        ended = self._run([str(python), str(folder / _RELOCATE)], outside(self._variables), _RELOCATION_LIMIT)
        if ended.status != 0:
            raise BadArchive(f"{_RELOCATE} failed, {ended.why()}")

    # ---- programs

    def _run(self, command: Sequence[str], variables: Mapping[str, str], limit: float) -> Ended:
        """What it has started ends with it. Raises OSError if it cannot run, Unavailable when the server exits."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            with self._line:
                self._check_open()
                child = subprocess.Popen(
                    command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, process_group=0
                )
                self._running.add(child)
            in_time = ends_within(child.pid, limit)
            with self._line:
                _kill(child)
                child.wait()
                self._running.discard(child)
            self._check_open()
            return Ended(child.returncode if in_time else None, _content(output), _content(errors))

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise _exiting()


def _kill(child: subprocess.Popen[bytes]) -> None:
    """With its group, before it is reaped: after that its number may be another's."""
    with suppress(ProcessLookupError, PermissionError):  # the latter for a zombie, on some systems
        os.killpg(child.pid, SIGKILL)


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _exiting() -> Unavailable:
    return Unavailable("the server is exiting")


def _cannot_be_unpacked(archive: Path, error: Exception) -> Internal:
    return Internal(f"The Python environment '{archive}' cannot be unpacked: {error}")
