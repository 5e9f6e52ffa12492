"""How many messages all calls together may handle in a turn of the loop."""

from functools import partial

from halimede.transport.message_budget import MAX_MESSAGES_PER_TURN, MessageBudget
from tests.transport.http2_bench import Clock


def test_turn_begins_with_the_full_budget() -> None:
    clock = Clock()
    turns = MessageBudget(clock)
    turns.spend(MAX_MESSAGES_PER_TURN - 1)
    assert turns.left
    turns.spend(1)
    assert not turns.left
    clock.run()
    assert turns.left


def test_turn_that_spends_little_schedules_nothing() -> None:
    clock = Clock()
    turns = MessageBudget(clock)
    for _ in range(MAX_MESSAGES_PER_TURN // 2 - 1):
        turns.spend(1)
    assert clock.idle
    turns.spend(1)
    assert not clock.idle


def test_turns_are_given_in_the_order_of_the_queue() -> None:
    clock = Clock()
    turns = MessageBudget(clock)
    taken: list[str] = []

    def step(name: str, more: int) -> None:
        taken.append(name)
        turns.spend(MAX_MESSAGES_PER_TURN)
        if more:
            turns.wait(partial(step, name, more - 1))

    for name in "abc":
        turns.wait(partial(step, name, 1))
    assert taken == []
    clock.run()
    assert taken == list("abcabc")


def test_turn_with_budget_left_serves_the_next_in_the_queue() -> None:
    clock = Clock()
    turns = MessageBudget(clock)
    taken: list[str] = []
    turns.wait(partial(taken.append, "a"))
    turns.wait(partial(taken.append, "b"))
    clock.turn()
    assert taken == ["a", "b"]
