"""What became of a process, by its number."""

import os
from pathlib import Path


def is_gone(pid: int) -> bool:
    """Whether nothing is left of it, no zombie either."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def ended(pid: int) -> bool:
    """Whether it runs no more. Of one whose parent has gone too a zombie may be left, for the system to bury."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
