"""Tests for a machine with an NVIDIA GPU (`make test-gpu`). No other run collects them."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from halimede.backends.tensorrt.cuda import Driver
from tests.gpu.kernels import Kernels


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def gpus() -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU: name, uuid, memory.total (MiB), power.limit (W), compute_cap."""
    fields = ("name", "uuid", "memory.total", "power.limit", "compute_cap")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return [dict(zip(fields, map(str.strip, line.split(",")), strict=True)) for line in lines]


@pytest.fixture(scope="session", autouse=True)
def libcuda() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"this machine has no driver of NVIDIA: {error}")


@pytest.fixture(scope="session")
def driver() -> Driver:
    """GPU 0, by the calls of CUDA's driver."""
    return Driver(0)


@pytest.fixture(scope="session")
def kernels(driver: Driver) -> Kernels:
    with driver.current():
        return Kernels()
