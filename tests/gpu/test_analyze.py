"""`halimede analyze` with a model of torch on a GPU: memory, use and power as figures, constraints and columns."""

import csv
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.gpu.kernels import importing
from tests.pytorch.configs import io

torch = pytest.importorskip("torch")

from tests.gpu.test_pytorch import ON_GPU  # noqa: E402 - what follows needs torch
from tests.pytorch import scripts  # noqa: E402

FILE = """
model_repository: {repository}
export_path: {folder}
run_config_search_disable: true
measurement_seconds: 2
monitoring_interval: 0.2
skip_summary_reports: true
triton_server_flags: {{metrics-interval-ms: 200}}
constraints: {{gpu_used_memory: {{max: {limit}}}}}
inference_output_fields: model_config_path, concurrency, perf_throughput, gpu_utilization, satisfies_constraints
profile_models:
  slow:
    parameters: {{concurrency: [1, 4]}}
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    version = tmp_path / "models" / "slow" / "1"
    scripts.save(scripts.Slow(), version / "model.pt")
    sides = io([("INPUT0", "FP32", [64])], [("OUTPUT0", "FP32", [64])])
    text = f'backend: "pytorch"\nmax_batch_size: 8\ndynamic_batching {{ }}\n{sides}{ON_GPU}'
    (version.parent / "config.pbtxt").write_text(text)
    return tmp_path / "models"


def profiled(folder: Path, repository: Path, limit: int) -> str:
    """What the command prints."""
    (folder / "a.yaml").write_text(FILE.format(repository=repository, folder=folder, limit=limit))
    command = [sys.executable, "-m", "halimede", "analyze", "profile", "-f", "a.yaml"]
    done = subprocess.run(
        command, cwd=folder, env=importing(), capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def table(folder: Path, name: str) -> list[Mapping[str, str]]:
    with (folder / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_figures_of_the_gpu(repository: Path, tmp_path: Path, gpus: list[dict[str, str]]) -> None:
    whole = sum(float(gpu["memory.total"]) for gpu in gpus) * 1.05  # in MiB, and megabytes are smaller
    said = profiled(tmp_path, repository, int(whole))
    rows = table(tmp_path, "metrics-model-gpu.csv")
    assert [(row["Model"], row["GPU UUID"], row["Satisfies Constraints"]) for row in rows] == [
        ("slow", "all", "Yes")
    ] * 2
    assert {row["Concurrency"] for row in rows} == {"1", "4"}
    for row in rows:
        assert 100 < float(row["GPU Memory Usage (MB)"]) < whole
        assert 0 < float(row["GPU Utilization (%)"]) <= 100
        assert 1 < float(row["GPU Power Usage (W)"]) <= 1.2 * sum(float(gpu["power.limit"]) for gpu in gpus)
    columns = table(tmp_path, "metrics-model-inference.csv")
    assert list(columns[0])[3] == "GPU Utilization (%)"
    assert "; GPUs " in said


def test_constraint_on_the_memory_of_the_gpu(repository: Path, tmp_path: Path) -> None:
    profiled(tmp_path, repository, 1)
    assert {row["Satisfies Constraints"] for row in table(tmp_path, "metrics-model-gpu.csv")} == {"No"}
