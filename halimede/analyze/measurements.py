"""What was measured of a candidate: figures by Model Analyzer's tags, and what the server did. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from halimede.analyze.space import Candidate, Load, Variant
from halimede.analyze.tags import TAGS
from halimede.perf.statistics import Counts, GpuMetrics, Level, ServerStats

MEGABYTE = 1_000_000
SERVER_TAGS = (
    "perf_server_queue",
    "perf_server_compute_input",
    "perf_server_compute_infer",
    "perf_server_compute_output",
)


@dataclass(frozen=True, slots=True)
class Member:
    """How a model of the server was busy meanwhile. `busy` is the mean number of its executions at the same time, and
    `seconds` how long one takes."""

    batch: float = 0.0
    busy: float = 0.0
    seconds: float = 0.0
    queue: float = 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of a candidate. `figures` are by tag (`tags.TAGS`); one that could not be measured is missing.

    `noise` is the half width of the confidence interval of the throughput, as a share of it. `cores`, `overhead` and
    `others` are how many cores the server, the clients and other programs used on average; None if that is unknown.
    """

    candidate: Candidate
    figures: Mapping[str, float]
    members: Mapping[str, Member] = field(default_factory=dict)
    noise: float = 0.0
    seconds: float = 0.0
    cores: float | None = None
    overhead: float = 0.0
    others: float | None = None

    @property
    def throughput(self) -> float:
        return self.figures["perf_throughput"]


def figures_of(level: Level) -> dict[str, float]:
    """The figures of a level that perf measured; times in milliseconds."""
    client = level.client
    found = {
        "perf_throughput": client.infer_per_sec,
        "perf_latency_avg": client.mean / 1e6,
        "perf_latency_p90": client.at(90) / 1e6,
        "perf_latency_p95": client.at(95) / 1e6,
        "perf_latency_p99": client.at(99) / 1e6,
        "perf_client_send_recv": (client.mean_send + client.mean_receive) / 1e6,
        "perf_client_response_wait": (client.mean_request - client.mean_send - client.mean_receive) / 1e6,
    }
    if level.server is not None and level.server.counts.successes:
        parts = [_times(counts) for _, counts in leaves(level.server)] or [_times(level.server.counts)]
        found |= {name: sum(times) for name, times in zip(SERVER_TAGS, zip(*parts, strict=True), strict=True)}
    for metrics in level.window.metrics:
        found |= _gpus(metrics)
    return found


def _times(counts: Counts) -> tuple[float, ...]:
    """Mean milliseconds of a request in the queue, and of the three parts of its computation."""
    return (
        counts.queue_ns / max(1, counts.queued) / 1e6,
        counts.input_ns / max(1, counts.inputs) / 1e6,
        counts.infer_ns / max(1, counts.infers) / 1e6,
        counts.output_ns / max(1, counts.outputs) / 1e6,
    )


def leaves(stats: ServerStats) -> Iterator[tuple[str, Counts]]:
    """The models that an ensemble calls, also through other ensembles, with what they did."""
    for (name, _), part in stats.composing.items():
        if part.composing:
            yield from leaves(part)
        else:
            yield name, part.counts


def _gpus(metrics: GpuMetrics) -> dict[str, float]:
    found: dict[str, float] = {}
    if metrics.memory_used:
        found["gpu_used_memory"] = sum(metrics.memory_used.values()) / MEGABYTE
    if metrics.memory_total and metrics.memory_used:
        found["gpu_free_memory"] = sum(metrics.memory_total.values()) / MEGABYTE - found["gpu_used_memory"]
    if metrics.utilization:
        found["gpu_utilization"] = 100 * sum(metrics.utilization.values()) / len(metrics.utilization)
    if metrics.power:
        found["gpu_power_usage"] = sum(metrics.power.values())
    return found


def members_in(level: Level, model: str) -> dict[str, Member]:
    """How busy the model was, or the models that it calls, by their names."""
    server = level.server
    if server is None or not server.counts.successes:
        return {}
    seconds = level.client.seconds
    called = dict(leaves(server)) or {model: server.counts}
    return {name: _member(counts, seconds) for name, counts in called.items()}


def _member(counts: Counts, seconds: float) -> Member:
    if not counts.executions or not seconds:
        return Member()
    # The times are sums over requests, and each request of a batch has the time of the whole batch.
    length = counts.compute_ns / max(1, counts.inputs) / 1e9
    return Member(
        counts.inferences / counts.executions,
        counts.executions * length / seconds,
        length,
        counts.queue_ns / max(1, counts.queued) / 1e9,
    )


def merged(a: Measurement, b: Measurement) -> Measurement:
    """Two measurements of the same candidate as one."""
    whole = a.seconds + b.seconds

    def mean(first: float, second: float) -> float:
        return (first * a.seconds + second * b.seconds) / whole if whole else first

    def mean_if(first: float | None, second: float | None) -> float | None:
        return mean(first, second) if first is not None and second is not None else None

    figures = {tag: mean(value, b.figures.get(tag, value)) for tag, value in a.figures.items()}
    difference = abs(a.throughput - b.throughput) / max(figures["perf_throughput"], 1e-9)
    return replace(
        b,
        figures=figures,
        noise=max(difference, min(a.noise, b.noise)),
        seconds=whole,
        cores=mean_if(a.cores, b.cores),
        overhead=mean(a.overhead, b.overhead),
        others=mean_if(a.others, b.others),
    )


def together(candidate: Candidate, parts: Mapping[str, Measurement]) -> Measurement:
    """What was measured of several models at the same time: the sum of their throughput and the worst of other figures,
    and those of each with the name of its model and a colon before them."""
    found: dict[str, list[float]] = {}
    for part in parts.values():
        for tag, value in part.figures.items():
            found.setdefault(tag, []).append(value)
    figures = {
        tag: sum(values) if tag == "perf_throughput" else max(values) if TAGS[tag].less_is_better else min(values)
        for tag, values in found.items()
    }
    for name, part in parts.items():
        figures |= {f"{name}:{tag}": value for tag, value in part.figures.items()}
    each = list(parts.values())
    cores = [part.cores for part in each if part.cores is not None]
    overhead = sum(part.overhead for part in each)
    # Others of one model are the clients of the rest, too.
    others = [part.others + part.overhead - overhead for part in each if part.others is not None]
    return Measurement(
        candidate,
        figures,
        {name: member for part in each for name, member in part.members.items()},
        max(part.noise for part in each),
        max(part.seconds for part in each),
        max(cores, default=None),
        overhead,
        max(0.0, min(others)) if others else None,
    )


# ---- as JSON, for checkpoints


def to_json(measurement: Measurement) -> dict[str, Any]:
    return asdict(measurement)


def from_json(values: Mapping[str, Any]) -> Measurement:
    """The measurement in a checkpoint. Raises KeyError, TypeError or ValueError for other values."""
    candidate = values["candidate"]
    setup = tuple(Variant(str(each["model"]), str(each["changes"])) for each in candidate["setup"])
    members = {str(name): Member(**each) for name, each in values["members"].items()}
    figures = {str(name): float(each) for name, each in values["figures"].items()}
    rest = {name: value for name, value in values.items() if name not in ("candidate", "members", "figures")}
    return Measurement(
        Candidate(setup, Load(**candidate["load"]), bool(candidate["is_final"])), figures, members, **rest
    )
