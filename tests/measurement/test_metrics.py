"""The metrics of the models, from statistics of which every number is known."""

from collections.abc import Iterable, Sequence
from math import inf, isnan
from typing import Any

import pytest

from halimede.cache.api import CacheCounts
from halimede.custom_metrics import CustomMetrics, Kind
from halimede.engine_port import Histogram, MetricFamily, Summary
from halimede.errors import Invalid
from halimede.measurement.latencies import Buckets, Latencies, Recent
from halimede.measurement.metrics import ModelMeasures, Read, custom_metrics, families, with_custom
from halimede.measurement.statistics import Statistics
from halimede.options import MetricsOptions
from halimede.scheduling.runner_config import Reason
from tests.fakes import inference

LABELS = {"model": "m", "version": "3"}


BOUNDS = (1.0, 2.0, 4.0, 8.0)
ALL = MetricsOptions(summaries=True, histograms=True, quantiles=(0.5, 1.0))


def statistics_of(latencies: Latencies | None = None) -> Statistics:
    """Two successes in one batch, a failure, and a hit of a cache."""
    statistics = Statistics(latencies)
    statistics.executed(5, 1_000, 2_000, 3_000)
    for rows in (2, 3):
        one = inference(batch_size=rows)
        one.times = [0, 1_000, 11_000, 12_999, 15_000, 20_000]
        statistics.succeeded(one, 30_000)
    statistics.failed(inference(), 1, Reason.CANCELED)
    return statistics


def families_of(measured: Iterable[ModelMeasures], *arguments: Any, **more: Any) -> list[MetricFamily]:
    return list(families([Read.of(each) for each in measured], *arguments, **more))


def by_name(read: list[MetricFamily]) -> dict[str, MetricFamily]:
    return {family.name: family for family in read}


def measured() -> dict[str, MetricFamily]:
    measures = ModelMeasures(
        "m", 3, statistics_of(), 7, 0.25, 4, 6, oldest_seconds=1.5, instances=8, busy=2, max_batch_size=6
    )
    return by_name(families_of([measures]))


@pytest.mark.rows("M3", "M4", "M5", "M6", "M7", "M8", "M9", "M10", "M11")
@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("nv_inference_request_success", 2, "counter"),
        ("nv_inference_count", 5, "counter"),
        ("nv_inference_exec_count", 1, "counter"),
        ("nv_inference_request_duration_us", 60, "counter"),
        ("nv_inference_queue_duration_us", 20, "counter"),
        ("nv_inference_compute_input_duration_us", 3, "counter"),
        ("nv_inference_compute_infer_duration_us", 4, "counter"),
        ("nv_inference_compute_output_duration_us", 10, "counter"),
        ("nv_inference_pending_request_count", 7, "gauge"),
        ("nv_model_load_duration_secs", 0.25, "gauge"),
        ("halimede_inline_executions_total", 4, "counter"),
        ("halimede_worker_restarts_total", 6, "counter"),
        ("halimede_instance_busy_seconds_total", 6e-6, "counter"),
        ("halimede_queue_oldest_seconds", 1.5, "gauge"),
        ("halimede_instances", 8, "gauge"),
        ("halimede_instances_busy", 2, "gauge"),
        ("halimede_batch_size", Histogram((*BOUNDS, inf), (0, 0, 0, 1, 1), 5), "histogram"),
    ],
)
def test_metric_of_a_model(name: str, value: float | Histogram, kind: str) -> None:
    """Durations are whole microseconds of the sum."""
    family = measured()[name]
    assert (family.kind, family.series) == (kind, ((LABELS, value),))


def test_metric_of_failures_has_a_series_for_every_reason() -> None:
    """Contract M2."""
    series = {labels["reason"]: value for labels, value in measured()["nv_inference_request_failure"].series}
    assert series == {"REJECTED": 0, "CANCELED": 1, "BACKEND": 0, "OTHER": 0}


@pytest.mark.rows("R55")
def test_labels_are_in_the_order_of_their_names() -> None:
    read = families_of([ModelMeasures("m", 3, Statistics(), 0, 0.1, 0, tags={"namespace": "n", "_z": "1", "_A": "2"})])
    (labels, _), *_ = by_name(read)["nv_inference_request_failure"].series
    assert list(labels.items()) == [
        ("_A", "2"),
        ("_z", "1"),
        ("model", "m"),
        ("namespace", "n"),
        ("reason", "REJECTED"),
        ("version", "3"),
    ]


def test_metrics_of_a_model_without_workers_have_no_restarts() -> None:
    read = families_of([ModelMeasures("m", 3, Statistics(), 0, 0.1, 0)])
    assert by_name(read)["halimede_worker_restarts_total"].series == ()


@pytest.mark.rows("M24")
def test_metrics_without_models_have_their_families_all_the_same() -> None:
    empty, one = (
        by_name(families_of([], ALL)),
        by_name(families_of([ModelMeasures("m", 3, Statistics(), 0, 0.1, 0)], ALL)),
    )
    assert list(empty) == list(one)
    for family in empty.values():
        assert family.help
        assert (family.series == ()) == (not family.name.startswith("nv_pinned_memory")), family.name


@pytest.mark.rows("M25")
def test_without_counters_no_durations_and_nothing_of_caches() -> None:
    measures = [ModelMeasures("m", 3, statistics_of(), 0, 0.1, 0, cached=True)]
    every, fewer = (by_name(families_of(measures, MetricsOptions(counters=counters))) for counters in (True, False))
    assert {name for name in every if name not in fewer} == {
        *(f"nv_inference_{what}_duration_us" for what in ("request", "queue")),
        *(f"nv_inference_compute_{what}_duration_us" for what in ("input", "infer", "output")),
        *(f"nv_cache_{what}_per_model" for what in ("num_hits", "num_misses", "hit_duration", "miss_duration")),
    }
    assert fewer["nv_inference_count"] == every["nv_inference_count"]


@pytest.mark.rows("M13", "M14")
def test_summaries_have_the_counts_and_sums_of_the_counters() -> None:
    recent = Recent.begin()
    read = by_name(families_of([ModelMeasures("m", 3, statistics_of(Latencies(recent)), 0, 0.1, 0)], ALL, now=40_000))
    assert {name: family.series for name, family in read.items() if "summary" in name} == {
        "nv_inference_request_summary_us": ((LABELS, Summary(((0.5, 30), (1.0, 30)), 2, 60)),),
        "nv_inference_queue_summary_us": ((LABELS, Summary(((0.5, 10), (1.0, 10)), 2, 20)),),
        "nv_inference_compute_input_summary_us": ((LABELS, Summary(((0.5, 1), (1.0, 1)), 2, 3)),),
        "nv_inference_compute_infer_summary_us": ((LABELS, Summary(((0.5, 2), (1.0, 2)), 2, 4)),),
        "nv_inference_compute_output_summary_us": ((LABELS, Summary(((0.5, 5), (1.0, 5)), 2, 10)),),
        "nv_cache_hit_summary_per_model": (),
        "nv_cache_miss_summary_per_model": (),
    }
    assert all(read[name].kind == "summary" for name in read if "summary" in name)


@pytest.mark.rows("M13", "M17")
def test_summaries_of_a_model_whose_responses_are_kept() -> None:
    statistics = statistics_of(Latencies(Recent.begin()))
    hit = inference()
    hit.times = [0, 1_000, 0, 0, 0, 0]
    statistics.succeeded(hit, 8_000)
    statistics.missed(5_000, 4_000)
    read = by_name(families_of([ModelMeasures("m", 3, statistics, 0, 0.1, 0, cached=True)], ALL))
    assert read["nv_inference_request_summary_us"].series == ()
    assert read["nv_cache_hit_summary_per_model"].series == ((LABELS, Summary(((0.5, 7), (1.0, 7)), 1, 7)),)
    ((_, missed),) = read["nv_cache_miss_summary_per_model"].series
    assert isinstance(missed, Summary)
    assert (missed.count, missed.sum) == (1, 9)
    ((_, queued),) = read["nv_inference_queue_summary_us"].series
    assert isinstance(queued, Summary)
    assert (queued.count, queued.sum) == (3, 20)


def test_summary_of_nothing_lately_is_not_a_number() -> None:
    measures = ModelMeasures("m", 3, statistics_of(Latencies(Recent.begin())), 0, 0.1, 0)
    read = by_name(families_of([measures], ALL, now=10**12))
    ((_, summary),) = read["nv_inference_queue_summary_us"].series
    assert isinstance(summary, Summary)
    assert all(isnan(value) for _, value in summary.quantiles)
    assert (summary.count, summary.sum) == (2, 20)


@pytest.mark.rows("M12")
def test_histogram_of_first_responses() -> None:
    statistics = statistics_of(Latencies(None, Buckets((0.01, 1.0))))
    read = by_name(families_of([ModelMeasures("m", 3, statistics, 0, 0.1, 0)], ALL))
    family = read["nv_inference_first_response_histogram_ms"]
    assert (family.kind, family.series) == ("histogram", ((LABELS, Histogram((0.01, 1.0, inf), (0, 2, 2), 0.06)),))


@pytest.mark.rows("M12", "M13", "M14", "M17")
def test_what_was_not_asked_for_is_not_there() -> None:
    assert not any("summary" in name or "first_response" in name for name in measured())


def test_those_of_a_cache_are_there_where_there_is_one() -> None:
    assert not any(name.startswith("nv_cache_util") for name in measured())
    read = by_name(families_of([], cache=CacheCounts(size=100, used=25)))
    assert read["nv_cache_util"].series == (({}, 0.25),)


def all_of(own: Sequence[MetricFamily], custom: CustomMetrics) -> list[MetricFamily]:
    """The families of the server and of models, made in steps."""
    making = with_custom(own, custom.read())
    while True:
        try:
            next(making)
        except StopIteration as ended:
            found: list[MetricFamily] = ended.value
            return found


def test_metrics_of_models_follow_those_of_the_server() -> None:
    own, custom = families_of([]), custom_metrics()
    custom.family("mine", "of a model", Kind.HISTOGRAM).metric({"a": "b"}, [1.0]).observe(0.5)
    read = all_of(own, custom)
    assert read[:-1] == [family for family in own if family.series]
    family = read[-1]
    assert (family.name, family.help, family.kind) == ("mine", "of a model", "histogram")
    assert family.series == (({"a": "b"}, Histogram((1.0, float("inf")), (1, 1), 0.5)),)


def test_series_of_models_are_read_one_in_each_step() -> None:
    """A model may have tens of thousands, and one may end between two steps."""
    custom = custom_metrics()
    family = custom.family("mine", "of a model", Kind.COUNTER)
    metrics = [family.metric({"a": str(number)}) for number in range(100)]
    making = with_custom([], custom.read())
    for step in range(100):
        next(making)
        metrics[step].close()
        metrics[step - 1].increment(1)
    with pytest.raises(StopIteration) as ended:
        next(making)
    (read,) = ended.value.value
    assert [labels["a"] for labels, _ in read.series] == [str(number) for number in range(100)]
    assert custom.read() == []


@pytest.mark.rows("M24")
def test_families_without_series_are_left_out() -> None:
    custom = custom_metrics()
    empty = custom.family("mine", "of a model", Kind.COUNTER)
    own = families_of([ModelMeasures("m", 3, Statistics(Latencies(Recent.begin())), 0, 0.1, 0, cached=True)], ALL)
    names = {family.name for family in all_of(own, custom)}
    assert "nv_inference_count" in names
    assert not names.intersection(("mine", "nv_inference_request_summary_us", "halimede_worker_restarts_total"))
    del empty


@pytest.mark.rows("M23")
def test_model_may_add_series_to_a_family_of_the_server_but_not_repeat_one() -> None:
    own, custom = families_of([ModelMeasures("m", 3, Statistics(), 0, 0.1, 0)]), custom_metrics()
    family = custom.family("nv_inference_count", "another text", Kind.COUNTER)
    family.metric({"mine": "1"}).increment(5)
    family.metric(LABELS).increment(1000)
    read = all_of(own, custom)
    assert [one.name for one in read] == [one.name for one in own if one.series]
    (shared,) = [one for one in read if one.name == "nv_inference_count"]
    assert shared.series == ((LABELS, 0), ({"mine": "1"}, 5.0))
    assert shared.help.startswith("Number of inferences")


def test_model_cannot_make_another_kind_of_a_family_of_the_server() -> None:
    with pytest.raises(Invalid, match="Family name already exists with different type"):
        custom_metrics().family("nv_inference_count", "", Kind.GAUGE)
