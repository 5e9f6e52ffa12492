"""Programs that run for a load, such as an activation or an installer. They end with all that they started.

Load threads; blocks.
"""

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from time import monotonic
from typing import IO

from halimede.errors import Unavailable
from halimede.platform.processes import ends_within
from halimede.workers.host.activation import Ended

TICK_SECONDS = 0.2
"""How often `tick` is called while a program runs."""

Tick = Callable[[], None]
"""Called while a program runs. If it raises, the program is killed."""


class Programs:
    def __init__(self) -> None:
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Kills the programs. No other starts."""
        self._closed.set()
        with self._lock:
            for child in self._running:
                _kill(child)

    def check_open(self) -> None:
        """Raises Unavailable if the server exits."""
        if self.closed:
            raise exiting()

    def pause(self, seconds: float) -> None:
        """Waits; not for the end of the server."""
        self._closed.wait(seconds)

    def run(self, command: Sequence[str], variables: Mapping[str, str], limit: float) -> Ended:
        """Runs a program for up to `limit` seconds. Raises OSError if it cannot be started, Unavailable if the server
        exits."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            status = self._run(command, variables, limit, None, output, errors, None)
            return Ended(status, _content(output), _content(errors))

    def run_in(
        self,
        folder: Path,
        command: Sequence[str],
        variables: Mapping[str, str],
        limit: float,
        output: Path,
        tick: Tick,
    ) -> int | None:
        """Runs a program in a folder, and appends what it says to the file `output`. Returns its exit status, None if
        it took too long. Raises like `run`, and what `tick` raises."""
        with output.open("ab") as sink:
            return self._run(command, variables, limit, folder, sink, sink, tick)

    def _run(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        limit: float,
        folder: Path | None,
        output: IO[bytes],
        errors: IO[bytes],
        tick: Tick | None,
    ) -> int | None:
        with self._lock:
            self.check_open()
            child = subprocess.Popen(
                command,
                env=variables,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                process_group=0,
            )
            self._running.add(child)
        try:
            in_time = ends_within(child.pid, limit) if tick is None else _ends_within(child.pid, limit, tick)
        finally:
            with self._lock:
                _kill(child)
                child.wait()
                self._running.discard(child)
        self.check_open()
        return child.returncode if in_time else None


def _ends_within(pid: int, limit: float, tick: Tick) -> bool:
    began = monotonic()
    while not ends_within(pid, TICK_SECONDS):
        if monotonic() - began > limit:
            return False
        tick()
    return True


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kills a child and its group. Must come before it is reaped: afterwards its number may belong to another
    process."""
    with suppress(ProcessLookupError, PermissionError):  # PermissionError: of a zombie, on some systems
        os.killpg(child.pid, SIGKILL)


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def exiting() -> Unavailable:
    return Unavailable("the server is exiting")
