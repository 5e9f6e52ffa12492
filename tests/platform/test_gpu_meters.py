"""GPUs measured through a library that is a fake."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from halimede.platform.gpu_meters import GpuMeters, GpuReading, open_gpus, visible

UUIDS = ("GPU-aa1", "GPU-ab2", "GPU-bc3")


class NVMLError(Exception):
    pass


class Nvml:
    """The library with three GPUs: 100 % busy, 1 W more each; the last one tells neither its power nor its energy."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.energy = 5000
        self.shut = False

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut = True

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:  # noqa: N802
        return UUIDS[handle].encode() if handle else UUIDS[handle]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=100, memory=3)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=1000, used=10 * handle, free=0)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return self.unless_last(handle, 1000 * (handle + 1))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:  # noqa: N802
        return 300_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        return self.unless_last(handle, self.energy)

    def unless_last(self, handle: int, value: int) -> int:
        if handle == len(UUIDS) - 1:
            raise NVMLError("not supported")
        return value


def test_readings_in_the_units_of_the_metrics() -> None:
    nvml = Nvml()
    meters = open_gpus({}, nvml)
    assert meters is not None
    nvml.energy += 2500
    assert meters.read() == (
        GpuReading("GPU-aa1", 1.0, 1000, 0, 1.0, 300.0, 2.5),
        GpuReading("GPU-ab2", 1.0, 1000, 10, 2.0, 300.0, 2.5),
        GpuReading("GPU-bc3", 1.0, 1000, 20, None, 300.0, None),
    )
    meters.close()
    assert nvml.shut


def test_only_the_gpus_of_this_process_are_measured() -> None:
    meters = open_gpus({"CUDA_VISIBLE_DEVICES": "2,0"}, Nvml())
    assert meters is not None
    assert [reading.uuid for reading in meters.read()] == ["GPU-bc3", "GPU-aa1"]


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2, 0", [2, 0]),
        ("0,7,1", [0]),
        ("GPU-b,0", [2, 0]),
        ("GPU-a", []),
        ("-1", []),
    ],
)
def test_visible_gpus(setting: str | None, chosen: list[int]) -> None:
    assert visible(setting, UUIDS) == chosen


def test_library_that_does_not_work_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Nvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise NVMLError("driver not loaded")

    assert open_gpus({}, Broken()) is None
    assert caplog.messages == ["GPUs are not measured: driver not loaded"]


def test_library_that_is_not_there_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpus({}) is None
    assert caplog.messages == ["GPUs are not measured: there is no library for it (pip install 'halimede[gpu]')"]


def test_meters_are_made_of_handles() -> None:
    assert GpuMeters(Nvml(), []).read() == ()
