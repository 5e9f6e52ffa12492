"""Batches of requests of different shapes: what the model is given of them, and what each gets back."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from halimede.config.model_config import BatchInput, BatchInputKind, BatchOutput, ModelConfig
from halimede.errors import Internal
from halimede.models.policies import ragged_of
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.ragged import Ragged
from halimede.tensors import BYTES, FP32, INT32, INT64, array_of, tensor_of
from tests.fakes import inference
from tests.models.configs import config_of, spec

Array = npt.NDArray[Any]


def asking(*arrays: Array, name: str = "x", outputs: tuple[str, ...] = ("y",)) -> list[Inference]:
    """One request for each array, of as many rows."""
    return [inference(inputs=[tensor_of(name, FP32, a)], batch_size=len(a), outputs=outputs) for a in arrays]


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def config(
    *, ragged: bool = True, made: BatchInput | None = None, cut: bool = False, dims: tuple[int, ...] = (-1,)
) -> ModelConfig:
    found = config_of(
        spec("x", "FP32", dims, ragged=ragged), outputs=[spec("y", "FP32", dims)], max_batch_size=8 if dims else 0
    )
    return replace(
        found,
        batch_inputs=() if made is None else (made,),
        batch_outputs=(BatchOutput(("y",), "x"),) if cut else (),
    )


def ragged(config: ModelConfig) -> Ragged:
    found = ragged_of(config)
    assert found is not None
    return found


def test_plain_model_is_not_ragged() -> None:
    assert ragged_of(config(ragged=False)) is None


@pytest.mark.rows("S36")
def test_ragged_input_is_one_row_of_all_elements() -> None:
    given = [np.array([[1, 2, 3]], np.float32), np.array([[4], [5]], np.float32), np.zeros((1, 0), np.float32)]
    gathered = ragged(config()).gather(asking(*given))
    assert gathered["x"].tolist() == [1, 2, 3, 4, 5]
    assert gathered["x"].dtype == np.float32


def test_ragged_input_of_one_request_is_flat_and_not_copied() -> None:
    given = ones(1, 500)
    flat = ragged(config()).gather(asking(given))["x"]
    assert flat.shape == (500,)
    assert np.shares_memory(flat, given)


def test_other_inputs_of_a_ragged_model_stay_rows() -> None:
    both = config_of(spec("x", "FP32", [-1], ragged=True), spec("z", "FP32", [2]), max_batch_size=8)
    requests = [
        inference(inputs=[tensor_of("x", FP32, ones(1, k)), tensor_of("z", FP32, ones(1, 2) * k)], batch_size=1)
        for k in (3, 1)
    ]
    gathered = ragged(both).gather(requests)
    assert gathered["x"].shape == (4,)
    assert gathered["z"].tolist() == [[3, 3], [1, 1]]


def test_ragged_texts_are_joined() -> None:
    texts = config_of(spec("x", "BYTES", [-1], ragged=True), max_batch_size=8)
    arrays = [np.array([[b"a", b""]], dtype=object), np.array([["é".encode()]], dtype=object)]
    requests = [inference(inputs=[tensor_of("x", BYTES, each)], batch_size=1) for each in arrays]
    assert ragged(texts).gather(requests)["x"].tolist() == [b"a", b"", "é".encode()]


@pytest.mark.rows("S37")
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (BatchInputKind.ELEMENT_COUNT, [6, 1, 4]),
        (BatchInputKind.ACCUMULATED_ELEMENT_COUNT, [6, 7, 11]),
        (BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, [0, 6, 7, 11]),
        (BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE, [0] * 6),
        (BatchInputKind.ITEM_SHAPE, [[3, 1], [3, 1], [1, 1], [2, 2]]),
        (BatchInputKind.ITEM_SHAPE_FLATTEN, [3, 1, 3, 1, 1, 1, 2, 2]),
    ],
)
@pytest.mark.parametrize("datatype", [INT32, FP32])
def test_batch_input_of_each_kind(kind: BatchInputKind, expected: list[Any], datatype: Any) -> None:
    made = BatchInput(kind, ("a", "b"), datatype, "x")
    gathered = ragged(config(made=made, dims=(-1, -1))).gather(asking(ones(2, 3, 1), ones(1, 1, 1), ones(1, 2, 2)))
    for target in ("a", "b"):
        assert gathered[target].tolist() == expected
        assert gathered[target].dtype == datatype.numpy


def test_batch_input_beside_an_input_that_is_not_ragged() -> None:
    made = BatchInput(BatchInputKind.ELEMENT_COUNT, ("n",), INT32, "x")
    gathered = ragged(config(ragged=False, made=made)).gather(asking(ones(2, 3), ones(1, 3)))
    assert gathered["x"].shape == (3, 3)
    assert gathered["n"].tolist() == [6, 3]


def test_batch_input_of_an_input_that_a_request_lacks() -> None:
    made = BatchInput(BatchInputKind.ELEMENT_COUNT, ("n",), INT32, "w")
    with pytest.raises(Internal, match="a batch input or output needs input 'w', which is missing"):
        ragged(config(ragged=False, made=made)).gather(asking(ones(1, 3)))


@pytest.mark.rows("S39")
def test_batch_output_is_cut_by_the_shapes_of_its_input() -> None:
    requests = asking(ones(2, 1), ones(1, 3), ones(1, 0))
    parts = ragged(config(cut=True)).scatter(requests, {"y": np.arange(5, dtype=np.float32)}, {"y": FP32})
    assert [[array_of(tensor).tolist() for tensor in part] for part in parts] == [[[[0], [1]]], [[[2, 3, 4]]], [[[]]]]


def test_batch_output_that_was_not_requested_is_left_out() -> None:
    requests = [*asking(ones(1, 2)), *asking(ones(1, 1), outputs=("z",))]
    parts = ragged(config(cut=True)).scatter(
        requests, {"y": np.zeros(3, np.float32), "z": np.array([[1], [2]], np.float32)}, {"y": FP32, "z": FP32}
    )
    assert [[tensor.name for tensor in part] for part in parts] == [["y"], ["z"]]


@pytest.mark.parametrize("size", [4, 6])
def test_batch_output_of_another_size_fails_the_batch(size: int) -> None:
    with pytest.raises(Internal, match=f"output 'y' has {size} elements, 5 are needed for 2 requests"):
        ragged(config(cut=True)).scatter(asking(ones(1, 2), ones(1, 3)), {"y": np.zeros(size)}, {"y": FP32})


def test_batch_output_with_an_open_size_that_its_input_does_not_have() -> None:
    open_twice = ragged(config(cut=True, dims=(-1, -1)))
    with pytest.raises(Internal, match="output 'y' has more dimensions than input 'x', which gives their sizes"):
        open_twice.scatter(asking(ones(1, 2)), {"y": np.zeros(2)}, {"y": FP32})


def test_execution_of_a_ragged_model_gathers_and_scatters_so() -> None:
    made = BatchInput(BatchInputKind.ELEMENT_COUNT, ("n",), INT64, "x")
    requests = asking(ones(1, 2), ones(1, 3))
    execution = Execution(requests, 2, 0, {"y": FP32}, False, None)
    execution.ragged = ragged(config(made=made, cut=True))

    def execute(batch: Execution, responses: Execution) -> None:
        assert batch.arrays_of(1)["n"].tolist() == [3]
        arrays = batch.arrays()
        assert arrays["n"].tolist() == [2, 3]
        responses.scatter({"y": arrays["x"] * 2})

    execution.run(execute, True)
    shapes = []
    for outcome in execution.single_answers():
        assert isinstance(outcome.answer, list)
        shapes.append(outcome.answer[0].shape)
    assert shapes == [(1, 2), (1, 3)]


def test_outputs_come_in_the_order_in_which_they_were_asked_for() -> None:
    requests = [*asking(ones(1, 2), outputs=("y", "z")), *asking(ones(1, 1), outputs=("z", "y"))]
    arrays = {"y": np.zeros(3, np.float32), "z": np.array([[1], [2]], np.float32)}
    parts = ragged(config(cut=True)).scatter(requests, arrays, {"y": FP32, "z": FP32})
    assert [[tensor.name for tensor in part] for part in parts] == [["y", "z"], ["z", "y"]]


def test_ragged_input_that_all_requests_of_a_batch_leave_out_is_absent() -> None:
    requests = asking(ones(1, 2), ones(1, 2))
    for one in requests:
        one.request.inputs = {"other": one.request.inputs["x"]}
    assert list(ragged(config()).gather(requests)) == ["other"]


def test_gather_of_a_ragged_input_is_refused() -> None:
    made = BatchInput(BatchInputKind.ELEMENT_COUNT, ("n",), FP32, "x")
    batch = Execution(asking(ones(1, 2), ones(1, 3)), 2, 0, {"y": FP32}, False, None)
    batch.ragged = ragged(config(made=made))
    for name, kind in (("x", "ragged"), ("n", "a batch input")):
        text = f"input '{name}' is {kind}: it is read by arrays\\(\\), and not by gather\\(\\)"
        with pytest.raises(Internal, match=text):
            batch.gather(name, ones(2, 2))
        with pytest.raises(Internal, match=text):
            batch.shape(name)
