"""Tensors of Python models that are in the memory of an NVIDIA GPU (P41, P42).

A model that computes on a GPU makes such a tensor with `Tensor.from_dlpack`. The memory stays on the GPU, and the model
can take it back with `to_dlpack`. If the tensor is sent, as an output or in a call, the driver's library copies it to
the host.

DLPack's structures are those of dlpack.h. Any thread; a copy blocks until the GPU has computed the tensor.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .dlpack import CUDA, NAME, DLTensor, NotTaken, is_valid, pointer_of
from .values import BF16, NUMBERS, Tensor, TritonModelException

_USED = b"used_dltensor"
_BFLOAT, _BOOL = 4, 6
_KINDS = {0: "i", 1: "u", 2: "f", _BOOL: "b"}
"""numpy's kind by DLPack's type code."""
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""Takes the interpreter lock: a consumer may call it from any thread."""


class _Managed(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
_is_unused = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_keep = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
_let_go = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", ctypes.pythonapi))


def _release(address: int) -> None:
    """The consumer of a capsule has let go of the memory."""
    _let_go(_Managed.from_address(address).context)


def _drop(capsule: int) -> None:
    """Nobody refers to the capsule any more; perhaps nobody has taken its memory."""
    if _is_unused(capsule, NAME):
        _release(_pointer_in(capsule, NAME))


_delete, _destroy = _Deleter(_release), _Destructor(_drop)


class _Source:
    """The memory of a capsule that this object has taken. It belongs to its maker again when the object goes."""

    def __init__(self, capsule: Any) -> None:
        self._address: int = pointer_of(capsule, NAME)
        self.managed = _Managed.from_address(self._address)
        _rename(capsule, _USED)

    def __del__(self) -> None:
        if self.managed.deleter:
            _Deleter(self.managed.deleter)(self._address)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.managed.tensor.shape[: self.managed.tensor.ndim])

    def is_contiguous(self) -> bool:
        tensor = self.managed.tensor
        if not tensor.strides:
            return True
        expected, shape = 1, self.shape
        for size, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim]), strict=True):
            if size > 1 and stride != expected:
                return 0 in shape
            expected *= size
        return True

    def number(self) -> int:
        """The number of Triton's datatype. Raises NotTaken."""
        tensor = self.managed.tensor
        if (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1):
            return BF16
        kind = _KINDS.get(tensor.code)
        try:
            number = NUMBERS.get(np.dtype(f"{kind}{tensor.bits // 8}"))
        except TypeError:
            number = None
        if kind is None or number is None or tensor.lanes != 1:
            raise NotTaken("Dtype is invalid.")
        return number

    def host_copy(self) -> np.ndarray[Any, Any]:
        """The bytes, on the host. Raises TritonModelException."""
        tensor = self.managed.tensor
        size = int(np.prod(self.shape, dtype=np.int64)) * (tensor.bits // 8)
        copy = np.empty(size, np.uint8)
        if size:
            pointer = (tensor.data or 0) + tensor.byte_offset
            copy_to_host(ctypes.CDLL("libcuda.so.1"), tensor.device_id, pointer, copy)
        return copy


def copy_to_host(driver: Any, device: int, pointer: int, into: np.ndarray[Any, Any]) -> None:
    """Copies from a GPU after all work that is queued there. A capsule does not name the stream that computes it."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _ask(driver, "cuInit", ctypes.c_uint(0))
    _ask(driver, "cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
    _ask(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    try:
        _ask(driver, "cuCtxPushCurrent_v2", context)
        try:
            _ask(driver, "cuCtxSynchronize")
            size = ctypes.c_size_t(into.nbytes)
            _ask(driver, "cuMemcpyDtoH_v2", ctypes.c_void_p(into.ctypes.data), ctypes.c_uint64(pointer), size)
        finally:
            _ask(driver, "cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    finally:
        _ask(driver, "cuDevicePrimaryCtxRelease_v2", handle)


def _ask(driver: Any, name: str, *arguments: Any) -> None:
    status = getattr(driver, name)(*arguments)
    if status:
        raise TritonModelException(f"Failed to copy a tensor from the GPU: {name} returned {status}.")


class DeviceTensor(Tensor):
    """A tensor on a GPU."""

    __slots__ = ("_source",)

    _source: _Source

    @classmethod
    def taken(cls, name: str, capsule: Any) -> DeviceTensor:
        """Takes the memory of a capsule. Raises NotTaken."""
        if not is_valid(capsule, NAME):
            raise NotTaken("The DLPack capsule is none, or was used before.")
        source = _Source(capsule)
        number = source.number()
        if not source.is_contiguous():
            raise NotTaken(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                "supported."
            )
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._number = number
        tensor._array = tensor._view = None
        tensor._shape = source.shape
        tensor._source = source
        return tensor

    def is_cpu(self) -> bool:
        return False

    def as_numpy(self) -> np.ndarray[Any, Any]:
        raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")

    def payload(self) -> Any:
        return self._source.host_copy()

    def __dlpack__(self, stream: Any = None) -> Any:
        """A capsule of the same memory, which stays until the consumer has let go of it."""
        managed = _Managed(self._source.managed.tensor, None, ctypes.cast(_delete, ctypes.c_void_p))
        # The consumer gets the address of `managed`, so this reference keeps it and the memory until `_delete`.
        kept = (managed, self._source)
        managed.context = id(kept)
        _keep(kept)
        return _new(ctypes.addressof(managed), NAME, _destroy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._source.managed.tensor.device_id
