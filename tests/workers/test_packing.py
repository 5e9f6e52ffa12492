"""When the event loop and its workers keep to one core: a load is a function from the time and the way it is served to
requests a second."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import pytest

from halimede.workers.child.berth import NOWHERE
from halimede.workers.packing import BUSY, KEPT_NS, RESTS_NS, SAMPLE_NS, SAMPLES, SETTLES, Packer, Packing

SECOND = 1_000_000_000
TRIAL = SETTLES + SAMPLES


def served(load: Callable[[int, bool], float], seconds: float) -> list[bool]:
    """Whether each sample was taken on one core, for so many seconds under this load."""
    packing, packed = Packing(), []
    for now in range(0, int(seconds * SECOND), SAMPLE_NS):
        packed.append(packing.packed)
        packing.sampled(now, load(now, packing.packed))
    return packed


def share(packed: list[bool]) -> float:
    return sum(packed) / len(packed)


def test_what_serves_more_on_one_core_is_kept_there() -> None:
    packed = served(lambda now, one: 6000 if one else 5000, 30)
    assert packed[: TRIAL + 1] == [False] * TRIAL + [True]
    assert share(packed) > 0.9


def test_what_serves_as_much_or_less_is_not() -> None:
    for on_one in (5000, 4000, 5200):
        assert share(served(lambda now, one, on_one=on_one: on_one if one else 5000, 60)) < 0.05  # type: ignore[misc]


def test_trials_that_are_lost_become_rare() -> None:
    packed = served(lambda now, one: 4900 if one else 5000, 60)
    begun = [i * SAMPLE_NS for i, (a, b) in enumerate(pairwise(packed)) if b and not a]
    gaps = [b - a for a, b in pairwise(begun)]
    assert gaps == sorted(gaps)
    assert gaps[0] < 2 * RESTS_NS[0]
    assert RESTS_NS[1] <= gaps[-1] < RESTS_NS[1] + SECOND


def test_a_hiccup_in_a_few_samples_decides_nothing() -> None:
    def load(now: int, one: bool) -> float:
        if now // SAMPLE_NS % 5 == 0:
            return 1500
        return 6000 if one else 5000

    assert share(served(load, 30)) > 0.9


def test_where_few_requests_come_nothing_is_tried() -> None:
    assert not any(served(lambda now, one: BUSY - 1, 30))


def test_it_lets_go_as_soon_as_requests_come_slowly() -> None:
    packed = served(lambda now, one: 0 if now > 3 * SECOND else 6000 if one else 5000, 4)
    assert packed[3 * SECOND // SAMPLE_NS - 1]
    assert not any(packed[3 * SECOND // SAMPLE_NS + 2 :])


def test_another_load_is_tried_anew() -> None:
    """More clients come: on one core there is more now than with the first alone, but less than there would be."""

    def load(now: int, one: bool) -> float:
        if now < 2 * SECOND:
            return 6000 if one else 5000
        return 9000 if one else 14000

    packed = served(load, 2 + KEPT_NS / SECOND)
    assert packed[2 * SECOND // SAMPLE_NS - 1]
    changed = packed[2 * SECOND // SAMPLE_NS :]
    assert not any(changed[3 * TRIAL : 4 * TRIAL])
    assert share(changed) < 0.25


def test_a_load_that_changes_its_mind_is_found_out_in_the_end() -> None:
    """Just as many requests as before, but meanwhile there would be more without: seen at the next trial."""
    load: Callable[[int, bool], float] = lambda now, one: 6000 if one else 5000 if now < SECOND else 7500  # noqa: E731
    packed = served(load, 20)
    assert share(packed[(KEPT_NS + 2 * SECOND) // SAMPLE_NS :]) < 0.1


class _Loop:
    """Keeps what it is to call, and when it was closed refuses."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.closed = False

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        callback()

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.later.append(callback)


def test_packer_that_is_closed_lets_go_and_looks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.workers.packing.ALL", frozenset({0, 1}))
    kept: list[int] = []
    monkeypatch.setattr("halimede.workers.packing.Berth.keep_to", lambda berth, core: kept.append(core))
    loop = _Loop()
    packer = Packer(cast(asyncio.AbstractEventLoop, loop))
    packer.served(1)
    packer.core = 1
    packer.close()
    assert (packer.core, kept) == (NOWHERE, [NOWHERE])
    for look in loop.later:
        look()
    packer.served(1)
    assert (len(loop.later), kept) == (1, [NOWHERE])


def test_requests_that_end_after_the_loop_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.workers.packing.ALL", frozenset({0, 1}))
    loop = _Loop()
    loop.closed = True
    packer = Packer(cast(asyncio.AbstractEventLoop, loop))
    packer.served(1)
    packer.served(1)
    assert packer.core == NOWHERE


def test_pauses_between_loads_do_not_keep_the_next_one_waiting() -> None:
    """A second and a half of load, as much without, again and again: each time it is found out anew, and soon."""

    def load(now: int, one: bool) -> float:
        if now % (3 * SECOND) >= 3 * SECOND // 2:
            return 0
        return 6000 if one else 5000

    packed = served(load, 30)
    for begin in range(0, 30 * SECOND, 3 * SECOND):
        under_load = packed[begin // SAMPLE_NS : (begin + 3 * SECOND // 2) // SAMPLE_NS]
        assert share(under_load) > 0.75


def test_fewer_clients_after_many_are_not_kept_waiting() -> None:
    def load(now: int, one: bool) -> float:
        if now < 20 * SECOND:
            return 13000 if one else 14000
        return 6000 if one else 5000

    packed = served(load, 22)
    assert share(packed[20 * SECOND // SAMPLE_NS :]) > 0.6
