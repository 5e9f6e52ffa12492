"""A child process that runs the worker program, with a stream socket to it.

Spawning, telling whether it lives and how it ended, ending and reaping; knows no frames. Load threads spawn and wait,
the event loop kills.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from halimede.platform.hosts import ANYWHERE, HostPolicy
from halimede.platform.processes import ends_within
from halimede.platform.threads import Thread


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, and the environment variables that it runs with: None for the server's own. `libraries` is a folder
    where the system looks for its libraries first, and not for those of programs that it starts. `host` is where it
    runs, `threads` how many threads its libraries for numbers use where the variables do not say it (0: any)."""

    path: str = sys.executable
    variables: Mapping[str, str] | None = None
    libraries: str = ""
    host: HostPolicy = ANYWHERE
    threads: int = 0

    @property
    def start_variables(self) -> Mapping[str, str] | None:
        """With the libraries: the system reads where they are at the start of a process only."""
        added = {}
        if self.libraries:
            added[_LIBRARIES] = ":".join(filter(None, (self.libraries, self._others)))
        variables = os.environ if self.variables is None else self.variables
        if self.threads and _THREADS not in variables:
            added[_THREADS] = str(self.threads)
        return {**variables, **added} if added else self.variables

    def command(self, program: str, argument: str) -> list[str]:
        """The worker program is told what to put back into the variable that begins with the libraries."""
        return [self.path, program, argument, *([self._others] if self.libraries else ())]

    @property
    def _others(self) -> str:
        return (self.variables or os.environ).get(_LIBRARIES, "")


OWN = Interpreter()
_LIBRARIES = "LD_LIBRARY_PATH"
_THREADS = "OMP_NUM_THREADS"
"""Heeded by OpenMP, and so by PyTorch and MKL, and by OpenBLAS, and so by numpy."""
_MAIN = Path(__file__).parent / "child" / "main.py"
_BUFFER = 1 << 20


class Process:
    """Spawns at once. Raises OSError where the system has no process or descriptor left.

    The child ends when `socket`, our end, is closed: by us, or by the system when this process dies in whatever way.
    Standard output and error are ours; its input is empty. It leads a process group of its own, so that what a model
    has started ends with it, and a model that signals its group meets itself only.
    """

    def __init__(self, interpreter: Interpreter = OWN) -> None:
        self.socket, theirs = socket.socketpair()
        self._reaping = threading.Lock()
        try:
            for end in (self.socket, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            with interpreter.host.applied():
                self._child = subprocess.Popen(
                    interpreter.command(str(_MAIN), str(theirs.fileno())),
                    env=interpreter.start_variables,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait(self, limit: float | None) -> bool:
        """Whether it ended within `limit` seconds (None: any time). Then it and its group are no more. Blocks."""
        if not ends_within(self.pid, limit):
            return False
        with self._reaping:
            self._kill_group()
            self._child.wait()
        return True

    def kill(self) -> None:
        """Ends it and its group for sure and leaves no zombie; does not block."""
        with self._reaping:
            self._kill_group()
            over = self._child.poll() is not None
        if not over:
            Thread(target=self.wait, args=(None,), name=f"reap {self.pid}", daemon=True).start()

    def _kill_group(self) -> None:
        """Before it is reaped: after that its number may be another's."""
        if self._child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # the latter for a zombie, on some systems
                os.killpg(self.pid, signal.SIGKILL)

    def bury(self, grace: float) -> str:
        """How it ended, in words. One that has hung up on us but goes on for `grace` seconds is killed. Blocks."""
        if self.wait(grace):
            return exit_words(self._child.returncode)
        self.kill()
        self.wait(None)
        return "it closed its connection and was killed"


def exit_words(status: int) -> str:
    """An exit status as `subprocess` gives it, in words: `exit status 3`, `killed by signal 11 (SIGSEGV)`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:  # a real-time signal
        return f"killed by signal {-status}"
