"""GPU metrics beside what nvidia-smi says."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.serving import Serving, write_model

MIB = 1 << 20


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("metrics")
    write_model(folder / "models", "plain", "FP32")
    with Serving(folder / "models", folder / "log", "--metrics-interval-ms=200") as running:
        yield running.wait_until_live()


def scraped(serving: Serving) -> dict[tuple[str, str], float]:
    """Value by the name of the family and the UUID of the GPU."""
    with urllib.request.urlopen(f"http://127.0.0.1:{serving.metrics_port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.findall(r'^(nv_\w+)\{gpu_uuid="([^"]+)"\} (\S+)$', text, re.MULTILINE)
    return {(name, uuid): float(value) for name, uuid, value in found}


@pytest.mark.rows("M21")
def test_gpus_are_measured(serving: Serving, gpus: list[dict[str, str]]) -> None:
    serving.until(lambda: bool(scraped(serving)), "measured no GPU", 30)
    values = scraped(serving)
    for gpu in gpus:
        read = {name: value for (name, uuid), value in values.items() if uuid == gpu["uuid"]}
        assert abs(read["nv_gpu_memory_total_bytes"] / MIB - float(gpu["memory.total"])) < 1024
        assert 0 < read["nv_gpu_memory_used_bytes"] < read["nv_gpu_memory_total_bytes"]
        assert 0 <= read["nv_gpu_utilization"] <= 1
        assert 1 < read["nv_gpu_power_usage"] <= 1.2 * float(gpu["power.limit"])
        assert read["nv_gpu_power_limit"] == pytest.approx(float(gpu["power.limit"]), abs=1)


def test_energy_grows(serving: Serving, gpus: list[dict[str, str]]) -> None:
    key = ("nv_energy_consumption", gpus[0]["uuid"])
    first = scraped(serving)[key]
    serving.until(lambda: scraped(serving)[key] > first, "counted no energy", 30)
