"""How long nothing has gone on, and the rounds of looks at connections."""

from collections.abc import Callable

import pytest

from halimede.transport.stalls import LOOK_SECONDS, LOOKS_SECONDS, MAX_LOOKS_PER_TURN, LookRounds, Stall, is_over
from tests.transport.http2_bench import Clock, Handle


def test_time_begins_again_with_each_progress_and_each_state() -> None:
    stall = Stall()
    assert stall.seconds("head", 1, 100.0) == 0
    assert stall.seconds("head", 1, 130.0) == 30
    assert stall.seconds("head", 2, 140.0) == 0
    assert stall.seconds("body", 2, 150.0) == 0
    assert stall.seconds("body", 2, 151.0) == 1


@pytest.mark.parametrize(
    ("limit", "seconds", "over"), [(60, 59.9, False), (60, 60, True), (0, 1e9, False), (-1, 5, False)]
)
def test_limit_of_zero_is_none(limit: float, seconds: float, over: bool) -> None:
    assert is_over(limit, seconds) == over


class Connection:
    def __init__(self, error: Exception | None = None) -> None:
        self.looks: list[float] = []
        self.error = error

    def look(self, now: float) -> None:
        self.looks.append(now)
        if self.error is not None:
            raise self.error


def test_rounds_go_on_until_their_end() -> None:
    clock, connections = Clock(), set[Connection]()
    rounds = LookRounds(connections, clock.time, clock.call_later)
    assert clock.waiting == 0
    connection, begun = Connection(), clock.time()
    rounds.begin()
    clock.advance(LOOK_SECONDS)
    connections.add(connection)
    clock.advance(2 * LOOK_SECONDS)
    assert connection.looks == [begun + number * LOOK_SECONDS for number in (2, 3)]
    rounds.end()
    assert clock.waiting == 0


def test_round_takes_several_turns_if_there_are_many_connections() -> None:
    clock = Clock()
    connections = [Connection() for _ in range(2 * MAX_LOOKS_PER_TURN + 1)]
    LookRounds(connections, clock.time, clock.call_later).begin()
    clock.advance(LOOK_SECONDS)
    assert {len(connection.looks) for connection in connections} == {1}
    clock.advance(LOOK_SECONDS)
    assert {len(connection.looks) for connection in connections} == {2}


def test_error_of_one_look_is_logged_and_the_others_are_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    clock, broken, other = Clock(), Connection(ValueError("a defect of ours")), Connection()
    LookRounds([broken, other], clock.time, clock.call_later).begin()
    clock.advance(2 * LOOK_SECONDS)
    assert (len(broken.looks), len(other.looks)) == (2, 2)
    assert "a defect of ours" in caplog.text


def test_round_takes_several_turns_if_looks_take_long() -> None:
    clock = Clock()
    turns: list[int] = []

    class Slow(Connection):
        def look(self, now: float) -> None:
            super().look(now)
            clock.work(2 * LOOKS_SECONDS)

    connections = [Slow() for _ in range(5)]

    def call_later(delay: float, callback: Callable[..., object], *arguments: object) -> Handle:
        turns.append(0)
        return clock.call_later(delay, callback, *arguments)

    LookRounds(connections, clock.time, call_later).begin()
    clock.advance(LOOK_SECONDS + 0.5)
    assert {len(connection.looks) for connection in connections} == {1}
    # To begin, after each look, and for the next round.
    assert len(turns) == 2 + len(connections)
