"""Which ensembles a change concerns, and in which order they are loaded."""

import random

import pytest

from halimede.models.dependencies import Dependencies


def graph(**members: str) -> Dependencies:
    found = Dependencies()
    for ensemble, names in members.items():
        found.learn(ensemble, names.split())
    return found


def test_order_has_members_before_their_ensembles() -> None:
    assert graph(a="b x", b="c x", c="y").order() == ["c", "b", "a"]


def test_dependents_are_the_ensembles_above_in_order() -> None:
    found = graph(top="mid x", mid="low", low="x", other="y")
    assert found.dependents("x") == ["low", "mid", "top"]
    assert found.dependents("low") == ["mid", "top"]
    assert found.dependents("top") == []


def test_circle_begins_and_ends_at_the_given_ensemble() -> None:
    found = graph(a="x b", b="c", c="a y", outside="a")
    assert found.circle("a") == ["a", "b", "c", "a"]
    assert found.circle("b") == ["b", "c", "a", "b"]
    assert found.circle("outside") == []
    assert found.circle("x") == []
    assert graph(own="own").circle("own") == ["own", "own"]
    assert sorted(found.order()) == ["a", "b", "c", "outside"]


def test_forgotten_ensemble_depends_on_nothing() -> None:
    found = graph(a="x", b="a")
    found.forget("a")
    assert "a" not in found
    assert found.dependents("x") == []
    assert found.dependents("a") == ["b"]


@pytest.mark.rows("R15")
def test_only_for_has_members_that_nothing_else_needs() -> None:
    found = graph(a="b x y", b="z", other="y")
    assert found.only_for("a", ()) == ["b", "x", "z"]
    assert found.only_for("a", ("x",)) == ["b", "z"]
    assert found.only_for("a", ("b",)) == ["x"]


@pytest.mark.parametrize("seed", range(50))
def test_order_of_random_graphs(seed: int) -> None:
    dice = random.Random(seed)
    names = [f"m{i}" for i in range(12)]
    dice.shuffle(names)
    found = Dependencies()
    for i, name in enumerate(names[4:], 4):  # the first four are no ensembles
        found.learn(name, dice.sample(names[:i], dice.randint(1, 3)))
    order = found.order()
    assert sorted(order) == sorted(names[4:])
    for name in order:
        assert not found.circle(name)
        assert all(order.index(member) < order.index(name) for member in found.members(name) if member in found)
        above = {other for other in order if name in found.members(other)}
        assert above <= set(found.dependents(name))


def test_long_chain_is_no_deep_recursion() -> None:
    found = Dependencies()
    for i in range(20_000):
        found.learn(f"{i:05}", [f"{i - 1:05}" if i else "x"])
    assert found.order() == found.dependents("x") == [f"{i:05}" for i in range(20_000)]
    assert found.circle("19999") == []
    found.learn("00000", ["19999"])
    assert len(found.circle("00000")) == 20_001
    assert found.dependents("x") == []
