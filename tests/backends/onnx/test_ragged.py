"""ONNX models whose batches are of requests of different lengths, through the scheduler's own gathering."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from halimede.backends.onnx.backend import OnnxRuntimeBackend
from halimede.config.model_config import BatchInput, BatchInputKind, BatchOutput, ModelConfig
from halimede.errors import Error, Invalid
from halimede.models.policies import ragged_of
from halimede.scheduling.execution import Execution
from halimede.tensors import FP32, INT32, array_of, tensor_of
from tests.backends import onnx_models
from tests.backends.fakes import context, folder, idle_loop, model_config, place, spec
from tests.fakes import inference

Array = npt.NDArray[Any]


@pytest.fixture
def backend() -> Iterator[OnnxRuntimeBackend]:
    with idle_loop() as loop:
        yield OnnxRuntimeBackend(context(loop))


def config_of(
    datatype: str = "FP32",
    made: Sequence[BatchInput] = (),
    cut: Sequence[BatchOutput] = (),
    *,
    optional: bool = False,
    max_batch_size: int = 8,
    output: str = "FP32",
) -> ModelConfig:
    given = replace(spec("x", datatype, [-1]), allow_ragged_batch=True, optional=optional)
    found = model_config([given], [spec("y", output, [-1])], max_batch_size)
    return replace(found, batch_inputs=tuple(made), batch_outputs=tuple(cut))


def counts(*names: str, kind: BatchInputKind = BatchInputKind.ELEMENT_COUNT) -> BatchInput:
    return BatchInput(kind, names, INT32, "x")


def run(
    backend: OnnxRuntimeBackend, root: Path, model: bytes, config: ModelConfig, *arrays: Array
) -> list[list[Any] | Error]:
    """What each request gets for its `x`: the values of `y`, or an error."""
    instance = backend.open(config, folder(root, model)).create_instance(place())
    datatypes = {each.name: each.datatype for each in config.outputs}
    given = config.inputs[0].datatype
    requests = [
        inference(inputs=[tensor_of("x", given, array)], batch_size=len(array), outputs=["y"]) for array in arrays
    ]
    execution = Execution(requests, sum(one.rows for one in requests), 0, datatypes, False, None)
    execution.ragged = ragged_of(config)
    execution.run(instance.execute, True)
    found: list[list[Any] | Error] = []
    for outcome in execution.single_answers():
        answer = outcome.answer
        assert answer is not None
        found.append(answer if isinstance(answer, Error) else array_of(answer[0]).tolist())
    return found


def floats(*rows: Sequence[float]) -> Array:
    return np.array(rows, np.float32)


@pytest.mark.rows("S36", "S39")
def test_identity_of_a_flat_batch_is_cut_into_its_requests(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    config = config_of(cut=[BatchOutput(("y",), "x")])
    given = [floats([1, 2, 3]), floats([4], [5]), floats([6, 7])]
    got = run(backend, tmp_path, onnx_models.identity("FP32", ["all"]), config, *given)
    assert got == [[[1, 2, 3]], [[4], [5]], [[6, 7]]]


@pytest.mark.rows("S37")
@pytest.mark.parametrize("kind", list(BatchInputKind))
def test_batch_input_reaches_the_model(backend: OnnxRuntimeBackend, tmp_path: Path, kind: BatchInputKind) -> None:
    """The model tells two requests how many elements `x` has, and the shape of its batch input `n`."""
    shapes = {
        BatchInputKind.ELEMENT_COUNT: [2],
        BatchInputKind.ACCUMULATED_ELEMENT_COUNT: [2],
        BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: [3],
        BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE: [3],
        BatchInputKind.ITEM_SHAPE: [2, 1],
        BatchInputKind.ITEM_SHAPE_FLATTEN: [2],
    }
    rank = len(shapes[kind])
    config = replace(config_of(made=[counts("n", kind=kind)]), outputs=(spec("y", "INT64", [1 + rank]),))
    got = run(backend, tmp_path, onnx_models.facts_of_a_batch(rank), config, floats([1, 2, 3]), floats([4, 5]))
    assert got == [[[5, *shapes[kind]]]] * 2


def test_embedding_bag_by_bounds(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    config = config_of(made=[counts("n", kind=BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO)])
    config = replace(config, outputs=(spec("y", "FP32", [1]),))
    got = run(backend, tmp_path, onnx_models.sums_by_bounds(), config, floats([1, 2, 3]), floats([10]), floats([5, 6]))
    assert got == [[[6]], [[10]], [[11]]]


def test_texts_of_several_requests_and_a_broken_one(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    config = config_of("BYTES", cut=[BatchOutput(("y",), "x")], output="BYTES")
    texts = [np.array([row], dtype=object) for row in ([b"a", b"b"], [b"\xff"], [b"c"])]
    got = run(backend, tmp_path, onnx_models.identity("BYTES", ["all"]), config, *texts)
    assert (got[0], got[2]) == ([[b"a", b"b"]], [[b"c"]])
    assert str(got[1]) == "input 'x' of model 'm' has an element that is not valid UTF-8"


_FACTS = replace(config_of(), outputs=(spec("y", "INT64", [2]),))
FACTS_OF_NOTHING = replace(_FACTS, batch_inputs=(counts("other"),))
FACTS_OF_FLOATS = replace(_FACTS, batch_inputs=(BatchInput(BatchInputKind.ELEMENT_COUNT, ("n",), FP32, "x"),))


@pytest.mark.parametrize(
    ("model", "config", "text"),
    [
        (
            onnx_models.identity("FP32", ["batch", 4]),
            config_of(),
            "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input "
            "'x', model provides [-1,4]",
        ),
        (
            onnx_models.identity("FP32", [4]),
            config_of(),
            "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input "
            "'x', model provides [4]",
        ),
        (
            onnx_models.identity("FP32", ["all"]),
            config_of(optional=True, max_batch_size=0),
            "unable to load model 'm', configuration expects model provides input with shape [-1] for ragged input "
            "'x', which is not supported for optional input",
        ),
        (
            onnx_models.identity("FP32", ["all"]),
            config_of(made=[counts("n")]),
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (
            onnx_models.facts_of_a_batch(1),
            FACTS_OF_NOTHING,
            "unexpected inference input 'other', allowed inputs are: n, x",
        ),
        (
            onnx_models.facts_of_a_batch(1),
            FACTS_OF_FLOATS,
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'n', model provides "
            "TYPE_INT32",
        ),
    ],
)
def test_model_that_does_not_fit(
    backend: OnnxRuntimeBackend, tmp_path: Path, model: bytes, config: ModelConfig, text: str
) -> None:
    with pytest.raises(Invalid) as raised:
        backend.open(config, folder(tmp_path, model))
    assert raised.value.message == text
