"""Metrics as the view reads them."""

from halimede.engine_port import Histogram, MetricFamily
from halimede.top.sample import Sample, read_metrics
from halimede.wire.prometheus import encode_metrics

FAMILIES = (
    MetricFamily("a", "help", "counter", (({"model": 'say "hi"\n and \\n', "version": "1"}, 3), ({}, 0.5))),
    MetricFamily("h", "help", "histogram", (({"x": "{y} 1"}, Histogram((0.5, float("inf")), (1, 2), 7.5)),)),
)


def test_metrics_of_the_server_are_read() -> None:
    assert list(read_metrics(encode_metrics(FAMILIES).decode())) == [
        Sample("a", {"model": 'say "hi"\n and \\n', "version": "1"}, 3.0),
        Sample("a", {}, 0.5),
        Sample("h_count", {"x": "{y} 1"}, 2.0),
        Sample("h_sum", {"x": "{y} 1"}, 7.5),
        Sample("h_bucket", {"x": "{y} 1", "le": "0.5"}, 1.0),
        Sample("h_bucket", {"x": "{y} 1", "le": "+Inf"}, 2.0),
    ]


def test_other_lines_of_metrics_are_skipped() -> None:
    text = "# HELP x y\n\nx\nx y\nx{a=} \n<html>\nok 1 1700000000\nnan Nan\n{} 3\n"
    assert [sample.name for sample in read_metrics(text)] == ["ok", "nan"]
