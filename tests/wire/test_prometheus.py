"""Metrics as text: each line of the exposition, byte for byte."""

from collections.abc import Mapping

import pytest

from halimede.service.port import Histogram, MetricFamily
from halimede.wire.prometheus import encode_metrics


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
    """Contract M24."""
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
