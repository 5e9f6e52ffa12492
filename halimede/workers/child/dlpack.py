"""DLPack by numpy, and two types that not every numpy knows: BF16, and bool before 1.25 (P42).

numpy (1.23 or newer) makes and takes the capsules and manages the ownership of the memory. A type that it does not know
goes through numpy as unsigned integers of the same size; only the type in the capsule is changed.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

NAME = b"dltensor"
"""The name of a capsule that nobody has taken."""
_SIGNED, _UNSIGNED, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_SIZES = {
    _SIGNED: (8, 16, 32, 64),
    _UNSIGNED: (8, 16, 32, 64),
    _FLOAT: (16, 32, 64),
    _BFLOAT: (16,),
    _BOOL: (8,),
}
"""The sizes of elements in bits, by type code."""
_REACHABLE = (1, 3)
"""Device types whose memory the processor can read: its own, and memory pinned by CUDA."""

CPU = (1, 0)
CUDA = 2
"""The device type of memory on an NVIDIA GPU."""


class DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h, which is also the beginning of `DLManagedTensor`. Strides are in elements."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Capsule:
    """A capsule as an object that numpy takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


class NotTaken(Exception):
    """The tensor cannot be used here; the text says why."""


def capsule_of(array: np.ndarray[Any, Any]) -> Any:
    """A capsule of the array's memory. A read-only array is copied: DLPack has no word for read-only."""
    array = _writable(array)
    if array.dtype == np.bool_:
        return _named(array.view(np.uint8), _BOOL)
    return array.__dlpack__()


def bf16_capsule_of(view: Any, shape: tuple[int, ...]) -> Any:
    """A capsule of the BF16 elements in `view`."""
    return _named(_writable(np.ndarray(shape, np.uint16, view)), _BFLOAT)


def _writable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array if array.flags.writeable else array.copy()


def _named(array: np.ndarray[Any, Any], code: int) -> Any:
    capsule = array.__dlpack__()
    DLTensor.from_address(pointer_of(capsule, NAME)).code = code
    return capsule


def device_type(capsule: Any) -> int:
    """The kind of device that the capsule's memory is on. Raises NotTaken."""
    if not is_valid(capsule, NAME):
        raise NotTaken("The DLPack capsule is none, or was used before.")
    return int(DLTensor.from_address(pointer_of(capsule, NAME)).device_type)


def taken(capsule: Any) -> tuple[np.ndarray[Any, Any], bool]:
    """The memory of a capsule as an array without a copy, perhaps read-only; and whether its elements, then unsigned
    integers, are BF16. Raises NotTaken."""
    if device_type(capsule) not in _REACHABLE:
        raise NotTaken(f"DLDevice type {device_type(capsule)} is not support by Python backend.")
    head = DLTensor.from_address(pointer_of(capsule, NAME))
    code = head.code
    if head.bits not in _SIZES.get(code, ()) or head.lanes != 1:
        raise NotTaken("Dtype is invalid.")
    if code in (_BFLOAT, _BOOL):
        head.code = _UNSIGNED
    array = np.from_dlpack(_Capsule(capsule))
    return (array.view(np.bool_) if code == _BOOL else array), code == _BFLOAT
