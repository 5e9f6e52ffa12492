"""What a server did between two snapshots: how much per second, and how long it took. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from halimede.top.sample import Counted, Key, ModelSample, Snapshot


@dataclass(frozen=True, slots=True)
class ModelRates:
    """What a model version did between two snapshots.

    Rates are per second, durations are means in milliseconds. A mean is None if nothing happened. The other fields are
    those of the second snapshot; None if the server does not report them.
    """

    name: str
    version: str
    requests: float
    failures: float
    inferences: float
    executions: float
    batch: float | None
    latency_ms: float | None
    p99_ms: float | None
    queue_ms: float | None
    compute_ms: float | None
    cache_hits: float | None
    """The share of the requests that a cache answered; None without a cache or requests."""
    pending: int | None
    oldest_seconds: float | None
    instances: int | None
    instances_busy: int | None
    utilization: float | None
    """The share of the time that its instances worked, 0 to 1."""
    total_requests: int
    total_failures: int


def rates(before: Snapshot, after: Snapshot) -> list[ModelRates]:
    """The rates of every version in `after`, the busiest first."""
    seconds = max(after.at - before.at, 1e-9)  # the first view compares a snapshot with itself
    nothing = ModelSample()
    found = []
    for key, now in after.models.items():
        earlier = before.models.get(key, nothing)
        if now.success.count < earlier.success.count or now.fail.count < earlier.fail.count:
            earlier = nothing  # the server or the model was loaded again, and its counts started at 0
        found.append(_rates(key, earlier, now, seconds))
    return sorted(found, key=lambda each: (-each.requests, -each.failures, each.name, each.version))


def _rates(key: Key, before: ModelSample, now: ModelSample, seconds: float) -> ModelRates:
    success, fail = _since(before.success, now.success), _since(before.fail, now.fail)
    queue, compute = _since(before.queue, now.queue), _since(before.compute, now.compute)
    inferences, executions = now.inferences - before.inferences, now.executions - before.executions
    hits, misses = _since(before.cache_hit, now.cache_hit).count, _since(before.cache_miss, now.cache_miss).count
    latency = _mean_ms(success)
    return ModelRates(
        name=key[0],
        version=key[1],
        requests=success.count / seconds,
        failures=fail.count / seconds,
        inferences=inferences / seconds,
        executions=executions / seconds,
        batch=inferences / executions if inferences and executions else None,
        latency_ms=latency,
        p99_ms=None if now.p99_us is None else now.p99_us / 1000,
        queue_ms=_part(_mean_ms(queue), latency),
        compute_ms=_mean_ms(compute),
        cache_hits=hits / (hits + misses) if hits + misses else None,
        pending=_whole(now.pending),
        oldest_seconds=now.oldest_seconds,
        instances=_whole(now.instances),
        instances_busy=_whole(now.busy),
        utilization=_utilization(before, now, compute, seconds),
        total_requests=now.success.count,
        total_failures=now.fail.count,
    )


def _since(before: Counted, now: Counted) -> Counted:
    # After a new load a count may be smaller than before, even if that of the requests is not.
    return Counted(max(0, now.count - before.count), max(0, now.ns - before.ns))


def _mean_ms(counted: Counted) -> float | None:
    return counted.ns / counted.count / 1e6 if counted.count else None


def _part(ms: float | None, whole: float | None) -> float | None:
    """None if the part is longer than the whole: some backends report no times of their own."""
    return ms if ms is None or whole is None or ms <= whole else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _utilization(before: ModelSample, now: ModelSample, compute: Counted, seconds: float) -> float | None:
    """The share of the time that the instances were busy; None if the server does not report it."""
    if now.busy_seconds is None or before.busy_seconds is None or not now.instances:
        return None
    # The metrics and the clock are read one after the other, so the share may come out a little above 1.
    return min(1.0, max(0.0, now.busy_seconds - before.busy_seconds) / seconds / now.instances)


def document(url: str, before: Snapshot, snapshot: Snapshot, models: Sequence[ModelRates]) -> dict[str, Any]:
    """All that is known, for scripts."""
    return {
        "url": url,
        "server": {"name": snapshot.server, "version": snapshot.version},
        "seconds": snapshot.at - before.at,
        "metrics": snapshot.has_metrics,
        "machine": {
            "cpu_utilization": snapshot.machine.cpu,
            "memory_used_bytes": snapshot.machine.memory_used,
            "memory_total_bytes": snapshot.machine.memory_total,
            "gpu_utilization": dict(snapshot.machine.gpus),
        },
        "models": [asdict(model) for model in models],
    }
