"""A child process that runs the worker program, with a stream socket to it.

Spawning, telling whether it lives, ending and reaping; knows no frames. Load threads spawn and wait, the event loop
kills.
"""

import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

_MAIN = Path(__file__).parent / "child" / "main.py"
_BUFFER = 1 << 20


class Process:
    """Spawns at once. Raises OSError where the system has no process or descriptor left.

    The child ends when `socket`, our end, is closed: by us, or by the system when this process dies in whatever way.
    Standard output and error are ours; its input is empty. Interrupts of the process group are the child's to ignore.
    """

    def __init__(self, interpreter: str = sys.executable) -> None:
        self.socket, theirs = socket.socketpair()
        try:
            for end in (self.socket, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            self._child = subprocess.Popen(
                [interpreter, str(_MAIN), str(theirs.fileno())], stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait(self, limit: float) -> bool:
        """Whether it ended (and was reaped) within `limit` seconds. Blocks."""
        try:
            self._child.wait(limit)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Ends it for sure and leaves no zombie; does not block."""
        with suppress(ProcessLookupError):
            self._child.kill()
        if self._child.poll() is None:
            threading.Thread(target=self._child.wait, name=f"reap {self.pid}", daemon=True).start()
