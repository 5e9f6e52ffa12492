"""What to measure next. A search is a generator: it yields candidates, and is sent what was measured of each. Pure."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from halimede.analyze.measurements import Measurement
from halimede.analyze.ranking import Goal
from halimede.analyze.space import Bounds, Candidate, Load, Point, Setup, Space, doubling

Search = Generator[Candidate, Measurement | None, None]
"""Is sent None for a candidate that could not be measured."""
Climb = Generator[Candidate, Measurement | None, list[Measurement]]
"""A part of a search, which returns what was measured."""

FLAT_LEVELS = 4
FLAT_GAIN = 0.05
"""Throughput is flat if the best of the last FLAT_LEVELS gains at most this share over the first of them (X35)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a search may do. `loads` are the clients or rates that the user chose; otherwise they are searched."""

    space: Space
    goal: Goal
    bounds: Bounds = field(default_factory=Bounds)
    batch_sizes: tuple[int, ...] = (1,)
    loads: tuple[float, ...] = ()
    is_rate: bool = False
    top: int = 3
    """How many configurations are looked at more closely at the end."""
    has_sweep: bool = True
    """Whether quick and optuna measure more loads of the best configurations at the end."""

    def load(self, value: float, batch_size: int = 1) -> Load:
        return Load(value, self.is_rate, batch_size)

    @property
    def lowest(self) -> int:
        return self.bounds.min_rate if self.is_rate else self.bounds.min_concurrency

    @property
    def highest(self) -> int:
        return self.bounds.max_rate if self.is_rate else self.bounds.max_concurrency

    def clients(self, point: Point) -> float:
        """How many clients suit a point, within the bounds (X37)."""
        return self.clamped(self.space.clients(point))

    def clamped(self, value: float) -> float:
        return min(max(value, self.lowest), self.highest)


def is_flat(found: Sequence[Measurement]) -> bool:
    """Whether more load gains nothing any more."""
    last = [each.throughput for each in found[-FLAT_LEVELS:]]
    return len(last) == FLAT_LEVELS and max(last) <= last[0] * (1 + FLAT_GAIN)


def climb(plan: Plan, setup: Setup, batch_size: int) -> Climb:
    """Measures a configuration with the loads that the user chose, or with twice as much each time until that gains
    nothing (X35)."""
    found: list[Measurement] = []
    for value in plan.loads or doubling(plan.lowest, plan.highest):
        measured = yield Candidate(setup, plan.load(value, batch_size))
        if measured is None:
            if not plan.loads:
                break
            continue
        found.append(measured)
        if not plan.loads and is_flat(found):
            break
    return found


def refine(plan: Plan, found: Sequence[Measurement], steps: int = 0) -> Climb:
    """Halves the gap between the highest load of a configuration that satisfies the constraints and the next one, which
    does not (X35), so many times; 0 for what the bounds allow."""
    more: list[Measurement] = []
    if plan.loads or not plan.goal.constraints:
        return more
    ordered = sorted(found, key=lambda each: each.candidate.load.value)
    good = [each for each in ordered if plan.goal.satisfies(each)]
    if not good:
        return more
    low = good[-1].candidate.load
    above = [each.candidate.load.value for each in ordered if each.candidate.load.value > low.value]
    if not above:
        return more
    least, most = low.value, above[0]
    for _ in range(steps or plan.bounds.binary_steps):
        middle = (least + most) // 2
        if middle in (least, most):
            break
        measured = yield Candidate(good[-1].candidate.setup, plan.load(middle, low.batch_size))
        if measured is None:
            break
        more.append(measured)
        if plan.goal.satisfies(measured):
            least = middle
        else:
            most = middle
    return more


def finish(plan: Plan, found: Sequence[Measurement], sweeps: bool) -> Climb:
    """Looks more closely at the best configurations: at other loads if they were not searched, and at constraints."""
    more: list[Measurement] = []
    for best in plan.goal.top(found, plan.top):
        setup, batch_size = best.candidate.setup, best.candidate.load.batch_size
        own = [each for each in found if each.candidate.setup == setup]
        if sweeps and not plan.loads:
            own += yield from climb(plan, setup, batch_size)
        more += yield from refine(plan, own)
    return more
