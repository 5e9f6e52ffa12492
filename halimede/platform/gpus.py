"""Which GPUs this process may use, by the numbers that CUDA gives them. Reads what the driver shows; imports nothing.

Blocks on a small directory; any thread.
"""

from collections.abc import Mapping
from pathlib import Path

DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
"""The NVIDIA driver's folder with an entry for each GPU."""


def visible_gpus(environment: Mapping[str, str], driver_folder: Path = DRIVER_FOLDER) -> tuple[int, ...]:
    """The ids 0, 1, ... of the GPUs, after CUDA_VISIBLE_DEVICES has chosen and renumbered them; empty without any."""
    try:
        present = len(list(driver_folder.iterdir()))
    except OSError:
        return ()
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    return tuple(range(present if chosen is None else min(present, _chosen(chosen, present))))


def _chosen(text: str, present: int) -> int:
    """How many devices the variable names, up to the first that does not exist (as CUDA reads it)."""
    count = 0
    for word in (part.strip() for part in text.split(",")):
        if not (word.startswith(("GPU-", "MIG-")) or (word.isdecimal() and int(word) < present)):
            break
        count += 1
    return count
