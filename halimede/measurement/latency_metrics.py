"""Summaries and histograms of the models (M12 to M14, M17), computed at a scrape. Counts and sums come from the
statistics. Event-loop thread only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf

from halimede.engine_port import Duration, Histogram, MetricFamily, Summary
from halimede.measurement.latencies import FIRST_RESPONSE, Latencies, Quantiles
from halimede.measurement.statistics import Totals

Models = Sequence[tuple[Mapping[str, str], Totals, Latencies | None, bool]]
"""For each version: its labels, its sums, its latencies, and whether it has a response cache."""
Sizes = Iterable[tuple[Mapping[str, str], Totals, int]]
"""For each version: its labels, its sums, and its maximum batch size (0: it does not batch)."""

_INPUT = "Cumulative compute input duration in microseconds (does not include cached requests)"
_INFER = "Cumulative compute inference duration in microseconds (does not include cached requests)"
_OUTPUT = "Cumulative inference compute output duration in microseconds (does not include cached requests)"
_SUMMARIES: tuple[tuple[str, str, str, str], ...] = (
    (
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
        "success",
        "request",
    ),
    (
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        "queue",
        "queue",
    ),
    ("nv_inference_compute_input_summary_us", _INPUT, "compute_input", "compute_input"),
    ("nv_inference_compute_infer_summary_us", _INFER, "compute_infer", "compute_infer"),
    ("nv_inference_compute_output_summary_us", _OUTPUT, "compute_output", "compute_output"),
    (
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
        "cache_hit",
        "cache_hit",
    ),
    (
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
        "cache_miss",
        "cache_miss",
    ),
)
"""Family, text, phase of the statistics, field of `Recent`."""
_REQUEST, _OF_CACHES = "request", ("cache_hit", "cache_miss")

BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def summaries(models: Models, quantiles: Sequence[float], now: int) -> Iterator[MetricFamily]:
    """The summaries. Models with a response cache have none of the whole request (M13), others none of the cache."""
    for name, text, phase, part in _SUMMARIES:
        series = tuple(
            (labels, _summary(totals.inference[phase], getattr(kept.recent, part), quantiles, now))
            for labels, totals, kept, cached in models
            if kept is not None and kept.recent is not None and _belongs(part, cached)
        )
        yield MetricFamily(name, text, "summary", series)


def _belongs(part: str, cached: bool) -> bool:
    return part != _REQUEST if cached else part not in _OF_CACHES


def _summary(duration: Duration, recent: Quantiles, quantiles: Sequence[float], now: int) -> Summary:
    read = recent.read(quantiles, now)
    return Summary(tuple(zip(quantiles, read, strict=True)), duration.count, duration.ns // 1000)


def first_responses(models: Models) -> MetricFamily:
    """The histogram of the time to the first response (M12)."""
    series = tuple(
        (labels, kept.first_response.read())
        for labels, _, kept, _ in models
        if kept is not None and kept.first_response is not None
    )
    text = "Duration from request to first response in milliseconds"
    return MetricFamily(FIRST_RESPONSE, text, "histogram", series)


def batch_sizes(models: Sizes) -> MetricFamily:
    """The histogram of batch sizes, from the executions by size in the statistics."""
    series = tuple((labels, _sizes(totals, most)) for labels, totals, most in models)
    return MetricFamily("halimede_batch_size", "Rows of the executed batches", "histogram", series)


def _sizes(totals: Totals, most: int) -> Histogram:
    """The histogram of one model, with only the buckets that its batches can reach."""
    bounds = [bound for bound in BATCH_BOUNDS if bound < most * 2] or [1]
    counts: dict[float, int] = dict.fromkeys((*bounds, inf), 0)
    for batch in totals.batches:
        counts[next((bound for bound in bounds if batch.batch_size <= bound), inf)] += batch.compute_infer.count
    rows = sum(batch.batch_size * batch.compute_infer.count for batch in totals.batches)
    return Histogram(tuple(map(float, counts)), tuple(accumulate(counts.values())), rows)
