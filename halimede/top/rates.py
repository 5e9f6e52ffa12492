"""From two looks at a server to what it does: how much a second, and how long each takes. Pure."""

from dataclasses import dataclass

from halimede.top.sample import Counted, Key, Look, ModelSample


@dataclass(frozen=True, slots=True)
class ModelRates:
    """What a model version did between two looks. Rates a second; milliseconds on the average, None where nothing
    happened; the rest as it was at the second look, None where the server does not tell."""

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
    """The share of the requests that a cache answered; None where the model has none, or was not asked."""
    pending: int | None
    oldest_seconds: float | None
    instances: int | None
    instances_busy: int | None
    utilization: float | None
    """The share of the time that its instances worked."""
    total_requests: int
    total_failures: int


def rates(before: Look, after: Look) -> list[ModelRates]:
    """Of every version that is there now, the busiest first. Counts that fell began anew, with the server or the
    model: then what there is now came since."""
    seconds = max(after.at - before.at, 1e-9)
    nothing = ModelSample()
    found = []
    for key, now in after.models.items():
        earlier = before.models.get(key, nothing)
        if now.success.count < earlier.success.count or now.fail.count < earlier.fail.count:
            earlier = nothing
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
    return Counted(max(0, now.count - before.count), max(0, now.ns - before.ns))


def _mean_ms(counted: Counted) -> float | None:
    return counted.ns / counted.count / 1e6 if counted.count else None


def _part(ms: float | None, whole: float | None) -> float | None:
    """A backend that tells no times makes them longer than the whole."""
    return ms if ms is None or whole is None or ms <= whole else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _utilization(before: ModelSample, now: ModelSample, compute: Counted, seconds: float) -> float | None:
    """By the time that executions took, where the server tells it."""
    if now.busy_seconds is None or before.busy_seconds is None or not now.instances:
        return None
    return min(1.0, max(0.0, now.busy_seconds - before.busy_seconds) / seconds / now.instances)
