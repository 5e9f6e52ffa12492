"""A child process that runs a program of this server, with a stream socket to it.

This module spawns, waits, kills and reaps, and tells how a process ended. It knows no frames. Load threads spawn and
wait, the event loop kills.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from halimede.platform.hosts import ANYWHERE, HostPolicy
from halimede.platform.processes import ends_within

if TYPE_CHECKING:
    from halimede.workers.host.sandbox import Confinement


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter and how it is started."""

    path: str = sys.executable
    variables: Mapping[str, str] | None = None
    """Environment variables; None for the server's own."""
    libraries: str = ""
    """A folder that the loader searches first for shared libraries. Programs that the child starts do not inherit
    it."""
    host: HostPolicy = ANYWHERE
    """The cores and the NUMA node that the process is started on."""
    threads: int = 0
    """OMP_NUM_THREADS, unless `variables` have it; 0 leaves it to the libraries."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Variables that replace those of the same name."""
    label: str = ""
    """What the process is for, an argument that the program ignores: `ps` shows it."""
    confinement: "Confinement | None" = None
    """The sandbox that the process runs in; None: it may do what the server may."""

    @property
    def start_variables(self) -> Mapping[str, str] | None:
        """The variables at the start of the process. The loader reads LD_LIBRARY_PATH only then."""
        added = dict(self.overrides)
        if self.libraries:
            added[_LIBRARIES] = ":".join(filter(None, (self.libraries, self._other_libraries)))
        variables = os.environ if self.variables is None else self.variables
        if self.threads and _THREADS not in variables:
            added[_THREADS] = str(self.threads)
        return {**variables, **added} if added else self.variables

    def command(self, program: str, argument: str) -> list[str]:
        """The command line. With `libraries`, the last argument is the LD_LIBRARY_PATH that the program restores."""
        libraries = [self._other_libraries] if self.libraries else []
        return [self.path, program, argument, self.label, *libraries]

    @property
    def _other_libraries(self) -> str:
        return (self.variables or os.environ).get(_LIBRARIES, "")


OWN = Interpreter()
"""The interpreter that runs the server, with the server's variables."""
_LIBRARIES = "LD_LIBRARY_PATH"
_THREADS = "OMP_NUM_THREADS"
"""OpenMP reads it, and so do PyTorch, MKL and OpenBLAS (numpy)."""
PYTHON_MODELS = Path(__file__).parent.parent / "child" / "main.py"
"""The program that runs a Python model."""
_SEND_BUFFER_BYTES = 1 << 20


class Process:
    """Starts the process at once. Raises OSError if the system has no process or descriptor left.

    The child exits when our end of `socket` is closed: by us, or by the system when the server dies in whatever way. It
    inherits standard output and error; its input is empty. It leads a process group of its own: what a model starts
    ends with it, and a model that sends a signal to its group meets only itself.
    """

    segments: socket.socket | None = None
    """Where descriptors of shared memory travel; None on a system without memfd."""

    def __init__(self, interpreter: Interpreter = OWN, program: Path = PYTHON_MODELS) -> None:
        self._reaping = threading.Lock()
        with ExitStack() as ours, ExitStack() as theirs:
            self.socket, end = socket.socketpair()
            ours.enter_context(self.socket)
            theirs.enter_context(end)
            inherited = [end.fileno()]
            for each in (self.socket, end):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            if hasattr(os, "memfd_create"):
                # Messages, not a stream: a descriptor must not come with the bytes of another announcement.
                self.segments, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.enter_context(self.segments)
                theirs.enter_context(end)
                inherited.append(end.fileno())
            command = interpreter.command(str(program), ",".join(map(str, inherited)))
            variables = interpreter.start_variables
            outputs: Sequence[IO[bytes] | None] = (None, None)
            self._cell = None if interpreter.confinement is None else ours.enter_context(interpreter.confinement.cell())
            if self._cell is not None:
                command, variables = self._cell.command(command), self._cell.variables(variables)
                outputs = [theirs.enter_context(each) for each in self._cell.outputs()]
            with interpreter.host.applied():
                self._child = subprocess.Popen(
                    command,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=outputs[0],
                    stderr=outputs[1],
                    pass_fds=inherited,
                    process_group=0,
                )
            ours.pop_all()

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait(self, limit: float | None) -> bool:
        """Waits up to `limit` seconds (None: for ever) for the end of the process, then kills its group and reaps it.
        Returns whether it ended. Blocks."""
        if not ends_within(self.pid, limit):
            return False
        with self._reaping:
            self._kill_group()
            self._child.wait()
        if self._cell is not None:
            self._cell.close()
        return True

    def kill(self) -> None:
        """Kills the process and its group and leaves no zombie. Does not block."""
        with self._reaping:
            self._kill_group()
            over = self._child.poll() is not None
        if not over or (self._cell is not None and self._cell.is_open):
            threading.Thread(target=self.wait, args=(None,), name=f"reap {self.pid}", daemon=True).start()

    def _kill_group(self) -> None:
        """Must come before the process is reaped: afterwards its number may belong to another process."""
        if self._child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # PermissionError: of a zombie, on some systems
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self, grace: float) -> str:
        """Waits for the end of a process that has closed its socket and returns, in words, how it ended. After `grace`
        seconds it is killed. Blocks."""
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
