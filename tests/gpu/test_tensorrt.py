"""The tensorrt backend on a real GPU, with a stand-in for TensorRT that computes by kernels of the tests."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.backends.creation import create_in_this_process
from halimede.backends.tensorrt import TRAITS
from halimede.devices import DEVICE_FAILED
from halimede.errors import Internal
from halimede.platform.gpus import compute_capability
from tests.backends.fakes import context, idle_loop
from tests.backends.tensorrt.standin import plan, tensor
from tests.backends.tensorrt.test_backend import FILLING, PLAIN, ROWS, TWO_PROFILES, Bench, io
from tests.compat.serving import Serving
from tests.gpu import tensorrt_standin
from tests.gpu.kernels import importing

CHILD = 'parameters { key: "HOME" value: { string_value: "child" } }\n'
LARGE = [[1, 1_000_000], [4, 1_000_000], [8, 1_000_000]]
BACKEND = "halimede.backends.tensorrt.backend"


def one_to_one(operation: str, limits: Any = ROWS) -> bytes:
    shape = [-1, limits[0][1]]
    return plan([tensor("x", "FLOAT", shape, profiles=[limits])], [tensor("y", "FLOAT", shape)], operation)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with bench_in(tmp_path, monkeypatch) as made:
        yield made


class bench_in:  # noqa: N801 - used like a function
    """A bench whose backend has the stand-in. It closes the instances."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tensorrt", tensorrt_standin)
        monkeypatch.delitem(sys.modules, BACKEND, raising=False)
        self._folder = folder

    def __enter__(self) -> Bench:
        with idle_loop() as loop:
            self._made = Bench(create_in_this_process(TRAITS, context(loop)), self._folder)
        return self._made

    def __exit__(self, *_: object) -> None:
        sys.modules.pop(BACKEND, None)
        for instance in self._made.instances:
            instance.close()


def rows_of(count: int, width: int = 4, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((count, width), np.float32)


def test_batches_of_all_sizes(bench: Bench) -> None:
    instance = bench.instance(PLAIN)
    first = bench.run(instance, 1)
    for count in (1, 8, 3):
        rows = rows_of(count, seed=count)
        np.testing.assert_array_equal(bench.run(instance, count, array=rows), 2 * rows)
    assert first.tolist() == [[0, 2, 4, 6]], "an answer is no memory of the instance"


def test_large_tensors(bench: Bench) -> None:
    instance = bench.instance(one_to_one("twice", LARGE))
    for count in (8, 1):
        rows = rows_of(count, 1_000_000, count)
        np.testing.assert_array_equal(bench.run(instance, count, array=rows), 2 * rows)


def test_answer_waits_for_the_gpu(bench: Bench) -> None:
    instance = bench.instance(one_to_one("slow"))
    rows = rows_of(8)
    np.testing.assert_array_equal(bench.run(instance, 8, array=rows), 2 * rows)


def test_file_for_the_capability_of_the_gpu(bench: Bench) -> None:
    (bench.version / "ours.plan").write_bytes(PLAIN)
    files = {str(compute_capability(0)): "ours.plan", "1.0": "theirs.plan"}
    instance = bench.instance(one_to_one("fail"), cc_model_filenames=files)
    assert bench.run(instance, 1).tolist() == [[0, 2, 4, 6]]


def test_two_profiles(bench: Bench) -> None:
    instance = bench.instance(TWO_PROFILES, instance_group=[{"name": "m_0", "kind": "KIND_GPU", "profile": ["0", "1"]}])
    for count in (1, 4, 20):
        rows = rows_of(count)
        np.testing.assert_array_equal(bench.run(instance, count, array=rows), 2 * rows)


def test_shape_tensors_are_read_on_the_host(bench: Bench) -> None:
    given = [io("shape", [1], "TYPE_INT32", is_shape_tensor=True)]
    instance = bench.instance(FILLING, max_batch_size=8, input=given, output=[io("y", [-1])])
    for count, width in ((2, 3), (8, 8), (1, 1)):
        found = bench.run(instance, count, "shape", "INT32", np.full((count, 1), width, np.int32))
        assert found.tolist() == [[1] * width] * count


def test_recorded_batch_sizes_run_as_graphs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = bench.instance(one_to_one("slow"), optimization={"cuda": {"graphs": True}})
    assert len(instance._graphs) == 2, "one for a single row, and one for a full batch"
    launched: list[int] = []
    launch = instance._cuda.launch

    def counts(graph: int, stream: int) -> None:
        launched.append(graph)
        launch(graph, stream)

    monkeypatch.setattr(instance._cuda, "launch", counts)
    for count in (1, 8, 3, 8):
        rows = rows_of(count, seed=count)
        np.testing.assert_array_equal(bench.run(instance, count, array=rows), 2 * rows)
    assert len(launched) == 3


def test_instances_of_all_priorities_at_once(bench: Bench) -> None:
    words = ("PRIORITY_MAX", "PRIORITY_DEFAULT", "PRIORITY_MIN")
    instances = [bench.instance(one_to_one("twice", LARGE), optimization={"priority": word}) for word in words]
    together = threading.Barrier(len(instances))

    def serve(number: int) -> None:
        together.wait(60)
        for turn in range(10):
            rows = rows_of(4, 1_000_000, 100 * number + turn)
            np.testing.assert_array_equal(bench.run(instances[number], 4, array=rows), 2 * rows)

    with ThreadPoolExecutor(len(instances)) as pool:
        for done in [pool.submit(serve, number) for number in range(len(instances))]:
            done.result(120)


def test_runtime_that_refuses(bench: Bench) -> None:
    instance = bench.instance(one_to_one("fail"))
    with pytest.raises(Internal, match="TensorRT: execute_async_v3 failed for m_0_0"):
        bench.run(instance, 1)
    assert instance.healthy, "the GPU works"


def break_it() -> None:
    """Prints what a broken GPU says. In a process of its own."""
    import tempfile

    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        tempfile.TemporaryDirectory() as folder,
        bench_in(Path(folder), monkeypatch) as bench,
    ):
        instance = bench.instance(one_to_one("break"))
        print(instance.healthy)
        for _ in range(2):
            try:
                bench.run(instance, 1)
            except Internal as error:
                print(error)
        print(instance.healthy)


def test_instance_whose_gpu_has_failed_is_broken() -> None:
    command = [sys.executable, "-c", "from tests.gpu.test_tensorrt import break_it; break_it()"]
    done = subprocess.run(command, env=importing(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    before, first, second, after = done.stdout.splitlines()
    assert (before, after) == ("True", "False")
    assert first.startswith("CUDA: cu"), first
    assert second == DEVICE_FAILED


# ---- a started server


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("tensorrt")
    (folder / "tensorrt.py").write_text("from tests.gpu.tensorrt_standin import *\n")
    for name, operation, more in (
        ("plain", "twice", ""),
        ("graphs", "slow", "optimization { cuda { graphs: true } }\n"),
        ("child", "twice", CHILD),
        ("breaking", "break", CHILD),
        ("large", "twice", "optimization { priority: PRIORITY_MAX }\ninstance_group [ { kind: KIND_GPU count: 2 } ]\n"),
    ):
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.plan").write_bytes(one_to_one(operation, LARGE if name == "large" else ROWS))
        (version.parent / "config.pbtxt").write_text(f'platform: "tensorrt_plan"\ndynamic_batching {{ }}\n{more}')
    environment = importing()
    environment["PYTHONPATH"] = f"{folder}:{environment['PYTHONPATH']}"
    with Serving(folder / "models", folder / "log", environment=environment) as running:
        yield running.wait_until_live()
        assert running.stop() == 0, running.log_text()[-3000:]


@pytest.mark.parametrize(("model", "width"), [("plain", 4), ("graphs", 4), ("child", 4), ("large", 1_000_000)])
def test_plan_on_a_server(serving: Serving, model: str, width: int) -> None:
    def ask(seed: int) -> None:
        rows = rows_of(1, width, seed)
        given = {"name": "x", "datatype": "FP32", "shape": [1, width], "data": rows.reshape(-1).tolist()}
        status, answer = serving.ask(f"/v2/models/{model}/infer", json.dumps({"inputs": [given]}).encode())
        assert status == 200, answer
        found = np.array(answer["outputs"][0]["data"], np.float32)
        np.testing.assert_array_equal(found, 2 * rows.reshape(-1))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(ask, seed) for seed in range(8 if width > 4 else 64)]:
            done.result(120)


def test_child_process_whose_gpu_has_failed_is_started_again(serving: Serving) -> None:
    given = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [given]}).encode()
    for turn in (1, 2):
        status, answer = serving.ask("/v2/models/breaking/infer", body)
        assert status == 500
        assert answer["error"].startswith("CUDA: cu"), answer
        serving.until_logged(f"serves: restart {turn}")
        assert serving.status("/v2/models/breaking/ready") == 200
