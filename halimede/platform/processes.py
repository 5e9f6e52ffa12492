"""Waiting for the end of a child process without reaping it, on systems with and without pidfd.

Any thread.
"""

import os
import select
import time

_STEP = 0.01


def ends_within(pid: int, seconds: float | None) -> bool:
    """Waits up to `seconds` (None: for ever) for the end of a child and returns whether it ended. The child stays a
    zombie, so that its number and that of its group cannot be reused yet. Blocks."""
    try:
        descriptor = _descriptor_of(pid)
        return _polled_ends(pid, seconds) if descriptor is None else _descriptor_ends(descriptor, seconds)
    except (ProcessLookupError, ChildProcessError):  # it was reaped elsewhere
        return True


def _descriptor_of(pid: int) -> int | None:
    """A pidfd; None if the system has no pidfds, or no descriptor left."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def _descriptor_ends(descriptor: int, seconds: float | None) -> bool:
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))
    finally:
        os.close(descriptor)


def _polled_ends(pid: int, seconds: float | None) -> bool:
    until = None if seconds is None else time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if until is not None and time.monotonic() >= until:
            return False
        time.sleep(_STEP)
    return True
