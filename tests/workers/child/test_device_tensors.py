"""Tensors on a GPU, whose memory is the host's and whose driver is a small one in C."""

import ctypes
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.tensors import DATATYPES
from halimede.workers.child.device_tensors import copy_to_host
from halimede.workers.child.values import BF16, Tensor, TritonModelException
from tests.workers.child.gpu_memory import driver_in, elements_of, on_gpu

BOOL_CODE, BFLOAT_CODE = 6, 4


def tensor_of(array: np.ndarray[Any, Any], device: int = 0, code: int | None = None) -> Tensor:
    return Tensor.from_dlpack("x", on_gpu(array, device, code))


def test_tensor_stays_on_the_gpu() -> None:
    tensor = tensor_of(np.zeros((2, 3), np.float32), device=1)
    assert (tensor.name(), tensor.shape(), tensor.is_cpu()) == ("x", [2, 3], False)
    assert tensor.__dlpack_device__() == (2, 1)
    with pytest.raises(TritonModelException, match=r"^Tensor is stored in GPU and cannot be converted to NumPy\.$"):
        tensor.as_numpy()


@pytest.mark.parametrize("name", ["UINT8", "INT16", "INT64", "FP16", "FP32", "FP64"])
def test_datatype(name: str) -> None:
    assert tensor_of(np.zeros(1, DATATYPES[name].numpy)).triton_dtype() == DATATYPES[name].number


def test_datatypes_that_numpy_lacks() -> None:
    assert tensor_of(np.zeros(1, np.uint8), code=BOOL_CODE).triton_dtype() == DATATYPES["BOOL"].number
    assert tensor_of(np.zeros(1, np.uint16), code=BFLOAT_CODE).triton_dtype() == BF16


@pytest.mark.parametrize(("kind", "code"), [("u1", BFLOAT_CODE), ("u2", BOOL_CODE), ("u1", 2), ("u1", 5)])
def test_datatype_that_triton_lacks(kind: str, code: int) -> None:
    with pytest.raises(TritonModelException, match=r"^Dtype is invalid\.$"):
        tensor_of(np.zeros(1, kind), code=code)


def test_memory_goes_back_to_the_model() -> None:
    array = np.arange(4, dtype=np.uint8)
    assert elements_of(tensor_of(array).to_dlpack()) == [0, 1, 2, 3]


@pytest.mark.parametrize("array", [np.zeros((2, 3)).T, np.zeros((4, 4))[:, :2], np.zeros(8)[::2]])
def test_memory_with_gaps_is_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(TritonModelException, match="DLPack tensor is not contiguous"):
        tensor_of(array)


@pytest.mark.parametrize("array", [np.zeros((0, 3)).T, np.zeros((1, 4)).T, np.zeros((3, 1, 2)), np.zeros(())])
def test_memory_without_gaps(array: np.ndarray[Any, Any]) -> None:
    assert tensor_of(array).shape() == list(array.shape)


def test_capsule_is_used_once() -> None:
    capsule = on_gpu(np.zeros(1))
    first = Tensor.from_dlpack("x", capsule)
    with pytest.raises(TritonModelException, match="was used before"):
        Tensor.from_dlpack("x", capsule)
    assert first.shape() == [1]


class Watched(np.ndarray[Any, Any]):
    """An array that can be watched going."""


def watched(size: int = 8) -> tuple[Any, Any]:
    """An array, and a reference that is empty once its memory is free."""
    array = np.zeros(size, np.uint8).view(Watched)
    return array, weakref.ref(array)


def test_memory_is_free_when_the_last_user_lets_go() -> None:
    array, there = watched()
    tensor = tensor_of(array)
    capsule = tensor.to_dlpack()
    del array, tensor
    gc.collect()
    assert there() is not None
    del capsule  # nobody has taken it
    gc.collect()
    assert there() is None


def test_memory_stays_while_a_second_tensor_has_it() -> None:
    array, there = watched()
    second = Tensor.from_dlpack("y", tensor_of(array))
    del array
    gc.collect()
    assert there() is not None
    assert elements_of(second.to_dlpack()) == [0] * 8
    del second
    gc.collect()
    assert there() is None


def test_copy_by_the_driver(tmp_path: Path) -> None:
    driver = ctypes.CDLL(str(driver_in(tmp_path)))
    array, into = np.arange(5, dtype=np.uint8), np.zeros(3, np.uint8)
    copy_to_host(driver, 0, array.ctypes.data + 2, into)
    assert into.tolist() == [2, 3, 4]
    with pytest.raises(TritonModelException, match="cuDeviceGet returned 101"):
        copy_to_host(driver, 2, array.ctypes.data, into)


def test_an_empty_tensor_needs_no_driver() -> None:
    assert len(tensor_of(np.zeros((0, 3))).payload()) == 0
