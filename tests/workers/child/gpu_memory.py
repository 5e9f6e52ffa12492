"""Host memory that a capsule presents as memory of a GPU, and a driver whose copies read it."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from halimede.workers.child.dlpack import CUDA, NAME, DLTensor, pointer_of

DRIVER = r"""
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return number > 1 ? 101 : 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)8; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxPushCurrent_v2(void *context) { return context != (void *)8; }
int cuCtxPopCurrent_v2(void **context) { return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuMemcpyDtoH_v2(void *into, unsigned long long from, size_t size) { memcpy(into, (void *)from, size); return 0; }
"""


def driver_in(folder: Path) -> Path:
    """Builds the driver as `libcuda.so.1`, for LD_LIBRARY_PATH=folder."""
    compiler = shutil.which("cc")
    assert compiler is not None, "a C compiler is needed"
    (folder / "cuda.c").write_text(DRIVER)
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "cuda.c"], check=True, timeout=60)
    return library


def on_gpu(array: np.ndarray[Any, Any], device: int = 0, code: int | None = None) -> Any:
    """A capsule of the array's memory that says that it is on a GPU; `code` replaces the type code."""
    capsule = array.__dlpack__()
    head = DLTensor.from_address(pointer_of(capsule, NAME))
    head.device_type, head.device_id = CUDA, device
    if code is not None:
        head.code = code
    return capsule


def elements_of(capsule: Any) -> list[int]:
    """The bytes of a capsule of one dimension and one-byte elements."""
    head = DLTensor.from_address(pointer_of(capsule, NAME))
    return list((ctypes.c_uint8 * head.shape[0]).from_address(head.data))
