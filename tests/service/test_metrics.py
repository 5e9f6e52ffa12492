import pytest

from halimede.custom_metrics import Kind
from halimede.errors import Invalid
from halimede.scheduling.runner import Reason
from halimede.service.metrics import ModelMeasures, custom_metrics, families, with_custom
from halimede.service.port import Histogram
from halimede.service.statistics import Statistics
from tests.fakes import inference

LABELS = {"model": "m", "version": "3"}


def measured() -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The values of every family by their labels, of a model with two successes and a failure."""
    statistics = Statistics()
    statistics.executed(5, 1_000, 2_000, 3_000)
    for rows in (2, 3):
        one = inference(batch_size=rows)
        one.times = [0, 1_000, 11_000, 12_999, 15_000, 20_000]
        statistics.succeeded(one, 30_000)
    statistics.failed(inference(), 1, Reason.CANCELED)
    read = families([ModelMeasures("m", 3, statistics, 7, 0.25, 4, 6)])
    return {
        family.name: {tuple(labels.items()): value for labels, value in family.series if isinstance(value, float | int)}
        for family in read
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nv_inference_request_success", 2),
        ("nv_inference_count", 5),
        ("nv_inference_exec_count", 1),
        ("nv_inference_request_duration_us", 60),
        ("nv_inference_queue_duration_us", 20),
        ("nv_inference_compute_input_duration_us", 3),
        ("nv_inference_compute_infer_duration_us", 4),
        ("nv_inference_compute_output_duration_us", 10),
        ("nv_inference_pending_request_count", 7),
        ("nv_model_load_duration_secs", 0.25),
        ("halimede_inline_executions_total", 4),
        ("halimede_worker_restarts_total", 6),
    ],
)
def test_metric_of_a_model(name: str, value: float) -> None:
    """Contract M1 to M11: durations are whole microseconds of the sum."""
    assert measured()[name] == {tuple(LABELS.items()): value}


def test_metric_of_failures_has_a_series_for_every_reason() -> None:
    """Contract M2."""
    series = {dict(labels)["reason"]: value for labels, value in measured()["nv_inference_request_failure"].items()}
    assert series == {"REJECTED": 0, "CANCELED": 1, "BACKEND": 0, "OTHER": 0}


def test_metrics_of_a_model_without_workers_have_no_restarts() -> None:
    read = families([ModelMeasures("m", 3, Statistics(), 0, 0.1, 0)])
    assert [family.series for family in read if family.name == "halimede_worker_restarts_total"] == [()]


def test_metrics_without_models_have_their_families_all_the_same() -> None:
    """Contract M24."""
    read = families([])
    assert {family.name for family in read} == set(measured())
    assert all(family.series == () and family.help and family.kind in ("counter", "gauge") for family in read)


def test_metrics_of_models_follow_those_of_the_server() -> None:
    own, custom = families([]), custom_metrics()
    custom.family("mine", "of a model", Kind.HISTOGRAM).metric({"a": "b"}, [1.0]).observe(0.5)
    read = with_custom(own, custom.read())
    assert read[: len(own)] == own
    (family,) = read[len(own) :]
    assert (family.name, family.help, family.kind) == ("mine", "of a model", "histogram")
    assert family.series == (({"a": "b"}, Histogram((1.0, float("inf")), (1, 1), 0.5)),)


@pytest.mark.rows("M23")
def test_model_may_add_series_to_a_family_of_the_server_but_not_repeat_one() -> None:
    own, custom = families([ModelMeasures("m", 3, Statistics(), 0, 0.1, 0)]), custom_metrics()
    family = custom.family("nv_inference_count", "another text", Kind.COUNTER)
    family.metric({"mine": "1"}).increment(5)
    family.metric(LABELS).increment(1000)
    read = with_custom(own, custom.read())
    assert [one.name for one in read] == [one.name for one in own]
    (shared,) = [one for one in read if one.name == "nv_inference_count"]
    assert shared.series == ((LABELS, 0), ({"mine": "1"}, 5.0))
    assert shared.help.startswith("Number of inferences")


def test_model_cannot_make_another_kind_of_a_family_of_the_server() -> None:
    with pytest.raises(Invalid, match="Family name already exists with different type"):
        custom_metrics().family("nv_inference_count", "", Kind.GAUGE)
