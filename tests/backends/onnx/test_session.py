"""Opening and describing ONNX models: files, settings, threads, what they declare."""

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.api import CpuShare, ModelFolder
from halimede.backends.onnx.backend import OnnxRuntimeBackend
from halimede.backends.onnx.errors import translated
from halimede.backends.onnx.session import (
    SessionPlan,
    plan_session,
    run_options,
    spinning,
)
from halimede.backends.parameters import Settings
from halimede.config.model_config import DescribedTensor, Incomplete, InstanceKind, ModelConfig
from halimede.errors import Error, Internal, Invalid, Unavailable, Unsupported
from halimede.platform.hosts import available_cores
from halimede.tensors import DATATYPES, Shape
from tests.backends import onnx_models
from tests.backends.fakes import asked, context, folder, idle_loop, model_config, spec


@pytest.fixture
def backend() -> Iterator[OnnxRuntimeBackend]:
    with idle_loop() as loop:
        yield OnnxRuntimeBackend(context(loop))


def plan(
    parameters: dict[str, str] | None = None,
    settings: dict[str, str] | None = None,
    level: int | None = None,
    instances: int = 1,
    device: int | None = None,
) -> SessionPlan:
    return plan_session(Settings("m", parameters or {}), Settings("b", settings or {}), level, instances, device)


def numbers(parameters: Mapping[str, str] | None = None, count: int = 1) -> ModelConfig:
    inputs, outputs = [spec("x", "FP32", [4])], [spec("y", "FP32", [4])]
    return model_config(inputs, outputs, 8, count=count, parameters=parameters or {})


NUMBERS = onnx_models.identity("FP32", ["batch", 4])


@pytest.mark.parametrize(
    ("cores", "instances", "threads"), [(2, 1, 2), (2, 2, 1), (2, 8, 1), (8, 2, 7), (16, 16, 1), (1, 1, 1)]
)
def test_threads_never_outnumber_the_cores(cores: int, instances: int, threads: int) -> None:
    assert CpuShare(frozenset(range(cores)), instances).pool == threads
    assert instances + threads - 1 <= max(cores, instances)


def test_threads_by_default_are_a_share_of_the_cores() -> None:
    made = plan(instances=1)
    assert (made.intra_threads, made.inter_threads) == (len(available_cores()), 1)
    assert plan(instances=len(available_cores())).intra_threads == 1


def test_threads_of_the_model_win_over_those_of_the_backend() -> None:
    settings = {"intra_op_thread_count": "3", "inter_op_thread_count": "4"}
    assert plan({"intra_op_thread_count": "5"}, settings).intra_threads == 5
    assert plan({}, settings).intra_threads == 3
    assert plan({}, settings).inter_threads == 4
    assert plan({"inter_op_thread_count": "0"}, settings).inter_threads == 4, "only a number above 0 is applied"
    assert plan({"intra_op_thread_count": "-2"}).intra_threads == plan().intra_threads


def test_plan_from_parameters() -> None:
    made = plan(
        {
            "execution_mode": "1",
            "enable_mem_arena": "0",
            "enable_mem_pattern": "false",
            "session.use_device_allocator_for_initializers": "1",
            "memory.enable_memory_arena_shrinkage": "cpu:0",
            "intra_op_thread_count": "2",
            "inter_op_thread_count": "2",
            "a parameter of the user's own": "is left alone",
        },
        level=-1,
    )
    assert made == SessionPlan(
        cores=available_cores(),
        intra_threads=2,
        inter_threads=2,
        parallel=True,
        level=-1,
        arena=False,
        pattern=False,
        entries=(("session.use_device_allocator_for_initializers", "1"),),
        run_entries=(("memory.enable_memory_arena_shrinkage", "cpu:0"),),
    )


def test_plan_for_a_gpu() -> None:
    made = plan({"cudnn_conv_algo_search": "1", "gpu_mem_limit": "4096", "arena_extend_strategy": "1"}, device=3)
    assert dict(made.cuda) == {
        "device_id": "3",
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": "4096",
        "arena_extend_strategy": "kSameAsRequested",
    }
    assert plan({"gpu_mem_limit": "4096"}).cuda == ()


@pytest.mark.rows("BC8", "BO8")
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("intra_op_thread_count", "two", "failed to convert 'two' to integral number"),
        ("inter_op_thread_count", "", "failed to convert '' to integral number"),
        ("inter_op_thread_count", "9" * 30, f"failed to convert '{'9' * 30}' to integral number"),
        ("inter_op_thread_count", "2147483648", "failed to convert '2147483648' to integral number"),
        ("execution_mode", "true", "failed to convert 'true' to integral number"),
        (
            "execution_mode",
            "2",
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 .",
        ),
        ("enable_mem_arena", "yes", "failed to convert 'yes' to boolean"),
        ("enable_mem_pattern", "", "failed to convert '' to boolean"),
        ("cudnn_conv_algo_search", "3", "unsupported cudnn_conv_algo_search value '3' is requested"),
        ("arena_extend_strategy", "x", "unsupported arena_extend_strategy value 'x' is requested"),
        ("do_copy_in_default_stream", "x", "failed to convert 'x' to boolean"),
        ("gpu_mem_limit", "-1", "failed to convert '-1' to integral number"),
    ],
)
def test_plan_refuses_a_value_that_means_nothing(key: str, value: str, expected: str) -> None:
    """In Triton's words, which do not name the parameter. The log does."""
    with pytest.raises(Invalid) as caught:
        plan({key: value}, device=0)
    assert caught.value.message == expected
    assert caught.value.advice == f"m: correct the parameter '{key}'"


@pytest.mark.rows("BC8")
def test_values_are_read_as_in_triton() -> None:
    made = plan({"enable_mem_arena": "OFF", "enable_mem_pattern": "Off", "intra_op_thread_count": " 12abc"})
    assert (made.arena, made.pattern, made.intra_threads) == (False, False, 12)
    assert plan({"enable_mem_arena": "On", "execution_mode": "1"}).parallel
    assert dict(plan({"do_copy_in_default_stream": "TRUE", "gpu_mem_limit": "8589934592"}, device=0).cuda) == {
        "device_id": "0",
        "do_copy_in_default_stream": "1",
        "gpu_mem_limit": "8589934592",
    }


@pytest.mark.parametrize("level", [None, -1, 0, 1, 2])
def test_open_with_every_graph_level(backend: OnnxRuntimeBackend, tmp_path: Path, level: int | None) -> None:
    config = model_config([spec("x", "FP32", [4])], [spec("y", "FP32", [4])], 8, level=level)
    session, made = backend.open(config, folder(tmp_path, NUMBERS)).session(None)
    expected = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}.get(
        level or 0, "ORT_ENABLE_ALL"
    )
    assert session.get_session_options().graph_optimization_level.name == expected
    assert made.level == level


def test_open_gives_the_session_its_settings(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    parameters = {
        "intra_op_thread_count": "1",
        "execution_mode": "1",
        "inter_op_thread_count": "2",
        "enable_mem_arena": "0",
        "memory.enable_memory_arena_shrinkage": "cpu:0",
    }
    session, made = backend.open(numbers(parameters), folder(tmp_path, NUMBERS)).session(None)
    options = session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 2)
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert not options.enable_cpu_mem_arena
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "20"
    assert run_options(made).get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    assert run_options(plan()) is None


@pytest.mark.parametrize("version", ["1.31.0", "1.31.1", "1.40.0.dev20270101+cpu", "2.0.0"])
def test_workers_spin_for_as_long_as_the_runtime_can_be_told(version: str) -> None:
    assert spinning(version) == {
        "session.force_spinning_stop": "1",
        "session.intra_op.spin_duration_us": "20",
        "session.inter_op.spin_duration_us": "20",
    }


@pytest.mark.parametrize("version", ["1.20.0", "1.9.0", "1.30.3", "0.99"])
def test_workers_do_not_spin_where_the_runtime_would_pass_over_the_bound(version: str) -> None:
    assert spinning(version) == {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}


@pytest.mark.parametrize("data", [b"", b"not an ONNX model at all", NUMBERS[: len(NUMBERS) // 2]])
def test_open_corrupt_file(backend: OnnxRuntimeBackend, tmp_path: Path, data: bytes) -> None:
    where = folder(tmp_path, data)
    with pytest.raises(Internal, match=r"^onnx runtime error \d+: Load model from .*model\.onnx failed:"):
        backend.open(numbers(), where)
    with pytest.raises(Internal, match=r"^onnx runtime error \d+: "):
        backend.describe(asked(), where, "")


def test_open_missing_file(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    where = folder(tmp_path)
    with pytest.raises(Unavailable) as caught:
        backend.open(numbers(), where)
    assert caught.value.message == f"unable to find '{where.version / 'model.onnx'}' for model instance 'm'"
    with pytest.raises(Unavailable):
        backend.describe(asked(), where, "")


def test_open_pipe(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    """Nobody writes into it, so to open it would take for ever."""
    where = folder(tmp_path)
    os.mkfifo(where.version / "model.onnx")
    with pytest.raises(Unavailable, match="unable to find"):
        backend.open(numbers(), where)
    with pytest.raises(Unavailable, match="unable to find"):
        backend.describe(asked(), where, "")


def test_open_model_that_is_a_directory(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    where = folder(tmp_path)
    (where.version / "model.onnx").mkdir()
    (where.version / "model.onnx" / "model.onnx").write_bytes(NUMBERS)
    assert backend.open(numbers(), where).session(None)


def test_open_configuration_that_does_not_fit(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    config = model_config([spec("x", "INT8", [4])], [spec("y", "FP32", [4])], 8)
    with pytest.raises(Invalid, match="expects datatype TYPE_INT8 for input 'x', model provides TYPE_FP32"):
        backend.open(config, folder(tmp_path, NUMBERS))


def test_open_on_a_gpu_without_its_provider(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has the provider")
    config = model_config([spec("x", "FP32", [4])], [spec("y", "FP32", [4])], 8, kind=InstanceKind.GPU, gpus=(0,))
    with pytest.raises(Unsupported, match="no CUDA provider"):
        backend.open(config, folder(tmp_path, NUMBERS))


def one(name: str, shape: Shape | None, datatype: str = "FP32") -> tuple[DescribedTensor, ...]:
    return (DescribedTensor(name, DATATYPES[datatype], shape),)


@pytest.mark.parametrize(
    ("dims", "expected"),
    [(["batch", None, 4], (-1, -1, 4)), ([], ()), (None, None), ([2, 3], (2, 3))],
)
def test_describe_shapes(
    backend: OnnxRuntimeBackend, tmp_path: Path, dims: list[int | str | None] | None, expected: Shape | None
) -> None:
    found = backend.describe(asked(), folder(tmp_path, onnx_models.identity("FP32", dims)), "")
    assert (found.inputs, found.outputs) == (one("x", expected), one("y", expected))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_describe_datatypes(backend: OnnxRuntimeBackend, tmp_path: Path, datatype: str) -> None:
    found = backend.describe(asked(), folder(tmp_path, onnx_models.identity(datatype, [1])), "model.onnx")
    assert found.inputs == one("x", (1,), datatype)


def test_describe_leaves_weights_out(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    found = backend.describe(asked(), folder(tmp_path, onnx_models.overridable()), "")
    assert [tensor.name for tensor in found.inputs] == ["x"]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (onnx_models.sequence(), "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'q', expected 'ONNX_TYPE_TENSOR'"),
        (onnx_models.float8(), "unsupported datatype 'tensor(float8e4m3fn)' for I/O 'y' of model 'm'"),
    ],
)
def test_describe_tensor_that_cannot_be_served(
    backend: OnnxRuntimeBackend, tmp_path: Path, model: bytes, expected: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        backend.describe(asked(), folder(tmp_path, model), "")
    assert caught.value.message == expected


def asking_for(config: ModelConfig, count: int) -> Incomplete:
    parameters = {key: {"string_value": value} for key, value in config.parameters.items()}
    return asked(count, parameters=parameters, instance_group=[{"kind": "KIND_CPU", "count": count}])


def described(backend: OnnxRuntimeBackend, where: ModelFolder, config: Incomplete) -> ModelFolder:
    """The folder as `open` is given it after that."""
    opened = backend.describe(config, where, "model.onnx").opened
    assert opened is not None
    return replace(where, opened=opened)


def test_describe_leaves_its_session_to_open(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    config = numbers({"enable_mem_pattern": "0"}, count=2)
    where = described(backend, folder(tmp_path, NUMBERS), asking_for(config, 2))
    opened: Any = where.opened
    assert backend.open(config, where).session(None)[0] is opened.session


def test_a_model_that_is_closed_does_not_hold_the_session_that_describe_left(
    backend: OnnxRuntimeBackend, tmp_path: Path
) -> None:
    config = numbers(count=2)
    where = described(backend, folder(tmp_path, NUMBERS), asking_for(config, 2))
    opened: Any = where.opened
    session = weakref.ref(opened.session)
    model = backend.open(config, where)
    del where, opened
    assert session() is not None
    model.close()
    gc.collect()
    assert session() is None


def test_describe_with_other_settings_is_opened_anew(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    config = numbers({"enable_mem_pattern": "0"})
    session, _ = backend.open(config, described(backend, folder(tmp_path, NUMBERS), asked())).session(None)
    assert not session.get_session_options().enable_mem_pattern


def test_describe_of_a_file_that_changed_is_forgotten(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    config = numbers(count=2)
    where = described(backend, folder(tmp_path, NUMBERS), asking_for(config, 2))
    folder(tmp_path, onnx_models.identity("INT32", ["batch", 4, 4]))
    with pytest.raises(Invalid, match="model provides TYPE_INT32"):
        backend.open(config, where)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got 4\n Please fix.",
            "onnx runtime error 2: Got 4\n Please fix.",
        ),
        ("Required inputs (['x']) are missing", "onnx runtime error: Required inputs (['x']) are missing"),
    ],
)
def test_error_of_the_runtime_in_the_servers_words(text: str, expected: str) -> None:
    got = translated(RuntimeError(text))
    assert (type(got), got.message) == (Internal, expected)


def test_error_of_our_own_keeps_its_kind() -> None:
    error: Error = Invalid("text")
    assert translated(error) is error


GLOBAL_POOL = """
import asyncio, os, sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from halimede.backends.api import ModelFolder
from halimede.backends.onnx.backend import OnnxRuntimeBackend
from tests.backends.fakes import context, folder
from tests.backends.onnx.test_session import NUMBERS, numbers
loop = asyncio.new_event_loop()
settings = {"enable-global-threadpool": "1", "intra_op_thread_count": "2", "inter_op_thread_count": "1"}
where = folder(Path(sys.argv[1]), NUMBERS)
for _ in range(2):
    session, _ = OnnxRuntimeBackend(context(loop, settings)).open(numbers(), where).session(None)
    print(session.get_session_options().use_per_session_threads)
loop.close()
"""


def test_global_thread_pool_serves_every_engine_of_a_process(tmp_path: Path) -> None:
    # In a process of its own: the pools are the process's, and these tests shall not run with them.
    done = subprocess.run(
        [sys.executable, "-c", GLOBAL_POOL, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["False", "False"]), done.stderr


def test_backend_setting_that_means_nothing() -> None:
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(Invalid, match="failed to convert 'maybe' to boolean"):
            OnnxRuntimeBackend(context(loop, {"enable-global-threadpool": "maybe"}))
    finally:
        loop.close()
