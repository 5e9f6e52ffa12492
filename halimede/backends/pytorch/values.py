"""Arrays of the server as tensors of torch, and back, without a copy where that is safe.

Any thread.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from halimede.tensors import BF16, DATATYPES, DataType

Array = npt.NDArray[Any]

DTYPES: Mapping[DataType, Any] = MappingProxyType(
    {
        DATATYPES[name]: dtype
        for name, dtype in {
            "BOOL": torch.bool,
            "UINT8": torch.uint8,
            "UINT16": torch.uint16,
            "UINT32": torch.uint32,
            "UINT64": torch.uint64,
            "INT8": torch.int8,
            "INT16": torch.int16,
            "INT32": torch.int32,
            "INT64": torch.int64,
            "FP16": torch.float16,
            "FP32": torch.float32,
            "FP64": torch.float64,
            "BF16": torch.bfloat16,
        }.items()
    }
)
"""All datatypes but BYTES, which is a list of strings."""
DATATYPES_OF: Mapping[Any, DataType] = MappingProxyType({dtype: datatype for datatype, dtype in DTYPES.items()})


def tensor_of(array: Array, datatype: DataType, writable: bool = False) -> Any:
    """The array as a tensor: a view of its memory, or with `writable` a copy of the model's own."""
    if writable:
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if datatype is BF16 else tensor


def array_of(tensor: Any, datatype: DataType, own: bool) -> Array:
    """The tensor on the host as an array: a view of its memory, or with `own` a copy that the model cannot change."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    elif own:
        tensor = tensor.clone()
    tensor = tensor.contiguous()
    if datatype is BF16:
        return tensor.view(torch.uint16).numpy()  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]


def texts_of(array: Array) -> list[bytes]:
    """BYTES as the flat list that TorchScript takes as List[str]. It keeps bytes that are not UTF-8."""
    return array.reshape(-1).tolist()


def array_of_texts(texts: Sequence[str]) -> Array:
    """A List[str] as BYTES with one dimension."""
    array = np.empty(len(texts), object)
    array[:] = texts
    return array
