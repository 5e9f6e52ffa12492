"""The metrics of the models, computed when they are asked for from the integers that the statistics are made of.

Contract M1 to M11; and those that models make for themselves, beside them (M23). Event-loop thread only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from halimede.cache.api import CacheCounts
from halimede.custom_metrics import Buckets, CustomMetrics, FamilyReading, Kind
from halimede.service.cache_metrics import cache_families
from halimede.service.port import Histogram, MetricFamily, ModelCounts
from halimede.service.statistics import Statistics


@dataclass(frozen=True, slots=True)
class ModelMeasures:
    """What the metrics say of one model version. `waiting` inferences have no instance yet; `inline_executions` of its
    batches ran on the event loop; its worker processes were started again `restarts` times, None where it has none."""

    name: str
    version: int
    statistics: Statistics
    waiting: int
    load_seconds: float
    inline_executions: int
    restarts: int | None = None

    @property
    def labels(self) -> dict[str, str]:
        return {"model": self.name, "version": str(self.version)}


def _micros(phase: str) -> Callable[[ModelCounts], float]:
    return lambda counts: counts.inference[phase].ns // 1000


_COUNTERS: tuple[tuple[str, str, Callable[[ModelCounts], float]], ...] = (
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda counts: counts.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda counts: counts.execution_count,
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        _micros("success"),
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        _micros("queue"),
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        _micros("compute_input"),
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        _micros("compute_infer"),
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        _micros("compute_output"),
    ),
)


def families(models: Iterable[ModelMeasures]) -> list[MetricFamily]:
    """Every family, also one without series (contract M24)."""
    read = [(m, m.statistics.read(m.name, m.version)) for m in models]
    success = tuple((m.labels, float(counts.inference["success"].count)) for m, counts in read)
    failure = tuple(
        ({**m.labels, "reason": reason.value}, float(number))
        for m, _ in read
        for reason, number in m.statistics.failures.items()
    )
    return [
        MetricFamily(
            "nv_inference_request_success",
            "Number of successful inference requests, all batch sizes",
            "counter",
            success,
        ),
        MetricFamily(
            "nv_inference_request_failure",
            "Number of failed inference requests, all batch sizes",
            "counter",
            failure,
        ),
        *(
            MetricFamily(name, text, "counter", tuple((m.labels, value(counts)) for m, counts in read))
            for name, text, value in _COUNTERS
        ),
        MetricFamily(
            "nv_inference_pending_request_count",
            "Instantaneous number of pending requests awaiting execution per-model.",
            "gauge",
            tuple((m.labels, float(m.waiting)) for m, _ in read),
        ),
        MetricFamily(
            "nv_model_load_duration_secs",
            "Model load time in seconds",
            "gauge",
            tuple((m.labels, m.load_seconds) for m, _ in read),
        ),
        MetricFamily(
            "halimede_inline_executions_total",
            "Number of model executions that ran on the event loop instead of a thread of their instance",
            "counter",
            tuple((m.labels, float(m.inline_executions)) for m, _ in read),
        ),
        MetricFamily(
            "halimede_worker_restarts_total",
            "Number of worker processes of the model that ended unasked and were started again",
            "counter",
            tuple((m.labels, float(m.restarts)) for m, _ in read if m.restarts is not None),
        ),
    ]


def custom_metrics() -> CustomMetrics:
    """A registry for the metrics of models, which knows the families of the server."""
    own = [*families(()), *cache_families((), CacheCounts())]
    return CustomMetrics({family.name: Kind[family.kind.upper()] for family in own})


def with_custom(own: Sequence[MetricFamily], custom: Iterable[FamilyReading]) -> list[MetricFamily]:
    """The families of the server and those of its models. A model may add series to one of the server's, but none that
    is there already: no scraper takes a series twice."""
    added = {reading.name: _family(reading) for reading in custom}
    found = []
    for family in own:
        more = added.pop(family.name, None)
        if more is not None:
            present = {frozenset(labels.items()) for labels, _ in family.series}
            series = (pair for pair in more.series if frozenset(pair[0].items()) not in present)
            family = MetricFamily(family.name, family.help, family.kind, (*family.series, *series))
        found.append(family)
    return [*found, *added.values()]


def _family(reading: FamilyReading) -> MetricFamily:
    series = tuple(
        (labels, Histogram(value.bounds, value.counts, value.sum) if isinstance(value, Buckets) else value)
        for labels, value in reading.series
    )
    return MetricFamily(reading.name, reading.help, reading.kind.word, series)
