"""The limit of a batch, by a hand-moved clock."""

from collections.abc import Callable

import pytest

from halimede.workers.host.limit import ExecutionLimit


class HandClock:
    """An event loop's clock and timers, moved by `pass_by`."""

    def __init__(self) -> None:
        self.now = 50.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> None:
        self.timers.append((self.now + delay, callback))

    def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda each: each[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = end

    def stand_still(self, seconds: float) -> None:
        """The loop has no turn meanwhile; what is due comes late, and before what can be read."""
        self.now += seconds
        late = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer not in late]
        for _, callback in late:
            callback()


class Watched:
    """A limit of two seconds, and what came of it."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.exceeded: list[float] = []
        self.excused = False
        self.limit = ExecutionLimit(
            self.clock, 2.0, lambda: self.exceeded.append(self.clock.now - 50.0), lambda: self.excused
        )


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_limit_is_told_once_when_a_batch_runs_too_long(watched: Watched) -> None:
    watched.limit.begin()
    watched.clock.pass_by(1.9)
    assert watched.exceeded == []
    watched.clock.pass_by(30)
    assert watched.exceeded == [2.0]


def test_limit_counts_each_batch_by_itself_with_one_timer(watched: Watched) -> None:
    most = 0
    for _ in range(100):
        watched.limit.begin()
        watched.clock.pass_by(0.5)
        most = max(most, len(watched.clock.timers))
        watched.limit.end()
    watched.limit.begin()
    watched.clock.pass_by(2.1)
    assert (watched.exceeded, most) == ([52.0], 1)


def test_limit_of_an_idle_instance_is_never_told_and_costs_no_timer(watched: Watched) -> None:
    watched.limit.begin()
    watched.limit.end()
    watched.clock.pass_by(30)
    assert (watched.exceeded, watched.clock.timers) == ([], [])


def test_limit_does_not_count_what_is_excused(watched: Watched) -> None:
    watched.excused = True
    watched.limit.begin()
    watched.clock.pass_by(11)
    assert watched.exceeded == []
    watched.excused = False
    watched.clock.pass_by(3)
    assert watched.exceeded == [12.0]


def test_loop_that_stood_still_itself_reads_before_it_judges(watched: Watched) -> None:
    """The batch may have ended meanwhile; where it has not, it has had its time. Each batch is spared once."""
    watched.limit.begin()
    watched.clock.stand_still(30)
    assert watched.exceeded == []
    watched.limit.end()
    watched.clock.pass_by(1)
    assert watched.exceeded == []
    watched.limit.begin()
    watched.clock.stand_still(30)
    watched.clock.stand_still(30)
    assert watched.exceeded == [91.0]
