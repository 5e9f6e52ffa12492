"""Adaptive search: a walk from the configuration as it is. It measures a neighbour only if the server's statistics do
not rule it out. The default of `halimede analyze`.

The rules are those of queueing theory, and hold if throughput is what counts:

- Instances finish at most as many requests as they have places, each time an execution is over. If that is less than
  what another configuration reaches, nothing can help.
- If the instances are idle for a good part of the time, more of them find nothing to do.
- If batches stay much smaller than they may be, larger ones never come about.
- If one batch already takes as long as the latency may be, larger ones take too long.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from math import inf

from halimede.analyze.changes import places
from halimede.analyze.measurements import Measurement, Member
from halimede.analyze.ranking import SAME
from halimede.analyze.searches import Climb, Plan, Search, refine
from halimede.analyze.space import Axis, Candidate, Kind, Point, Setup

IDLE = 0.7
"""Instances that are busy for less than this share of the time are not the limit."""
LATENCIES = ("perf_latency_avg", "perf_latency_p90", "perf_latency_p95", "perf_latency_p99")
TIE = 0.01
"""What fewer instances may lose and still be as good."""
PATIENCE = 3
"""Steps without a gain that do not end the climb of the configuration as it is."""
HALVINGS = 2
"""Steps towards the highest load that meets the constraints, for each configuration."""
LAST_HALVINGS = 2
"""Such steps for the two best configurations at the end."""
MOST_SETUPS = 200
"""Configurations after which the walk ends in any case."""


def adaptive(plan: Plan) -> Search:
    for batch_size in plan.batch_sizes:
        yield from _Walk(plan, batch_size).search()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was measured of a point. `best` is the best load's, `heaviest` that with the most clients."""

    all: tuple[Measurement, ...]
    best: Measurement
    heaviest: Measurement


class _Walk:
    def __init__(self, plan: Plan, batch_size: int) -> None:
        self._plan, self._goal, self._space = plan, plan.goal, plan.space
        self._batch_size = batch_size
        self._seen: dict[Setup, _Seen | None] = {}
        self._shortest: dict[str, float] = {}
        """The shortest execution of each model."""
        self._counts_throughput = set(plan.goal.objectives) == {"perf_throughput"}

    def search(self) -> Search:
        # A point's setup is empty where nothing changes; a configured value off the axes has a setup of its own.
        default = yield from self._climb((), self._plan.lowest)
        home = self._space.start
        if self._space.setup(home):
            yield from self._look(home, default)
        while len(self._seen) < MOST_SETUPS:
            better = yield from self._step(home)
            if better is None:
                better = yield from self._jump(home)
            if better is None:
                break
            home = better
        found = [each for seen in self._seen.values() if seen is not None for each in seen.all]
        for best in self._goal.top(found, 2):
            own = [each for each in found if each.candidate.setup == best.candidate.setup]
            if self._may_gain(own):
                yield from refine(self._plan, own, LAST_HALVINGS)

    def _step(self, home: Point) -> Generator[Candidate, Measurement | None, Point | None]:
        """Looks at the neighbours of a point. Returns the first that is better, after going on in its direction."""
        here = self._of(home)
        for axis, direction in self._directions(home):
            at = home
            while True:
                point = self._next(at, axis, direction)
                if point is None or self._space.setup(point) in self._seen or self._is_ruled_out(point, at, axis):
                    break
                seen = yield from self._look(point, here)
                if seen is None or (here is not None and not self._is_better(seen, here, axis, direction)):
                    break
                at, here = point, seen
            if at != home:
                return at
        return None

    def _is_better(self, seen: _Seen, here: _Seen, axis: int, direction: int) -> bool:
        """Fewer instances are better even if they serve only as well: they leave room for larger batches."""
        is_fewer = direction < 0 and self._space.axes[axis].kind is Kind.INSTANCES
        return self._goal.compare(seen.best, here.best) > (-TIE if is_fewer else SAME)

    def _jump(self, home: Point) -> Generator[Candidate, Measurement | None, Point | None]:
        """Looks at the ends of the axes, in case that what is near is a plateau. Returns a point that is better.

        There is no plateau towards an end if the neighbour in its direction is clearly worse.
        """
        here = self._of(home)
        ends = [
            (*home[:axis], place, *home[axis + 1 :])
            for axis, which in enumerate(self._space.axes)
            for place in (len(which.values) - 1, 0)
        ]
        for point in (*ends, tuple(len(which.values) - 1 for which in self._space.axes)):
            axes = [k for k, place in enumerate(point) if place != home[k]]
            axis = axes[0] if axes else 0
            if self._space.setup(point) in self._seen or self._is_ruled_out(point, home, axis):
                continue
            if len(axes) == 1 and self._falls(home, axis, 1 if point[axis] > home[axis] else -1):
                continue
            seen = yield from self._look(point, here)
            if seen is not None and here is not None and self._goal.compare(seen.best, here.best) > SAME:
                return point
        return None

    def _falls(self, home: Point, axis: int, direction: int) -> bool:
        """Whether the neighbour was measured, and is clearly worse."""
        near = self._of((*home[:axis], home[axis] + direction, *home[axis + 1 :]))
        here = self._of(home)
        return near is not None and here is not None and self._goal.compare(here.best, near.best) > SAME

    def _directions(self, home: Point) -> Iterator[tuple[int, int]]:
        """The axes with their directions, the most promising first: more of the model that keeps requests waiting."""
        here = self._of(home)
        members = here.best.members if here is not None else {}

        def waiting(axis: Axis) -> float:
            return members.get(axis.model, Member()).queue

        order = sorted(range(len(home)), key=lambda place: -waiting(self._space.axes[place]))
        for direction in (1, -1):
            for axis in order:
                yield axis, direction

    def _next(self, point: Point, axis: int, direction: int) -> Point | None:
        """The neighbour of a point. Batch sizes between the batches that come about and the largest allowed have no
        effect, so they are skipped on the way down."""
        here, which = self._of(point), self._space.axes[axis]
        place = point[axis] + direction
        if direction < 0 and which.kind is Kind.BATCH and here is not None:
            batch = here.heaviest.members.get(which.model, Member()).batch
            while place > 0 and batch and which.values[place] >= 2 * batch:
                place -= 1
        found = (*point[:axis], place, *point[axis + 1 :])
        return found if self._space.has(found) else None

    def _of(self, point: Point) -> _Seen | None:
        return self._seen.get(self._space.setup(point))

    # ---- rules

    def _is_ruled_out(self, point: Point, at: Point, axis: int) -> bool:
        if not self._counts_throughput:
            return False
        which, seen = self._space.axes[axis], self._of(at)
        if self._bound(point) < self._best_throughput():
            return True
        if seen is None:
            return False
        member = seen.heaviest.members.get(which.model)
        if member is None or not member.seconds or point[axis] < at[axis]:
            return False
        now = which.values[at[axis]]
        if which.kind is Kind.INSTANCES:
            return member.busy / max(1, now) < IDLE
        if which.kind is Kind.BATCH:
            return member.batch < now / 2 or (member.batch > now * 0.8 and member.seconds * 1000 > self._limit())
        # Full batches do not wait, and nothing may wait longer than the latency may be.
        size = self._space.value(at, which.model, Kind.BATCH) or 1
        return member.batch > size * 0.8 or which.values[point[axis]] / 1000 > self._limit()

    def _bound(self, point: Point) -> float:
        """Requests per second that no configuration of this point can exceed."""
        found = inf
        for model in self._space.models():
            shortest = self._shortest.get(model)
            count, size = (self._space.value(point, model, kind) for kind in (Kind.INSTANCES, Kind.BATCH))
            if shortest and count is not None:
                found = min(found, count * (size or self._batch_size) / shortest)
        return found

    def _best_throughput(self) -> float:
        good = [seen.best for seen in self._seen.values() if seen is not None and self._goal.satisfies(seen.best)]
        return max((each.throughput for each in good), default=0.0)

    def _limit(self) -> float:
        """The largest latency in milliseconds."""
        return min((limits.most for tag, limits in self._goal.constraints.items() if tag in LATENCIES), default=inf)

    # ---- loads

    def _look(self, point: Point, near: _Seen | None) -> Generator[Candidate, Measurement | None, _Seen | None]:
        """Measures a point, beginning with the load that was best nearby."""
        start = near.best.candidate.load.value if near is not None else self._plan.lowest
        return (yield from self._climb(self._space.setup(point), start))

    def _climb(self, setup: Setup, start: float) -> Generator[Candidate, Measurement | None, _Seen | None]:
        """Measures a configuration with the best load, and those around it."""
        if setup in self._seen:
            return self._seen[setup]
        self._seen[setup] = None
        found = yield from self._loads(setup, start)
        if not found:
            return None
        (best,) = self._goal.top(found, 1)
        seen = self._seen[setup] = _Seen(tuple(found), best, max(found, key=lambda each: each.candidate.load.value))
        return seen

    def _loads(self, setup: Setup, start: float) -> Climb:
        found: list[Measurement] = []
        if self._plan.loads:
            for value in self._plan.loads:
                yield from self._measure(setup, value, found)
            return found
        first = yield from self._measure(setup, start, found)
        if first is None:
            return found
        yield from self._go(setup, first, 2.0, found)
        # Fewer clients, if these are too many.
        heaviest = max(found, key=lambda each: each.candidate.load.value)
        is_declining = heaviest.throughput < first.throughput * (1 - SAME) or not self._counts_throughput
        if len(found) <= 2 and (is_declining or not self._goal.satisfies(first)):
            yield from self._go(setup, first, 0.5, found)
        if self._may_gain(found):
            found += yield from refine(self._plan, found, HALVINGS)
        return found

    def _may_gain(self, found: list[Measurement]) -> bool:
        """Whether loads between the highest that meets the constraints and the next, which does not, may serve more. If
        the higher one serves no more, requests only wait longer; nor does it help to come near to another
        configuration."""
        if not self._counts_throughput:
            return True
        good = max((each.throughput for each in found if self._goal.satisfies(each)), default=0.0)
        most = max(each.throughput for each in found)
        return most > good * (1 + SAME) and most > self._best_throughput() * (1 + SAME)

    def _go(self, setup: Setup, first: Measurement, factor: float, found: list[Measurement]) -> Climb:
        """Multiplies the load as long as that is better. For the configuration as it is, some steps that gain nothing
        are not yet the end: throughput may fall before batches come about, and then rise."""
        last, best, misses = first, first, 0
        while not (factor > 1 and self._is_over(last)):
            value = self._plan.clamped(float(round(last.candidate.load.value * factor)))
            if value == last.candidate.load.value:
                break
            measured = yield from self._measure(setup, value, found)
            if measured is None:
                break
            last = measured
            if self._goal.compare(measured, best) > SAME:
                best, misses = measured, 0
            else:
                misses += 1
            # More clients than there are places fill no batch any more.
            is_full = value >= places(self._space.configs, setup)
            if misses > (PATIENCE if not setup else 0 if is_full or factor < 1 else 1):
                break
            if misses and setup and factor > 1:
                factor = 4.0
        return found

    def _is_over(self, measured: Measurement) -> bool:
        """Whether more load can only be worse: the latency is over its limit already."""
        return any(tag in LATENCIES for tag in self._goal.broken(measured))

    def _measure(
        self, setup: Setup, value: float, found: list[Measurement]
    ) -> Generator[Candidate, Measurement | None, Measurement | None]:
        measured = yield Candidate(setup, self._plan.load(value, self._batch_size))
        if measured is not None:
            found.append(measured)
            for model, member in measured.members.items():
                if member.seconds:
                    self._shortest[model] = min(member.seconds, self._shortest.get(model, inf))
        return measured
