"""Models of torch on a GPU: the contract suite, several streams, devices of ensembles, memory, and child processes."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.backends.testing import SITUATIONS, Situation
from halimede.backends.testing.bench import bench_of
from halimede.errors import Internal
from halimede.tensors import DATATYPES, tensor_of
from tests.compat.serving import Serving
from tests.pytorch.configs import io

torch = pytest.importorskip("torch")

from tests.backends.contract.checking import check  # noqa: E402 - what follows needs torch
from tests.pytorch import programs, scripts  # noqa: E402
from tests.pytorch.test_contract import ScriptAdapter  # noqa: E402

GPU = [{"kind": "KIND_GPU", "gpus": [0]}]
ON_GPU = "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]\n"


class GpuAdapter(ScriptAdapter):
    """The models of the contract suite on GPU 0."""

    cannot: Mapping[str, str] = {
        name: reason for name, reason in ScriptAdapter.cannot.items() if name != "tensors on a device"
    }

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        return {"instance_group": GPU, **super().write(role, version, shape)}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_scripts_keep_the_contract_on_a_gpu(situation: Situation, tmp_path: Path) -> None:
    if situation.name == "two devices" and torch.cuda.device_count() > 1:
        pytest.skip("it can be in this situation only with two GPUs")
    check(situation, GpuAdapter(), tmp_path)


class Modules(GpuAdapter):
    """A module that a test gives."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        scripts.save(self._module, version / "model.pt")
        return {"instance_group": GPU}


@pytest.mark.parametrize("name", [name for name in DATATYPES if name != "BYTES"])
def test_datatypes_on_a_gpu(name: str, tmp_path: Path) -> None:
    class OfType(Modules):
        input_type = output_type = DATATYPES[name]

        def encode(self, rows: Any) -> Any:
            return rows.astype(DATATYPES[name].numpy)

        expected = encode

    with bench_of(OfType(scripts.Echo()), tmp_path) as bench:
        serving = bench.load(width=600)
        rows = np.arange(1200, dtype=np.float32).reshape(2, 600) % 2
        serving.check(serving.ask(serving.input(rows))[0], rows)


def test_many_requests_on_two_streams_get_their_own_answers(tmp_path: Path) -> None:
    with bench_of(Modules(scripts.Slow()), tmp_path) as bench:
        group = [{"kind": "KIND_GPU", "gpus": [0], "count": 2}]
        serving = bench.load(width=4096, instance_group=group, dynamic_batching={})
        rows = [np.random.default_rng(i).random((1 + i % 3, 4096), np.float32) for i in range(100)]
        replies = [serving.ask(serving.input(each))[0] for each in rows]
        for reply, each in zip(replies, rows, strict=True):
            serving.check(reply, each)
        # Several batches of several requests, each copied to the host once.
        assert serving.copies is not None
        assert 0 < serving.copies < len(rows)


def test_tensors_go_from_one_stream_to_another_on_the_gpu(tmp_path: Path) -> None:
    with bench_of(Modules(scripts.Slow()), tmp_path) as bench:
        group = [{"kind": "KIND_GPU", "gpus": [0], "count": 2}]
        serving = bench.load(width=50_000, instance_group=group)
        given = [np.random.default_rng(i).random((1, 50_000), np.float32) for i in range(16)]
        tensors = [serving.input(each) for each in given]
        for _ in range(3):
            replies = [serving.ask(each, on_device=True)[0] for each in tensors]
            memories = [reply.tensors[0] for reply in replies]
            tensors = [type(each)("INPUT0", each.datatype, each.shape, each.memory) for each in memories]
        assert serving.copies == 0
        replies = [serving.ask(each)[0] for each in tensors]
        for reply, rows in zip(replies, given, strict=True):
            serving.check(reply, rows)


def test_out_of_memory_fails_the_request_and_not_the_instance(tmp_path: Path) -> None:
    with bench_of(Modules(scripts.Huge()), tmp_path) as bench:
        serving = bench.load()
        for _ in range(3):
            error = serving.send([-1, 0]).error
            assert isinstance(error, Internal)
            assert "out of memory" in str(error)
            serving.echoes([1, 2])


def test_instances_share_weights_and_an_unload_gives_them_back(tmp_path: Path) -> None:
    with bench_of(Modules(scripts.Heavy()), tmp_path) as bench:
        before = torch.cuda.memory_allocated(0)
        group = [{"kind": "KIND_GPU", "gpus": [0], "count": 3}]
        for _ in range(3):
            serving = bench.load(instance_group=group)
            serving.echoes([1, 2])
            assert torch.cuda.memory_allocated(0) - before < 2 * (64 << 20)
            bench.close(serving)
            del serving
        assert torch.cuda.memory_allocated(0) - before < 16 << 20


def test_cpu_and_gpu_instances_of_one_model(tmp_path: Path) -> None:
    with bench_of(Modules(scripts.Slow()), tmp_path) as bench:
        serving = bench.load(instance_group=[*GPU, {"kind": "KIND_CPU"}])
        replies = [serving.send([i, i + 1]) for i in range(20)]
        for i, reply in enumerate(replies):
            serving.check(reply, [[i, i + 1]])


def test_strings_and_numbers_on_a_gpu(tmp_path: Path) -> None:
    with bench_of(Modules(scripts.ByteLengths()), tmp_path) as bench:
        strings: Any = {
            "max_batch_size": 0,
            "input": [{"name": "INPUT0", "data_type": "TYPE_STRING", "dims": [-1]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT64", "dims": [-1]}],
        }
        serving = bench.load(**strings)
        tensor = tensor_of("INPUT0", DATATYPES["BYTES"], np.array([b"a", b"bcd"], object))
        assert serving.ask(tensor)[0].outputs[0].tolist() == [1, 3]


def test_closing_leaves_no_thread(tmp_path: Path) -> None:
    with bench_of(Modules(scripts.Echo()), tmp_path) as bench:
        serving = bench.load()
        serving.echoes([1, 2])
        bench.close(serving)
        before = threading.active_count()
        for _ in range(5):
            serving = bench.load()
            serving.echoes([1, 2])
            bench.close(serving)
        assert threading.active_count() <= before


# ---- a started server


MODULE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        assert x.is_cuda and self.layer.weight.is_cuda
        return self.layer(x)
"""
ROWS = [("INPUT0", "FP32", [50_000])], [("OUTPUT0", "FP32", [50_000])]
STEP = (
    'step [ {{ model_name: "slow" model_version: -1 input_map {{ key: "INPUT0" value: "{given}" }} '
    'output_map {{ key: "OUTPUT0" value: "{made}" }} }} ]\n'
)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("gpu")
    repository = folder / "models"

    def write(name: str, config: str, file: str) -> Path:
        (repository / name / "1").mkdir(parents=True)
        named = "" if "platform" in config or "backend" in config else 'backend: "pytorch"\n'
        (repository / name / "config.pbtxt").write_text(named + config)
        return repository / name / "1" / file

    batches = "max_batch_size: 8\n"
    scripts.save(scripts.Slow(), write("slow", batches + io(*ROWS) + ON_GPU, "model.pt"))
    auto = "instance_group [ { kind: KIND_AUTO } ]\n"
    scripts.save(scripts.Echo(), write("auto", batches + io(*ROWS) + auto, "model.pt"))
    steps = STEP.format(given="IN", made="between") + STEP.format(given="between", made="OUT")
    sides = io([("IN", "FP32", [50_000])], [("OUT", "FP32", [50_000])])
    write("twice", f'platform: "ensemble"\n{batches}{sides}ensemble_scheduling {{ {steps} }}\n', "none")
    programs.named(write("program", 'platform: "torch_aoti"\n' + ON_GPU, "model.pt2"))
    four = io([("x", "FP32", [4])], [("y", "FP32", [3])])
    eager = 'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value: { string_value: "{\\"disable\\": true}" } }\n'
    module = f'backend: "pytorch"\nruntime: "model.py"\n{batches}{four}{ON_GPU}{eager}'
    write("module", module, "model.py").write_text(MODULE)
    home = 'parameters { key: "HOME" value: { string_value: "child" } }\n'
    scripts.save(scripts.Linear(), write("child", batches + four + ON_GPU + home, "model.pt"))
    two = io([("INPUT0", "FP32", [2])], [("OUTPUT0", "FP32", [2])])
    there = write("where_it_is", two + "instance_group [ { kind: KIND_MODEL } ]\n", "model.pt")
    scripts.save(scripts.OnItsDevice().cuda(), there)
    with Serving(repository, folder / "server.log") as running:
        yield running.wait_until_live()
        assert running.stop() == 0, running.log_text()[-3000:]


def infer(serving: Serving, model: str, **inputs: Any) -> dict[str, Any]:
    """The outputs by name, as JSON over HTTP: no client is needed."""
    tensors = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": list(np.shape(value)),
            "data": np.asarray(value).reshape(-1).tolist(),
        }
        for name, value in inputs.items()
    ]
    status, answer = serving.ask(f"/v2/models/{model}/infer", json.dumps({"inputs": tensors}).encode())
    assert status == 200, answer
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]}


def copies(serving: Serving, model: str) -> int:
    for line in serving.metrics().splitlines():
        if line.startswith("halimede_device_copies_total{") and f'model="{model}"' in line:
            return int(float(line.rsplit(" ", 1)[1]))
    raise AssertionError(f"no copies of {model}: {serving.metrics()}")


def test_ensemble_keeps_tensors_on_the_gpu(serving: Serving) -> None:
    rows = np.random.default_rng(1).random((1, 50_000)).astype(np.float32)
    infer(serving, "twice", IN=rows)
    before = copies(serving, "slow")
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda _: infer(serving, "twice", IN=rows), range(16)):
            np.testing.assert_array_equal(answer["OUT"].astype(np.float32), rows)
    assert copies(serving, "slow") - before == 16  # of two steps each: only the last answer is on the host


def test_kind_auto_is_the_gpu(serving: Serving) -> None:
    status, config = serving.ask("/v2/models/auto/config")
    assert (status, config["instance_group"][0]["kind"]) == (200, "KIND_GPU")
    rows = np.ones((2, 50_000), np.float32)
    assert infer(serving, "auto", INPUT0=rows)["OUTPUT0"].shape == (2, 50_000)


def test_exported_program_on_a_gpu(serving: Serving) -> None:
    rows = np.arange(8).reshape(2, 4)
    answer = infer(serving, "program", X=rows)
    assert answer["logits"].shape == (2, 3)
    assert answer["sum"].reshape(-1).tolist() == rows.sum(1).tolist()
    assert copies(serving, "program") > 0


@pytest.mark.parametrize("model", ["module", "child"])
def test_gpu_in_a_child_process(serving: Serving, model: str) -> None:
    rows = np.arange(8).reshape(2, 4)
    whole = infer(serving, model, x=rows)["y"]
    assert whole.shape == (2, 3)
    np.testing.assert_allclose(infer(serving, model, x=rows[1:])["y"], whole[1:], rtol=1e-4)
    serving.until_logged(f"instance '{model}_0_0' runs in process")


def test_kind_model_stays_where_its_file_says(serving: Serving) -> None:
    assert infer(serving, "where_it_is", INPUT0=[1, 2])["OUTPUT0"].tolist() == [2, 3]
