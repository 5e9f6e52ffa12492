"""A runner with a sequence policy: what happens at a time of its own, and what is not counted."""

from collections.abc import Callable

import pytest

from halimede.errors import Cancelled, Internal, Invalid, Unavailable
from halimede.requests import InferResponse
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.instances import Instances
from halimede.scheduling.runner_config import Reason
from halimede.tensors import FP32, HostMemory, Tensor
from tests.fakes import RecordingReply, echo, inference
from tests.scheduling.rig import Rig
from tests.scheduling.sequences.rig import PolicyRig, direct, oldest
from tests.scheduling.test_limited import ONE, LimiterRig


def _start(rig: Rig, reply: RecordingReply, sequence: int, flags: str = "", timeout_us: int = 0) -> Inference:
    one = inference(f"{sequence}{flags}", reply, 1, [Tensor("x", FP32, (1, 1), HostMemory(bytes(4)))], ["x"])
    request = one.request
    request.correlation_id, request.timeout_us = sequence, timeout_us
    request.sequence_start, request.sequence_end = "S" in flags, "E" in flags
    rig.runner.submit(one)
    return one


def _send(rig: Rig, sequence: int, flags: str = "", timeout_us: int = 0) -> RecordingReply:
    reply = RecordingReply()
    _start(rig, reply, sequence, flags, timeout_us)
    return reply


def _hold(execution: Execution) -> None:
    """Ends when the test says so."""


@pytest.mark.rows("S56")
def test_idle_sequence_ends_though_nothing_waits() -> None:
    now = 1_000_000
    rig = Rig(policy=direct(slots=1).policy, clock=lambda: now)
    rig.finish(_send(rig, 1, "S"))
    ((at, _, _),) = rig.loop.timers
    now = at
    rig.loop.ring()
    assert isinstance(_send(rig, 1).error, Invalid)
    assert not rig.loop.timers


@pytest.mark.rows("S50", "S52")
def test_request_that_is_wrong_itself_is_no_failure_of_the_model() -> None:
    rig = Rig(policy=direct().policy)
    for reply in (_send(rig, 0, "S"), _send(rig, 5)):
        assert reply.error.refused
    assert not rig.observer.failures
    assert len(rig.settled) == 2


@pytest.mark.rows("S61")
def test_rows_of_no_sequence_are_neither_answered_nor_counted() -> None:
    rig = Rig(policy=direct(slots=3).policy)
    first, second = _send(rig, 1, "S"), _send(rig, 2, "S")
    rig.finish(first, second)
    rig.finish(_send(rig, 2, "E"))
    assert rig.instances[0].batches[-1] == ["", "2E"]
    assert len(rig.observer.successes) == 3
    assert rig.observer.executions[-1] == 2
    assert len(rig.settled) == 3


@pytest.mark.rows("S65")
def test_cancelled_request_ends_those_behind_it() -> None:
    held: list[Execution] = []
    rig = Rig([held.append], oldest(slots=1).policy, on_loop=True)
    replies = [RecordingReply() for _ in range(4)]
    _start(rig, replies[0], 1, "S")
    doomed = _start(rig, replies[1], 1)
    _start(rig, replies[2], 1)
    _start(rig, replies[3], 2, "S")
    rig.runner.cancel(doomed)
    rig.loop.ring()
    assert [str(reply.error) for reply in replies[1:3]] == ["[request id: 1] Cancelled"] * 2
    assert {type(reply.error) for reply in replies[1:3]} == {Cancelled}
    assert [reason for _, reason in rig.observer.failures] == [Reason.CANCELED] * 2
    echo(held[0])
    held[0].finished()
    assert isinstance(replies[0].only, InferResponse)
    assert rig.instances[0].batches == [["1S"], ["2S"]]


@pytest.mark.rows("S57")
def test_sequence_that_waits_too_long_for_a_slot_times_out() -> None:
    rig = Rig([_hold], oldest(slots=1).policy, on_loop=True)
    _send(rig, 1, "S")
    late = _send(rig, 2, "S", timeout_us=1)
    while not late.finals:
        rig.loop.ring()
    assert isinstance(late.error, Unavailable)
    assert [reason for _, reason in rig.observer.failures] == [Reason.REJECTED]


@pytest.mark.rows("S3")
def test_sequences_go_on_after_the_stop() -> None:
    rig = Rig(policy=oldest().policy)
    rig.finish(_send(rig, 1, "S"))
    rig.runner.stop()
    assert isinstance(_send(rig, 2, "S").error, Unavailable)
    last = _send(rig, 1, "E")
    rig.finish(last)
    assert isinstance(last.only, InferResponse)


@pytest.mark.rows("S72")
def test_requests_that_run_again_keep_their_order() -> None:
    held: list[Execution] = []
    rig = Rig([held.append], oldest(slots=3, rows=3, iterative=True).policy, on_loop=True)
    replies = [_send(rig, i, "S") for i in (1, 2, 3)]
    echo(held[0])
    held[0].finished()
    for i in range(2):
        held[1].again(i)
    held[1].finished()
    assert rig.instances[0].batches == [["1S"], ["2S", "3S"], ["2S", "3S"]]
    assert [reply.finals for reply in replies] == [1, 0, 0]


BOTH = pytest.mark.parametrize("made", [direct, oldest])


@BOTH
@pytest.mark.parametrize("flags", ["S", "SE"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_rescheduled_request_of_a_sequence_that_is_not_iterative_fails(
    made: Callable[..., PolicyRig], flags: str, decoupled: bool
) -> None:
    """Contract S72, CB37. Its slot may be another sequence's by then, so it must not wait for it."""
    held: list[Execution] = []
    rig = Rig([held.append], made(slots=1).policy, decoupled=decoupled, on_loop=True)
    refused = _send(rig, 1, flags)
    held[0].again(0)
    held[0].finished()
    assert isinstance(refused.error, Invalid)
    assert "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in str(refused.error)
    assert rig.settled == [f"1{flags}"]
    # The sequence goes on, or has left its slot.
    served = _send(rig, 1, "E") if flags == "S" else _send(rig, 2, "S")
    echo(held[1])
    held[1].finished()
    assert isinstance(served.only, InferResponse)


@BOTH
def test_rescheduled_request_of_an_iterative_sequence_runs_again_after_its_end(
    made: Callable[..., PolicyRig],
) -> None:
    held: list[Execution] = []
    rig = Rig([held.append], made(slots=1, iterative=True).policy, on_loop=True)
    reply, waits = _send(rig, 1, "SE"), _send(rig, 2, "SE")
    held[0].again(0)
    held[0].finished()
    for i in (1, 2):
        echo(held[i])
        held[i].finished()
    assert isinstance(reply.only, InferResponse)
    assert isinstance(waits.only, InferResponse)
    assert rig.instances[0].batches == [["1SE"], ["1SE"], ["2SE"]]


def test_late_answer_of_an_earlier_run_is_ignored() -> None:
    held: list[Execution] = []
    rig = Rig([held.append], oldest(iterative=True).policy, on_loop=True)
    reply = _send(rig, 1, "S")
    held[0].finished([0])
    held[0].again(0)
    assert len(held) == 2
    held[0].send(0, [Tensor("y", FP32, (1, 1), HostMemory(bytes(4)))])
    assert reply.answers == []
    echo(held[1])
    held[1].finished()
    assert [one.name for one in reply.response.outputs] == ["x"]


@BOTH
def test_rescheduled_request_whose_client_has_gone_does_not_run_again(made: Callable[..., PolicyRig]) -> None:
    held: list[Execution] = []
    rig = Rig([held.append], made(iterative=True).policy, on_loop=True)
    reply = RecordingReply()
    rig.runner.cancel(_start(rig, reply, 1, "S"))
    held[0].again(0)
    held[0].finished()
    assert isinstance(reply.error, Cancelled)
    assert (len(held), rig.runner.waiting, rig.settled) == (1, 0, ["1S"])
    assert [reason for _, reason in rig.observer.failures] == [Reason.CANCELED]


@pytest.mark.parametrize("decoupled", [False, True])
def test_each_run_is_counted_and_waits_from_the_end_of_the_one_before(decoupled: bool) -> None:
    held: list[Execution] = []
    rig = Rig([held.append], oldest(iterative=True).policy, decoupled=decoupled, on_loop=True)
    reply = _send(rig, 1, "S")
    held[0].again(0)
    held[0].finished()
    held[1].send(0, [])
    held[1].finished()
    assert reply.finals == 1
    (first,), (second,) = rig.observer.runs, rig.observer.times
    assert first == sorted(first)
    assert second == sorted(second)
    assert first[0] == second[0], "it is the same request"
    assert second[1] >= first[2], "what it waited before it ran is not counted twice"


@pytest.mark.rows("S73")
def test_instance_goes_when_its_sequences_have_ended() -> None:
    rig = Rig([echo, echo], oldest(slots=1, instances=2).policy)
    first, second = _send(rig, 1, "S"), _send(rig, 2, "S")
    rig.finish(first, second)
    left: list[int] = []
    rig.runner.resize({}, [1], left.append)
    rig.loop.turn()
    rig.finish(_send(rig, 2))
    assert rig.instances[1].batches == [["2S"], ["2"]]
    assert left == []
    rig.finish(_send(rig, 2, "E"))
    rig.loop.run_until(lambda: left == [1])
    rig.finish(_send(rig, 1, "E"))
    waits = _send(rig, 3, "S")
    rig.finish(waits)
    assert rig.instances[0].batches[-1] == ["3S"]


def test_sequences_on_an_instance_that_will_not_be_back_are_refused() -> None:
    instances = Instances("m:1", [object(), object()])  # type: ignore[list-item]
    instances.pinned = True
    instances.mark(0, healthy=False, expected=True)
    assert list(instances.free) == [1]
    instances.mark(0, healthy=False, expected=False)
    assert sorted(instances.free) == [0, 1]
    instances.pinned = False
    instances.mark(0, healthy=False, expected=False)
    assert list(instances.free) == [1]


def test_begin_that_raises_fails_its_request_only() -> None:
    played = direct()

    def breaks() -> None:
        raise MemoryError("no room")

    object.__setattr__(played.policy._rules, "begin", breaks)
    rig = Rig(policy=played.policy)
    error = _send(rig, 1, "S").error
    assert isinstance(error, Internal)
    assert str(error) == "MemoryError: no room"


def test_instance_with_the_sequence_asks_the_rate_limiter() -> None:
    limited = LimiterRig()
    runner = limited.model("m", ONE, ONE, policy=direct(slots=1, instances=2).policy)
    replies = [RecordingReply() for _ in range(3)]

    def send(reply: RecordingReply, sequence: int, flags: str) -> None:
        one = inference("", reply, 1, [Tensor("x", FP32, (1, 1), HostMemory(bytes(4)))], ["x"])
        one.request.correlation_id, one.request.sequence_start = sequence, "S" in flags
        runner.submit(one)

    def end() -> None:
        _, execution = limited.running.pop()
        echo(execution)
        execution.finished()
        limited.loop.turn()

    send(replies[0], 1, "S")
    send(replies[1], 2, "S")
    assert len(limited.running) == 1
    end()
    end()
    send(replies[2], 2, "")
    end()
    assert [reply.finals for reply in replies] == [1, 1, 1]
