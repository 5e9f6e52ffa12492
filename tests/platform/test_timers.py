"""Timers by a real loop and a real clock: waits of some milliseconds, each bounded."""

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

import pytest

from halimede.platform import timers
from halimede.platform.loops import new_event_loop
from halimede.platform.timers import DescriptorAlarm, LoopAlarm, Timers

MS = 1_000_000
PATIENCE = 20.0

Factory = Callable[[], asyncio.AbstractEventLoop]


def no_descriptors(*_: object) -> None:
    raise OSError("no timer descriptors on this system")


@pytest.fixture(params=["descriptor", "loop"])
def alarm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With a timer descriptor, and where the system has none."""
    if request.param == "loop":
        monkeypatch.setattr(timers, "DescriptorAlarm", no_descriptors)
    return str(request.param)


@pytest.fixture(params=[asyncio.new_event_loop, new_event_loop], ids=["asyncio", "ours"])
def factory(request: pytest.FixtureRequest) -> Any:
    return request.param


def run(factory: Factory, scenario: Callable[[Timers, asyncio.Event], Any]) -> None:
    """Runs the scenario with timers on a loop, until it sets the event."""

    async def bounded() -> None:
        made, over = Timers(asyncio.get_running_loop()), asyncio.Event()
        try:
            scenario(made, over)
            await asyncio.wait_for(over.wait(), PATIENCE)
        finally:
            made.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(bounded())


def test_timers_use_the_alarm_of_the_system(alarm: str) -> None:
    def scenario(made: Timers, over: asyncio.Event) -> None:
        assert isinstance(made._alarm, DescriptorAlarm if alarm == "descriptor" else LoopAlarm)
        over.set()

    run(asyncio.new_event_loop, scenario)


def test_callback_that_is_due_again_lets_the_loop_turn(alarm: str, factory: Factory) -> None:
    """A queue of many requests that have timed out answers a part of them each time."""
    seen: list[str] = []

    def scenario(made: Timers, over: asyncio.Event) -> None:
        def again() -> None:
            seen.append("timer")
            asyncio.get_running_loop().call_soon(seen.append, "loop")
            if seen.count("timer") < 3:
                made.call_at(1, again)
            else:
                over.set()

        made.call_at(monotonic_ns(), again)

    run(factory, scenario)
    assert seen[:5] == ["timer", "loop", "timer", "loop", "timer"]


@pytest.mark.parametrize("delay_ns", [-5 * MS, 0, 100_000, 400_000, 1_600_000, 3 * MS])
def test_timer_never_rings_early(alarm: str, factory: Factory, delay_ns: int) -> None:
    late: list[int] = []

    def scenario(made: Timers, over: asyncio.Event) -> None:
        def ring(when: int) -> None:
            late.append(monotonic_ns() - when)
            if len(late) == 3:
                over.set()
            else:
                start()

        def start() -> None:
            when = monotonic_ns() + delay_ns
            made.call_at(when, lambda: ring(when))

        start()

    run(factory, scenario)
    assert min(late) >= 0


def test_timers_ring_in_the_order_of_their_times(alarm: str, factory: Factory) -> None:
    rung: list[str] = []

    def scenario(made: Timers, over: asyncio.Event) -> None:
        now = monotonic_ns()
        for name, after in (("late", 6), ("same 1", 3), ("early", 1), ("same 2", 3), ("last", 8), ("past", -1)):
            made.call_at(now + after * MS, lambda name=name: rung.append(name))  # type: ignore[misc] # name is bound
        made.call_at(now + 9 * MS, over.set)

    run(factory, scenario)
    assert rung == ["past", "early", "same 1", "same 2", "late", "last"]


def test_timer_set_from_a_timer_rings_too(alarm: str, factory: Factory) -> None:
    rung: list[str] = []

    def scenario(made: Timers, over: asyncio.Event) -> None:
        def outer() -> None:
            rung.append("outer")
            made.call_at(monotonic_ns() - 1, lambda: rung.append("overdue"))
            made.call_at(monotonic_ns() + MS, over.set)

        made.call_at(monotonic_ns() + MS, outer)

    run(factory, scenario)
    assert rung == ["outer", "overdue"]


def test_timer_that_breaks_does_not_stop_the_others(alarm: str) -> None:
    rung: list[str] = []

    def scenario(made: Timers, over: asyncio.Event) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

        def breaks() -> None:
            raise RuntimeError("broke")

        now = monotonic_ns()
        made.call_at(now + MS, breaks)
        made.call_at(now + MS, lambda: rung.append("at the same time"))
        made.call_at(now + 2 * MS, lambda: rung.append("later"))
        made.call_at(now + 3 * MS, over.set)

    run(asyncio.new_event_loop, scenario)
    assert rung == ["at the same time", "later"]


def test_timers_that_are_closed_forget_what_is_to_come(alarm: str) -> None:
    rung: list[str] = []

    def scenario(made: Timers, over: asyncio.Event) -> None:
        made.call_at(monotonic_ns() + MS, lambda: rung.append("closed"))
        made.close()
        other = Timers(asyncio.get_running_loop())

        def end() -> None:
            other.close()
            over.set()

        other.call_at(monotonic_ns() + 3 * MS, end)

    async def bounded() -> None:
        over = asyncio.Event()
        scenario(Timers(asyncio.get_running_loop()), over)
        await asyncio.wait_for(over.wait(), PATIENCE)

    asyncio.run(bounded())
    assert rung == []
