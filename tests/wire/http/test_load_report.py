"""The header that tells load balancers how loaded a model is (H138)."""

import pytest

from halimede.engine_port import MetricFamily
from halimede.wire.http.load_report import FAMILY, load_report


def told(**kinds: float) -> list[MetricFamily]:
    return [of(kinds)]


def of(kinds: dict[str, float], **labels: str) -> MetricFamily:
    series = tuple(({**labels, "kv_cache_block_type": kind}, value) for kind, value in kinds.items())
    return MetricFamily(FAMILY, "", "gauge", series)


@pytest.mark.rows("H138")
@pytest.mark.parametrize(
    ("form", "report"),
    [
        (b"text", b"TEXT named_metrics.kv_cache_utilization=0.5, named_metrics.max_token_capacity=1000"),
        (b"json", b'JSON {"named_metrics":{"kv_cache_utilization":0.5,"max_token_capacity":1000}}'),
        (b"JSON", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_report_in_the_form_that_was_asked_for(form: bytes, report: bytes | None) -> None:
    assert load_report(form, told(tokens_per=10.0, used=50.0, max=100.0, fraction=0.5), "m") == report


@pytest.mark.parametrize(
    "kinds",
    [
        {},
        {"tokens_per": 1, "used": 1},
        {"tokens_per": 1, "used": -1, "max": 1},
        {"tokens_per": 1, "used": 1, "max": float("nan")},
        {"tokens_per": 1, "used": 1, "max": float("inf")},
    ],
)
def test_report_needs_all_numbers(kinds: dict[str, float]) -> None:
    assert load_report(b"text", told(**kinds), "m") is None
    assert load_report(b"text", [], "m") is None


def test_nothing_is_used_of_nothing() -> None:
    report = load_report(b"text", told(tokens_per=10, used=0, max=0), "m")
    assert report == b"TEXT named_metrics.kv_cache_utilization=0, named_metrics.max_token_capacity=0"


def test_numbers_of_the_model_itself_come_first() -> None:
    one = of({"tokens_per": 1.0, "used": 1.0, "max": 4.0}, model="one")
    two = of({"tokens_per": 1.0, "used": 3.0, "max": 4.0}, model="two")
    for model, utilization in (("one", b"=0.25,"), ("two", b"=0.75,"), ("other", b"=0.75,")):
        report = load_report(b"text", [one, two], model)
        assert report is not None
        assert utilization in report
