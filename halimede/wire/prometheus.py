"""Metrics as Prometheus text (the exposition format 0.0.4). Pure.

prometheus-client is not used here: it adds `_total` to the names of counters, which the contract (M1) does not have.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf, isnan

from halimede.service.port import Histogram, MetricFamily


def encode_metrics(families: Iterable[MetricFamily]) -> bytes:
    lines: list[str] = []
    for family in families:
        if family.help:
            lines.append(f"# HELP {family.name} {_escaped_help(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.series:
            if isinstance(value, Histogram):
                lines += _histogram(family.name, labels, value)
            else:
                lines.append(f"{family.name}{_labels(labels)} {_number(value)}")
    return "".join(f"{line}\n" for line in lines).encode()


def _histogram(name: str, labels: Mapping[str, str], value: Histogram) -> Iterator[str]:
    """In the real server's order: count, sum, then the buckets, whose bound is the last label."""
    yield f"{name}_count{_labels(labels)} {value.counts[-1]}"
    yield f"{name}_sum{_labels(labels)} {_number(value.sum)}"
    for bound, count in zip(value.bounds, value.counts, strict=True):
        yield f"{name}_bucket{_labels({**labels, 'le': _number(bound)})} {count}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return _escaped_help(value).replace('"', r"\"")


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    """With 16 digits at most, as the real server writes it."""
    if isnan(value):
        return "Nan"
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.16g}"
