"""How busy the processors of this machine are, and how much memory is in use, as Linux tells in /proc (M18, M19).

Blocks on small files that the kernel makes; any thread.
"""

from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_IDLE = (3, 4)
"""Indices of the idle times in /proc/stat: idle, and idle while waiting for a disk."""
_WITHIN_OTHERS = 8
"""Times of /proc/stat that are counted. Those of guests, which follow, are contained in those of users."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    total: int
    used: int


class Processors:
    """The share of their time that all processors together worked since the last look; None if /proc does not tell."""

    def __init__(self, proc: Path = PROC) -> None:
        self._stat = proc / "stat"
        self._idle, self._total = _times(self._stat) or (0, 0)

    def look(self) -> float | None:
        times = _times(self._stat)
        if times is None:
            return None
        idle, total = times[0] - self._idle, times[1] - self._total
        self._idle, self._total = times
        return min(1.0, max(0.0, 1 - idle / total)) if total > 0 else 0.0


def _times(stat: Path) -> tuple[int, int] | None:
    """Without work, and all."""
    try:
        with stat.open() as file:
            word, *times = file.readline().split()
        if word != "cpu":
            return None
        numbers = [int(time) for time in times[:_WITHIN_OTHERS]]
    except (OSError, ValueError):
        return None
    return sum(numbers[i] for i in _IDLE if i < len(numbers)), sum(numbers)


def memory(proc: Path = PROC) -> Memory | None:
    """None if /proc does not tell."""
    found: dict[str, int] = {}
    try:
        with (proc / "meminfo").open() as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    found[name] = int(rest.split()[0]) * 1024
        return Memory(found["MemTotal"], found["MemTotal"] - found["MemAvailable"])
    except (OSError, ValueError, LookupError):
        return None
