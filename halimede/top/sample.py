"""One snapshot of a server: the counts of its models, and what its metrics add. Plain values; pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, str]
"""A model's name and version."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of the metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Counted:
    """How often something happened, and the nanoseconds that it took."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class ModelSample:
    """The statistics of a model version, and its metrics; None for a metric that the server does not have."""

    inferences: int = 0
    executions: int = 0
    success: Counted = Counted()
    fail: Counted = Counted()
    queue: Counted = Counted()
    compute: Counted = Counted()
    cache_hit: Counted = Counted()
    cache_miss: Counted = Counted()
    pending: float | None = None
    oldest_seconds: float | None = None
    instances: float | None = None
    busy: float | None = None
    busy_seconds: float | None = None
    p99_us: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The metrics of the machine; None for one that the server does not have."""

    cpu: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    gpus: tuple[tuple[str, float], ...] = ()
    """Name and utilization of each."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a server reported at the time `at`, in seconds of a monotonic clock."""

    at: float
    server: str = ""
    version: str = ""
    models: Mapping[Key, ModelSample] = field(default_factory=dict)
    machine: Machine = Machine()
    has_metrics: bool = False


_GAUGES: Mapping[str, str] = {
    "nv_inference_pending_request_count": "pending",
    "halimede_queue_oldest_seconds": "oldest_seconds",
    "halimede_instances": "instances",
    "halimede_instances_busy": "busy",
    "halimede_instance_busy_seconds_total": "busy_seconds",
}
_P99 = "nv_inference_request_summary_us"
_COMPUTE = ("compute_input", "compute_infer", "compute_output")


def models_of(statistics: Any, metrics: Iterable[Sample], instances: Mapping[Key, int]) -> dict[Key, ModelSample]:
    """The models in the answer to `/v2/models/stats`, by name and version.

    `instances` are the numbers in the configurations, for servers whose metrics do not have them. Raises ValueError if
    `statistics` is not such an answer.
    """
    told: dict[Key, dict[str, float]] = {}
    for sample in metrics:
        field_name = _GAUGES.get(sample.name)
        if sample.name == _P99 and sample.labels.get("quantile") == "0.99":
            field_name = "p99_us"
        if field_name is not None and sample.value == sample.value:  # NaN stands for no requests lately
            key = sample.labels.get("model", ""), sample.labels.get("version", "")
            told.setdefault(key, {})[field_name] = sample.value
    try:
        entries = [(entry["name"], str(entry["version"]), entry) for entry in statistics["model_stats"]]
        return {
            (name, version): _model(
                entry, {"instances": instances.get((name, version)), **told.get((name, version), {})}
            )
            for name, version, entry in entries
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"these are no statistics: {error!r}") from None


def _model(entry: Mapping[str, Any], told: Mapping[str, float | None]) -> ModelSample:
    phases = entry.get("inference_stats", {})
    parts = [_counted(phases, phase) for phase in _COMPUTE]
    return ModelSample(
        int(entry.get("inference_count", 0)),
        int(entry.get("execution_count", 0)),
        _counted(phases, "success"),
        _counted(phases, "fail"),
        _counted(phases, "queue"),
        # Each request has all three parts, so their times add up and their counts do not.
        Counted(parts[1].count, sum(part.ns for part in parts)),
        _counted(phases, "cache_hit"),
        _counted(phases, "cache_miss"),
        **told,
    )


def _counted(phases: Mapping[str, Any], phase: str) -> Counted:
    found = phases.get(phase, {})
    return Counted(int(found.get("count", 0)), int(found.get("ns", 0)))


def machine_of(metrics: Iterable[Sample]) -> Machine:
    values: dict[str, float] = {}
    gpus: list[tuple[str, float]] = []
    for sample in metrics:
        if sample.name == "nv_gpu_utilization":
            # One sample per GPU; the CPU has one for the machine.
            gpus.append((sample.labels.get("gpu_uuid", ""), sample.value))
        elif sample.name.startswith("nv_cpu_"):
            values[sample.name] = sample.value
    return Machine(
        values.get("nv_cpu_utilization"),
        values.get("nv_cpu_memory_used_bytes"),
        values.get("nv_cpu_memory_total_bytes"),
        tuple(gpus),
    )


# ---- the text of metrics

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+\S+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def read_metrics(text: str) -> Iterator[Sample]:
    """The samples of Prometheus text, in order. Lines of any other form are skipped."""
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        name, labels, number = found.groups()
        try:
            # Prometheus also allows +Inf and NaN, which float reads.
            value = float(number)
        except ValueError:
            continue
        yield Sample(name, {key: _plain(text) for key, text in _LABEL.findall(labels or "")}, value)


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
