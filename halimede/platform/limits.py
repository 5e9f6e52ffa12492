"""What the system lets one process have."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

from halimede.platform.machine import PROC, memory

MOST_FILES = 1 << 16
CGROUPS = Path("/sys/fs/cgroup")


def usable_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Returns the bytes of memory that this process may use: those of the machine, or of its container if that has a
    limit. None if the system does not tell."""
    machine = memory(proc)
    found = [] if machine is None else [machine.total]
    # The second and the first version of control groups. A container sees its own group as the root.
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            # Without a limit the text is "max".
            found.append(int((cgroups / name).read_text()))
    return min(found, default=None)


def allow_many_files() -> None:
    """Raises the limit of open files, often 1024, as far as this process may. Each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_files() -> int:
    """The number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
