"""Utilization, memory and power of this process's GPUs, from NVIDIA's management library (M21, M22); extra
`halimede[gpu]`.

The library is imported when it is first needed. Calls may take milliseconds: never on the event loop; one thread.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU; None for what it does not report. Power is in watts, `energy` in joules since the meters were made."""

    uuid: str
    utilization: float | None
    memory_total: int | None
    memory_used: int | None
    power: float | None
    power_limit: float | None
    energy: float | None


class GpuMeters:
    """`nvml` is the library, initialized; `handles` are its own names for the devices."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._devices = [(handle, _text(nvml.nvmlDeviceGetUUID(handle)), self._energy(handle)) for handle in handles]

    def read(self) -> tuple[GpuReading, ...]:
        return tuple(self._read(*device) for device in self._devices)

    def close(self) -> None:
        self._ask(self._nvml.nvmlShutdown)

    def _read(self, handle: Any, uuid: str, energy_at_start: int | None) -> GpuReading:
        nvml = self._nvml
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        energy = self._energy(handle)
        return GpuReading(
            uuid,
            None if rates is None else rates.gpu / 100,
            None if memory is None else int(memory.total),
            None if memory is None else int(memory.used),
            _thousandth(self._ask(nvml.nvmlDeviceGetPowerUsage, handle)),
            _thousandth(self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
            None if energy is None or energy_at_start is None else (energy - energy_at_start) / 1000,
        )

    def _energy(self, handle: Any) -> int | None:
        """Millijoules since the driver was loaded."""
        return self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption, handle)

    def _ask(self, question: Callable[..., T], *about: Any) -> T | None:
        try:
            return question(*about)
        except self._nvml.NVMLError:
            return None


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def open_gpus(environment: Mapping[str, str], library: Any = None) -> GpuMeters | None:
    """Meters of the GPUs that CUDA_VISIBLE_DEVICES leaves to this process. None, and a log line, if the library is
    missing or fails."""
    try:
        nvml = library or import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        log.warning("GPUs are not measured: there is no library for it (pip install 'halimede[gpu]')")
        return None
    except Exception as error:
        log.warning("GPUs are not measured: %s", error)
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        chosen = visible(environment.get("CUDA_VISIBLE_DEVICES"), uuids)
        return GpuMeters(nvml, [handles[index] for index in chosen])
    except Exception as error:
        log.warning("GPUs are not measured: %s", error)
        return None


def visible(setting: str | None, uuids: Sequence[str]) -> list[int]:
    """The devices that CUDA_VISIBLE_DEVICES names by number or by the beginning of their name, up to the first that is
    not there (as CUDA reads it)."""
    if setting is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for word in (part.strip() for part in setting.split(",")):
        if word.isdecimal() and int(word) < len(uuids):
            index = int(word)
        else:
            named = [index for index, uuid in enumerate(uuids) if word and uuid.startswith(word)]
            if len(named) != 1:
                break
            index = named[0]
        chosen.append(index)
    return chosen
