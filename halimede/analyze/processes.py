"""What the server's processes use, if they run on this machine: memory and time of cores. Reads /proc; any thread."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
_LISTENING = "0A"
_TICKS = os.sysconf("SC_CLK_TCK")
MEGABYTE = 1_000_000


def listener(port: int) -> int | None:
    """The process that listens on a port; None if it is not ours to see."""
    inodes = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not inodes:
        return None
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                for each in (folder / "fd").iterdir():
                    with suppress(OSError):
                        if str(each.readlink()) in inodes:
                            return int(folder.name)
    return None


def _inodes(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    yield words[9]


def tree(root: int) -> list[int]:
    """A process and all processes that it started."""
    children: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                children.setdefault(int(_stat(int(folder.name))[1]), []).append(int(folder.name))
    found, left = [], [root]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], ())
    return found


def _stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat from the third, which is the state."""
    return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()


def memory(root: int) -> float | None:
    """Megabytes of a process and those that it started; pages that several of them share count once. None if it is
    gone."""
    total, is_there = 0, False
    for process in tree(root):
        with suppress(OSError):
            text = (PROC / str(process) / "smaps_rollup").read_text()
            total += next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
            is_there = True
    return total / MEGABYTE if is_there else None


def seconds_used(root: int) -> float:
    """Seconds of cores that a process and those that it started have used."""
    ticks = 0
    for process in tree(root):
        with suppress(OSError, IndexError, ValueError):
            ticks += sum(map(int, _stat(process)[11:15]))  # its own, and those of children that have ended
    return ticks / _TICKS
