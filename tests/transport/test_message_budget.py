"""What many calls together take up in a turn of the loop."""

from functools import partial

from halimede.transport.message_budget import MAX_MESSAGES_PER_TURN, MessageBudget
from tests.transport.http2_bench import Clock


def test_turns_begin_with_all_that_a_turn_may_take() -> None:
    clock = Clock()
    turns = MessageBudget(clock)
    turns.spend(MAX_MESSAGES_PER_TURN - 1)
    assert turns.left
    turns.spend(1)
    assert not turns.left
    clock.run()
    assert turns.left


def test_turns_that_take_little_ask_nothing_of_the_loop() -> None:
    clock = Clock()
    turns = MessageBudget(clock)
    for _ in range(MAX_MESSAGES_PER_TURN // 2 - 1):
        turns.spend(1)
    assert clock.idle
    turns.spend(1)
    assert not clock.idle


def test_turns_are_taken_in_the_order_of_the_line() -> None:
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


def test_turns_in_which_something_is_left_take_in_the_next_of_the_line() -> None:
    clock = Clock()
    turns = MessageBudget(clock)
    taken: list[str] = []
    turns.wait(partial(taken.append, "a"))
    turns.wait(partial(taken.append, "b"))
    clock.turn()
    assert taken == ["a", "b"]
