"""Full garbage collections, with timers that the test fires."""

import gc
from collections.abc import Callable, Iterator

import pytest

from halimede.platform.garbage import INTERVAL_SECONDS, MAX_UNDER_WAY, FullCollections


class HeldTimer:
    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.seconds = seconds
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Rig:
    def __init__(self) -> None:
        self.under_way = 0
        self.collected = 0
        self.timers: list[HeldTimer] = []
        self.collections = FullCollections(lambda: self.under_way, self._call_later, self._collect)

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> HeldTimer:
        self.timers.append(HeldTimer(seconds, callback))
        return self.timers[-1]

    def _collect(self) -> None:
        self.collected += 1

    def minute(self) -> None:
        self.timers[-1].callback()


@pytest.fixture
def rig() -> Iterator[Rig]:
    before, rig = gc.get_threshold(), Rig()
    yield rig
    rig.collections.end()
    assert gc.get_threshold() == before


def test_full_collections_follow_the_clock(rig: Rig) -> None:
    rig.collections.begin()
    assert [timer.seconds for timer in rig.timers] == [INTERVAL_SECONDS]
    rig.minute()
    rig.minute()
    assert (rig.collected, len(rig.timers)) == (2, 3)


def test_full_collection_waits_while_many_requests_are_under_way(rig: Rig) -> None:
    rig.collections.begin()
    rig.under_way = MAX_UNDER_WAY + 1
    rig.minute()
    assert rig.collected == 0
    rig.under_way = MAX_UNDER_WAY
    rig.minute()
    assert rig.collected == 1


def test_python_begins_no_full_collection_by_itself(rig: Rig) -> None:
    rig.collections.begin()
    full = gc.get_stats()[2]["collections"]
    kept = [[each] for each in range(200_000)]
    assert gc.get_stats()[2]["collections"] == full
    rig.collections.end()
    kept += [[each] for each in range(200_000)]
    assert gc.get_stats()[2]["collections"] > full
    assert len(kept) == 400_000


def test_end_without_a_begin_changes_nothing() -> None:
    before = gc.get_threshold()
    FullCollections(lambda: 0, lambda seconds, callback: HeldTimer(seconds, callback)).end()
    assert gc.get_threshold() == before


def test_end_stops_the_timer(rig: Rig) -> None:
    rig.collections.begin()
    rig.collections.end()
    assert rig.timers[-1].cancelled
