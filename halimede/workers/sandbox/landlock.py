"""Access to files by Landlock, which needs no rights: what no rule allows is refused, also to what the process starts.

A rule may only allow. It holds for a folder and all below it, whatever is mounted there. Two processes with rules of
their own cannot trace each other, and with `scoped` not signal each other. The numbers are those of <linux/landlock.h>.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from halimede.workers.sandbox.system import call

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST = (1 << 13) - 1
_ADDED = ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV))
"""The version of Landlock that knows a right."""
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""The rights that a rule for a single file may have."""
READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV
_SCOPES = 1 << 0 | 1 << 1
"""Abstract Unix sockets and signals."""
SCOPED_SINCE = 6
_VERSION = 1
_PATH_BENEATH = 1


def version() -> int:
    """The version that the kernel has; 0 if it has none, or if none is enabled."""
    try:
        return call("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


class Rules:
    """Rules that are collected, then laid upon this process. Raises OSError."""

    def __init__(self, version: int) -> None:
        self._handled = _FIRST
        for since, right in _ADDED:
            if version >= since:
                self._handled |= right
        self.write = self._handled & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV)
        attributes = struct.pack("QQQ", self._handled, 0, _SCOPES if version >= SCOPED_SINCE else 0)
        size = 24 if version >= SCOPED_SINCE else 8
        self._descriptor = call("landlock_create_ruleset", ctypes.c_char_p(attributes), size, 0)

    def allow(self, paths: Iterable[str], rights: int) -> None:
        """Paths that do not exist are left out."""
        for path in paths:
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                allowed = rights & self._handled
                if not stat.S_ISDIR(os.fstat(opened).st_mode):
                    allowed &= _OF_FILES
                rule = ctypes.c_char_p(struct.pack("=Qi", allowed, opened))
                call("landlock_add_rule", self._descriptor, _PATH_BENEATH, rule, 0)
            finally:
                os.close(opened)

    def enforce(self) -> None:
        """No way back. The process must have no new privileges."""
        call("landlock_restrict_self", self._descriptor, 0)
        os.close(self._descriptor)
