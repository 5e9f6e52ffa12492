"""AOTInductor packages that were compiled for a GPU."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.compat.serving import Serving
from tests.gpu.kernels import importing
from tests.pytorch.configs import io

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="AOTInductor compiles by triton")

from halimede.backends.pytorch.package import metadata_of  # noqa: E402 - needs torch
from tests.gpu.test_pytorch import ON_GPU, infer  # noqa: E402 - what follows needs torch

COMPILE_SECONDS = 240
COMPILING = """
import sys
from pathlib import Path

import torch
from tests.pytorch import programs

torch.manual_seed(0)
module = programs.compiled(Path(sys.argv[1]), "cuda")
rows = torch.arange(16.0).reshape(4, 4)
print(module(rows.cuda())["logits"].tolist())
"""
ROWS = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[float]]]:
    """The file, and what its module answers to `ROWS`. Compiled in a process of its own."""
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor compiles by g++, which is not installed")
    path = tmp_path_factory.mktemp("package") / "model.pt2"
    command = [sys.executable, "-c", COMPILING, str(path)]
    done = subprocess.run(
        command, env=importing(), capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return path, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def serving(package: tuple[Path, list[list[float]]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("packages")
    outputs = io([("ARGS[0]", "FP32", [4])], [("RESULT[logits]", "FP32", [3])])
    for name, group in (("package", ON_GPU), ("on_cpu", "instance_group [ { kind: KIND_CPU } ]\n")):
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        shutil.copy(package[0], version / "model.pt2")
        text = f'platform: "torch_aoti"\nmax_batch_size: 4\n{outputs}{group}'
        (version.parent / "config.pbtxt").write_text(text)
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with Serving(folder / "models", folder / "log", *flags) as running:
        yield running.wait_until_live()
        assert running.stop() == 0, running.log_text()[-3000:]


def test_package_says_that_it_is_for_a_gpu(package: tuple[Path, list[list[float]]]) -> None:
    assert metadata_of(package[0])["AOTI_DEVICE_KEY"] == "cuda"


@pytest.mark.xfail(reason="with torch 2.11 the process ends while it loads the package", strict=True)
def test_package_runs_on_the_gpu(serving: Serving, package: tuple[Path, list[list[float]]]) -> None:
    assert serving.status("/v2/models/package/ready") == 200, serving.log_text()

    def ask(rows: slice) -> None:
        found = infer(serving, "package", **{"ARGS[0]": ROWS[rows]})["RESULT[logits]"]
        np.testing.assert_allclose(found, np.array(package[1])[rows], rtol=1e-2, atol=1e-2)

    for rows in (slice(0, 4), slice(0, 1), slice(1, 3)):
        ask(rows)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, [slice(i % 4, i % 4 + 1) for i in range(32)]))
    serving.until_logged("instance 'package_0_0' runs in process")


def test_package_for_a_gpu_is_refused_for_the_cpu(serving: Serving) -> None:
    _, index = serving.ask("/v2/repository/index", b"")
    [entry] = [each for each in index if each["name"] == "on_cpu"]
    assert "it was compiled for 'cuda', and the instance_group is for 'cpu'" in entry["reason"]
