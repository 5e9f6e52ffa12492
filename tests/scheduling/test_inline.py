from collections import deque
from collections.abc import Callable

import pytest

from halimede.scheduling.inline import ENOUGH, LONG_NS, PENANCE, QUICK_NS, TURN_NS, WINDOW, Quickness, TurnBudget


def seen(rows: int, runs: int, ns: int = QUICK_NS // 2, on_loop: bool = False) -> Quickness:
    quickness = Quickness(True)
    for _ in range(runs):
        quickness.ran(rows, ns, on_loop)
    return quickness


def test_quickness_wants_to_have_seen_enough() -> None:
    assert not seen(1, ENOUGH - 1).allows(1)
    assert seen(1, ENOUGH).allows(1)


def test_quickness_never_allows_a_model_that_is_not_safe() -> None:
    quickness = Quickness(False)
    for _ in range(10 * ENOUGH):
        quickness.ran(1, 1, False)
    assert not quickness.allows(1)


@pytest.mark.parametrize(("rows", "allowed"), [(4, True), (7, True), (3, False), (8, False)])
def test_quickness_knows_each_power_of_two_of_rows_alone(rows: int, allowed: bool) -> None:
    assert seen(5, ENOUGH).allows(rows) is allowed


def test_quickness_refuses_a_size_that_is_slow() -> None:
    assert not seen(1, 10 * ENOUGH, ns=QUICK_NS).allows(1)


def test_quickness_forgives_one_interruption() -> None:
    quickness = seen(1, WINDOW)
    quickness.ran(1, QUICK_NS * 4, on_loop=True)
    assert quickness.allows(1)


def test_quickness_refuses_when_two_runs_in_a_hundred_are_slow() -> None:
    quickness = Quickness(True)
    for i in range(2000):
        quickness.ran(1, QUICK_NS * 2 if i % 50 == 0 else 1, False)
    assert not quickness.allows(1)


def test_quickness_refuses_a_size_of_which_the_first_runs_were_often_slow() -> None:
    quickness = Quickness(True)
    for i in range(ENOUGH):
        quickness.ran(1, QUICK_NS * 2 if i % 4 == 0 else 1, False)
    assert not quickness.allows(1)


def test_quickness_bars_all_sizes_after_a_long_run_on_the_loop() -> None:
    quickness = seen(1, ENOUGH)
    for _ in range(ENOUGH):
        quickness.ran(8, 1, False)
    quickness.ran(8, LONG_NS, on_loop=True)
    assert not quickness.allows(8)
    assert not quickness.allows(1)


def test_quickness_does_not_punish_a_long_run_on_a_thread() -> None:
    quickness = seen(1, WINDOW)
    quickness.ran(1, LONG_NS, on_loop=False)
    assert quickness.allows(1)


def test_quickness_doubles_the_penance_each_time() -> None:
    quickness = seen(1, 4 * WINDOW)
    for strike in range(3):
        quickness.ran(1, LONG_NS, on_loop=True)
        for _ in range((PENANCE << strike) - 1):
            quickness.ran(1, 1, False)
        assert not quickness.allows(1)
        for _ in range(1 + 2 * PENANCE):
            quickness.ran(1, 1, False)
        assert quickness.allows(1)


def test_budget_of_a_turn_is_spent_and_comes_back_with_the_next() -> None:
    turns: deque[Callable[[], None]] = deque()
    budget = TurnBudget(turns.append)
    budget.spend(TURN_NS - 1)
    assert budget.left
    budget.spend(1)
    assert not budget.left
    assert len(turns) == 1
    turns.popleft()()
    assert budget.left
    budget.spend(TURN_NS)
    assert len(turns) == 1
