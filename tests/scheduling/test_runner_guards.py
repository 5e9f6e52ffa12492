"""A port that raises fails at most one request. The others are served."""

from collections.abc import Callable
from threading import Event

import pytest

from halimede.errors import Error, Internal, Unavailable
from halimede.requests import Answer, InferResponse
from halimede.scheduling.dynamic import DynamicPolicy
from halimede.scheduling.execution import Execution
from halimede.scheduling.runner_config import Reason
from tests.fakes import RecordingReply, echo, inference
from tests.scheduling.rig import Rig, ScriptedPolicy, finishing, held_back, raising, tensor


def break_once(message: str) -> Callable[..., None]:
    left = [message]

    def perhaps(*_: object) -> None:
        if left:
            raise RuntimeError(left.pop())

    return perhaps


def check_survivors(rig: Rig, broken: RecordingReply, others: list[RecordingReply]) -> None:
    """The request whose port raised is settled with one final answer; the others have their responses."""
    rig.finish(*others)
    assert all(isinstance(other.only, InferResponse) for other in others)
    assert broken.finals == 1, broken.answers
    assert sorted(rig.settled) == sorted({*rig.settled}), "settled twice"
    assert len(rig.settled) == 1 + len(others)


@pytest.mark.parametrize("method", ["admit", "next", "freed"])
def test_policy_that_breaks_once_fails_at_most_the_request_at_hand(rigs: Callable[..., Rig], method: str) -> None:
    rig = rigs([finishing(echo)], ScriptedPolicy(breaks=method))
    replies = [rig.submit(str(i)) for i in range(4)]
    rig.finish(*replies)
    assert all(reply.finals == 1 for reply in replies)
    assert sum(isinstance(reply.only, Error) for reply in replies) <= 1
    assert rig.settled == ["0", "1", "2", "3"]


def test_policy_whose_cancel_breaks_leaves_the_request_to_run() -> None:
    release = Event()
    rig = Rig([held_back(release)], ScriptedPolicy(breaks="cancel"))
    running = rig.submit("running")
    waiting = RecordingReply()
    rig.runner.cancel(rig.start("waiting", waiting))
    release.set()
    rig.finish(running, waiting)
    assert (running.finals, waiting.finals) == (1, 1)
    assert rig.settled == ["running", "waiting"]
    rig.runner.close()


@pytest.mark.parametrize("method", ["executed", "succeeded"])
def test_observer_that_raises_affects_no_other_request(rigs: Callable[..., Rig], method: str) -> None:
    rig = rigs([finishing(echo)], DynamicPolicy(8, [8], 0, start_at=3))
    setattr(rig.observer, method, break_once(f"{method} broke"))
    replies = [rig.submit(str(i), 1) for i in range(3)]
    check_survivors(rig, replies[0], replies[1:])


@pytest.mark.parametrize("count", [0, 1], ids=["no answers", "an error each"])
def test_observer_that_raises_on_a_failure_affects_no_other_request(rigs: Callable[..., Rig], count: int) -> None:
    def behave(execution: Execution) -> None:
        for i in range(len(execution.requests) * count):
            execution.fail(i, Internal("failed"))

    rig = rigs([finishing(behave)], DynamicPolicy(8, [8], 0, start_at=3))
    rig.observer.failed = break_once("failed broke")  # type: ignore[method-assign] # a port that breaks
    replies = [rig.submit(str(i), 1) for i in range(3)]
    rig.finish(*replies)
    assert [reply.finals for reply in replies] == [1, 1, 1]
    assert sorted(rig.settled) == ["0", "1", "2"]


class BrokenDestination:
    @property
    def byte_size(self) -> int:
        raise MemoryError("no room")


@pytest.mark.parametrize("inline_safe", [False, True])
def test_batch_that_cannot_start_fails_its_own_requests_only(rigs: Callable[..., Rig], inline_safe: bool) -> None:
    """The request that has just arrived is innocent: its arrival only made the policy return the batch of another."""
    rig = rigs([finishing(echo)], DynamicPolicy(8, [8], 0, start_at=2), inline_safe=inline_safe)
    reply = RecordingReply()
    broken = inference("broken", reply, 1, [tensor()], ["x"], "a key of its own")
    broken.destinations = {"x": BrokenDestination()}  # type: ignore[dict-item] # a broken one
    rig.runner.submit(broken)
    fine = rig.submit("fine", 1)
    rig.finish(reply, fine)
    assert str(reply.error) == "MemoryError: no room"
    assert fine.response.id == "fine"
    assert rig.settled == ["broken", "fine"]
    assert len(rig.runner._instances.free) == 1
    assert [reason for _, reason in rig.observer.failures] == [Reason.OTHER]


def breaks_on(send: int) -> Callable[[Answer, bool], None]:
    """The `on_send` of a reply slot that raises at this answer, counted from 1."""
    sends = []

    def on_send(answer: Answer, final: bool) -> None:
        sends.append(answer)
        if len(sends) == send:
            raise RuntimeError("the slot broke")

    return on_send


@pytest.mark.parametrize("behave", [echo, raising(ValueError("x")), lambda execution: None])
def test_reply_slot_that_raises_affects_no_other_request(
    rigs: Callable[..., Rig], behave: Callable[[Execution], None]
) -> None:
    rig = rigs([finishing(behave)], DynamicPolicy(8, [8], 0, start_at=3))
    rig.submit("broken", 1, on_send=breaks_on(1))
    others = [rig.submit(str(i), 1) for i in range(2)]
    rig.finish(*others)
    assert [other.finals for other in others] == [1, 1]
    assert sorted(rig.settled) == ["0", "1", "broken"]


def test_reply_slot_that_raises_at_the_end_releases_its_producer(rigs: Callable[..., Rig]) -> None:
    rig = rigs([finishing(echo)], decoupled=True)
    reply = RecordingReply(breaks_on(1))
    broken = rig.start("broken", reply)
    rig.finish(reply)
    assert broken.flow is not None
    assert broken.flow.open
    assert rig.settled == ["broken"]


def test_reply_slot_that_raises_at_a_refusal_is_settled(rigs: Callable[..., Rig]) -> None:
    rig = rigs([finishing(echo)], ScriptedPolicy(refuse=Unavailable("full")))
    rig.submit("broken", on_send=breaks_on(1))
    fine = rig.submit("fine")
    rig.finish(fine)
    assert fine.response.id == "fine"
    assert rig.settled == ["broken", "fine"]


def test_reply_slot_that_raises_at_a_cancel_is_settled() -> None:
    release = Event()
    rig = Rig([held_back(release)])
    running = rig.submit("running")
    rig.runner.cancel(rig.start("broken", RecordingReply(breaks_on(1))))
    release.set()
    rig.finish(running)
    assert rig.settled == ["broken", "running"]
    rig.runner.close()


def test_settled_callback_that_raises_affects_no_other_request(rigs: Callable[..., Rig]) -> None:
    rig = rigs([finishing(echo)], DynamicPolicy(8, [8], 0, start_at=3), settled=break_once("settled broke"))
    replies = [rig.submit(str(i), 1) for i in range(3)]
    check_survivors(rig, replies[0], replies[1:])
