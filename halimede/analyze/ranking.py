"""Which measurement is better (X40). Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from math import inf

from halimede.analyze.measurements import Measurement
from halimede.analyze.tags import tag_of

DEFAULT_WEIGHT = 10.0
SAME = 0.03
"""A gain that is noise."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a figure."""

    least: float = -inf
    most: float = inf


@dataclass(frozen=True, slots=True)
class Goal:
    """What the user wants: objectives with their weights, and constraints, by tag."""

    objectives: Mapping[str, float] = field(default_factory=lambda: {"perf_throughput": DEFAULT_WEIGHT})
    constraints: Mapping[str, Limits] = field(default_factory=dict)

    def gain(self, a: Measurement, b: Measurement) -> float:
        """How much better `a` is than `b`: for each objective their difference as a share of their mean, weighted. A
        figure that either lacks does not count."""
        total = weight = 0.0
        for tag, part in self.objectives.items():
            first, second = a.figures.get(tag), b.figures.get(tag)
            if first is None or second is None:
                continue
            weight += part
            middle = (first + second) / 2
            if middle:
                share = (first - second) / middle
                total += part * (-share if tag_of(tag).less_is_better else share)
        return total / weight if weight else 0.0

    def broken(self, a: Measurement) -> dict[str, float]:
        """The constraints that it breaks, each with by how much, as a share of the limit."""
        found = {}
        for tag, limits in self.constraints.items():
            value = a.figures.get(tag)
            if value is None:
                continue
            if value > limits.most:
                found[tag] = value / limits.most - 1 if limits.most else inf
            elif value < limits.least:
                found[tag] = 1 - value / limits.least
        return found

    def satisfies(self, a: Measurement) -> bool:
        return not self.broken(a)

    def compare(self, a: Measurement, b: Measurement) -> float:
        """Positive if `a` is better. One that satisfies the constraints is better than one that does not; among those
        that do not, the one that breaks them less."""
        first, second = sum(self.broken(a).values()), sum(self.broken(b).values())
        if first or second:
            return second - first
        return self.gain(a, b)

    def sorted(self, found: Sequence[Measurement]) -> list[Measurement]:
        """The best first."""

        def order(a: Measurement, b: Measurement) -> int:
            difference = self.compare(a, b)
            return (difference < 0) - (difference > 0)

        return sorted(found, key=cmp_to_key(order))

    def best(self, found: Sequence[Measurement]) -> Measurement | None:
        return self.sorted(found)[0] if found else None

    def top(self, found: Sequence[Measurement], count: int) -> list[Measurement]:
        """The best measurement of each of the best configurations. Of loads that are equally good, the lowest."""
        chosen: dict[object, Measurement] = {}
        for each in self.sorted(found):
            best = chosen.setdefault(each.candidate.setup, each)
            is_lower = each.candidate.load < best.candidate.load
            if is_lower and self.compare(best, each) <= SAME and self.satisfies(each):
                chosen[each.candidate.setup] = each
        return list(chosen.values())[:count]
