"""Host metrics: processors, memory and GPUs (M18 to M22).

A thread reads them every half interval (C40) and keeps the last readings, so that no scrape waits for a driver.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event, Thread
from typing import Protocol

from halimede.engine_port import MetricFamily
from halimede.options import MetricsOptions
from halimede.platform.gpu_meters import GpuReading
from halimede.platform.machine import Memory, Processors, memory

log = logging.getLogger(__name__)


class Gpus(Protocol):
    def read(self) -> tuple[GpuReading, ...]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Seen:
    """The last readings. A field is None if the system does not tell it or the options exclude it."""

    utilization: float | None = None
    memory: Memory | None = None
    gpus: tuple[GpuReading, ...] = ()


class Machine:
    """Owns the thread. `open_gpus` is called on it. Any thread may read `seen`."""

    def __init__(self, options: MetricsOptions, open_gpus: Callable[[], Gpus | None]) -> None:
        self.seen = Seen()
        self._options = options
        self._open_gpus = open_gpus
        self._ended = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Starts the thread if the options ask for host metrics."""
        if self._options.cpu or self._options.gpu:
            self._thread = Thread(target=self._run, name="metrics", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread, without waiting for a driver call that hangs."""
        self._ended.set()

    def _run(self) -> None:
        gpus: Gpus | None = None
        try:
            processors = Processors() if self._options.cpu else None
            gpus = self._open_gpus() if self._options.gpu else None
            ended = processors is None and gpus is None
            while not ended:
                used = None if processors is None else processors.look()
                self.seen = Seen(used, _memory(processors), _read(gpus))
                ended = self._ended.wait(self._options.interval_ms / 2000)
        except Exception:
            log.exception("host metrics disabled after an error; restart the server to enable them again")
            self.seen = Seen()
        if gpus is not None:
            gpus.close()


def _memory(processors: Processors | None) -> Memory | None:
    return None if processors is None else memory()


def _read(gpus: Gpus | None) -> tuple[GpuReading, ...]:
    return () if gpus is None else gpus.read()


_GPU: tuple[tuple[str, str, str, Callable[[GpuReading], float | None]], ...] = (
    (
        "nv_energy_consumption",
        "GPU energy consumption in joules since the server started",
        "counter",
        lambda gpu: gpu.energy,
    ),
    ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", "gauge", lambda gpu: gpu.utilization),
    ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", "gauge", lambda gpu: gpu.memory_total),
    ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", "gauge", lambda gpu: gpu.memory_used),
    ("nv_gpu_power_usage", "GPU power usage in watts", "gauge", lambda gpu: gpu.power),
    ("nv_gpu_power_limit", "GPU power management limit in watts", "gauge", lambda gpu: gpu.power_limit),
)


def machine_families(seen: Seen, options: MetricsOptions) -> Iterator[MetricFamily]:
    """A family is there where what it measures is looked at, and there to be looked at."""
    yield _of_all(
        "nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", options.pinned_pool_bytes
    )
    yield _of_all("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0)
    if seen.utilization is not None:
        yield _of_all("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", seen.utilization)
    if seen.memory is not None:
        yield _of_all("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", seen.memory.total)
        yield _of_all("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", seen.memory.used)
    if seen.gpus:
        for name, text, kind, value in _GPU:
            told = ((gpu.uuid, value(gpu)) for gpu in seen.gpus)
            series = tuple(({"gpu_uuid": uuid}, number) for uuid, number in told if number is not None)
            yield MetricFamily(name, text, kind, series)


def _of_all(name: str, text: str, value: float) -> MetricFamily:
    return MetricFamily(name, text, "gauge", (({}, value),))
