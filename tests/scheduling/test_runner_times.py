"""What the runner does at a time rather than on an event: it tells those who waited too long, be an instance free or
not (contract D4, S30), and looks again when a policy wants it. The clock is moved by hand."""

from gc import collect
from weakref import ref

import pytest

from halimede.errors import Cancelled, TimedOut
from halimede.scheduling.dynamic import DynamicPolicy, Forming
from halimede.scheduling.execution import Execution
from halimede.scheduling.priority import PriorityQueuePolicy, QueueRules
from halimede.scheduling.runner_config import Reason
from tests.fakes import RecordingReply, echo, inference
from tests.scheduling.rig import Rig

MS = 1_000_000
START = 1000 * MS


class Clocked(Rig):
    """A runner of a model that is placed on the loop and whose batches last until they are ended by hand."""

    def __init__(self, policy: PriorityQueuePolicy | DynamicPolicy) -> None:
        self.now = START
        self.held: list[Execution] = []
        super().__init__([self.held.append], policy, on_loop=True, clock=lambda: self.now)

    def end_batch(self) -> None:
        execution = self.held.pop(0)
        echo(execution)
        execution.finished()

    def ring_next(self) -> int:
        """The next timer rings, at its time; how long after the start that is."""
        self.now = max(self.now, self.loop.timers[0][0])
        return self.loop.ring() - START


def timing_out(timeout_us: int, **more: bool) -> PriorityQueuePolicy:
    return PriorityQueuePolicy(0, 0, QueueRules(timeout_us=timeout_us, **more), {})


def test_request_times_out_while_the_instance_is_busy() -> None:
    rig = Clocked(timing_out(5000))
    rig.submit("running")
    waiting = rig.submit("waiting")
    assert rig.ring_next() == 5 * MS
    assert isinstance(waiting.error, TimedOut)
    assert str(waiting.error) == "Request timeout expired"
    assert [(one.request.id, reason) for one, reason in rig.observer.failures] == [("waiting", Reason.REJECTED)]
    rig.end_batch()
    assert rig.settled == ["waiting", "running"]


def test_each_request_times_out_at_its_own_time() -> None:
    rig = Clocked(timing_out(5000))
    rig.submit("running")
    replies = []
    for name in "abc":
        replies.append(rig.submit(name))
        rig.now += MS
    rings = []
    while rig.loop.timers:
        rings.append(rig.ring_next())
    assert rings == [5 * MS, 6 * MS, 7 * MS]
    assert [reply.finals for reply in replies] == [1, 1, 1]


def test_shorter_time_behind_a_longer_one_is_not_missed() -> None:
    rig = Clocked(PriorityQueuePolicy(2, 1, QueueRules(timeout_us=50_000), {2: QueueRules(timeout_us=2000)}))
    rig.submit("running")
    long = rig.submit("long")
    short = submit_with(rig, 2)
    assert rig.ring_next() == 2 * MS
    assert (short.finals, long.finals) == (1, 0)
    assert rig.ring_next() == 50 * MS
    assert long.finals == 1


def submit_with(rig: Clocked, priority: int) -> RecordingReply:
    reply = RecordingReply()
    one = inference("short", reply, outputs=["x"])
    one.request.priority = priority
    rig.runner.submit(one)
    return reply


def test_timers_do_not_pile_up() -> None:
    """A thousand requests with a short time, in front of one that waits for long."""
    rig = Clocked(PriorityQueuePolicy(2, 1, QueueRules(timeout_us=10_000_000), {2: QueueRules(timeout_us=1000)}))
    rig.submit("running")
    rig.submit("long")
    for _ in range(1000):
        reply = submit_with(rig, 2)
        rig.ring_next()
        assert reply.finals == 1
        assert len(rig.loop.timers) == 1


def test_request_whose_time_is_over_when_an_instance_is_free_does_not_run() -> None:
    """Even where the timer is late."""
    rig = Clocked(timing_out(5000))
    rig.submit("running")
    late, punctual = rig.submit("late"), RecordingReply()
    rig.now += 4 * MS
    rig.start("punctual", punctual)
    rig.now += MS
    rig.end_batch()
    assert isinstance(late.error, TimedOut)
    rig.end_batch()
    assert punctual.response.id == "punctual"


def test_request_that_runs_has_no_time_limit() -> None:
    rig = Clocked(timing_out(5000))
    running = rig.submit("running")
    rig.submit("waiting")
    rig.ring_next()
    rig.now += 1000 * MS
    rig.end_batch()
    assert running.response.id == "running"


def test_no_timer_is_set_without_timeouts() -> None:
    rig = Clocked(PriorityQueuePolicy(2, 1, QueueRules(max_size=3), {}))
    for name in "abc":
        rig.submit(name)
    assert rig.loop.timers == []


def test_no_timer_is_set_for_requests_that_run() -> None:
    rig = Clocked(timing_out(5000))
    rig.submit("a")
    assert rig.loop.timers == []


def test_cancel_starts_the_others_if_they_are_a_preferred_batch_now() -> None:
    """Of two rows and one, which wait to become more, the two are taken back: one row is a preferred size."""
    rig = Clocked(DynamicPolicy(8, [1, 8], 10 * MS))
    first = RecordingReply()
    one = rig.start("a", first, rows=2)
    rig.submit("b", rows=1)
    assert rig.held == []
    rig.runner.cancel(one)
    assert isinstance(first.error, Cancelled)
    assert rig.instances[0].batches == [["b"]]


def test_timeout_starts_the_others_if_they_are_a_preferred_batch_now() -> None:
    rules = QueueRules(timeout_us=3000)
    rig = Clocked(PriorityQueuePolicy(0, 0, rules, {}, Forming(8, [1, 8], 10 * MS)))
    late = rig.submit("a", rows=2)
    rig.now += MS
    rig.submit("b", rows=1)
    assert rig.held == []
    assert rig.ring_next() == 3 * MS
    assert isinstance(late.error, TimedOut)
    assert rig.instances[0].batches == [["b"]]


class Breaking(PriorityQueuePolicy):
    """A policy whose `expire` breaks once."""

    broken = False

    def expire(self, now: int) -> list:  # type: ignore[type-arg]
        if not self.broken:
            self.broken = True
            raise RuntimeError("expire broke")
        return super().expire(now)


def test_policy_that_breaks_at_a_time_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Clocked(Breaking(0, 0, QueueRules(timeout_us=5000), {}))
    rig.submit("running")
    waiting = rig.submit("waiting")
    assert rig.ring_next() == 5 * MS
    assert "expire broke" in caplog.text
    assert rig.ring_next() == 105 * MS
    assert isinstance(waiting.error, TimedOut)
    rig.end_batch()
    assert rig.settled == ["waiting", "running"]


def test_timer_keeps_nothing_of_a_runner_that_is_closed() -> None:
    """A queue may allow hours, and the memory of a model that is unloaded is wanted back."""
    rig = Clocked(timing_out(3_600_000_000))
    rig.submit("running")
    rig.submit("waiting")
    rig.end_batch()
    rig.end_batch()
    rig.runner.close()
    closed, timers = ref(rig.runner._policy), rig.loop.timers  # which it alone holds
    assert len(timers) == 1
    rig.__dict__.clear()
    collect()
    assert closed() is None
    timers[0][2]()
