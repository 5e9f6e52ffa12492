"""Batches through the onnxruntime backend, their numbers checked."""

import asyncio
import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from halimede.backends.api import Placement
from halimede.backends.onnx.backend import OnnxModel, OnnxRuntimeBackend
from halimede.backends.onnx.instance import MAX_TEXTS, OnnxInstance
from halimede.config.model_config import (
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    WarmupData,
    WarmupInput,
    WarmupSample,
)
from halimede.config.sequencing import Control, ControlKind, DirectStrategy, SequenceBatching
from halimede.errors import Internal, Invalid, Unsupported
from halimede.platform.hosts import HostPolicy, available_cores
from halimede.tensors import DATATYPES, FP32, STRINGS_PER_TURN
from tests.backends import onnx_models
from tests.backends.fakes import (
    FakeBatch,
    FakeRequest,
    FakeResponses,
    context,
    folder,
    idle_loop,
    model_config,
    place,
    request,
    spec,
)

Array = npt.NDArray[Any]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with idle_loop() as made:
        yield made


class Bench:
    """Opens models in one folder and runs batches on their first instance."""

    def __init__(self, backend: OnnxRuntimeBackend, root: Path) -> None:
        self.backend = backend
        self.root = root

    def open(self, model: bytes, config: ModelConfig) -> OnnxModel:
        return self.backend.open(config, folder(self.root, model))

    def instance(self, model: bytes, config: ModelConfig) -> OnnxInstance:
        return self.open(model, config).create_instance(place())

    def run(self, model: bytes, config: ModelConfig, *requests: FakeRequest) -> FakeResponses:
        responses = FakeResponses()
        self.instance(model, config).execute(FakeBatch(*requests), responses)
        return responses


@pytest.fixture
def bench(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Bench:
    return Bench(OnnxRuntimeBackend(context(loop)), tmp_path)


def samples(datatype: str, shape: tuple[int, ...]) -> Array:
    """Values that differ from each other and from a byte-swapped or shifted self."""
    count = int(np.prod(shape))
    if datatype == "BYTES":
        texts = np.empty(count, dtype=object)
        texts[:] = [("é" * i + f"\0{i}").encode() for i in range(count)]
        return texts.reshape(shape)
    numbers = np.arange(1, count + 1) * 7 % 101
    return (numbers % 2 if datatype == "BOOL" else numbers).astype(DATATYPES[datatype].numpy).reshape(shape)


def as_bytes(array: Array) -> list[bytes]:
    return [e.encode() if isinstance(e, str) else e for e in array.reshape(-1).tolist()]


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_datatype_goes_through_unchanged(bench: Bench, datatype: str, batching: bool) -> None:
    model = onnx_models.identity(datatype, ["batch" if batching else 2, 3])
    dims = [3] if batching else [2, 3]
    config = model_config([spec("x", datatype, dims)], [spec("y", datatype, dims)], 8 if batching else 0)
    given = samples(datatype, (2, 3))
    got = bench.run(model, config, request({"x": (datatype, given)}, ["y"], 2)).scattered["y"]
    assert got.shape == (2, 3)
    if datatype == "BYTES":
        assert as_bytes(got) == as_bytes(given)
    else:
        assert got.dtype == DATATYPES[datatype].numpy
        np.testing.assert_array_equal(got, given)


@pytest.mark.rows("BO4")
@pytest.mark.parametrize("datatype", DATATYPES)
def test_tensor_without_dimensions_has_those_of_the_configuration(bench: Bench, datatype: str) -> None:
    config = model_config([spec("x", datatype, [1])], [spec("y", datatype, [1, 1])])
    given = samples(datatype, (1,))
    got = bench.run(onnx_models.identity(datatype, []), config, request({"x": (datatype, given)}, ["y"])).scattered["y"]
    assert got.shape == (1, 1)
    if datatype == "BYTES":
        assert as_bytes(got) == as_bytes(given)
    else:
        assert got.dtype == DATATYPES[datatype].numpy
        np.testing.assert_array_equal(got.reshape(-1), given)


@pytest.mark.parametrize("datatype", ["FP32", "BF16", "BYTES"])
def test_tensor_without_elements(bench: Bench, datatype: str) -> None:
    config = model_config([spec("x", datatype, [-1])], [spec("y", datatype, [-1])], 4)
    model = onnx_models.identity(datatype, ["batch", "n"])
    given = np.empty((1, 0), DATATYPES[datatype].numpy)
    got = bench.run(model, config, request({"x": (datatype, given)}, ["y"]))
    assert got.scattered["y"].shape == (1, 0)


def test_batch_of_several_requests_is_computed_at_once(bench: Bench) -> None:
    random = np.random.default_rng(3)
    first = random.standard_normal((6, 5)).astype(np.float32)
    second = random.standard_normal((5, 4)).astype(np.float32)
    x = random.standard_normal((3, 6)).astype(np.float32)
    config = model_config([spec("x", "FP32", [6])], [spec("y", "FP32", [4])], 8)
    requests = [request({"x": ("FP32", x[:1])}, ["y"], 1), request({"x": ("FP32", x[1:])}, ["y"], 2)]
    got = bench.run(onnx_models.mlp(first, second), config, *requests).scattered["y"]
    np.testing.assert_allclose(got, np.maximum(x @ first, 0) @ second, rtol=1e-5)


TWO = [spec("a", "FP32", [2]), spec("b", "FP32", [2])], [spec("sum", "FP32", [2]), spec("difference", "FP32", [2])]


def pair(outputs: Sequence[str]) -> FakeRequest:
    a, b = np.array([[5, 7]], np.float32), np.array([[1, 2]], np.float32)
    return request({"b": ("FP32", b), "a": ("FP32", a)}, outputs)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([["sum"]], {"sum": [[6, 9]]}),
        ([["difference"], ["difference"]], {"difference": [[4, 5], [4, 5]]}),
        ([["difference", "sum"]], {"sum": [[6, 9]], "difference": [[4, 5]]}),
        ([["sum"], ["difference"]], {"sum": [[6, 9], [6, 9]], "difference": [[4, 5], [4, 5]]}),
    ],
)
def test_only_outputs_that_somebody_asked_for(
    bench: Bench, asked: list[list[str]], expected: dict[str, list[list[float]]]
) -> None:
    config = model_config(*TWO, max_batch_size=4)
    got = bench.run(onnx_models.add_and_subtract(["n", 2]), config, *map(pair, asked)).scattered
    assert {name: array.tolist() for name, array in got.items()} == expected


def test_output_left_out_of_the_configuration(bench: Bench) -> None:
    config = model_config(TWO[0], TWO[1][1:], max_batch_size=4)
    got = bench.run(onnx_models.add_and_subtract(["n", 2]), config, pair(["difference"])).scattered
    assert list(got) == ["difference"]


def test_output_whose_rows_are_not_the_batch(bench: Bench) -> None:
    config = model_config([spec("x", "FP32", [4])], [spec("y", "FP32", [2])], 8)
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(Internal) as caught:
        bench.run(onnx_models.halves(), config, request({"x": ("FP32", x)}, ["y"], 3))
    assert caught.value.message == (
        "model 'm', output 'y': the model returned shape [6,2] for a batch of 3, expecting the first dimension to be "
        "the batch size"
    )


def test_optional_input_is_an_initializer_of_the_model(bench: Bench) -> None:
    inputs = [spec("x", "FP32", [2]), spec("bias", "FP32", [2], optional=True)]
    config = model_config(inputs, [spec("y", "FP32", [2])])
    x, bias = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
    alone = bench.run(onnx_models.overridable(), config, request({"x": ("FP32", x)}, ["y"]))
    both = bench.run(onnx_models.overridable(), config, request({"x": ("FP32", x), "bias": ("FP32", bias)}, ["y"]))
    assert alone.scattered["y"].tolist() == [2, 3]
    assert both.scattered["y"].tolist() == [11, 22]


def test_input_that_only_the_configuration_calls_optional_is_missed_and_not_read(bench: Bench) -> None:
    inputs = [spec("x", "FP32", [2], optional=True), spec("bias", "FP32", [2])]
    config = model_config(inputs, [spec("y", "FP32", [2])])
    with pytest.raises(Internal, match=r"onnx runtime error: Required inputs \(\['x'\]\) are missing"):
        bench.run(onnx_models.overridable(), config, request({"bias": ("FP32", np.ones(2, np.float32))}, ["y"]))


@pytest.mark.parametrize("brought", [True, False])
def test_control_that_a_warmup_sample_does_not_bring_is_missed_and_not_read(bench: Bench, brought: bool) -> None:
    ready = Control(ControlKind.READY, "b", FP32)
    inputs = [WarmupInput(name, FP32, (1,), WarmupData.ZERO) for name in ("ab" if brought else "a")]
    config = replace(
        model_config([spec("a", "FP32", [1])], [spec("sum", "FP32", [1])], 4),
        sequence_batching=SequenceBatching(DirectStrategy(), controls=(ready,)),
        warmup=(WarmupSample("s", 1, 1, tuple(inputs)),),
    )
    model = onnx_models.add_and_subtract(["n", 1])
    given = {each.name: ("FP32", np.ones((1, 1), np.float32)) for each in inputs}
    if brought:
        assert bench.run(model, config, request(given, ["sum"])).scattered["sum"].tolist() == [[2]]
        return
    with pytest.raises(Internal, match=r"onnx runtime error: Required inputs \(\['b'\]\) are missing"):
        bench.run(model, config, request(given, ["sum"]))


def test_text_that_is_not_utf8_fails_only_its_own_request(bench: Bench) -> None:
    config = model_config([spec("x", "BYTES", [2])], [spec("y", "BYTES", [2])], 8)
    rows = [[[b"a", b"b"]], [[b"c", b"d"], [b"e", b"\xff"]], [["é".encode(), b""]]]
    arrays = [np.array(part, dtype=object) for part in rows]
    requests = [request({"x": ("BYTES", array)}, ["y"], len(array)) for array in arrays]
    got = bench.run(onnx_models.identity("BYTES", ["batch", 2]), config, *requests)
    assert {i: type(error) for i, error in got.failed.items()} == {1: Invalid}
    assert got.failed[1].message == "input 'x' of model 'm' has an element that is not valid UTF-8"
    assert {i: as_bytes(outputs["y"]) for i, outputs in got.scattered_to.items()} == {
        0: [b"a", b"b"],
        2: ["é".encode(), b""],
    }
    assert not got.scattered


def test_too_many_texts_fail_only_their_own_request(bench: Bench) -> None:
    config = model_config([spec("x", "BYTES", [-1])], [spec("y", "BYTES", [-1])], 8)
    few, many = np.full((1, 2), b"a", object), np.full((1, MAX_TEXTS + 1), b"", object)
    requests = [request({"x": ("BYTES", array)}, ["y"], 1) for array in (few, many)]
    got = bench.run(onnx_models.identity("BYTES", ["batch", "n"]), config, *requests)
    assert {i: type(error) for i, error in got.failed.items()} == {1: Invalid}
    assert (
        got.failed[1].message == f"inputs of model 'm' have {MAX_TEXTS + 1} strings; the largest number is {MAX_TEXTS}"
    )
    assert as_bytes(got.scattered_to[0]["y"]) == [b"a", b"a"]


def test_many_texts(bench: Bench) -> None:
    config = model_config([spec("x", "BYTES", [-1])], [spec("y", "BYTES", [-1])])
    given = np.array([b"%d" % i for i in range(2 * STRINGS_PER_TURN + 3)], dtype=object)
    got = bench.run(onnx_models.identity("BYTES", ["n"]), config, request({"x": ("BYTES", given)}, ["y"]))
    assert as_bytes(got.scattered["y"]) == given.tolist()


def test_text_that_is_not_utf8_without_batching(bench: Bench) -> None:
    config = model_config([spec("x", "BYTES", [2])], [spec("y", "BYTES", [2])])
    given = np.array([b"fine", b"\xc3"], dtype=object)
    got = bench.run(onnx_models.identity("BYTES", [2]), config, request({"x": ("BYTES", given)}, ["y"]))
    assert list(got.failed) == [0]
    assert not got.scattered_to


def test_failure_of_the_running_model_has_the_runtimes_words(bench: Bench) -> None:
    config = model_config([spec("x", "INT64", [1])], [spec("y", "FP32", [1])], 4)
    with pytest.raises(Internal, match=r"^onnx runtime error 2: .*indices element out of data bounds, idx=7"):
        bench.run(onnx_models.lookup(), config, request({"x": ("INT64", np.array([[7]]))}, ["y"]))


def test_instance_works_after_a_failure(bench: Bench) -> None:
    config = model_config([spec("x", "INT64", [1])], [spec("y", "FP32", [1])], 4)
    instance = bench.instance(onnx_models.lookup(), config)
    responses = FakeResponses()
    with pytest.raises(Internal):
        instance.execute(FakeBatch(request({"x": ("INT64", np.array([[7]]))}, ["y"])), responses)
    instance.execute(FakeBatch(request({"x": ("INT64", np.array([[2]]))}, ["y"])), responses)
    assert responses.scattered["y"].tolist() == [[30]]


@pytest.mark.parametrize("datatype", ["FP32", "BF16"])
def test_outputs_outlive_the_model_and_later_batches(bench: Bench, datatype: str) -> None:
    config = model_config([spec("x", datatype, [4])], [spec("y", datatype, [4])], 8)
    model = bench.open(onnx_models.identity(datatype, ["batch", 4]), config)
    instance = model.create_instance(place())
    kept = []
    for i in range(20):
        responses = FakeResponses()
        given = np.full((2, 4), i, DATATYPES[datatype].numpy)
        instance.execute(FakeBatch(request({"x": (datatype, given)}, ["y"], 2)), responses)
        kept.append(responses.scattered["y"])
    instance.close()
    model.close()
    del instance, model, responses, given
    gc.collect()
    assert [array.tolist() for array in kept] == [[[i] * 4] * 2 for i in range(20)]


def test_input_memory_that_is_read_only_and_unaligned(bench: Bench) -> None:
    config = model_config([spec("x", "FP32", [4])], [spec("y", "FP32", [4])], 8)
    given = np.frombuffer(memoryview(b"?" + np.arange(4, dtype=np.float32).tobytes())[1:], np.float32).reshape(1, 4)
    assert not given.flags.aligned
    assert not given.flags.writeable

    class Raw(FakeBatch):
        def arrays(self) -> dict[str, Array]:
            return {"x": given}

    responses = FakeResponses()
    instance = bench.instance(onnx_models.identity("FP32", ["batch", 4]), config)
    instance.execute(Raw(FakeRequest([], ["y"])), responses)
    assert responses.scattered["y"].tolist() == [[0, 1, 2, 3]]


def test_instances_share_a_session_and_run_at_the_same_time(bench: Bench) -> None:
    random = np.random.default_rng(5)
    first, second = (random.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    config = model_config([spec("x", "FP32", [64])], [spec("y", "FP32", [64])], 8, count=2)
    model = bench.open(onnx_models.mlp(first, second), config)

    def work(index: int) -> bool:
        instance = model.create_instance(place(index, 2))
        for i in range(50):
            x = np.full((2, 64), index * 100 + i, np.float32)
            responses = FakeResponses()
            instance.execute(FakeBatch(request({"x": ("FP32", x)}, ["y"], 2)), responses)
            if not np.allclose(responses.scattered["y"], np.maximum(x @ first, 0) @ second, rtol=1e-4):
                return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2), timeout=60)) == [True, True]
    assert model.session(None)[0] is model.session(None)[0]


def test_model_is_run_on_a_thread_or_inline(bench: Bench) -> None:
    config = model_config([spec("x", "FP32", [1])], [spec("y", "FP32", [1])])
    model = bench.open(onnx_models.identity("FP32", [1]), config)
    assert (model.placement, model.inline_safe) == (Placement.THREAD, True)


def test_text_beside_brain_floats_is_refused(bench: Bench) -> None:
    inputs = [spec("t", "BYTES", [1]), spec("x", "BF16", [1])]
    config = model_config(inputs, [spec("u", "BYTES", [1]), spec("y", "BF16", [1])])
    with pytest.raises(Unsupported, match="TYPE_STRING inputs beside TYPE_BF16"):
        bench.open(onnx_models.text_and_brain_float(), config)


def test_instances_of_a_host_policy_have_a_session_on_its_cores(bench: Bench) -> None:
    """As many threads as fit there beside the instances that share it; passive instances count for nothing."""
    core = min(available_cores())
    config = replace(
        model_config([spec("x", "FP32", [1])], [spec("y", "FP32", [1])]),
        instance_groups=(
            InstanceGroup("a", InstanceKind.CPU),
            InstanceGroup("b", InstanceKind.CPU, 50, passive=True),
            InstanceGroup("c", InstanceKind.CPU, 2, host_policy="one"),
        ),
    )
    model = bench.open(onnx_models.identity("FP32", [1]), config)
    session, plan = model.session(None)
    assert (plan.cores, plan.intra_threads) == (available_cores(), len(available_cores()))
    with HostPolicy(frozenset({core})).applied():
        model.create_instance(replace(place(), host_policy="one"))
    other, plan = model.session(None, "one")
    assert other is not session
    assert (plan.cores, plan.intra_threads) == (frozenset({core}), 1)
