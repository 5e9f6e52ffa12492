"""The metrics that models make for themselves (contract M23, P57 to P59): families by name, series by labels.

Who makes a family or a metric holds a handle and gives it back. The same name is the same family and the same labels
are the same series, whoever asks, so that the instances of a model count together. A series is there while a handle of
it is, a family likewise. Pure; one thread, in the server the event loop's.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise
from math import inf, isnan
from types import MappingProxyType

from halimede.errors import Invalid


class Kind(IntEnum):
    """By the number that the interface of Python models gives it."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    @property
    def word(self) -> str:
        return self.name.lower()


Labels = Mapping[str, str]
NO_BOUNDS: Sequence[float] = ()

_NAME = re.compile(r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_OF_HISTOGRAMS = ("_bucket", "_count", "_sum")
_BOUND = "le"


@dataclass(frozen=True, slots=True)
class Buckets:
    """What a histogram has seen: how many values were at most each of `bounds` (the last one is infinite), and their
    sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class FamilyReading:
    """A family with a series at least; `series` in the order in which they were made."""

    name: str
    help: str
    kind: Kind
    series: tuple[tuple[Labels, float | Buckets], ...]


class _Series:
    __slots__ = ("bounds", "counts", "handles", "value")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.value = 0.0
        self.handles = 0

    def read(self, kind: Kind) -> float | Buckets:
        if kind is not Kind.HISTOGRAM:
            return self.value
        return Buckets((*self.bounds, inf), tuple(accumulate(self.counts)), self.value)


class Metric:
    """A handle of a series. What the kind of its family does not have is not called: whoever speaks for a model knows
    that. `close` may be called again."""

    __slots__ = ("_family", "_labels", "_series")

    def __init__(self, family: "_Family", labels: tuple[tuple[str, str], ...], series: _Series) -> None:
        self._family = family
        self._labels = labels
        self._series: _Series | None = series
        series.handles += 1

    @property
    def value(self) -> float:
        return self._series.value if self._series is not None else 0.0

    def increment(self, amount: float) -> None:
        if self._series is not None:
            self._series.value += amount

    def set(self, value: float) -> None:
        if self._series is not None:
            self._series.value = value

    def observe(self, value: float) -> None:
        series = self._series
        if series is not None:
            series.value += value
            series.counts[bisect_left(series.bounds, value)] += 1

    def close(self) -> None:
        series, self._series = self._series, None
        if series is not None:
            series.handles -= 1
            if not series.handles:
                del self._family.series[self._labels]


class _Family:
    __slots__ = ("handles", "help", "kind", "name", "series")

    def __init__(self, name: str, help: str, kind: Kind) -> None:
        self.name = name
        self.help = help
        self.kind = kind
        self.series: dict[tuple[tuple[str, str], ...], _Series] = {}
        self.handles = 0


class Family:
    """A handle of a family. Its metrics go with it."""

    def __init__(self, registry: "CustomMetrics", family: _Family) -> None:
        self._registry = registry
        self._family = family
        self._metrics: set[Metric] = set()
        self._open = True
        family.handles += 1

    def metric(self, labels: Labels, bounds: Sequence[float] = NO_BOUNDS) -> Metric:
        """The series of these labels, which may be there already (then with the bounds that it has). Raises Invalid
        with the real server's words, and for what no scraper could read."""
        for name, value in labels.items():
            _check_label(self._family.kind, name, value)
        key = tuple(sorted(labels.items()))
        series = self._family.series.setdefault(key, _Series(_checked(bounds)))
        metric = Metric(self._family, key, series)
        self._metrics.add(metric)
        return metric

    def release(self, metric: Metric) -> None:
        """Closes one of its metrics."""
        self._metrics.discard(metric)
        metric.close()

    def close(self) -> None:
        for metric in self._metrics:
            metric.close()
        self._metrics.clear()
        if self._open:
            self._open = False
            self._registry.closed(self._family)


class CustomMetrics:
    """All families. `reserved` are those that the server has of its own, which models may add series to; None stands
    for a kind that models cannot make."""

    def __init__(self, reserved: Mapping[str, Kind | None] = MappingProxyType({})) -> None:
        self._reserved = reserved
        self._families: dict[str, _Family] = {}
        self._samples: dict[str, str] = {
            sample: name
            for name, kind in reserved.items()
            for sample in _samples(name, Kind.HISTOGRAM if kind is None else kind)
        }
        """By the names that stand before the values in the exposition, the family."""

    def family(self, name: str, help: str, kind: Kind) -> Family:
        """A handle of the family, which may be there already (then with the description that it has). Raises Invalid
        with the real server's words."""
        if not _NAME.fullmatch(name):
            raise Invalid("Invalid metric name")
        known = self._families.get(name)
        if known is None:
            samples = list(_samples(name, kind))
            taken = any(self._samples.get(sample, name) != name for sample in samples)
            if taken or self._reserved.get(name, kind) is not kind:
                raise Invalid(_OTHER_KIND)
            known = self._families[name] = _Family(name, help, kind)
            self._samples.update(dict.fromkeys(samples, name))
        elif known.kind is not kind:
            raise Invalid(_OTHER_KIND)
        return Family(self, known)

    def closed(self, family: _Family) -> None:
        """One of its handles is given back."""
        family.handles -= 1
        if not family.handles:
            del self._families[family.name]
            if family.name not in self._reserved:
                for sample in _samples(family.name, family.kind):
                    del self._samples[sample]

    def read(self) -> list[FamilyReading]:
        """Families without series are left out, as by the real server. Counters come first, then gauges, then
        histograms."""
        return [
            FamilyReading(
                family.name,
                family.help,
                family.kind,
                tuple((dict(labels), series.read(family.kind)) for labels, series in family.series.items()),
            )
            for family in _in_order(self._families.values())
            if family.series
        ]


_OTHER_KIND = "Family name already exists with different type"


def _in_order(families: Iterable[_Family]) -> list[_Family]:
    return sorted(families, key=lambda family: family.kind)


def _samples(name: str, kind: Kind) -> Iterator[str]:
    yield name
    if kind is Kind.HISTOGRAM:
        yield from (name + suffix for suffix in _OF_HISTOGRAMS)


def _checked(bounds: Sequence[float]) -> Sequence[float]:
    """Without an infinite one, which every histogram has."""
    ascending = all(before < after for before, after in pairwise(bounds))
    if not ascending or any(isnan(bound) for bound in bounds):
        raise Invalid("Bucket Boundaries must be strictly sorted")
    return bounds[:-1] if bounds and bounds[-1] == inf else bounds


def _check_label(kind: Kind, name: str, value: str) -> None:
    if not _LABEL.fullmatch(name) or (kind is Kind.HISTOGRAM and name == _BOUND):
        raise Invalid("Invalid label name")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid("Invalid label value") from None
