"""Options of models of torch that mean something on a GPU only, and clients' CUDA shared memory for such a model."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.backends.testing.bench import bench_of
from tests.compat.serving import Serving
from tests.pytorch.configs import io

torch = pytest.importorskip("torch")

from tests.gpu.test_pytorch import ON_GPU, Modules, infer  # noqa: E402 - what follows needs torch
from tests.pytorch import scripts  # noqa: E402

GIB = 1 << 30
CONVOLUTION = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x):
        weight, bias = self.layer.weight, self.layer.bias
        kind = torch._C._select_conv_backend(x, weight, bias, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        uses = torch.full((len(x), 1), float("cudnn" in str(kind).lower()), device=x.device)
        return self.layer(x).flatten(1), uses
"""
EAGER = 'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value: { string_value: "{\\"disable\\": true}" } }\n'


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("options")
    sides = io([("x", "FP32", [3, 16, 16])], [("y", "FP32", [8 * 14 * 14]), ("uses", "FP32", [1])])
    for name, more in (("with_cudnn", ""), ("without_cudnn", parameter("DISABLE_CUDNN", "true"))):
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(CONVOLUTION)
        text = f'backend: "pytorch"\nruntime: "model.py"\nmax_batch_size: 4\n{sides}{ON_GPU}{EAGER}{more}'
        (version.parent / "config.pbtxt").write_text(text)
    scripts.save(scripts.Slow(), folder / "models" / "slow" / "1" / "model.pt")
    wide = io([("INPUT0", "FP32", [100_000])], [("OUTPUT0", "FP32", [100_000])])
    text = f'backend: "pytorch"\nmax_batch_size: 8\ndynamic_batching {{ }}\n{wide}{ON_GPU}'
    (folder / "models" / "slow" / "config.pbtxt").write_text(text)
    with Serving(folder / "models", folder / "log", "--allow-client-shm=true") as running:
        yield running.wait_until_live()
        assert running.stop() == 0, running.log_text()[-3000:]


def test_cudnn_is_off_for_a_model_that_wants_that(serving: Serving) -> None:
    rows = np.random.default_rng(0).random((2, 3, 16, 16), np.float32)
    both = [infer(serving, name, x=rows) for name in ("with_cudnn", "without_cudnn")]
    assert [each["uses"].reshape(-1).tolist() for each in both] == [[1, 1], [0, 0]]
    np.testing.assert_allclose(both[0]["y"], both[1]["y"], rtol=0.02, atol=0.02)


def test_memory_is_kept_for_the_next_batch_unless_the_model_wants_it_cleaned(tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(0)
    with bench_of(Modules(scripts.Roomy()), tmp_path) as bench:
        kept = bench.load()
        kept.echoes([1, 2])
        assert torch.cuda.memory_reserved(0) - before >= GIB
        bench.close(kept)
        torch.cuda.empty_cache()
        cleaned = bench.load(parameters={"ENABLE_CACHE_CLEANING": {"string_value": "true"}})
        for i in range(3):
            cleaned.echoes([i, 2])
            # The memory is given back after the answer.
            until = time.monotonic() + 30
            while torch.cuda.memory_reserved(0) - before >= GIB / 2:
                assert time.monotonic() < until, "the memory was not given back"
                time.sleep(0.01)


def test_client_s_memory_on_the_gpu_for_a_model_on_the_gpu(serving: Serving) -> None:
    """Inputs and outputs of several requests at once, as views of one region."""
    cudashm: Any = pytest.importorskip("tritonclient.utils.cuda_shared_memory")
    grpcclient: Any = import_module("tritonclient.grpc")
    count, size = 4, 400_000
    name = f"halimede_options_{os.getpid()}"
    handle = cudashm.create_shared_memory_region(name, 2 * count * size, 0)
    try:
        with grpcclient.InferenceServerClient(serving.grpc_url) as client:
            client.register_cuda_shared_memory(name, cudashm.get_raw_handle(handle), 0, 2 * count * size)
            for turn in range(5):
                rows = np.random.default_rng(turn).random((count, 100_000), np.float32)
                cudashm.set_shared_memory_region(handle, [rows])

                def ask(i: int) -> None:
                    given = grpcclient.InferInput("INPUT0", [1, 100_000], "FP32")
                    given.set_shared_memory(name, size, i * size)
                    wanted = grpcclient.InferRequestedOutput("OUTPUT0")
                    wanted.set_shared_memory(name, size, (count + i) * size)
                    client.infer("slow", [given], outputs=[wanted], client_timeout=60)

                with ThreadPoolExecutor(count) as pool:
                    list(pool.map(ask, range(count)))
                found = cudashm.get_contents_as_numpy(handle, np.float32, [2 * count, 100_000])[count:]
                np.testing.assert_array_equal(found, rows)
            client.unregister_cuda_shared_memory(name)
    finally:
        cudashm.destroy_shared_memory_region(handle)
