"""What a model of torch holds is released with it."""

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.pytorch import script
from halimede.backends.testing.bench import bench_of
from tests.pytorch import scripts
from tests.pytorch.test_contract import ScriptAdapter


def resident() -> int:
    """Bytes of memory that this process has."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


class HeavyAdapter(ScriptAdapter):
    """64 MB of weights."""

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        scripts.save(scripts.Heavy(), version / "model.pt")
        return {}


def test_unload_gives_the_weights_back_at_once(tmp_path: Path) -> None:
    gc.disable()  # nothing here may need it
    try:
        with bench_of(HeavyAdapter(), tmp_path) as bench:
            bench.close(bench.load(instance_group=[{"kind": "KIND_CPU", "count": 2}]))
            before = resident()
            for _ in range(5):
                serving = bench.load(instance_group=[{"kind": "KIND_CPU", "count": 2}])
                serving.echoes([1, 2])
                assert resident() - before < 100 << 20, "the instances do not share their weights"
                bench.close(serving)
            assert resident() - before < 30 << 20
    finally:
        gc.enable()


def test_warnings_of_torch_are_logged_once_per_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scripts.save(scripts.Echo(), tmp_path / "model.pt")
    script.ScriptFile(tmp_path / "model.pt", "m").load("cpu")
    warned = [record.getMessage() for record in caplog.records if "torch warns" in record.getMessage()]
    assert len(warned) == len(set(warned)) == 1
    assert "`torch.jit.load` is deprecated" in warned[0]
