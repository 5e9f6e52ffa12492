"""Child processes as systems differ in them: waiting for an end without taking the exit status away.

Any thread.
"""

import os
import select
import time

_STEP = 0.01


def ends_within(pid: int, seconds: float | None) -> bool:
    """Whether this child has ended, or does so in that time (None: however long it takes). It stays a zombie, so that
    its number, and that of its group, belong to nobody else yet. Blocks."""
    try:
        descriptor = _descriptor_of(pid)
        return _polled_ends(pid, seconds) if descriptor is None else _descriptor_ends(descriptor, seconds)
    except (ProcessLookupError, ChildProcessError):  # somebody else has reaped it
        return True


def _descriptor_of(pid: int) -> int | None:
    """None if the system has no such thing, or none left."""
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
