import pytest

from halimede.scheduling.runner import Reason
from halimede.service.metrics import ModelMeasures, families
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
    return {family.name: {tuple(labels.items()): value for labels, value in family.series} for family in read}


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
