"""Metrics as text: each line of the exposition, byte for byte."""

from collections.abc import Mapping

import pytest

from halimede.service.port import MetricFamily
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
    ],
)
def test_number_is_whole_or_exact(value: float, text: str) -> None:
    assert exposed(value, model="m") == f'nv_x{{model="m"}} {text}'
