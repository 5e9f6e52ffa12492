"""Answers leave in the order of their requests (contract S34), whatever order they are made in."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from halimede.errors import Internal, TimedOut
from halimede.requests import Answer, InferResponse, Stamp
from halimede.scheduling.inference import Inference
from halimede.scheduling.ordering import MAX_AT_ONCE, Ordering
from tests.fakes import RecordingReply, inference


def never(call: Callable[[], None]) -> None:
    raise AssertionError("there is little to send")


class Line:
    """An ordering, and what its requests were sent, in order: `log`."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.later: list[Callable[[], None]] = []
        self.ordering = Ordering(lambda one: self.log.append(f"{one.request.id} settled"), self.later.append)

    def enter(self, name: str, then: Callable[[], None] = lambda: None) -> Inference:
        def sent(answer: Answer, final: bool) -> None:
            self.log.append(name + ("" if final else " part"))
            then()

        one = inference(name, RecordingReply(sent))
        self.ordering.enter(one)
        return one

    def answer(self, one: Inference, answer: Answer = None) -> None:
        """As the runner does when a request has run."""
        one.times[Stamp.COMPUTE_START] = 1
        one.reply.send(answer or InferResponse(one.request.id, "m", 1, []), True)
        self.ordering.settled(one)


def test_answer_waits_for_those_before_it() -> None:
    line = Line()
    first, second, third = (line.enter(name) for name in "abc")
    line.answer(third)
    line.answer(second)
    assert line.log == []
    line.answer(first)
    assert line.log == ["a", "a settled", "b", "b settled", "c", "c settled"]


def test_answer_of_the_oldest_request_goes_at_once() -> None:
    line = Line()
    first, second = line.enter("a"), line.enter("b")
    line.answer(first)
    assert line.log == ["a", "a settled"]
    line.answer(second)
    assert line.log[2:] == ["b", "b settled"]
    line.answer(line.enter("c"))
    assert line.log[4:] == ["c", "c settled"]


def test_failure_of_a_request_that_ran_keeps_its_place() -> None:
    line = Line()
    first, second = line.enter("a"), line.enter("b")
    line.answer(second, Internal("broke"))
    assert line.log == []
    line.answer(first)
    assert line.log == ["a", "a settled", "b", "b settled"]


def test_request_that_never_ran_is_refused_at_once_and_delays_no_other() -> None:
    line = Line()
    first, second, third = (line.enter(name) for name in "abc")
    second.reply.send(TimedOut("Request timeout expired"), True)
    line.ordering.settled(second)
    assert line.log == ["b", "b settled"]
    line.answer(third)
    line.answer(first)
    assert line.log[2:] == ["a", "a settled", "c", "c settled"]


def test_response_that_was_in_a_cache_keeps_its_place() -> None:
    """Its request never ran either."""
    line = Line()
    first, second = line.enter("a"), line.enter("b")
    second.reply.send(InferResponse("b", "m", 1, []), True)
    line.ordering.settled(second)
    assert line.log == []
    line.answer(first)
    assert line.log == ["a", "a settled", "b", "b settled"]


def test_oldest_request_that_never_ran_lets_the_next_answer() -> None:
    line = Line()
    first, second = line.enter("a"), line.enter("b")
    line.answer(second)
    first.reply.send(TimedOut("Request timeout expired"), True)
    line.ordering.settled(first)
    assert line.log == ["a", "a settled", "b", "b settled"]


def test_answers_of_a_decoupled_model_wait_all_and_then_pass() -> None:
    line = Line()
    first, second = line.enter("a"), line.enter("b")
    slot = second.reply
    assert slot.send(InferResponse("b", "m", 1, []), False), "whoever waits here may hold up the one before"
    line.answer(first)
    assert line.log == ["a", "a settled", "b part"]
    second.reply.send(InferResponse("b", "m", 1, []), False)
    assert line.log[3:] == ["b part"]
    line.answer(second)
    assert line.log[4:] == ["b", "b settled"]
    resumed: list[str] = []
    slot.on_writable(lambda: resumed.append("now"))
    assert resumed == [], "from its turn on its reader says when it takes more"


def test_reply_slot_is_writable_while_a_request_waits_for_its_turn() -> None:
    line = Line()
    line.enter("a")
    second = line.enter("b")
    second.reply.send(InferResponse("b", "m", 1, []), False)
    resumed: list[str] = []
    second.reply.on_writable(lambda: resumed.append("now"))
    assert resumed == ["now"]


def test_reply_slot_is_the_clients_own_again_when_its_request_is_over() -> None:
    """The engine looks at it then."""
    seen: list[object] = []
    ordering = Ordering(lambda one: seen.append(one.reply), never)
    replies = [RecordingReply() for _ in range(3)]
    several = [inference(str(i), reply) for i, reply in enumerate(replies)]
    for one in several:
        ordering.enter(one)
    for one in reversed(several):
        one.times[Stamp.COMPUTE_START] = 1
        one.reply.send(InferResponse("", "m", 1, []), True)
        ordering.settled(one)
    assert seen == replies


def test_reply_slot_that_was_changed_by_its_answer_stays() -> None:
    """A response from the cache does so. The one from before refers to the inference."""
    line, slot = Line(), RecordingReply()

    def change() -> None:
        second.reply = slot

    first, second = line.enter("a"), line.enter("b", change)
    line.answer(second)
    line.answer(first)
    assert line.log == ["a", "a settled", "b", "b settled"]
    assert second.reply is slot


@pytest.mark.parametrize("parts", [1, 3 * MAX_AT_ONCE])
def test_many_kept_answers_take_several_turns(parts: int) -> None:
    line = Line()
    first, *others = (line.enter(str(number)) for number in range(MAX_AT_ONCE * 5 // 2 // parts + 2))
    for one in others:
        one.times[Stamp.COMPUTE_START] = 1
        for _ in range(parts - 1):
            one.reply.send(InferResponse(one.request.id, "m", 1, []), False)
        line.answer(one)
    line.answer(first)
    turns = [len([each for each in line.log if "settled" not in each]) - 1]
    late = line.enter("late")
    while line.later:
        line.later.pop()()
        turns.append(len([each for each in line.log if "settled" not in each]) - 1)
    assert all(after - before <= MAX_AT_ONCE for before, after in pairwise([0, *turns]))
    settled = [each for each in line.log if "settled" in each]
    assert settled == [f"{number} settled" for number in range(len(others) + 1)]
    line.answer(late)
    assert line.log[-2:] == ["late", "late settled"]


def test_request_that_comes_from_within_an_answer_takes_its_place_at_the_end() -> None:
    line = Line()

    def again() -> None:
        line.answer(line.enter("c"))

    first, second = line.enter("a", again), line.enter("b")
    line.answer(first)
    assert line.log == ["a", "a settled"]
    line.answer(second)
    assert line.log[2:] == ["b", "b settled", "c", "c settled"]


def test_reply_slot_that_raises_affects_no_other_request(caplog: pytest.LogCaptureFixture) -> None:
    line = Line()

    def breaks() -> None:
        raise RuntimeError("broke")

    first, second, third = line.enter("a"), line.enter("b", breaks), line.enter("c")
    line.answer(third)
    line.answer(second)
    line.answer(first)
    assert line.log == ["a", "a settled", "b", "b settled", "c", "c settled"]
    assert "sending a kept answer failed" in caplog.text


def test_settled_callback_that_raises_delays_no_other_request(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    def settled(one: Inference) -> None:
        ended.append(one.request.id)
        raise RuntimeError("broke")

    ordering = Ordering(settled, never)
    several = [inference(name, RecordingReply()) for name in "abc"]
    for one in several:
        ordering.enter(one)
    for one in (several[1], several[0], several[2]):
        one.times[Stamp.COMPUTE_START] = 1
        one.reply.send(InferResponse("", "m", 1, []), True)
        ordering.settled(one)
    assert ended == ["a", "b", "c"]
    assert "broke" in caplog.text


def test_request_of_a_model_is_not_ordered() -> None:
    """The model may make it for the request that is before it."""
    line = Line()
    outer = line.enter("outer")
    inner = inference("inner", RecordingReply())
    inner.request.inner = True
    line.ordering.enter(inner)
    last = line.enter("last")
    line.answer(outer)
    line.answer(last)
    assert line.log == ["outer", "outer settled", "last", "last settled"]
    line.answer(inner)
    assert line.log[4:] == ["inner settled"]


def test_nothing_is_kept_for_a_client_that_has_gone() -> None:
    line = Line()
    first, second = line.enter("a"), line.enter("b")
    kept = second.reply
    kept.send(InferResponse("b", "m", 1, []), False)
    second.mark_cancelled()
    for _ in range(3):
        assert kept.send(InferResponse("b", "m", 1, []), False)
    assert not kept.kept  # type: ignore[attr-defined] # it is the slot of one whose turn has not come
    line.answer(second)
    line.answer(first)
    assert line.log == ["a", "a settled", "b", "b settled"]
