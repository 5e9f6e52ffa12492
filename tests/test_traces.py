"""What is noted of traced requests, and where that ends."""

import weakref

import pytest

from halimede import traces
from halimede.requests import Moment
from halimede.traces import GRPC, HTTP, HTTP_EVENTS, TENSORS, TIMESTAMPS, Call, Front
from tests.fakes import RecordingReply
from tests.tracing.traces import Traced, request_for, response_for


def test_call_that_a_model_makes_after_its_last_answer_is_not_traced() -> None:
    """The root has gone, and shall not go twice."""
    traced = Traced()
    traced.begin()
    root = traced.answered()
    assert root is not None
    late, reply = request_for("inner"), RecordingReply()
    slot = traced.root.child(late, reply)
    assert (slot, late.trace) == (reply, None)
    slot.send(response_for(), True)
    assert traced.stream.roots == [root]
    assert not root.calls


def test_call_that_ends_after_its_caller_is_told_with_it() -> None:
    traced = Traced()
    traced.begin()
    inner = request_for("inner")
    slot = traced.root.child(inner, RecordingReply())
    assert isinstance(inner.trace, Call)
    inner.trace.begun(inner, 1, [11, 21, 31, 41, 51, 61])
    assert traced.answered() is None
    slot.send(response_for(), True)
    assert [root.calls for root in traced.stream.roots] == [[inner.trace]]


def test_what_a_batch_adds_after_the_last_answer_changes_nothing() -> None:
    """A decoupled model may go on after it; the writer reads the moments on another thread meanwhile."""
    traced, times = Traced(), [10, 20, 30, 40, 50, 60]
    traced.begin(times)
    traced.answered()
    times[Moment.COMPUTE_START :] = (31, 41, 51, 10**18)
    assert traced.root.times == [10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("level", [TIMESTAMPS, TENSORS])
def test_memory_of_a_request_that_is_answered_without_end_is_bounded(
    monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    monkeypatch.setattr(traces, "MAX_COST", 50_000)
    traced = Traced(level)
    traced.begin()
    for _ in range(1000):
        traced.answered(response_for(), final=False)
    root = traced.answered()
    assert root is not None
    assert root.cost < 51_000
    assert 100 < len(root.moments) + len(traced.root.tensors) < 1000
    assert len(traced.reply.answers) == 1001


def test_calls_of_a_request_that_calls_without_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_COST", 50_000)
    traced = Traced(front=GRPC)
    traced.begin()
    for _ in range(100):
        traced.root.child(request_for("inner"), RecordingReply()).send(response_for(), True)
    root = traced.answered()
    assert root is not None
    assert 10 < len(root.calls) < 30


@pytest.mark.parametrize(("front", "count"), [(HTTP, 1), (HTTP_EVENTS, 2), (GRPC, 2)])
def test_what_is_written_at_the_end_is_noted_there(front: Front, count: int) -> None:
    """Contract T4: the one answer of a generate request whose model may give many is written when it has ended."""
    traced = Traced(front=front, tells_end=front is not HTTP_EVENTS)
    traced.begin()
    traced.answered(response_for(), final=False)
    root = traced.answered()
    assert root is not None
    assert root.moments.count(front.send_start) == count


def test_trace_that_is_over_keeps_nobody_that_waited_for_it() -> None:
    """It may wait to be written for long, and the slot of a front end holds a connection and what came over it."""
    traced = Traced()
    traced.begin()
    inner = request_for("inner")
    slot = traced.root.child(inner, RecordingReply())
    waited = weakref.ref(traced.reply)
    slot.send(response_for(), True)
    assert traced.answered() is traced.root
    del traced.reply
    assert waited() is None
