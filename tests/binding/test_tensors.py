"""Declarations of inputs and outputs."""

from typing import Any

import numpy as np
import pytest

from halimede.binding.tensors import Tensor, datatype_of
from halimede.errors import Invalid


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float32, "FP32"),
        ("float32", "FP32"),
        ("FP32", "FP32"),
        ("TYPE_FP32", "FP32"),
        (np.dtype(np.int64), "INT64"),
        (float, "FP64"),
        (bool, "BOOL"),
        (np.uint16, "UINT16"),
        ("bf16", "BF16"),
        (bytes, "BYTES"),
        (str, "BYTES"),
        ("str", "BYTES"),
        ("TYPE_STRING", "BYTES"),
        (np.bytes_, "BYTES"),
        (np.object_, "BYTES"),
        (object, "BYTES"),
    ],
)
def test_dtypes_of_numpy_and_of_the_protocol(dtype: Any, name: str) -> None:
    assert datatype_of(dtype).name == name


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (complex, "the protocol has no datatype for dtype complex128; it has BOOL"),
        ("float99", "'float99' is not a dtype"),
    ],
)
def test_dtypes_that_are_none(dtype: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        Tensor("x", dtype, [1])


@pytest.mark.parametrize("shape", [3, [1.5]])
def test_shapes_that_are_none(shape: Any) -> None:
    with pytest.raises(Invalid, match="the shape of 'x' must be a list of whole numbers"):
        Tensor("x", np.float32, shape)


def test_fields_of_the_configuration() -> None:
    assert Tensor("x", np.float32, (-1, np.int64(3))).config() == {  # type: ignore[arg-type]
        "name": "x",
        "data_type": "TYPE_FP32",
        "dims": [-1, 3],
    }
    assert Tensor("x", bytes, [1], optional=True).config()["optional"] is True
