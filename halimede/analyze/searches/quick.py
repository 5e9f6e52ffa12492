"""Quick search: a walk uphill from the smallest configuration, led by neighbours that were measured (X37)."""

import itertools
import math
from collections.abc import Iterator, Mapping

from halimede.analyze.measurements import Measurement
from halimede.analyze.searches import Plan, Search, finish
from halimede.analyze.space import Candidate, Load, Point

RADIUS = 3.0
NEEDED = 3
"""Measured neighbours that decide the next step."""
THRESHOLDS = (0.09, 0.3, 1.0)
"""A part of the step vector above the first moves one place, above the second two, and above the third three."""


def quick(plan: Plan) -> Search:
    """Measures the configuration as it is, then walks. Then measures other loads of the best configurations."""
    found: list[Measurement] = []
    for batch_size in plan.batch_sizes:
        default = yield Candidate((), plan.load(plan.clients(plan.space.start), batch_size))
        if default is not None:
            found.append(default)
        walk = Walk(plan, batch_size)
        while (point := walk.next()) is not None:
            measured = yield Candidate(plan.space.setup(point), walk.load(point))
            walk.add(point, measured)
        found += [each for each in walk.measured.values() if each is not None]
    yield from finish(plan, found, sweeps=plan.has_sweep)


class Walk:
    """Where the walk is, and what it knows of its surroundings."""

    def __init__(self, plan: Plan, batch_size: int) -> None:
        self._plan, self._batch_size = plan, batch_size
        self.measured: dict[Point, Measurement | None] = {}
        self._home: Point = tuple(0 for _ in plan.space.axes)
        self._visits: dict[Point, int] = {self._home: 1}

    def load(self, point: Point) -> Load:
        value = self._plan.loads[-1] if self._plan.loads else self._plan.clients(point)
        return self._plan.load(value, self._batch_size)

    def add(self, point: Point, measured: Measurement | None) -> None:
        self.measured[point] = measured

    def next(self) -> Point | None:
        """The next point to measure; None at the end."""
        while True:
            if self._home not in self.measured:
                return self._home
            neighbours = list(self._neighbours())
            known = {each: found for each in neighbours if (found := self.measured.get(each)) is not None}
            unknown = [each for each in neighbours if each not in self.measured]
            if len(known) < NEEDED and unknown:
                return min(unknown, key=lambda point: (math.dist(point, self._home), -sum(point)))
            new = self._step(known)
            if new == self._home or self._visits.get(new, 0) >= 1:
                return None
            self._visits[new] = self._visits.get(new, 0) + 1
            self._home = new

    def _neighbours(self) -> Iterator[Point]:
        reach = range(-int(RADIUS), int(RADIUS) + 1)
        for offset in itertools.product(reach, repeat=len(self._home)):
            point = tuple(a + b for a, b in zip(self._home, offset, strict=True))
            if any(offset) and math.dist(point, self._home) <= RADIUS and self._plan.space.has(point):
                yield point

    def _step(self, known: Mapping[Point, Measurement]) -> Point:
        """Where the neighbours lead. If home breaks the constraints, towards those that break them less."""
        goal, home = self._plan.goal, self.measured[self._home]
        vector = [0.0] * len(self._home)
        for point, found in known.items():
            length = math.dist(point, self._home)
            weight = 1.0 if home is None else goal.compare(found, home)
            for axis, (a, b) in enumerate(zip(point, self._home, strict=True)):
                vector[axis] += weight * (a - b) / length
        step = [_places(part) for part in vector]
        return tuple(
            min(max(place + part, 0), len(axis.values) - 1)
            for place, part, axis in zip(self._home, step, self._plan.space.axes, strict=True)
        )


def _places(part: float) -> int:
    return sum(abs(part) > each for each in THRESHOLDS) * (1 if part > 0 else -1)
