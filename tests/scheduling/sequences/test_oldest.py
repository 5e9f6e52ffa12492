"""Turns of the oldest strategy."""

import pytest

from halimede.scheduling.policy import Wake
from halimede.scheduling.sequences import OldestPolicy
from tests.scheduling.sequences.rig import Desk, oldest, rules


@pytest.mark.rows("S63")
def test_one_request_of_a_sequence_at_a_time() -> None:
    desk = oldest(slots=3, rows=3)
    a1, a2, b1 = desk.send("a1", 1, "S"), desk.send("a2", 1), desk.send("b1", 2, "S")
    assert desk.next() == ["a1", "b1"]
    desk.free.append(5)
    assert desk.next() is None
    desk.free.remove(5)
    desk.end(b1, a1)
    assert desk.next() == ["a2"]
    assert not a2.waits


@pytest.mark.rows("S63", "S54")
def test_as_many_sequences_as_there_are_candidates() -> None:
    desk = oldest(slots=2, rows=4)
    ones = [desk.send(f"{i}", i, "SE") for i in range(1, 5)]
    assert desk.next() == ["1", "2"]
    desk.end(*ones[:2])
    assert desk.next() == ["3", "4"]


@pytest.mark.rows("S63")
def test_preferred_size_and_delay() -> None:
    desk = Desk(OldestPolicy(rules(4), 4, (2,), 1000))
    a = desk.send("a", 1, "S")
    assert desk.next() == Wake(1100)
    b = desk.send("b", 2, "S")
    desk.send("c", 3, "S")
    assert desk.next() == ["a", "b"]
    desk.end(a, b)
    desk.now = 1100
    assert desk.next() == ["c"]


def test_requests_of_other_shapes_run_apart() -> None:
    desk = oldest(slots=4, rows=4)
    ones = [desk.send(name, i, "S", key=name in "bd") for i, name in enumerate("abcd", 1)]
    assert desk.next() == ["a"]
    desk.end(ones[0])
    assert desk.next() == ["b"]


def test_states_of_other_shapes_run_apart() -> None:
    desk = oldest(slots=3, rows=4)
    ones = [desk.send(name, i, "S") for i, name in enumerate("abc", 1)]
    desk.next()
    for one, key in zip(ones, ((1,), (1,), (2,)), strict=True):
        one.states.key = key  # type: ignore[union-attr, misc]
    desk.end(*ones)
    for i, name in enumerate("abc", 1):
        desk.send(name + "2", i)
    assert desk.next() == ["a2", "b2"]


def test_cancelled_request_that_is_issued() -> None:
    desk = oldest(slots=1, rows=1)
    a1, b1 = desk.send("a1", 1, "S"), desk.send("b1", 2, "S")
    desk.send("a2", 1)
    assert desk.policy.cancel(a1, desk.now)
    assert [one.request.id for one, _ in desk.policy.expire(desk.now)] == ["a2"]
    assert desk.next() == ["b1"]
    assert b1.sequence.instance == 0
