"""The declaration of an input or output of a function. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.errors import Invalid
from halimede.tensors import BF16, BYTES, DATATYPES, DataType


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a function.

    name -- for clients; for an input also the name of the function's parameter
    dtype -- a dtype of numpy (`np.float32`, "int64"), a name of the protocol ("FP32", "BF16"), or `bytes` or `str` for
        texts, whose arrays have the dtype object and elements of type `bytes`
    shape -- without the batch dimension; -1 stands for any size
    optional -- an input that clients may leave out; the function is then called without it

    Raises Invalid.
    """

    name: str
    dtype: npt.DTypeLike | str
    shape: Sequence[int]
    optional: bool = False

    def __post_init__(self) -> None:
        datatype_of(self.dtype)
        if isinstance(self.shape, int) or any(int(size) != size for size in self.shape):
            raise Invalid(f"the shape of '{self.name}' must be a list of whole numbers, got {self.shape!r}")

    def config(self) -> dict[str, Any]:
        """As an element of `input` or `output` in a model configuration, as JSON values."""
        field: dict[str, Any] = {
            "name": self.name,
            "data_type": datatype_of(self.dtype).config_name,
            "dims": [int(size) for size in self.shape],
        }
        return {**field, "optional": True} if self.optional else field


def datatype_of(dtype: npt.DTypeLike | str) -> DataType:
    """The datatype of the protocol. Raises Invalid if there is none."""
    if isinstance(dtype, str):
        name = dtype.upper().removeprefix("TYPE_")
        found = BYTES if name in ("STRING", "STR") else DATATYPES.get(name)
        if found is not None:
            return found
    try:
        given = np.dtype(dtype)
    except TypeError:
        raise Invalid(f"{dtype!r} is not a dtype") from None
    if given.kind in "SUO":
        return BYTES
    for datatype in DATATYPES.values():
        if datatype is not BF16 and datatype.numpy == given:
            return datatype
    raise Invalid(f"the protocol has no datatype for dtype {given}; it has {', '.join(DATATYPES)}")
