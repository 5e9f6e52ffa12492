"""Metrics as text: each line of the exposition, byte for byte."""

import re
from collections.abc import Iterable, Mapping
from math import isnan

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics

from halimede.engine_port import Histogram, MetricFamily, Summary
from halimede.wire.prometheus import encode_metrics, encode_openmetrics, wants_openmetrics


def exposed(value: float = 1.0, **labels: str) -> str:
    """The line of the only series there is."""
    family = MetricFamily("nv_x", "Some number", "gauge", ((labels, value),))
    return encode_metrics([family]).decode().splitlines()[-1]


def test_families_follow_each_other_with_their_series() -> None:
    first: Mapping[str, str] = {"model": "a", "version": "1"}
    second = {"model": "b", "version": "12"}
    families = [
        MetricFamily("nv_count", "Number of things", "counter", ((first, 3.0), (second, 4.0))),
        MetricFamily("nv_secs", "Time in seconds", "gauge", ((first, 0.25),)),
    ]
    assert encode_metrics(families) == (
        b"# HELP nv_count Number of things\n"
        b"# TYPE nv_count counter\n"
        b'nv_count{model="a",version="1"} 3\n'
        b'nv_count{model="b",version="12"} 4\n'
        b"# HELP nv_secs Time in seconds\n"
        b"# TYPE nv_secs gauge\n"
        b'nv_secs{model="a",version="1"} 0.25\n'
    )


def test_family_without_series_is_still_named() -> None:
    """HELP and TYPE are written without any series (M24)."""
    text = encode_metrics([MetricFamily("nv_x", "Some number", "counter", ())])
    assert text == b"# HELP nv_x Some number\n# TYPE nv_x counter\n"


def test_no_families_are_no_text() -> None:
    assert encode_metrics([]) == b""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('say "hi"', r"say \"hi\""),
        (r"back\slash", r"back\\slash"),
        ("two\nlines", r"two\nlines"),
        ('\\"\n', r"\\\"\n"),
        (r"\n", r"\\n"),
        ("tab\tand {a=1,b}", "tab\tand {a=1,b}"),
        ("modèle", "modèle"),
        ("", ""),
    ],
)
def test_label_value_is_escaped(value: str, text: str) -> None:
    assert exposed(model=value) == f'nv_x{{model="{text}"}} 1'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (7, "7"),
        (-2.0, "-2"),
        (1e15, "1000000000000000"),
        (2.0**53, "9007199254740992"),
        (0.1, "0.1"),
        (0.005471, "0.005471"),
        (12.5, "12.5"),
        (0.1 + 0.2, "0.3"),
        (123456789.123456789, "123456789.1234568"),
        (1e22, "1e+22"),
        (1e-7, "1e-07"),
        (float("nan"), "Nan"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
    ],
)
def test_number_has_sixteen_digits_at_most(value: float, text: str) -> None:
    assert exposed(value, model="m") == f'nv_x{{model="m"}} {text}'


def test_series_without_labels_has_no_braces() -> None:
    assert exposed(3.0) == "nv_x 3"


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("two\nlines", r"# HELP x two\nlines" + "\n# TYPE x gauge\n"),
        (r'back\slash "q"', r'# HELP x back\\slash "q"' + "\n# TYPE x gauge\n"),
        ("", "# TYPE x gauge\n"),
    ],
)
def test_description_stays_on_its_line(text: str, head: str) -> None:
    assert encode_metrics([MetricFamily("x", text, "gauge", ())]).decode() == head


def test_histogram_is_a_count_a_sum_and_its_buckets() -> None:
    value = Histogram((0.1, 2.5, float("inf")), (1, 3, 4), 105.55)
    empty = Histogram((float("inf"),), (0,), 0.0)
    assert encode_metrics([MetricFamily("x", "h", "histogram", (({"a": "b"}, value), ({}, empty)))]).decode() == (
        "# HELP x h\n"
        "# TYPE x histogram\n"
        'x_count{a="b"} 4\n'
        'x_sum{a="b"} 105.55\n'
        'x_bucket{a="b",le="0.1"} 1\n'
        'x_bucket{a="b",le="2.5"} 3\n'
        'x_bucket{a="b",le="+Inf"} 4\n'
        "x_count 0\n"
        "x_sum 0\n"
        'x_bucket{le="+Inf"} 0\n'
    )


@pytest.mark.rows("M13")
def test_summary_is_a_count_a_sum_and_its_quantiles() -> None:
    value = Summary(((0.5, 7.0), (0.999, float("nan"))), 3, 20)
    assert encode_metrics([MetricFamily("x", "h", "summary", (({"a": "b"}, value),))]).decode() == (
        "# HELP x h\n"
        "# TYPE x summary\n"
        'x_count{a="b"} 3\n'
        'x_sum{a="b"} 20\n'
        'x{a="b",quantile="0.5"} 7\n'
        'x{a="b",quantile="0.999"} Nan\n'
    )


def test_whole_numbers_keep_all_their_digits() -> None:
    assert exposed(12345678901234567890) == "nv_x 12345678901234567890"


EVERY_KIND = (
    MetricFamily("nv_count", 'Number of "things"\\', "counter", (({"model": 'a"\n\\ä'}, 3), ({"model": "b"}, 0.5))),
    MetricFamily("own_total", "Counted", "counter", (({}, 4),)),
    MetricFamily("both_total", "The stem is taken", "counter", (({}, 5),)),
    MetricFamily("both", "A gauge", "gauge", (({}, float("nan")),)),
    MetricFamily("empty", "", "gauge", ()),
    MetricFamily("s", "h", "summary", (({"a": "b"}, Summary(((0.5, 7.0), (1.0, float("nan"))), 3, 20)),)),
    MetricFamily("h", "h", "histogram", (({"a": "b"}, Histogram((1.0, float("inf")), (1, 4), 105.5)),)),
    MetricFamily("below", "h", "histogram", (({}, Histogram((-1.0, float("inf")), (1, 4), -5.0)),)),
)


def _read(families: Iterable[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in families
        for sample in family.samples
    }


def test_openmetrics_are_what_another_reader_of_them_reads() -> None:
    text = encode_openmetrics(EVERY_KIND).decode()
    families = list(openmetrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
    assert [(family.name, family.type) for family in families] == [
        ("nv_count", "unknown"),
        ("own", "counter"),
        ("both_total", "unknown"),
        ("both", "gauge"),
        ("empty", "gauge"),
        ("s", "summary"),
        ("h", "histogram"),
        ("below", "histogram"),
    ]
    read = _read(families)
    assert read["nv_count", (("model", 'a"\n\\ä'),)] == 3
    assert read["own_total", ()] == 4
    assert isnan(read["s", (("a", "b"), ("quantile", "1.0"))])
    assert text.endswith("\n# EOF\n")


def test_both_forms_have_the_same_names_and_values() -> None:
    """Dashboards need not know in which format a scraper asked."""
    plain, openly = (_samples(encode(EVERY_KIND)) for encode in (encode_metrics, encode_openmetrics))
    assert {name for name in plain if name not in openly} == {"below_sum", "below_count"}, "below zero there is no sum"
    assert all(plain[name] == openly[name] for name in openly)


def _samples(text: bytes) -> dict[str, str]:
    """Name and labels to the value, with bounds and values in one way of writing."""
    lines = (line for line in text.decode().splitlines() if not line.startswith("#"))
    bound = re.compile(r'(le|quantile)="([^"]*)"')
    return {
        bound.sub(lambda found: f'{found[1]}="{float(found[2])}"', name): value.lower()
        for name, _, value in (line.rpartition(" ") for line in lines)
    }


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0", True),
        ("application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text;q=0.5,text/plain;version=0.0.4;q=0.6", False),
        ("text/plain;q=0.5, Application/OpenMetrics-Text;q=0.5", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        (",;,q=1", False),
    ],
)
def test_openmetrics_are_for_who_wants_them_most(accept: str | None, wanted: bool) -> None:
    assert wants_openmetrics(None if accept is None else accept.encode()) is wanted
