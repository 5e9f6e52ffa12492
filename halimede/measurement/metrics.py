"""The metric families of the server, computed from the statistics at a scrape (M1 to M11), and those that models define
themselves (M23). Event-loop thread only.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from halimede.cache.api import CacheCounts
from halimede.custom_metrics import Buckets, CustomMetrics, FamilyReading, Kind
from halimede.engine_port import Histogram, MetricFamily
from halimede.measurement.cache_metrics import cache_families, model_cache_families
from halimede.measurement.latency_metrics import batch_sizes, first_responses, summaries
from halimede.measurement.loop_lag import BOUNDS
from halimede.measurement.machine import Seen, machine_families
from halimede.measurement.statistics import Statistics, Totals
from halimede.options import MetricsOptions
from halimede.platform.gpu_meters import GpuReading
from halimede.platform.machine import Memory
from halimede.scheduling.runner_config import Reason


@dataclass(frozen=True, slots=True)
class ModelMeasures:
    """What the metrics show of one model version.

    - `waiting`: inferences without an instance; the oldest has waited for `oldest_seconds`
    - `inline_executions`: batches that ran on the event loop
    - `busy`: how many of its `instances` run a batch
    - `restarts`: how often its worker processes were restarted; None if it has none
    - `device_copies`: tensors that were copied from a device to the host; None if it runs on the host
    - `tags`: further labels
    """

    name: str
    version: int
    statistics: Statistics
    waiting: int
    load_seconds: float | None
    inline_executions: int
    restarts: int | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    oldest_seconds: float = 0.0
    instances: int = 0
    busy: int = 0
    cached: bool = False
    max_batch_size: int = 0
    device_copies: int | None = None

    @property
    def labels(self) -> dict[str, str]:
        return {**self.tags, "model": self.name, "version": str(self.version)}


@dataclass(frozen=True, slots=True)
class Read:
    """A version with its labels, sorted by name as in the real server, and its sums."""

    measures: ModelMeasures
    labels: Mapping[str, str]
    totals: Totals

    @classmethod
    def of(cls, measures: ModelMeasures) -> "Read":
        return cls(measures, _in_order(measures.labels), measures.statistics.totals)


_Value = Callable[[Read], float | None]


def _micros(phase: str) -> _Value:
    return lambda read: read.totals.inference[phase].ns // 1000


def _busy_seconds(read: Read) -> float:
    """The time of all executions, with their input and output phases."""
    batches = read.totals.batches
    return sum(b.compute_input.ns + b.compute_infer.ns + b.compute_output.ns for b in batches) / 1e9


_COUNTS: tuple[tuple[str, str, _Value], ...] = (
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda read: read.totals.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda read: read.totals.execution_count,
    ),
)

_DURATIONS: tuple[tuple[str, str, _Value], ...] = (
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

_OWN_COUNTERS: tuple[tuple[str, str, _Value], ...] = (
    (
        "halimede_inline_executions_total",
        "Number of model executions that ran on the event loop instead of a thread of their instance",
        lambda read: read.measures.inline_executions,
    ),
    (
        "halimede_worker_restarts_total",
        "Number of worker processes of the model that ended unasked and were started again",
        lambda read: read.measures.restarts,
    ),
    (
        "halimede_device_copies_total",
        "Number of tensors of the model that were copied from a device to the host",
        lambda read: read.measures.device_copies,
    ),
    (
        "halimede_instance_busy_seconds_total",
        "Time that the instances of the model have spent on executions, in seconds",
        _busy_seconds,
    ),
)

_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    (
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda read: read.measures.waiting,
    ),
    ("nv_model_load_duration_secs", "Model load time in seconds", lambda read: read.measures.load_seconds),
    (
        "halimede_queue_oldest_seconds",
        "How long the oldest of the requests has been waiting that await execution, in seconds",
        lambda read: read.measures.oldest_seconds,
    ),
    (
        "halimede_instances",
        "Number of instances of the model that are given requests",
        lambda read: read.measures.instances,
    ),
    (
        "halimede_instances_busy",
        "Instantaneous number of instances of the model that are executing",
        lambda read: read.measures.busy,
    ),
)


def _table(kind: str, table: Iterable[tuple[str, str, _Value]], models: Sequence[Read]) -> Iterator[MetricFamily]:
    for name, text, value in table:
        told = ((read.labels, value(read)) for read in models)
        yield MetricFamily(name, text, kind, tuple((labels, number) for labels, number in told if number is not None))


def _requests(models: Sequence[Read]) -> Iterator[MetricFamily]:
    yield MetricFamily(
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        "counter",
        tuple((read.labels, read.totals.inference["success"].count) for read in models),
    )
    yield MetricFamily(
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        "counter",
        tuple(
            (_in_order({**read.labels, "reason": reason.value}), read.totals.failures[reason])
            for read in models
            for reason in Reason
        ),
    )


def _in_order(labels: Mapping[str, str]) -> Mapping[str, str]:
    return {name: labels[name] for name in sorted(labels)}


def families(
    models: Sequence[Read],
    options: MetricsOptions = MetricsOptions(),  # noqa: B008
    seen: Seen = Seen(),  # noqa: B008
    cache: CacheCounts | None = None,
    lag: Histogram | None = None,
    now: int = 0,
) -> Iterator[MetricFamily]:
    """Yields all families that these options allow, with or without series: counters, gauges, summaries, histograms.

    `now` is the end of the window of quantiles, in monotonic nanoseconds.
    """
    latencies = [
        (read.labels, read.totals, read.measures.statistics.latencies, read.measures.cached) for read in models
    ]
    machine = list(machine_families(seen, options))
    yield from _requests(models)
    yield from _table("counter", _COUNTS, models)
    if options.counters:
        yield from _table("counter", _DURATIONS, models)
        yield from model_cache_families(
            [(read.labels, read.totals.inference) for read in models if read.measures.cached]
        )
    yield from _table("counter", _OWN_COUNTERS, models)
    yield from (family for family in machine if family.kind == "counter")
    yield from _table("gauge", _GAUGES, models)
    yield from (family for family in machine if family.kind != "counter")
    yield from cache_families(cache)
    if options.summaries:
        yield from summaries(latencies, options.quantiles, now)
    if options.histograms:
        yield first_responses(latencies)
    yield batch_sizes((read.labels, read.totals, read.measures.max_batch_size) for read in models)
    if lag is not None:
        text = "How late the event loop did what was due at a time, in seconds"
        yield MetricFamily("halimede_event_loop_lag_seconds", text, "histogram", (({}, lag),))


def custom_metrics() -> CustomMetrics:
    """A registry for the metrics of models. It knows the server's families, so that models cannot redefine them."""
    everything = Seen(0.0, Memory(0, 0), (GpuReading("", 0, 0, 0, 0, 0, 0),))
    lag = Histogram(BOUNDS, (0,) * len(BOUNDS), 0)
    own = families((), MetricsOptions(summaries=True, histograms=True), everything, CacheCounts(), lag)
    return CustomMetrics({family.name: _KINDS.get(family.kind) for family in own})


_KINDS = {kind.word: kind for kind in Kind}


def with_custom(
    own: Sequence[MetricFamily], custom: Iterable[FamilyReading]
) -> Generator[None, None, list[MetricFamily]]:
    """The families of the server and of its models that have series (M24). A model may add series to a family of the
    server. Series that exist already are left out, because scrapers refuse duplicates. Made in steps of one series."""
    added = {}
    for reading in custom:
        added[reading.name] = yield from family_of(reading)
    found = []
    for family in own:
        more = added.pop(family.name, None)
        if more is not None:
            present = {frozenset(labels.items()) for labels, _ in family.series}
            series = list(family.series)
            for pair in more.series:
                yield
                if frozenset(pair[0].items()) not in present:
                    series.append(pair)
            family = MetricFamily(family.name, family.help, family.kind, tuple(series))
        found.append(family)
    return [family for family in (*found, *added.values()) if family.series]


def family_of(reading: FamilyReading) -> Generator[None, None, MetricFamily]:
    """A family of a model. Made in steps of one series."""
    series: list[tuple[Mapping[str, str], Histogram | float]] = []
    for labels, value in reading.series:
        yield
        shown = Histogram(value.bounds, value.counts, value.sum) if isinstance(value, Buckets) else value
        series.append((labels, shown))
    return MetricFamily(reading.name, reading.help, reading.kind.word, tuple(series))
