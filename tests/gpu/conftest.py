"""Tests for a machine with an NVIDIA GPU (`make test-gpu`). No other run collects them."""

import subprocess
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def gpus() -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU: name, uuid, memory.total (MiB), power.limit (W)."""
    fields = ("name", "uuid", "memory.total", "power.limit")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return [dict(zip(fields, map(str.strip, line.split(",")), strict=True)) for line in lines]
