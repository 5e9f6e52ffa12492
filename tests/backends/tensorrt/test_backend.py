"""The tensorrt backend with a stand-in for the runtime and the GPU."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.backends.api import ModelFolder
from halimede.backends.creation import create_in_this_process
from halimede.backends.tensorrt import TRAITS
from halimede.config import read_override
from halimede.config.model_config import InstanceKind, ModelConfig
from halimede.errors import Error, Internal, Invalid, Unavailable
from tests.backends.fakes import FakeBatch, FakeResponses, context, idle_loop, place, request
from tests.backends.tensorrt import standin
from tests.backends.tensorrt.standin import CUDA, plan, tensor

GROUP = {"name": "m_0", "kind": "KIND_GPU", "gpus": [0]}
ROWS = [[1, 4], [4, 4], [8, 4]]
"""The least, the best and the largest shape."""
WIDE = [[1, 4], [16, 4], [32, 4]]
PLAIN = plan([tensor("x", "FLOAT", [-1, 4], profiles=[ROWS])], [tensor("y", "FLOAT", [-1, 4])])
LEAST_TWO = plan([tensor("x", "FLOAT", [-1, 4], profiles=[[[2, 4], [4, 4], [8, 4]]])], [tensor("y", "FLOAT", [-1, 4])])
TWO_PROFILES = plan(
    [tensor("x", "FLOAT", [-1, 4], profiles=[ROWS, [[1, 4], [2, 4], [32, 4]]])],
    [tensor("y", "FLOAT", [-1, 4])],
    profiles=2,
)
FILLING = plan(
    [tensor("shape", "INT32", [2], is_shape=True, profiles=[[[1, 1], [2, 2], [8, 8]]])],
    [tensor("y", "FLOAT", [-1, -1])],
    "fill",
)


class Bench:
    """A backend whose models are configurations and plans."""

    def __init__(self, backend: Any, root: Path) -> None:
        self.backend = backend
        self.version = root / "m" / "1"
        self.version.mkdir(parents=True)
        self.instances: list[Any] = []

    def config(self, content: bytes, **given: Any) -> ModelConfig:
        """The configuration after its completion."""
        (self.version / "model.plan").write_bytes(content)
        fields = {"name": "m", "platform": "tensorrt_plan", "instance_group": [GROUP], **given}
        draft = read_override(json.dumps(fields), self.version.parent)
        asked = draft.incomplete(gpus=(0,), default_instance_count=1)
        described = self.backend.describe(asked, self.folder, "model.plan")
        if described is not None:
            draft.update(described)
        return draft.finish(gpus=(0,))

    @property
    def folder(self) -> ModelFolder:
        return ModelFolder(self.version.parent, self.version, 1)

    def instance(self, content: bytes, **given: Any) -> Any:
        config = self.config(content, **given)
        model = self.backend.open(config, self.folder)
        self.instances.append(model.create_instance(place(kind=InstanceKind.GPU)))
        return self.instances[-1]

    def run(self, instance: Any, rows: int, name: str = "x", datatype: str = "FP32", array: Any = None) -> Any:
        given = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4) if array is None else array
        responses = FakeResponses()
        instance.execute(FakeBatch(request({name: (datatype, given)}, ["y"], rows)), responses)
        return responses.scattered["y"]

    def refusal(self, content: bytes, **given: Any) -> Error:
        with pytest.raises(Error) as caught:
            self.instance(content, **given)
        return caught.value


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setitem(sys.modules, "tensorrt", standin)
    before = [name for name in sys.modules if name.startswith("halimede.backends.tensorrt.")]
    with idle_loop() as loop:
        backend = create_in_this_process(TRAITS, context(loop))
        monkeypatch.setattr("halimede.backends.tensorrt.backend.cuda_on", lambda device: CUDA)
        made = Bench(backend, tmp_path)
        yield made
        for instance in made.instances:
            instance.close()
    for name in [each for each in sys.modules if each.startswith("halimede.backends.tensorrt.")]:
        if name not in before:
            del sys.modules[name]
    left = (CUDA.allocated, CUDA.pinned, CUDA.streams, CUDA.graphs)
    assert left == ({}, {}, {}, {}), "something was not released"


def test_missing_runtime_names_the_extra() -> None:
    with idle_loop() as loop, pytest.raises(Unavailable, match=r"pip install 'halimede\[tensorrt\]'"):
        create_in_this_process(TRAITS, context(loop))


@pytest.mark.rows("BR1")
def test_file_for_the_capability_of_the_gpu(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Platform and file name choose the backend; a file for the GPU's capability comes before `default_model_filename`.
    The plan of that file takes two rows and more."""
    monkeypatch.setattr("halimede.backends.tensorrt.backend.compute_capability", lambda device: "8.0")
    (bench.version / "ampere.plan").write_bytes(LEAST_TWO)
    chosen = {"8.0": "ampere.plan", "9.0": "missing.plan"}
    assert bench.config(PLAIN).backend == "tensorrt"
    assert bench.run(bench.instance(PLAIN, max_batch_size=8), 8).shape == (8, 4)
    instance = bench.instance(PLAIN, max_batch_size=8, default_model_filename="model.plan", cc_model_filenames=chosen)
    assert bench.run(instance, 8).shape == (8, 4)
    with pytest.raises(Internal, match="expected the shape of dimension 0 to be between"):
        bench.run(instance, 1)


@pytest.mark.rows("BR3", "BR4", "BR5")
def test_plan_completes_a_configuration(bench: Bench) -> None:
    config = bench.config(PLAIN)
    assert (config.max_batch_size, config.dynamic_batching is not None) == (8, True)
    assert [(each.name, each.datatype.name, each.dims) for each in (*config.inputs, *config.outputs)] == [
        ("x", "FP32", (4,)),
        ("y", "FP32", (4,)),
    ]


@pytest.mark.rows("BR3")
def test_completion_fills_listed_tensors_and_marks_them(bench: Bench) -> None:
    config = bench.config(FILLING, input=[{"name": "shape"}], output=[{"name": "y", "dims": [-1]}])
    [given] = config.value("input")
    assert (given["data_type"], given["dims"], given["is_shape_tensor"]) == ("TYPE_INT32", [1], True)


@pytest.mark.rows("BR3")
def test_nothing_is_completed_for_another_kind(bench: Bench) -> None:
    (bench.version / "model.plan").write_bytes(PLAIN)
    draft = read_override(
        json.dumps({"name": "m", "platform": "tensorrt_plan", "instance_group": [{"kind": "KIND_CPU"}]}), Path("m")
    )
    assert bench.backend.describe(draft.incomplete(), bench.folder, "model.plan") is None


@pytest.mark.rows("BR3", "BR16")
def test_plan_that_cannot_be_read(bench: Bench) -> None:
    error = bench.refusal(b"no plan")
    assert error.message == f"unable to load plan file to auto complete config: {bench.version}/model.plan"
    config = bench.config(PLAIN)
    (bench.version / "model.plan").write_bytes(b"no plan")
    with pytest.raises(Internal, match="unable to create TensorRT engine: "):
        bench.backend.open(config, bench.folder)


@pytest.mark.rows("BR2")
@pytest.mark.parametrize("kind", [InstanceKind.CPU, InstanceKind.MODEL])
def test_other_kinds_are_refused(bench: Bench, kind: InstanceKind) -> None:
    config = bench.config(PLAIN)
    group = replace(config.instance_groups[0], kind=kind, gpus=())
    with pytest.raises(Invalid, match="unable to load model 'm', TensorRT backend supports only GPU device"):
        bench.backend.open(replace(config, instance_groups=(group,)), bench.folder)


def io(name: str, dims: list[int], kind: str = "TYPE_FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": kind, "dims": dims, **more}


X, Y = [io("x", [4])], [io("y", [4])]


@pytest.mark.rows("BR4", "BR5", "BR6", "BR7", "BR9", "BR10", "BR11", "BR12", "BR15", "BC11")
@pytest.mark.parametrize(
    ("content", "given", "text"),
    [
        (
            PLAIN,
            {"max_batch_size": 9},
            "autofill failed for model 'm': configuration specified max-batch 9 but TensorRT engine only supports "
            "max-batch 8",
        ),
        (
            PLAIN,
            {"input": X, "output": [io("y", [-1, 4])]},
            "unable to autofill for 'm', model tensor configurations are contradicting each other in terms of whether "
            "batching is supported",
        ),
        (
            PLAIN,
            {"input": [*X, io("z", [4])], "output": Y},
            "unable to load model 'm', configuration expects 2 inputs, model provides at most 1",
        ),
        (PLAIN, {"input": X, "output": [io("q", [4])]}, "unexpected inference output 'q', allowed outputs are: y"),
        (
            plan(
                [tensor(name, "FLOAT", [-1, 4], profiles=[ROWS]) for name in ("x", "z")],
                [tensor("y", "FLOAT", [-1, 4])],
            ),
            {"input": X, "output": Y},
            "expected configuration for input 'z' for m_0_0",
        ),
        (
            PLAIN,
            {"input": [io("x", [4], "TYPE_INT32")], "output": Y},
            "unexpected datatype TYPE_FP32 for inference input 'x', expecting TYPE_INT32 for m_0_0",
        ),
        (
            PLAIN,
            {"input": [io("x", [5])], "output": Y},
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,4]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,5])",
        ),
        (
            plan([tensor("x", "FP8", [4])], [tensor("y", "FLOAT", [4])]),
            {},
            "unable to load plan file to auto complete config: ",
        ),
        (
            PLAIN,
            {"instance_group": [{**GROUP, "profile": ["3"]}]},
            "Can not set the specified optimization profile 3[3] for m. Expected optimization profile index range 0-0",
        ),
        (
            PLAIN,
            {"optimization": {"cuda": {"graphs": True, "graph_spec": [{"batch_size": 9}]}}},
            "graph spec expects 'batch_size' to be >= 1 and <= 8",
        ),
        (
            PLAIN,
            {"parameters": {"execution_context_allocation_strategy": {"string_value": "OFTEN"}}},
            "Invalid value for 'execution_context_allocation_strategy': 'OFTEN' for model instance 'm_0_0'. Supported "
            "values are 'STATIC' and 'ON_PROFILE_CHANGE'.",
        ),
    ],
)
def test_configuration_that_does_not_fit_is_refused(bench: Bench, content: bytes, given: Any, text: str) -> None:
    assert bench.refusal(content, **given).message.startswith(text)


@pytest.mark.rows("BR10", "BR11")
def test_marks_must_be_those_of_the_plan(bench: Bench) -> None:
    """A completion corrects them, so they are checked for a configuration that was not completed."""
    packed = plan([tensor("x", "FLOAT", [4], format="CHW4")], [tensor("y", "FLOAT", [4])])
    for content, given, text in (
        (
            FILLING,
            io("shape", [2], "TYPE_INT32"),
            "input 'shape' for model 'm' is a shape tensor but the model configuration doesn't mark it as a shape "
            "tensor.",
        ),
        (
            PLAIN,
            io("x", [-1, 4], is_shape_tensor=True),
            "input 'x' for model 'm' is incorrectly marked as a shape tensor in the model configuration.",
        ),
        (
            packed,
            io("x", [4]),
            "input 'x' for model 'm' uses a non-linear IO format, but 'is_non_linear_format_io' is incorrectly set to "
            "false in the model configuration.",
        ),
        (
            PLAIN,
            io("x", [-1, 4], is_non_linear_format_io=True),
            "input 'x' for model 'm' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true "
            "in the model configuration.",
        ),
    ):
        (bench.version / "model.plan").write_bytes(content)
        fields = {"name": "m", "platform": "tensorrt_plan", "instance_group": [GROUP], "input": [given]}
        config = read_override(json.dumps({**fields, "output": [io("y", [-1])]}), Path("m")).finish(gpus=(0,))
        with pytest.raises(Invalid) as caught:
            bench.backend.open(config, bench.folder).create_instance(place(kind=InstanceKind.GPU))
        assert caught.value.message == text


def test_batches_of_all_sizes(bench: Bench) -> None:
    instance = bench.instance(PLAIN)
    for rows in (1, 8, 3):
        assert bench.run(instance, rows).tolist() == (2 * np.arange(rows * 4).reshape(rows, 4)).tolist()


def test_answer_is_kept_when_the_next_batch_runs(bench: Bench) -> None:
    instance = bench.instance(PLAIN)
    first = bench.run(instance, 1)
    bench.run(instance, 1, array=np.full((1, 4), 9, np.float32))
    assert first.tolist() == [[0, 2, 4, 6]]


@pytest.mark.rows("BR8")
@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((9, 4), np.float32), "model expected the shape of dimension 0 to be between 1 and 8 but received 9"),
        (np.zeros((1, 4, 1), np.float32), "model expected 2 dimensions but received 3 dimensions"),
    ],
)
def test_shape_beyond_the_profile_is_refused(bench: Bench, array: Any, text: str) -> None:
    instance = bench.instance(PLAIN)
    with pytest.raises(Internal) as caught:
        bench.run(instance, len(array), array=array)
    start = "request specifies invalid shape for input 'x' for m_0_0. Error details: "
    assert caught.value.message == start + text
    assert bench.run(instance, 1).tolist() == [[0, 2, 4, 6]]


@pytest.mark.rows("BR9")
def test_nearest_profile_runs_a_batch(bench: Bench) -> None:
    instance = bench.instance(TWO_PROFILES, instance_group=[{**GROUP, "profile": ["0", "1"]}])
    used = []
    for rows in (1, 4, 20):
        bench.run(instance, rows)
        used.append([profile for profile, each in instance._contexts.items() if each.shapes["x"] == (rows, 4)])
    assert used == [[1], [0], [1]]
    with pytest.raises(Invalid) as caught:
        bench.run(instance, 33)
    assert caught.value.message == (
        "failed to find any Optimization Profile among [ 0[0] 1[1]] to support the requested dimensions (or shape "
        "values), proceeding with first profile."
    )


@pytest.mark.rows("BR4")
def test_batch_limit_is_that_of_the_profiles_in_use(bench: Bench) -> None:
    assert bench.config(TWO_PROFILES).max_batch_size == 8
    assert bench.config(TWO_PROFILES, instance_group=[{**GROUP, "profile": ["0", "1"]}]).max_batch_size == 32


@pytest.mark.rows("BR10")
def test_values_of_a_shape_tensor_are_without_the_batch(bench: Bench) -> None:
    given = [io("shape", [1], "TYPE_INT32", is_shape_tensor=True)]
    instance = bench.instance(FILLING, max_batch_size=8, input=given, output=[io("y", [-1])])
    array = np.array([[3], [3]], np.int32)
    assert bench.run(instance, 2, "shape", "INT32", array).tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.rows("BR12")
def test_recorded_batch_sizes_run_as_graphs(bench: Bench) -> None:
    instance = bench.instance(PLAIN, optimization={"cuda": {"graphs": True}})
    assert len(CUDA.graphs) == 2, "one for a single row, and one for a full batch"
    before = len(CUDA.launched)
    for rows in (1, 8, 3):
        assert bench.run(instance, rows).tolist() == (2 * np.arange(rows * 4).reshape(rows, 4)).tolist()
    assert len(CUDA.launched) - before == 2


@pytest.mark.rows("BR13")
@pytest.mark.parametrize(("word", "sign"), [("PRIORITY_MAX", -1), ("PRIORITY_MIN", 1), ("PRIORITY_DEFAULT", 0)])
def test_priority_is_that_of_the_stream(bench: Bench, word: str, sign: int) -> None:
    bench.instance(PLAIN, optimization={"priority": word})
    assert np.sign(CUDA.priorities[-1]) == sign


@pytest.mark.rows("BC13")
def test_failure_of_the_runtime_fails_the_batch(bench: Bench) -> None:
    content = plan([tensor("x", "FLOAT", [-1, 4], profiles=[ROWS])], [tensor("y", "FLOAT", [-1, 4])], "fail")
    instance = bench.instance(content)
    with pytest.raises(Internal, match="TensorRT: execute_async_v3 failed for m_0_0"):
        bench.run(instance, 1)


def test_output_with_fewer_rows_is_refused(bench: Bench) -> None:
    content = plan([tensor("x", "FLOAT", [-1, 4], profiles=[ROWS])], [tensor("y", "FLOAT", [-1, 4])], "less")
    instance = bench.instance(content)
    with pytest.raises(Internal, match="expecting the first dimension to be the batch size"):
        bench.run(instance, 3)


@pytest.mark.rows("BR16")
def test_engine_is_shared_unless_a_size_is_variable(bench: Bench) -> None:
    fixed = plan([tensor("x", "FLOAT", [2, 4])], [tensor("y", "FLOAT", [2, 4])])
    for content, is_shared in ((fixed, True), (PLAIN, False)):
        model = bench.backend.open(bench.config(content), bench.folder)
        bench.instances += [model.create_instance(place(index, 2, InstanceKind.GPU)) for index in range(2)]
        first, second = (each._contexts[0].engine for each in bench.instances[-2:])
        assert (first is second) is is_shared


@pytest.mark.rows("BR14")
def test_plugin_that_cannot_be_loaded_is_only_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bench: Bench
) -> None:
    with idle_loop() as loop:
        made = create_in_this_process(TRAITS, context(loop, {"plugins": "/nowhere/a.so", "version-compatible": "true"}))
    assert "plugin '/nowhere/a.so' of TensorRT cannot be loaded" in caplog.text
    assert made._runtime.engine_host_code_allowed  # type: ignore[attr-defined]
