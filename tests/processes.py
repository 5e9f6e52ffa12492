"""How to start one as users do; what became of one, by its number; and what this one has open."""

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

TRITONSERVER = (
    sys.executable,
    "-c",
    "import sys; from halimede.cli.main import tritonserver; sys.exit(tritonserver())",
)
"""The command that pyproject.toml installs as `tritonserver`."""


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


def open_descriptors() -> int:
    """How many this process has, without those that earlier tests forgot, and without the files of the system, which
    other threads of theirs may have open for a moment."""
    gc.collect()
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it is closed by now
            count += not str(descriptor.readlink()).startswith(("/proc/", "/sys/", "/etc/"))
    return count
