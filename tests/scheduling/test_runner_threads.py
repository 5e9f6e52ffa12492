"""Instances with threads of their own, and models on threads that answer after `execute` returned."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from halimede.errors import Internal, Unavailable
from halimede.scheduling.dynamic import DynamicPolicy
from halimede.scheduling.execution import Execution
from halimede.scheduling.inline import TURN_NS
from halimede.scheduling.instances import InstanceThread
from halimede.scheduling.priority import PriorityQueuePolicy, QueueRules
from tests.fakes import PATIENCE, RecordingReply, echo
from tests.scheduling.rig import Rig, finishing, tensor


class QuickThread:
    """Is over with its work before `submit` returns."""

    def submit(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(PATIENCE)


class GoneThread:
    def submit(self, work: Callable[[], None]) -> None:
        raise RuntimeError("no thread any more")


def test_batch_that_is_over_at_once_is_answered_without_a_call_to_the_loop() -> None:
    rig = Rig([echo])
    rig.instances[0].thread = QuickThread()  # type: ignore[attr-defined] # an instance may have one
    assert rig.submit("a").response.id == "a"
    assert not rig.loop._inbox.qsize()
    assert rig.settled == ["a"]


def test_quick_batches_in_a_row_let_the_loop_turn() -> None:
    """However many wait, since the loop waits for each."""
    now = 1

    def execute(execution: Execution) -> None:
        nonlocal now
        now += TURN_NS
        echo(execution)

    rig = Rig([execute], clock=lambda: now)
    rig.instances[0].thread = QuickThread()  # type: ignore[attr-defined] # an instance may have one
    replies = [rig.submit(str(i)) for i in range(20)]
    answered = []
    while not all(reply.finals for reply in replies):
        answered.append(sum(reply.finals for reply in replies))
        rig.loop.turn()
    assert all(later - earlier <= 1 for earlier, later in pairwise(answered))
    assert rig.settled == [str(i) for i in range(20)]


def test_batch_that_takes_longer_calls_the_loop() -> None:
    go = threading.Event()

    def execute(execution: Execution) -> None:
        assert go.wait(PATIENCE)
        echo(execution)

    rig = Rig([execute, echo])
    rig.instances[1].thread = QuickThread()  # type: ignore[attr-defined] # an instance may have one
    slow, quick = rig.submit("slow"), rig.submit("quick")
    rig.finish(quick)
    assert (quick.response.id, slow.answers) == ("quick", [])
    go.set()
    rig.finish(slow)
    assert slow.response.id == "slow"


def test_no_request_is_lost_when_threads_end_at_any_moment() -> None:
    rig = Rig([finishing(echo) for _ in range(4)])
    replies = [rig.submit(str(i)) for i in range(2_000)]
    rig.finish(*replies)
    assert [reply.response.id for reply in replies] == [str(i) for i in range(2_000)]


@pytest.mark.parametrize("decoupled", [False, True])
def test_batch_that_outlives_its_loop_ends_without_an_error(caplog: pytest.LogCaptureFixture, decoupled: bool) -> None:
    """As where the engine ends before the model does: nobody is there to be told, and the thread does not break."""
    go, sent, over = threading.Event(), threading.Event(), threading.Event()

    def execute(execution: Execution) -> None:
        assert go.wait(PATIENCE)
        echo(execution)
        sent.set()

    rig = Rig([execute], decoupled=decoupled)
    rig.instances[0].thread = thread = InstanceThread("own")  # type: ignore[attr-defined] # an instance may have one
    reply = rig.submit("a")
    rig.loop.closed = True
    go.set()
    thread.submit(over.set)
    assert over.wait(PATIENCE)
    assert sent.is_set()
    assert reply.answers == []
    assert caplog.records == []
    thread.stop()


def test_thread_that_takes_no_work_does_not_delay_other_instances() -> None:
    rig = Rig([echo, finishing(echo)])
    rig.instances[0].thread = GoneThread()  # type: ignore[attr-defined] # an instance may have one
    lost, fine = rig.submit("lost"), rig.submit("fine")
    rig.finish(lost, fine)
    assert str(lost.error) == "RuntimeError: no thread any more"
    assert fine.response.id == "fine"


def test_model_that_gathers_starts_with_everything_of_one_turn() -> None:
    rig = Rig([finishing(echo)], DynamicPolicy(8, [8], 0), gathers=True)
    replies = [rig.submit(str(i), 1) for i in range(3)]
    gone = rig.start("gone", RecordingReply(), 1)
    assert rig.runner.waiting == 4
    rig.runner.cancel(gone)
    rig.finish(*replies)
    assert rig.observer.executions == [3]
    assert sorted(rig.settled) == ["0", "1", "2", "gone"]


def test_promised_answers_come_after_the_batch() -> None:
    """From any thread, in any order, also before the batch is over."""
    held: list[Execution] = []

    def execute(execution: Execution) -> None:
        execution.promise([1, 2, 3])
        execution.send(0, [tensor()])
        execution.send(2, [tensor()])
        held.append(execution)

    rig = Rig([execute], DynamicPolicy(8, [4], 0, start_at=4))
    rig.instances[0].thread = thread = InstanceThread("own")  # type: ignore[attr-defined] # an instance may have one
    replies = [rig.submit(str(i), 1) for i in range(4)]
    rig.finish(replies[0], replies[2])
    assert replies[1].answers == replies[3].answers == []
    with ThreadPoolExecutor(2) as others:
        others.submit(held[0].fail, 3, Internal("gone"))
        others.submit(held[0].send, 1, [tensor()])
    rig.finish(*replies)
    assert [reply.response.id for reply in replies[:3]] == ["0", "1", "2"]
    assert str(replies[3].error) == "gone"
    thread.stop()


class SlowThread:
    """Is over with its work when the test says so."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None]) -> None:
        self.work.append(work)

    def finish(self) -> None:
        thread = threading.Thread(target=self.work.pop(0))
        thread.start()
        thread.join(PATIENCE)


def test_refusals_of_a_long_turn_do_not_keep_an_instance_waiting() -> None:
    """It is done with its batch while the loop turns requests away: the one that waits begins then."""
    rig = Rig([echo], PriorityQueuePolicy(0, 0, QueueRules(max_size=1), {}))
    thread = rig.instances[0].thread = SlowThread()  # type: ignore[attr-defined] # an instance may have one
    running, waiting = rig.submit("a"), rig.submit("b")
    assert isinstance(rig.submit("c").error, Unavailable)
    assert len(thread.work) == 1
    thread.finish()
    assert not running.finals
    rig.loop.budget._turned()  # however long the hand-over of "a" took
    assert isinstance(rig.submit("d").error, Unavailable)
    assert running.finals
    assert len(thread.work) == 1, "b runs"
    thread.finish()
    rig.finish(waiting)
