"""What the machine is seen to do, as families, and the thread that looks."""

import time
from collections.abc import Callable

import pytest

from halimede.measurement.machine import Machine, Seen, machine_families
from halimede.options import MetricsOptions
from halimede.platform.gpu_meters import GpuReading
from halimede.platform.machine import Memory

LIMIT = 10.0
ONE = GpuReading("GPU-1", 0.5, 100, 25, 70.5, 300.0, 12.0)
TWO = GpuReading("GPU-2", None, 200, 50, None, None, None)


def shown(seen: Seen, options: MetricsOptions = MetricsOptions()) -> dict[str, object]:  # noqa: B008
    return {family.name: (family.kind, family.series) for family in machine_families(seen, options)}


@pytest.mark.rows("M20")
def test_pinned_memory_is_always_told() -> None:
    assert shown(Seen(), MetricsOptions(pinned_pool_bytes=1024)) == {
        "nv_pinned_memory_pool_total_bytes": ("gauge", (({}, 1024),)),
        "nv_pinned_memory_pool_used_bytes": ("gauge", (({}, 0),)),
    }


@pytest.mark.rows("M18", "M19")
def test_processors_and_memory() -> None:
    told = shown(Seen(0.25, Memory(1000, 400)))
    assert told["nv_cpu_utilization"] == ("gauge", (({}, 0.25),))
    assert told["nv_cpu_memory_total_bytes"] == ("gauge", (({}, 1000),))
    assert told["nv_cpu_memory_used_bytes"] == ("gauge", (({}, 400),))


@pytest.mark.rows("M21", "M22")
def test_gpus_by_their_uuid_without_what_they_do_not_tell() -> None:
    told = shown(Seen(gpus=(ONE, TWO)))
    first, second = {"gpu_uuid": "GPU-1"}, {"gpu_uuid": "GPU-2"}
    assert {name: value for name, value in told.items() if "pinned" not in name} == {
        "nv_energy_consumption": ("counter", ((first, 12.0),)),
        "nv_gpu_utilization": ("gauge", ((first, 0.5),)),
        "nv_gpu_memory_total_bytes": ("gauge", ((first, 100), (second, 200))),
        "nv_gpu_memory_used_bytes": ("gauge", ((first, 25), (second, 50))),
        "nv_gpu_power_usage": ("gauge", ((first, 70.5),)),
        "nv_gpu_power_limit": ("gauge", ((first, 300.0),)),
    }


class Gpus:
    """A GPU whose energy grows with every look; broken, a look raises."""

    def __init__(self) -> None:
        self.looks = 0
        self.broken = self.closed = False

    def read(self) -> tuple[GpuReading, ...]:
        if self.broken:
            raise RuntimeError("the driver has gone")
        self.looks += 1
        return (GpuReading("GPU-1", 0.0, 1, 1, 1.0, 1.0, float(self.looks)),)

    def close(self) -> None:
        self.closed = True


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.005)


@pytest.mark.rows("C40")
def test_machine_is_looked_at_every_half_interval_until_it_is_stopped() -> None:
    gpus = Gpus()
    machine = Machine(MetricsOptions(interval_ms=10), lambda: gpus)
    machine.start()
    until(lambda: gpus.looks > 3)
    assert machine.seen.gpus[0].energy
    assert machine.seen.memory is not None
    machine.stop()
    until(lambda: gpus.closed)


@pytest.mark.rows("C39")
def test_what_is_not_allowed_is_not_looked_at() -> None:
    gpus = Gpus()
    machine = Machine(MetricsOptions(gpu=False, cpu=False, interval_ms=10), lambda: gpus)
    machine.start()
    assert (gpus.looks, machine.seen) == (0, Seen())
    only_gpus = Machine(MetricsOptions(cpu=False, interval_ms=10), lambda: gpus)
    only_gpus.start()
    until(lambda: gpus.looks > 1)
    assert (only_gpus.seen.utilization, only_gpus.seen.memory) == (None, None)
    only_gpus.stop()


@pytest.mark.parametrize("looks", [0, 1])
def test_driver_that_goes_takes_its_metrics_along(caplog: pytest.LogCaptureFixture, looks: int) -> None:
    gpus = Gpus()
    gpus.broken = not looks
    machine = Machine(MetricsOptions(interval_ms=10), lambda: gpus)
    machine.start()
    until(lambda: gpus.looks >= looks)
    gpus.broken = True
    until(lambda: gpus.closed)
    assert machine.seen == Seen()
    assert caplog.text.count("host metrics disabled after an error") == 1
