"""System calls that Python has no function for. Linux on x86_64 and aarch64."""

import ctypes
import os
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)

NUMBERS = {
    "x86_64": {"capset": 126, "prctl": 157, "mount": 165, "unshare": 272, "seccomp": 317},
    "aarch64": {"capset": 91, "prctl": 167, "mount": 40, "unshare": 97, "seccomp": 277},
}
"""Calls with a number of its own on each machine."""
EVERYWHERE = {"mount_setattr": 442, "landlock_create_ruleset": 444, "landlock_add_rule": 445}
EVERYWHERE["landlock_restrict_self"] = 446
"""Newer calls have one number on all machines."""

PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 8, 38, 47
PR_CAP_AMBIENT_RAISE = 2


def machine() -> str:
    return os.uname().machine


def call(name: str, *arguments: Any) -> int:
    """Makes a system call. Integers, byte strings and ctypes references are passed as they are. Raises OSError."""
    number = EVERYWHERE.get(name) or NUMBERS[machine()][name]
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result
