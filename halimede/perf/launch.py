"""A server for the time of a measurement, in a process of its own (X2, X32). Blocks; one thread."""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from halimede.errors import Invalid, Unavailable

START_SECONDS = 120.0
STOP_SECONDS = 30.0
_STEP = 0.05
_MOMENT = 0.5
_PR_SET_PDEATHSIG = 1
_LAST_LINES = 5
"""Lines of the log in the message of a failed start."""


class Launched:
    """A started server. `pid` is its process. `log` is a file for what it says; empty for none that is kept."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: str = "") -> None:
        """Raises Invalid if the program cannot be started."""
        self._sink = Path(log).open("w+b") if log else tempfile.TemporaryFile()  # noqa: SIM115 (`stop` closes it)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._sink,
                stderr=self._sink,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for this program
                # The kernel ends the server if this program is killed and cannot.
                preexec_fn=partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        except OSError as error:
            self._sink.close()
            raise Invalid(f"the server '{command[0]}' cannot be started: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def has_ended(self) -> bool:
        """Whether it has, or does so in a moment: a process that dies closes its connections first."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_MOMENT)
        return not self.is_running

    @property
    def ending(self) -> str:
        """How it has ended: `with status 1` or `by signal 9`."""
        status = self._process.returncode
        return f"by signal {-status}" if status < 0 else f"with status {status}"

    def wait_until(self, check: Callable[[], object]) -> None:
        """Until `check` no longer raises Unavailable. Raises that with the end of the server's log."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if not self.is_running:
                raise Unavailable(f"the server ended at its start {self.ending}: {self.last_words()}")
            try:
                check()
            except Unavailable:
                time.sleep(_STEP)
            else:
                return
        raise Unavailable(f"the server is not live after {START_SECONDS:g} seconds: {self.last_words()}")

    def last_words(self) -> str:
        self._sink.flush()
        self._sink.seek(0)
        lines = self._sink.read().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-_LAST_LINES:]) or "it said nothing"

    def stop(self) -> None:
        """Ends it, and what it started."""
        try:
            if self.is_running:
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):  # then it is killed
                    self._process.wait(STOP_SECONDS)
        finally:  # after Ctrl-C too
            with suppress(ProcessLookupError):  # nothing is left of its group
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._sink.close()

    def kill(self) -> None:
        """Ends it at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
