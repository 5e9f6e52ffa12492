"""Answers that are made in several turns of the loop."""

from collections.abc import Callable
from typing import Any

import pytest

from halimede.errors import Internal, Invalid
from halimede.platform.slices import SLICE_SECONDS, Sliced, run_in_slices


class Loop:
    """Runs callbacks turn by turn. The clock moves only in steps of an answer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[Any] = []
        self._turns: list[Callable[[], None]] = []

    def making(self, steps: int, seconds: float, end: Exception | None = None) -> Sliced[str]:
        for _ in range(steps):
            self.now += seconds
            yield
        if end is not None:
            raise end
        return "made"

    def run(self, making: Sliced[str]) -> None:
        run_in_slices(making, self.told.append, self._turns.append, lambda: self.now)

    def turns(self) -> int:
        """Runs turns to the end, and returns how many there were. None may be longer than a slice and a step."""
        number = 0
        while self._turns:
            number += 1
            began = self.now
            self._turns.pop()()
            assert self.now - began < 2 * SLICE_SECONDS
        return number


@pytest.mark.parametrize(("steps", "turns"), [(0, 0), (3, 0), (10, 2), (100, 25)])
def test_answer_takes_as_many_turns_as_it_has_slices(steps: int, turns: int) -> None:
    loop = Loop()
    loop.run(loop.making(steps, SLICE_SECONDS / 4 + 1e-9))
    assert loop.told == (["made"] if turns == 0 else [])
    assert (loop.turns(), loop.told) == (turns, ["made"])


@pytest.mark.parametrize("steps", [0, 30])
def test_error_of_a_later_slice_is_the_answer(steps: int) -> None:
    loop = Loop()
    loop.run(loop.making(steps, SLICE_SECONDS, Invalid("no such model")))
    loop.turns()
    [told] = loop.told
    assert isinstance(told, Invalid)


def test_exception_of_a_later_slice_is_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    loop.run(loop.making(30, SLICE_SECONDS, ValueError("x")))
    loop.turns()
    [told] = loop.told
    assert isinstance(told, Internal)
    assert told.message == "ValueError: x"
    assert "failed to make an answer" in caplog.text
