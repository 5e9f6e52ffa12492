from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.errors import Internal
from halimede.scheduling.assembly import gather, scatter
from halimede.scheduling.inference import Inference
from halimede.tensors import (
    BF16,
    BOOL,
    BYTES,
    FP32,
    INT64,
    SMALL_BYTES,
    DataType,
    HostMemory,
    Tensor,
    array_of,
    tensor_of,
)
from tests.fakes import inference

Array = npt.NDArray[Any]


def asking(*tensors: Tensor, batch_size: int, outputs: tuple[str, ...] = ("x",)) -> Inference:
    return inference(inputs=tensors, batch_size=batch_size, outputs=outputs)


def floats(rows: int, start: float = 0) -> Array:
    return np.arange(start, start + rows * 2, dtype=np.float32).reshape(rows, 2)


def strings(*rows: bytes) -> Array:
    array = np.empty((len(rows), 1), dtype=object)
    array[:, 0] = rows
    return array


LARGE = SMALL_BYTES // 8 + 1
"""Rows of `floats`: more than a tensor that is sooner copied."""


@pytest.mark.parametrize("rows", [3, LARGE])
def test_gather_of_one_request_copies_only_what_is_small(rows: int) -> None:
    given = floats(rows)
    gathered = gather([asking(Tensor("x", FP32, given.shape, HostMemory(given.data.cast("B"))), batch_size=rows)])
    assert np.shares_memory(gathered["x"], given) is (rows == LARGE)
    assert gathered["x"].tolist() == given.tolist()
    assert gathered["x"].flags.aligned


@pytest.mark.parametrize("off", [0, 1, 2, 4])
@pytest.mark.parametrize("rows", [3, LARGE])
def test_gather_copies_what_lies_across_the_boundaries_of_its_elements(rows: int, off: int) -> None:
    room = np.zeros(8 * rows + 64, np.uint8)
    view = room[off : off + 8 * rows]
    view[:] = floats(rows).view(np.uint8).reshape(-1)
    gathered = gather([asking(Tensor("x", FP32, (rows, 2), HostMemory(view.data)), batch_size=rows)])
    assert gathered["x"].tolist() == floats(rows).tolist()
    assert gathered["x"].flags.aligned
    assert np.shares_memory(gathered["x"], room) is (off % 4 == 0 and rows == LARGE)


def test_gather_joins_requests_in_the_order_of_the_batch() -> None:
    parts = [floats(2), floats(1, 100), floats(3, 200)]
    gathered = gather([asking(tensor_of("x", FP32, part), batch_size=len(part)) for part in parts])
    assert gathered["x"].dtype == np.float32
    assert gathered["x"].tolist() == [row for part in parts for row in part.tolist()]


def test_gather_takes_inputs_by_name_and_not_by_place() -> None:
    a, b = tensor_of("a", FP32, floats(1)), tensor_of("b", FP32, floats(1, 50))
    gathered = gather([asking(a, b, batch_size=1), asking(b, a, batch_size=1)])
    assert gathered["a"].tolist() == [[0, 1], [0, 1]]
    assert gathered["b"].tolist() == [[50, 51], [50, 51]]


def test_gather_leaves_out_an_input_that_no_request_has() -> None:
    assert gather([asking(tensor_of("x", FP32, floats(1)), batch_size=1)]).keys() == {"x"}


@pytest.mark.parametrize(
    ("datatype", "arrays"),
    [
        (BYTES, [strings(b"a", b""), strings(b"\x00nul\x00")]),
        (BF16, [np.array([[0x3F80]], np.uint16), np.array([[0x4000], [0xFFFF]], np.uint16)]),
        (BOOL, [np.array([[True]]), np.array([[False]])]),
        (INT64, [np.array([[-(2**63)]]), np.array([[2**63 - 1]])]),
        (FP32, [np.zeros((1, 0), np.float32), np.zeros((2, 0), np.float32)]),
    ],
)
def test_what_is_gathered_is_scattered_again(datatype: DataType, arrays: list[Array]) -> None:
    rows = [asking(tensor_of("x", datatype, array), batch_size=len(array)) for array in arrays]
    parts = scatter(rows, gather(rows), {"x": datatype})
    for whole, [part] in zip(arrays, parts, strict=True):
        assert (part.name, part.datatype, part.shape) == ("x", datatype, whole.shape)
        got = array_of(part)
        assert got.dtype == datatype.numpy
        assert got.tolist() == whole.tolist()


def test_scatter_gives_each_request_the_outputs_it_asked_for_in_its_order() -> None:
    one = asking(batch_size=1, outputs=("b", "a"))
    other = asking(batch_size=1, outputs=("a",))
    arrays = {"a": floats(2), "b": floats(2, 10)}
    parts = scatter([one, other], arrays, {"a": FP32, "b": FP32})
    assert [[tensor.name for tensor in part] for part in parts] == [["b", "a"], ["a"]]
    assert array_of(parts[1][0]).tolist() == [[2, 3]]


def test_scatter_copies_only_what_is_small() -> None:
    whole = floats(LARGE + 1)
    rows = [asking(batch_size=1), asking(batch_size=LARGE)]
    [[small], [large]] = scatter(rows, {"x": whole}, {"x": FP32})
    assert not np.shares_memory(array_of(small), whole)
    assert np.shares_memory(array_of(large), whole)
    assert [*array_of(small).tolist(), *array_of(large).tolist()] == whole.tolist()


def test_scatter_of_one_request_without_batching_takes_any_shape() -> None:
    [[part]] = scatter([asking(batch_size=0)], {"x": np.array(5.0, np.float32)}, {"x": FP32})
    assert part.shape == ()
    assert array_of(part).tolist() == 5.0


@pytest.mark.parametrize("shape", [(2, 1), (4, 1), (), (0, 3)])
def test_scatter_refuses_an_output_without_a_row_for_each_row(shape: tuple[int, ...]) -> None:
    rows = [asking(batch_size=1), asking(batch_size=2)]
    with pytest.raises(Internal, match=r"output 'x' has shape .* for a batch of 3"):
        scatter(rows, {"x": np.zeros(shape, np.float32)}, {"x": FP32})


@settings(deadline=None)
@given(st.lists(st.lists(st.binary(max_size=5), min_size=1, max_size=3), min_size=1, max_size=4))
def test_strings_of_any_batch_are_unchanged(requests: list[list[bytes]]) -> None:
    rows = [asking(tensor_of("x", BYTES, strings(*one)), batch_size=len(one)) for one in requests]
    parts = scatter(rows, gather(rows), {"x": BYTES})
    assert [array_of(part).ravel().tolist() for [part] in parts] == requests


def test_scatter_refuses_outputs_that_the_configuration_does_not_have() -> None:
    with pytest.raises(Internal, match="returned output 'z', but the configuration has: 'x', 'y'"):
        scatter([asking(batch_size=1)], {"z": floats(1)}, {"x": FP32, "y": FP32})


@pytest.mark.parametrize("batch_sizes", [(2,), (1, 1), (0,)])
def test_scatter_refuses_an_array_of_another_dtype(batch_sizes: tuple[int, ...]) -> None:
    rows = [asking(batch_size=size) for size in batch_sizes]
    with pytest.raises(Internal, match="'x' of type FP32 needs an array of float32, got float64"):
        scatter(rows, {"x": np.zeros((2, 2))}, {"x": FP32})
