"""Which GPUs this process may use, by the numbers that CUDA gives them. Reads what the driver shows; imports nothing.

Blocks on a small directory; any thread.
"""

import ctypes
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


_CAPABILITY = (75, 76)
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


def compute_capability(device: int, library: str = "libcuda.so.1") -> str | None:
    """The compute capability of a GPU, such as `9.0`; None if the driver does not tell."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None
    handle, value, parts = ctypes.c_int(), ctypes.c_int(), []
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(handle), ctypes.c_int(device)):
        return None
    for attribute in _CAPABILITY:
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(attribute), handle):
            return None
        parts.append(str(value.value))
    return ".".join(parts)
