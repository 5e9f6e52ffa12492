"""Turns of the oldest strategy."""

import pytest

from halimede.scheduling.policy import Wake
from halimede.scheduling.sequences import OldestPolicy
from tests.scheduling.sequences.rig import PolicyRig, oldest, rules


@pytest.mark.rows("S63")
def test_one_request_of_a_sequence_at_a_time() -> None:
    rig = oldest(slots=3, rows=3)
    a1, a2, b1 = rig.send("a1", 1, "S"), rig.send("a2", 1), rig.send("b1", 2, "S")
    assert rig.next() == ["a1", "b1"]
    rig.free.append(5)
    assert rig.next() is None
    rig.free.remove(5)
    rig.end(b1, a1)
    assert rig.next() == ["a2"]
    assert not a2.waits


@pytest.mark.rows("S63", "S54")
def test_as_many_sequences_as_there_are_candidates() -> None:
    rig = oldest(slots=2, rows=4)
    ones = [rig.send(f"{i}", i, "SE") for i in range(1, 5)]
    assert rig.next() == ["1", "2"]
    rig.end(*ones[:2])
    assert rig.next() == ["3", "4"]


@pytest.mark.rows("S63")
def test_preferred_size_and_delay() -> None:
    rig = PolicyRig(OldestPolicy(rules(4), 4, (2,), 1000))
    a = rig.send("a", 1, "S")
    assert rig.next() == Wake(1100)
    b = rig.send("b", 2, "S")
    rig.send("c", 3, "S")
    assert rig.next() == ["a", "b"]
    rig.end(a, b)
    rig.now = 1100
    assert rig.next() == ["c"]


def test_requests_of_other_shapes_run_apart() -> None:
    rig = oldest(slots=4, rows=4)
    ones = [rig.send(name, i, "S", key=name in "bd") for i, name in enumerate("abcd", 1)]
    assert rig.next() == ["a"]
    rig.end(ones[0])
    assert rig.next() == ["b"]


def test_states_of_other_shapes_run_apart() -> None:
    rig = oldest(slots=3, rows=4)
    ones = [rig.send(name, i, "S") for i, name in enumerate("abc", 1)]
    rig.next()
    for one, key in zip(ones, ((1,), (1,), (2,)), strict=True):
        one.states.key = key  # type: ignore[union-attr, misc]
    rig.end(*ones)
    for i, name in enumerate("abc", 1):
        rig.send(name + "2", i)
    assert rig.next() == ["a2", "b2"]


def test_cancelled_request_that_is_issued() -> None:
    rig = oldest(slots=1, rows=1)
    a1, b1 = rig.send("a1", 1, "S"), rig.send("b1", 2, "S")
    rig.send("a2", 1)
    assert rig.policy.cancel(a1, rig.now)
    assert [one.request.id for one, _ in rig.policy.expire(rig.now)] == ["a2"]
    assert rig.next() == ["b1"]
    assert b1.sequence.instance == 0
