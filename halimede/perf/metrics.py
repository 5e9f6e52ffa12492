"""Reads the server's GPU metrics while a window runs (X17). Blocks for at most LIMIT seconds. One thread."""

import re
import time
from collections.abc import Callable, Mapping

from halimede.errors import Unavailable
from halimede.http_client import fetch, with_scheme
from halimede.perf.statistics import GpuMetrics

LIMIT = 2.0
NAMES: Mapping[str, str] = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_power_usage": "power",
    "nv_gpu_memory_used_bytes": "memory_used",
    "nv_gpu_memory_total_bytes": "memory_total",
}
"""The metrics that are collected, and their fields."""
_SAMPLE = re.compile(r'^(nv_gpu_\w+)\{[^}]*gpu_uuid="([^"]*)"[^}]*\}\s+(\S+)', re.MULTILINE)


def gpu_metrics(text: str) -> GpuMetrics:
    """The GPU metrics in a text of Prometheus."""
    found: dict[str, dict[str, float]] = {name: {} for name in NAMES.values()}
    for name, uuid, value in _SAMPLE.findall(text):
        if name in NAMES:
            found[NAMES[name]][uuid] = float(value)
    return GpuMetrics(
        found["utilization"],
        found["power"],
        {uuid: int(value) for uuid, value in found["memory_used"].items()},
        {uuid: int(value) for uuid, value in found["memory_total"].items()},
    )


def missing(metrics: GpuMetrics) -> list[str]:
    return [name for name, attribute in NAMES.items() if not getattr(metrics, attribute)]


class MetricsReader:
    """Asks again and again. `warn` is told once what the server does not report."""

    def __init__(self, url: str, seconds: float, warn: Callable[[str], None]) -> None:
        self._url = with_scheme(url)
        self._seconds, self._warn = seconds, warn
        self._next = 0.0
        self._has_warned = False
        self._found: list[GpuMetrics] = []

    def check(self) -> None:
        """Asks once. Raises Unavailable if nothing answers."""
        self._ask()

    def tick(self) -> None:
        """Asks if it is time."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._seconds
            try:
                self._ask()
            except Unavailable as error:
                self._warn_once(f"WARNING: the server's metrics cannot be read: {error}")

    def _ask(self) -> None:
        metrics = gpu_metrics(fetch(self._url, "", LIMIT).decode(errors="replace"))
        self._warn_once("\n".join(f"WARNING: Unable to parse '{name}' metric." for name in missing(metrics)))
        self._found.append(metrics)

    def _warn_once(self, text: str) -> None:
        if text and not self._has_warned:
            self._has_warned = True
            self._warn(text)

    def take(self) -> tuple[GpuMetrics, ...]:
        """What was read since the last call."""
        found, self._found = tuple(self._found), []
        return found
