"""The registry of the metrics that models create (M23, P57 to P59): families by name, series by labels.

Equal names give the same family, and equal labels the same series, so that the instances of a model count together. The
creator gets a handle. A series or family exists as long as it has a handle. Pure; one thread, in the server the event
loop's.
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
    """The kind of a family. The numbers are those of the Python backend's interface."""

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
_HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")
"""The suffixes of the sample names of a histogram."""
_BUCKET_LABEL = "le"
"""The label with the bound of a bucket: a histogram cannot have it as a label of its own."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """The values of a histogram: how many are at most each of `bounds`, and their sum. The last bound is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class FamilyReading:
    """The values of a family with at least one series. `series` are in the order of their creation, and can be iterated
    once; each is read when it is its turn, because a model may have tens of thousands."""

    name: str
    help: str
    kind: Kind
    series: Iterator[tuple[Labels, float | Buckets]]


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
    """A handle of a series.

    Does not check that the kind of its family has a method: callers must. `close` may be called more than once; after
    it, all other methods do nothing.
    """

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

    def read(self) -> Iterator[tuple[Labels, float | Buckets]]:
        # A series may come or go before the next one is read.
        for labels, series in list(self.series.items()):
            yield dict(labels), series.read(self.kind)


class Family:
    """A handle of a family. `close` also closes the metrics that it created."""

    def __init__(self, registry: "CustomMetrics", family: _Family) -> None:
        self._registry = registry
        self._family = family
        self._metrics: set[Metric] = set()
        self._open = True
        family.handles += 1

    def metric(self, labels: Labels, bounds: Sequence[float] = NO_BOUNDS) -> Metric:
        """A handle of the series with these labels. An existing series keeps its bounds.

        Raises Invalid with Triton's texts, and for labels that a scraper could not read.
        """
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
    """All families of models.

    `reserved` has the server's own families, to which models may add series; None stands for a kind that models cannot
    create.
    """

    def __init__(self, reserved: Mapping[str, Kind | None] = MappingProxyType({})) -> None:
        self._reserved = reserved
        self._families: dict[str, _Family] = {}
        self._samples: dict[str, str] = {
            sample: name
            for name, kind in reserved.items()
            for sample in _samples(name, Kind.HISTOGRAM if kind is None else kind)
        }
        """The name of the family by the name of a sample in the metrics text. No two families may share one."""

    def family(self, name: str, help: str, kind: Kind) -> Family:
        """A handle of the family. An existing family keeps its description. Raises Invalid with Triton's texts."""
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
        """Called when a handle of the family is closed."""
        family.handles -= 1
        if not family.handles:
            del self._families[family.name]
            if family.name not in self._reserved:
                for sample in _samples(family.name, family.kind):
                    del self._samples[sample]

    def read(self) -> list[FamilyReading]:
        """The families that have series, as in Triton. Counters come first, then gauges, then histograms."""
        return [
            FamilyReading(family.name, family.help, family.kind, family.read())
            for family in _in_order(self._families.values())
            if family.series
        ]


_OTHER_KIND = "Family name already exists with different type"


def _in_order(families: Iterable[_Family]) -> list[_Family]:
    return sorted(families, key=lambda family: family.kind)


def _samples(name: str, kind: Kind) -> Iterator[str]:
    """The names of the samples of a family in the metrics text."""
    yield name
    if kind is Kind.HISTOGRAM:
        yield from (name + suffix for suffix in _HISTOGRAM_SUFFIXES)


def _checked(bounds: Sequence[float]) -> Sequence[float]:
    """The bounds without an infinite one at the end, which every histogram has. Raises Invalid if they do not
    ascend."""
    # NaN compares false with everything, so it needs a check of its own.
    ascending = all(before < after for before, after in pairwise(bounds))
    if not ascending or any(isnan(bound) for bound in bounds):
        raise Invalid("Bucket Boundaries must be strictly sorted")
    return bounds[:-1] if bounds and bounds[-1] == inf else bounds


def _check_label(kind: Kind, name: str, value: str) -> None:
    if not _LABEL.fullmatch(name) or (kind is Kind.HISTOGRAM and name == _BUCKET_LABEL):
        raise Invalid("Invalid label name")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid("Invalid label value") from None
