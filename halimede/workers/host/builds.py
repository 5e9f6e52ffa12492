"""Environments that are built from lists of packages: each once for its content and its Python, in a directory where
later servers find it.

A build runs in a folder of its own beside the finished ones, and is renamed when it is complete. A file lock lets the
builds of the same environment wait for each other, in this server and in others. Load threads; blocks.
"""

import fcntl
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import IO

from halimede.errors import Error, Internal, Unavailable
from halimede.platform.scratch import Scratch, remove_leftovers, remove_tree
from halimede.workers.host.activation import outside
from halimede.workers.host.installers import (
    WORKER_NEEDS,
    Installer,
    find_uv,
    names_of,
    reason_in,
    said,
    variables_of,
)
from halimede.workers.host.package_lists import BadList, Digest, PackageList, read_list
from halimede.workers.host.programs import TICK_SECONDS, Programs
from halimede.workers.host.pythons import Python, choose

log = logging.getLogger(__name__)

BUILDING = "building-"
"""The beginning of the names of folders that are being built."""
NOTE = "halimede-environment.txt"
"""The file of an environment that says what it was built from. Its time is that of the last use."""
LOCK_GRACE = 60.0
"""Seconds beyond the time limit of a build that others wait for its end."""
FIRST_PROGRESS = 5.0
NEXT_PROGRESS = 30.0
"""Seconds until the log says that a build still runs, and after that."""
_CLOSE_LIMIT = 10.0
_TAIL_BYTES = 4096
_KEY_LENGTH = 32

Unwanted = Callable[[], bool]
"""Whether nobody waits for the build any more."""


def wanted() -> bool:
    """An `Unwanted` of a load that nothing takes back."""
    return False


@dataclass(frozen=True, slots=True)
class _Order:
    """What is built. `key` is equal for environments that are the same."""

    listed: PackageList
    python: Python
    key: str

    @property
    def file(self) -> Path:
        return self.listed.file


class Builds:
    """The environments in `directory`. A build may take `limit` seconds. `variables` are the server's environment
    variables. `digest` is that of a file's content."""

    def __init__(
        self,
        directory: Path,
        limit: float,
        programs: Programs,
        variables: Mapping[str, str],
        digest: Digest,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._directory = directory
        self._limit = limit
        self._programs = programs
        self._variables = outside(variables)
        self._digest = digest
        self._clock = clock
        self._failures: dict[str, tuple[float, Error]] = {}
        self._under_way: set[threading.Event] = set()

    def folder(self, file: Path, unwanted: Unwanted = wanted) -> Path:
        """The folder of the environment of a list, which is built if it is not there. Raises Internal if that fails,
        Unavailable if the server exits or the build is unwanted."""
        try:
            return self._folder(self._order(file), unwanted)
        except BadList as error:
            raise Internal(f"The list of packages '{file}' cannot be used: {error}") from error
        except OSError as error:
            where = f"in '{self._directory}' (--python-environment-directory)"
            raise Internal(f"The Python environment of '{file}' cannot be built {where}: {error}") from error

    def close(self) -> None:
        """Waits until the builds have removed what they made. Their programs were killed."""
        until = self._clock() + _CLOSE_LIMIT
        for each in list(self._under_way):
            each.wait(max(until - self._clock(), 0.0))

    def _order(self, file: Path) -> _Order:
        listed = read_list(file, self._digest)
        if listed.hashed and not listed.names_numpy:
            raise BadList(f"it has hashes, so it must list {WORKER_NEEDS} too, which workers need")
        python = choose(listed.requires_python, self._variables, self._programs.run)
        content = f"{python.build}\n{listed.digest}".encode()
        return _Order(listed, python, hashlib.sha256(content).hexdigest()[:_KEY_LENGTH])

    def _folder(self, order: _Order, unwanted: Unwanted) -> Path:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self._directory.resolve() / order.key
        if not _is_whole(folder):
            began = self._clock()
            with self._locked(order, folder, unwanted):
                if not _is_whole(folder):
                    self._check_failures(order, began)
                    self._build(order, folder, unwanted)
        with suppress(OSError):  # of a directory that cannot be written to
            os.utime(folder / NOTE)
        return folder

    def _check_failures(self, order: _Order, since: float) -> None:
        """Raises the error of a build that has failed while this one waited for it."""
        failed, error = self._failures.get(order.key, (since, None))
        if error is not None and failed >= since:
            raise error

    @contextmanager
    def _locked(self, order: _Order, folder: Path, unwanted: Unwanted) -> Iterator[None]:
        """Holds the lock of an environment. The system releases it when its holder ends."""
        path = folder.with_suffix(".lock")
        until = self._clock() + self._limit + LOCK_GRACE
        with path.open("ab") as file:
            waits = False
            while not _lock(file):
                self._check(order, unwanted)
                if self._clock() > until:
                    raise Internal(
                        f"The Python environment of '{order.file}' cannot be built: another process has held '{path}' "
                        f"for {self._limit + LOCK_GRACE:g} s"
                    )
                if not waits:
                    log.info("waiting for the Python environment of '%s', which is being built already", order.file)
                waits = True
                self._programs.pause(TICK_SECONDS)
            yield

    def _check(self, order: _Order, unwanted: Unwanted) -> None:
        """Raises Unavailable if the build is to end."""
        self._programs.check_open()
        if unwanted():
            raise Unavailable(f"the build of the Python environment of '{order.file}' was given up: unloaded meanwhile")

    # ---- one build

    def _build(self, order: _Order, folder: Path, unwanted: Unwanted) -> None:
        done = threading.Event()
        self._under_way.add(done)
        began = self._clock()
        installer = Installer(find_uv(self._variables))
        log.info(
            "building the Python environment of '%s' with %s for %s in '%s'",
            *(order.file, installer, order.python, folder),
        )
        try:
            remove_leftovers(BUILDING, folder.parent)
            scratch = Scratch(BUILDING, folder.parent)
            try:
                made = scratch.path / "environment"
                self._install(order, installer, made, folder, unwanted)
                (made / NOTE).write_text(
                    f"Halimede has built this environment from '{order.file}' with {installer} for {order.python}.\n"
                    "A server that needs it again uses it as it is. The time of this file is that of the last use.\n"
                )
                _move_scripts(made, folder)
                remove_tree(folder)  # of one that is not whole
                made.rename(folder)
            finally:
                scratch.remove()
        except Error as error:
            self._failures[order.key] = (self._clock(), error)
            raise
        finally:
            self._under_way.discard(done)
            done.set()
        seconds = self._clock() - began
        log.info("built the Python environment of '%s' in %.1f s: '%s'", order.file, seconds, folder)

    def _install(self, order: _Order, installer: Installer, made: Path, folder: Path, unwanted: Unwanted) -> None:
        """Runs the installer's programs. Raises Internal with the reason if one of them fails."""
        began = self._clock()
        output, written = made.with_name("output.txt"), made.with_name("requirements.txt")
        if order.listed.requirements is not None:
            written.write_text(order.listed.requirements)
        names = names_of(order.listed, written)
        tick = _Tick(order, output, partial(self._check, order, unwanted), self._clock)
        for command in installer.commands(order.python.path, made, names):
            left = self._limit - (self._clock() - began)
            variables = variables_of(self._variables)
            status = self._programs.run_in(order.file.parent, command, variables, left, output, tick)
            if status != 0:
                raise self._failure(order, installer, status, output, folder.with_suffix(".log"))
        folder.with_suffix(".log").unlink(missing_ok=True)

    def _failure(self, order: _Order, installer: Installer, status: int | None, output: Path, kept: Path) -> Internal:
        """The error of a build whose program has failed. Keeps its output."""
        reason = reason_in(output.read_bytes())
        output.replace(kept)
        how = f"{installer} ended with exit status {status}"
        if status is None:
            how = f"it took longer than {self._limit:g} s (--python-environment-timeout-secs)"
        text = f"The Python environment of '{order.file}' cannot be built: {how}: {reason}"
        return Internal(f"{text}; the whole output is in '{kept}'")


class _Tick:
    """Watches a build: lets it end early, and says from time to time what it does."""

    def __init__(self, order: _Order, output: Path, check: Callable[[], None], clock: Callable[[], float]) -> None:
        self._order = order
        self._output = output
        self._check = check
        self._clock = clock
        self._began = clock()
        self._next = self._began + FIRST_PROGRESS

    def __call__(self) -> None:
        self._check()
        now = self._clock()
        if now >= self._next:
            self._next = now + NEXT_PROGRESS
            lines = said(_end_of(self._output))
            last = lines[-1] if lines else "no output yet"
            log.info(
                "still building the Python environment of '%s' after %.0f s: %s",
                *(self._order.file, now - self._began, last),
            )


def _end_of(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        return opened.read()


def _is_whole(folder: Path) -> bool:
    """Whether an environment is there, ours, and its interpreter as well."""
    try:
        owner = (folder / NOTE).stat().st_uid
    except OSError:
        return False
    return owner in (os.geteuid(), 0) and os.access(folder / "bin" / "python", os.X_OK)


def _lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _move_scripts(made: Path, folder: Path) -> None:
    """Replaces the folder in which the environment was built by its final one, in its scripts."""
    old, new = os.fsencode(made), os.fsencode(folder)
    for each in [made / "pyvenv.cfg", *(made / "bin").iterdir()]:
        if each.is_symlink() or not each.is_file():
            continue
        content = each.read_bytes()
        is_script = content.startswith(b"#!") or each.name.lower().startswith(("activate", "pyvenv", "deactivate"))
        if is_script and old in content:
            each.write_bytes(content.replace(old, new))
