"""What traces record, and when they end."""

import weakref

import pytest

from halimede import traces
from halimede.requests import Stamp
from halimede.traces import GRPC, HTTP, HTTP_EVENTS, TENSORS, TIMESTAMPS, CallTrace, StampNames
from tests.fakes import RecordingReply
from tests.tracing.traces import Traced, request_for, response_for


def test_call_after_the_last_answer_of_its_model_is_not_traced() -> None:
    """The root went to its stream already, and must not go twice."""
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


def test_call_that_ends_after_its_caller_is_in_the_same_root() -> None:
    traced = Traced()
    traced.begin()
    inner = request_for("inner")
    slot = traced.root.child(inner, RecordingReply())
    assert isinstance(inner.trace, CallTrace)
    inner.trace.begun(inner, 1, [11, 21, 31, 41, 51, 61])
    assert traced.answered() is None
    slot.send(response_for(), True)
    assert [root.calls for root in traced.stream.roots] == [[inner.trace]]


def test_times_do_not_change_after_the_last_answer() -> None:
    """The batch of a decoupled model may go on, while the writer reads the times on another thread."""
    traced, times = Traced(), [10, 20, 30, 40, 50, 60]
    traced.begin(times)
    traced.answered()
    times[Stamp.COMPUTE_START :] = (31, 41, 51, 10**18)
    assert traced.root.times == [10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("level", [TIMESTAMPS, TENSORS])
def test_memory_of_endless_answers_is_bounded(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    monkeypatch.setattr(traces, "MAX_COST", 50_000)
    traced = Traced(level)
    traced.begin()
    for _ in range(1000):
        traced.answered(response_for(), final=False)
    root = traced.answered()
    assert root is not None
    assert root.cost < 51_000
    assert 100 < len(root.stamps) + len(traced.root.tensors) < 1000
    assert len(traced.reply.answers) == 1001


def test_memory_of_endless_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_COST", 50_000)
    traced = Traced(front=GRPC)
    traced.begin()
    for _ in range(100):
        traced.root.child(request_for("inner"), RecordingReply()).send(response_for(), True)
    root = traced.answered()
    assert root is not None
    assert 10 < len(root.calls) < 30


@pytest.mark.parametrize(("front", "count"), [(HTTP, 1), (HTTP_EVENTS, 2), (GRPC, 2)])
def test_responses_that_are_written_at_the_end_are_stamped_there(front: StampNames, count: int) -> None:
    """The front end writes the one answer of a generate request at the end of the request (T4)."""
    traced = Traced(front=front, tells_end=front is not HTTP_EVENTS)
    traced.begin()
    traced.answered(response_for(), final=False)
    root = traced.answered()
    assert root is not None
    assert root.stamps.count(front.send_start) == count


def test_ended_trace_does_not_keep_its_reply_slot() -> None:
    """The trace may wait long for the writer, and the slot of a front end holds a connection and its buffers."""
    traced = Traced()
    traced.begin()
    inner = request_for("inner")
    slot = traced.root.child(inner, RecordingReply())
    waited = weakref.ref(traced.reply)
    slot.send(response_for(), True)
    assert traced.answered() is traced.root
    del traced.reply
    assert waited() is None
