"""Turns of the oldest strategy."""

import pytest

from halimede.scheduling.policy import Wake
from halimede.scheduling.sequences import OldestPolicy
from tests.scheduling.sequences.rig import CallRouter, oldest, rules


@pytest.mark.rows("S63")
def test_one_request_of_a_sequence_at_a_time() -> None:
    router = oldest(slots=3, rows=3)
    a1, a2, b1 = router.send("a1", 1, "S"), router.send("a2", 1), router.send("b1", 2, "S")
    assert router.next() == ["a1", "b1"]
    router.free.append(5)
    assert router.next() is None
    router.free.remove(5)
    router.end(b1, a1)
    assert router.next() == ["a2"]
    assert not a2.waits


@pytest.mark.rows("S63", "S54")
def test_as_many_sequences_as_there_are_candidates() -> None:
    router = oldest(slots=2, rows=4)
    ones = [router.send(f"{i}", i, "SE") for i in range(1, 5)]
    assert router.next() == ["1", "2"]
    router.end(*ones[:2])
    assert router.next() == ["3", "4"]


@pytest.mark.rows("S63")
def test_preferred_size_and_delay() -> None:
    router = CallRouter(OldestPolicy(rules(4), 4, (2,), 1000))
    a = router.send("a", 1, "S")
    assert router.next() == Wake(1100)
    b = router.send("b", 2, "S")
    router.send("c", 3, "S")
    assert router.next() == ["a", "b"]
    router.end(a, b)
    router.now = 1100
    assert router.next() == ["c"]


def test_requests_of_other_shapes_run_apart() -> None:
    router = oldest(slots=4, rows=4)
    ones = [router.send(name, i, "S", key=name in "bd") for i, name in enumerate("abcd", 1)]
    assert router.next() == ["a"]
    router.end(ones[0])
    assert router.next() == ["b"]


def test_states_of_other_shapes_run_apart() -> None:
    router = oldest(slots=3, rows=4)
    ones = [router.send(name, i, "S") for i, name in enumerate("abc", 1)]
    router.next()
    for one, key in zip(ones, ((1,), (1,), (2,)), strict=True):
        one.states.key = key  # type: ignore[union-attr, misc]
    router.end(*ones)
    for i, name in enumerate("abc", 1):
        router.send(name + "2", i)
    assert router.next() == ["a2", "b2"]


def test_cancelled_request_that_is_issued() -> None:
    router = oldest(slots=1, rows=1)
    a1, b1 = router.send("a1", 1, "S"), router.send("b1", 2, "S")
    router.send("a2", 1)
    assert router.policy.cancel(a1, router.now)
    assert [one.request.id for one, _ in router.policy.expire(router.now)] == ["a2"]
    assert router.next() == ["b1"]
    assert b1.sequence.instance == 0
