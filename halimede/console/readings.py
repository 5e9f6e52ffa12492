"""From the answers of a server to the rows of the page, and what changed since the last time. Pure. Any thread.

A row has the counts since the start of the server; the page computes rates. So a model that does nothing has the same
row again and again, and only what changed is sent.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from halimede.console.target import Readings
from halimede.top.sample import Sample, read_metrics

Row = dict[str, Any]
Key = str
"""Name and version with a line feed between, which no name has."""

_GAUGES: Final[Mapping[str, str]] = {
    "nv_inference_pending_request_count": "pending",
    "halimede_queue_oldest_seconds": "oldest",
    "halimede_instances": "instances",
    "halimede_instances_busy": "busy",
    "halimede_instance_busy_seconds_total": "busySeconds",
    "halimede_worker_restarts_total": "restarts",
}
_SUMMARY: Final = "nv_inference_request_summary_us"
_QUANTILES: Final = {"0.5": "p50", "0.99": "p99"}
_MACHINE: Final[Mapping[str, str]] = {
    "nv_cpu_utilization": "cpu",
    "nv_cpu_memory_total_bytes": "memoryTotal",
    "nv_cpu_memory_used_bytes": "memoryUsed",
}
_GPU: Final[Mapping[str, str]] = {
    "nv_gpu_utilization": "use",
    "nv_gpu_memory_total_bytes": "memoryTotal",
    "nv_gpu_memory_used_bytes": "memoryUsed",
    "nv_gpu_power_usage": "watts",
}
_WANTED: Final = (*_GAUGES, _SUMMARY + "{", *_MACHINE, *_GPU)
_PHASES: Final = {"queue": "queue", "compute_input": "input", "compute_infer": "infer", "compute_output": "output"}


@dataclass(frozen=True, slots=True)
class State:
    """All rows by key, and the machine."""

    rows: Mapping[Key, Row] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)


def state_of(readings: Readings) -> State:
    """Raises ValueError if the answers are not those of an inference server."""
    try:
        statistics = json.loads(readings.statistics)["model_stats"]
        index = json.loads(readings.index)
        rows = {_key(entry["name"], entry.get("version", "")): _of_index(entry) for entry in index}
        for entry in statistics:
            row = rows.setdefault(_key(entry["name"], entry["version"]), _of_index(entry))
            row.update(_of_statistics(entry))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"these are no answers of an inference server: {error!r}") from None
    # Most lines are counters that the statistics have as well.
    lines = (line for line in readings.metrics.decode(errors="replace").splitlines() if line.startswith(_WANTED))
    samples = [sample for sample in read_metrics("\n".join(lines)) if math.isfinite(sample.value)]
    for sample in samples:
        _put(rows, sample)
    return State(rows, _machine(samples))


def _key(name: str, version: Any) -> Key:
    return f"{name}\n{version}"


def _of_index(entry: Mapping[str, Any]) -> Row:
    return {
        "name": entry["name"],
        "version": str(entry.get("version", "")),
        "state": entry.get("state", ""),
        "reason": entry.get("reason", ""),
    }


def _of_statistics(entry: Mapping[str, Any]) -> Row:
    phases = entry.get("inference_stats", {})

    def counted(phase: str) -> tuple[int, int]:
        found = phases.get(phase, {})
        return int(found.get("count", 0)), int(found.get("ns", 0))

    (success, total), (fail, _) = counted("success"), counted("fail")
    return {
        "success": success,
        "total": total,
        "fail": fail,
        "inferences": int(entry.get("inference_count", 0)),
        "executions": int(entry.get("execution_count", 0)),
        "hits": counted("cache_hit")[0],
        "misses": counted("cache_miss")[0],
        "last": int(entry.get("last_inference", 0)),
        **{short: counted(phase)[1] for phase, short in _PHASES.items()},
    }


def _put(rows: Mapping[Key, Row], sample: Sample) -> None:
    name = _GAUGES.get(sample.name)
    if sample.name == _SUMMARY:
        name = _QUANTILES.get(sample.labels.get("quantile", ""))
    row = rows.get(_key(sample.labels.get("model", ""), sample.labels.get("version", "")))
    if name is not None and row is not None:
        row[name] = sample.value


def _machine(samples: Iterable[Sample]) -> dict[str, Any]:
    machine: dict[str, Any] = {}
    gpus: dict[str, dict[str, Any]] = {}
    for sample in samples:
        if sample.name in _MACHINE:
            machine[_MACHINE[sample.name]] = sample.value
        elif sample.name in _GPU:
            gpus.setdefault(sample.labels.get("gpu_uuid", ""), {})[_GPU[sample.name]] = sample.value
    return {**machine, "gpus": [{"id": uuid, **values} for uuid, values in gpus.items()]}


def changes(before: State, now: State) -> dict[str, Any]:
    """Returns what a page that knows `before` needs to know `now`."""
    return {
        "machine": now.machine,
        "models": [row for key, row in now.rows.items() if before.rows.get(key) != row],
        "gone": [key for key in before.rows if key not in now.rows],
    }
