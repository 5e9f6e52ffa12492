"""What the records of a window add up to, and what the server did meanwhile. Pure; times are nanoseconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from halimede.perf.loads import COLUMNS, FAILED, RESPONSES_SHIFT, SEQUENCE_END
from halimede.perf.model import Identifier

Records = npt.NDArray[np.int64]
"""Rows of COLUMNS integers."""
Latencies = npt.NDArray[np.int64]

DUE, START, SENT, FIRST, END, FLAGS, SEQUENCE, NUMBER = range(COLUMNS)
SECOND = 1_000_000_000
PERCENTILES = (50, 90, 95, 99)
TIMELINE_PARTS = 20
"""Points of a window in the course of time."""
LATE_NANOSECONDS = 1_000_000
"""A request that is sent later than it was due by more than this is late."""
UNKNOWN_DEVIATION = 2**64 - 1
"""The standard deviation of one request, as perf_analyzer has it."""


def no_records() -> Records:
    return np.empty((0, COLUMNS), np.int64)


def records_of(data: bytes) -> Records:
    return np.frombuffer(data, np.int64).reshape(-1, COLUMNS)


@dataclass(frozen=True, slots=True)
class ClientStats:
    """What the clients saw in a window. Latencies are sorted, and are those of the requests that did not fail."""

    requests: int = 0
    failed: int = 0
    sequences: int = 0
    late: int = 0
    responses: int = 0
    duration: int = 0
    latencies: Latencies = field(default_factory=lambda: np.empty(0, np.int64))
    batch_size: int = 1
    mean_request: int = 0
    mean_send: int = 0
    mean_receive: int = 0
    percentile: int = -1
    """A percentile that is reported besides the usual ones; -1 for none."""
    timeline: tuple[tuple[float, float], ...] = ()
    """Seconds after the beginning, and the requests per second until then."""

    @property
    def seconds(self) -> float:
        return self.duration / SECOND

    @property
    def infer_per_sec(self) -> float:
        return self.requests * self.batch_size / self.seconds if self.duration else 0.0

    @property
    def sequences_per_sec(self) -> float:
        return self.sequences / self.seconds if self.duration else 0.0

    @property
    def responses_per_sec(self) -> float:
        return self.responses / self.seconds if self.duration else 0.0

    @property
    def mean(self) -> int:
        return int(self.latencies.mean()) if len(self.latencies) else 0

    @property
    def deviation_us(self) -> int:
        if len(self.latencies) < 2:
            return UNKNOWN_DEVIATION
        return int(self.latencies.std(ddof=1) / 1000)

    def at(self, percentile: float) -> int:
        """The latency at a percentile."""
        if not len(self.latencies):
            return 0
        return int(self.latencies[int(percentile / 100 * (len(self.latencies) - 1) + 0.5)])

    @property
    def percentiles(self) -> dict[int, int]:
        wanted = {*PERCENTILES, *((self.percentile,) if self.percentile != -1 else ())}
        return {each: self.at(each) for each in sorted(wanted)}

    @property
    def stabilizing(self) -> int:
        """The latency by which a level is judged."""
        return self.mean if self.percentile == -1 else self.at(self.percentile)


def client_stats(records: Records, begin: int, end: int, batch_size: int, percentile: int) -> ClientStats:
    """The requests that ended in a window. A window counts a request by its end, whenever it began (X6)."""
    inside = records[(records[:, END] >= begin) & (records[:, END] <= end)]
    good = inside[(inside[:, FLAGS] & FAILED) == 0]
    count = len(good)
    send, receive, whole = good[:, SENT] - good[:, START], good[:, END] - good[:, FIRST], good[:, END] - good[:, START]
    return ClientStats(
        requests=count,
        failed=len(inside) - count,
        sequences=int(np.count_nonzero(good[:, FLAGS] & SEQUENCE_END)),
        late=int(np.count_nonzero(good[:, START] - good[:, DUE] > LATE_NANOSECONDS)),
        responses=int((good[:, FLAGS] >> RESPONSES_SHIFT).sum()),
        duration=end - begin,
        latencies=np.sort(good[:, END] - good[:, DUE]),
        batch_size=max(batch_size, 1),
        mean_request=int(whole.mean()) if count else 0,
        mean_send=int(np.maximum(send, 0).mean()) if count else 0,
        mean_receive=int(np.maximum(receive, 0).mean()) if count else 0,
        percentile=percentile,
        timeline=_timeline(good, begin, end),
    )


def _timeline(good: Records, begin: int, end: int) -> tuple[tuple[float, float], ...]:
    """The rate of requests that ended, in TIMELINE_PARTS equal parts of a window."""
    length = (end - begin) / TIMELINE_PARTS
    if length <= 0:
        return ()
    counts = np.bincount(
        ((good[:, END] - begin) / length).astype(int).clip(0, TIMELINE_PARTS - 1), minlength=TIMELINE_PARTS
    )
    seconds = length / SECOND
    return tuple(((k + 1) * seconds, float(count / seconds)) for k, count in enumerate(counts))


def merged_clients(parts: Sequence[ClientStats]) -> ClientStats:
    """Several windows as one."""
    requests = sum(each.requests for each in parts)

    def mean(name: str) -> int:
        return sum(getattr(each, name) * each.requests for each in parts) // requests if requests else 0

    return ClientStats(
        requests=requests,
        failed=sum(each.failed for each in parts),
        sequences=sum(each.sequences for each in parts),
        late=sum(each.late for each in parts),
        responses=sum(each.responses for each in parts),
        duration=sum(each.duration for each in parts),
        latencies=np.sort(np.concatenate([each.latencies for each in parts])),
        batch_size=parts[0].batch_size,
        mean_request=mean("mean_request"),
        mean_send=mean("mean_send"),
        mean_receive=mean("mean_receive"),
        percentile=parts[0].percentile,
        timeline=_joined(parts),
    )


def _joined(parts: Sequence[ClientStats]) -> tuple[tuple[float, float], ...]:
    """The courses of windows, one after the other."""
    found, begin = [], 0.0
    for each in parts:
        found += [(begin + at, rate) for at, rate in each.timeline]
        begin += each.seconds
    return tuple(found)


# ---- the server


@dataclass(frozen=True, slots=True)
class Counts:
    """The statistics of a model version since it was loaded, or what they grew by (X23)."""

    inferences: int = 0
    executions: int = 0
    successes: int = 0
    queued: int = 0
    inputs: int = 0
    infers: int = 0
    outputs: int = 0
    hits: int = 0
    misses: int = 0
    total_ns: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    hit_ns: int = 0
    miss_ns: int = 0

    def minus(self, before: "Counts") -> "Counts":
        # A model that was loaded again counts from 0.
        return Counts(*(max(0, getattr(self, each.name) - getattr(before, each.name)) for each in fields(Counts)))

    def plus(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Counts)))

    @property
    def compute_ns(self) -> int:
        return self.input_ns + self.infer_ns + self.output_ns


Snapshot = Mapping[Identifier, Counts]
"""The counts of all versions of models, by name and version."""


@dataclass(frozen=True, slots=True)
class ServerStats:
    """What the server did in a window, with the models that the model calls."""

    counts: Counts = Counts()
    composing: Mapping[Identifier, "ServerStats"] = field(default_factory=dict)


def mean_us(nanoseconds: int, count: int) -> int:
    return nanoseconds // (count * 1000) if count else 0


def snapshot_of(statistics: Mapping[str, object]) -> dict[Identifier, Counts]:
    """The counts in an answer to `/v2/models/stats`. Raises KeyError, TypeError or ValueError for any other JSON."""
    found = {}
    for entry in statistics["model_stats"]:  # type: ignore[attr-defined]
        phases = entry.get("inference_stats", {})

        def of(phase: str, part: str, phases: Mapping[str, Mapping[str, object]] = phases) -> int:
            return int(str(phases.get(phase, {}).get(part, 0)))

        found[str(entry["name"]), str(entry["version"])] = Counts(
            int(entry.get("inference_count", 0)),
            int(entry.get("execution_count", 0)),
            *(
                of(phase, part)
                for part in ("count", "ns")
                for phase in (
                    "success",
                    "queue",
                    "compute_input",
                    "compute_infer",
                    "compute_output",
                    "cache_hit",
                    "cache_miss",
                )
            ),
        )
    return found


def used_version(model: Identifier, before: Snapshot, after: Snapshot) -> tuple[str, bool]:
    """The version of a model whose counts grew, the highest if several did, and whether several did. Empty if none."""
    name, version = model
    if version:
        return (version if model in after else ""), False
    grown = [
        other
        for (other_name, other), counts in after.items()
        if other_name == name and counts.queued > before.get((other_name, other), Counts()).queued
    ]
    if not grown:
        return "", False
    return max(grown, key=lambda each: int(each) if each.isdigit() else 0), len(grown) > 1


def server_stats(
    model: Identifier, composing: Mapping[str, Sequence[Identifier]], before: Snapshot, after: Snapshot
) -> ServerStats:
    """What the server did between two snapshots."""
    version, _ = used_version(model, before, after)
    key = model[0], version
    counts = after.get(key, Counts()).minus(before.get(key, Counts()))
    parts = {}
    for name, wanted in composing.get(model[0], ()):
        found, _ = used_version((name, wanted), before, after)
        parts[name, found or "-1"] = server_stats((name, found), composing, before, after)
    return ServerStats(counts, parts)


def merged_servers(parts: Sequence[ServerStats]) -> ServerStats:
    total = Counts()
    keys: dict[Identifier, None] = {}
    for each in parts:
        total = total.plus(each.counts)
        keys.update(dict.fromkeys(each.composing))
    composing = {key: merged_servers([each.composing[key] for each in parts if key in each.composing]) for key in keys}
    return ServerStats(total, dict(sorted(composing.items())))


# ---- a level


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """The metrics of GPUs by their UUID, over a window (X17)."""

    utilization: Mapping[str, float] = field(default_factory=dict)
    power: Mapping[str, float] = field(default_factory=dict)
    memory_used: Mapping[str, int] = field(default_factory=dict)
    memory_total: Mapping[str, int] = field(default_factory=dict)


def merged_metrics(parts: Sequence[GpuMetrics]) -> GpuMetrics:
    """Means of utilization and power, the largest used memory, the first total memory (X17)."""

    def per_gpu(name: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for part in parts:
            for uuid, value in getattr(part, name).items():
                found.setdefault(uuid, []).append(value)
        return found

    return GpuMetrics(
        {uuid: sum(values) / len(values) for uuid, values in per_gpu("utilization").items()},
        {uuid: sum(values) / len(values) for uuid, values in per_gpu("power").items()},
        {uuid: int(max(values)) for uuid, values in per_gpu("memory_used").items()},
        {uuid: int(values[0]) for uuid, values in per_gpu("memory_total").items()},
    )


@dataclass(frozen=True, slots=True)
class Window:
    """One measurement. `overhead` is how much of the time the load processes were busy, in percent."""

    client: ClientStats
    server: ServerStats | None
    overhead: float
    send_rate: float
    metrics: tuple[GpuMetrics, ...] = ()


@dataclass(frozen=True, slots=True)
class Level:
    """The result of one level: a concurrency or a request rate."""

    is_rate: bool
    value: float
    window: Window
    is_stable: bool = True
    windows: tuple[Window, ...] = ()
    """The windows of which it was made."""

    @property
    def client(self) -> ClientStats:
        return self.window.client

    @property
    def server(self) -> ServerStats | None:
        return self.window.server


def merged(windows: Sequence[Window]) -> Window:
    """Several windows as one."""
    servers = [each.server for each in windows if each.server is not None]
    metrics = [each for window in windows for each in window.metrics]
    return Window(
        merged_clients([each.client for each in windows]),
        merged_servers(servers) if servers else None,
        sum(each.overhead for each in windows) / len(windows),
        sum(each.send_rate for each in windows) / len(windows),
        (merged_metrics(metrics),) if metrics else (),
    )


# ---- stability

STABILITY_WINDOWS = 3
"""Windows that must agree (X7)."""


@dataclass(slots=True)
class Trend:
    """Throughput and latency of the windows of a level. A failed window has none and an endless latency."""

    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def add(self, rate: float, latency: float) -> None:
        self.rates.append(rate)
        self.latencies.append(latency)

    def is_stable(self, threshold: float, with_latency: bool = True) -> bool:
        """Whether the last windows differ by at most the threshold, a share (X7)."""
        rates, latencies = self.rates[-STABILITY_WINDOWS:], self.latencies[-STABILITY_WINDOWS:]
        if len(rates) < STABILITY_WINDOWS or min(rates) <= 0:
            return False
        if max(rates) / min(rates) > 1 + threshold:
            return False
        return not with_latency or (min(latencies) > 0 and max(latencies) / min(latencies) <= 1 + threshold)

    def is_slow(self, limit: float) -> bool:
        """Whether any of the last windows passed a latency; False while there are too few."""
        latencies = self.latencies[-STABILITY_WINDOWS:]
        return len(latencies) == STABILITY_WINDOWS and max(latencies) >= limit
