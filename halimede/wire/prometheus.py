"""Metrics as text: the Prometheus exposition format 0.0.4, and OpenMetrics 1.0 for clients that ask for it. Pure.

prometheus-client is not used, because it adds `_total` to the names of counters, which Triton's names do not have (M1).
OpenMetrics requires `_total`. So a counter of Triton has the type `unknown` there, and the same name in both formats.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf, isnan

from halimede.engine_port import Histogram, MetricFamily, Summary

TEXT = b"text/plain; charset=utf-8"
OPENMETRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
_TOTAL = "_total"

Labels = Mapping[str, str]


def wants_openmetrics(accept: bytes | None) -> bool:
    """Whether an Accept header prefers OpenMetrics."""
    if accept is None:
        return False
    best, chosen = 0.0, False
    for part in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        weight = _weight(parameters)
        is_openmetrics = kind == "application/openmetrics-text"
        # Of equal weights OpenMetrics wins, because a client that names it can read it.
        if weight > best or (weight == best > 0 and is_openmetrics):
            best, chosen = weight, is_openmetrics
    return chosen


def _weight(parameters: Iterable[str]) -> float:
    given = next((word[2:] for word in parameters if word.startswith("q=")), "1")
    try:
        return float(given)
    except ValueError:
        return 0.0


class _Labels:
    """Labels as text. Most series of a model share a labels object, which is written once. It is found by identity, so
    the caller must keep it alive."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def __call__(self, labels: Labels) -> str:
        text = self._texts.get(id(labels))
        if text is None:
            text = self._texts[id(labels)] = _labels(labels)
        return text


def encode_metrics(families: Iterable[MetricFamily]) -> bytes:
    families, text_of = list(families), _Labels()
    lines: list[str] = []
    for family in families:
        if family.help:
            lines.append(f"# HELP {family.name} {_escaped_help(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.series:
            if isinstance(value, Histogram):
                lines += _histogram(family.name, text_of(labels), value)
            elif isinstance(value, Summary):
                lines += _summary(family.name, text_of(labels), value)
            else:
                lines.append(f"{family.name}{text_of(labels)} {_number(value)}")
    return "".join(f"{line}\n" for line in lines).encode()


def _histogram(name: str, labels: str, value: Histogram) -> Iterator[str]:
    """Yields the lines of a histogram in Triton's order: count, sum, then the buckets. The bound is the last label."""
    yield f"{name}_count{labels} {value.counts[-1]}"
    yield f"{name}_sum{labels} {_number(value.sum)}"
    for bound, count in zip(value.bounds, value.counts, strict=True):
        yield f"{name}_bucket{_with(labels, 'le', _number(bound))} {count}"


def _summary(name: str, labels: str, value: Summary) -> Iterator[str]:
    yield f"{name}_count{labels} {value.count}"
    yield f"{name}_sum{labels} {_number(value.sum)}"
    for quantile, observed in value.quantiles:
        yield f"{name}{_with(labels, 'quantile', _number(quantile))} {_number(observed)}"


def encode_openmetrics(families: Iterable[MetricFamily]) -> bytes:
    families, text_of = list(families), _Labels()
    names = {family.name for family in families}
    lines: list[str] = []
    for family in families:
        stem = family.name.removesuffix(_TOTAL)
        # The family of a counter has the name without `_total`, unless another family has that name.
        counts = family.kind == "counter" and stem != family.name and stem not in names
        name = stem if counts else family.name
        if family.help:
            lines.append(f"# HELP {name} {_escaped(family.help)}")
        lines.append(f"# TYPE {name} {'unknown' if family.kind == 'counter' and not counts else family.kind}")
        for labels, value in family.series:
            if isinstance(value, Histogram):
                lines += _open_histogram(name, text_of(labels), value)
            elif isinstance(value, Summary):
                lines += _open_summary(name, text_of(labels), value)
            else:
                lines.append(f"{family.name}{text_of(labels)} {_open_number(value)}")
    lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines).encode()


def _open_histogram(name: str, labels: str, value: Histogram) -> Iterator[str]:
    """Yields the lines of a histogram. OpenMetrics forbids a sum that may fall, so count and sum are left out if values
    may be negative."""
    for bound, count in zip(value.bounds, value.counts, strict=True):
        yield f"{name}_bucket{_with(labels, 'le', _open_bound(bound))} {count}"
    if value.bounds[0] >= 0:
        yield f"{name}_count{labels} {value.counts[-1]}"
        yield f"{name}_sum{labels} {_open_number(value.sum)}"


def _open_summary(name: str, labels: str, value: Summary) -> Iterator[str]:
    yield f"{name}_count{labels} {value.count}"
    yield f"{name}_sum{labels} {_open_number(value.sum)}"
    for quantile, observed in value.quantiles:
        yield f"{name}{_with(labels, 'quantile', _open_bound(quantile))} {_open_number(observed)}"


def _with(labels: str, name: str, value: str) -> str:
    """Returns the text of labels with one more label."""
    return f'{labels[:-1]},{name}="{value}"}}' if labels else f'{{{name}="{value}"}}'


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return _escaped_help(value).replace('"', r"\"")


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    """Returns a number as Triton writes it: whole, or with at most 16 digits."""
    # An int has more digits than a double can hold.
    if isinstance(value, int):
        return str(value)
    if isnan(value):
        # Triton writes it like this.
        return "Nan"
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.16g}"


def _open_number(value: float) -> str:
    return "NaN" if isnan(value) else _number(value)


def _open_bound(value: float) -> str:
    """Returns a bound with a decimal point or an exponent, which OpenMetrics requires."""
    return "+Inf" if value == inf else repr(float(value))
