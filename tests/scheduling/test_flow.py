"""Back-pressure of one request: by callback on the event loop, by a wait in the threads of a producer."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Condition
from typing import Any

import numpy as np
import pytest

from halimede.errors import Internal
from halimede.scheduling.flow import OVERHEAD, WINDOW, Flow, cost_of
from halimede.tensors import FP32, tensor_of
from tests.fakes import PATIENCE, RecordingReply


@pytest.fixture
def reply() -> RecordingReply:
    return RecordingReply()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_cost_counts_bytes_and_an_overhead_for_each_response() -> None:
    tensor = tensor_of("x", FP32, np.zeros(100, np.float32))
    assert cost_of([tensor, tensor]) == OVERHEAD + 800
    assert cost_of(Internal("x")) == cost_of(None) == OVERHEAD


def test_reader_that_keeps_up_blocks_no_producer(reply: RecordingReply) -> None:
    flow, calls = Flow(reply), []
    flow.delivered(WINDOW, True)
    flow.on_writable(lambda: calls.append("at once"))
    assert (calls, reply.resumes) == (["at once"], [])


def test_slow_reader_is_waited_for_once(reply: RecordingReply) -> None:
    flow, calls = Flow(reply), []
    for _ in range(3):
        flow.delivered(1, False)
        flow.on_writable(lambda: calls.append("later"))
    assert calls == []
    [resume] = reply.resumes
    resume()
    assert calls == ["later"] * 3
    flow.on_writable(lambda: calls.append("at once"))
    assert calls[3:] == ["at once"]


def test_reader_may_be_slow_again(reply: RecordingReply) -> None:
    flow, calls = Flow(reply), []
    for _ in range(2):
        flow.delivered(1, False)
        flow.on_writable(lambda: calls.append("later"))
        reply.resumes.pop()()
    assert calls == ["later"] * 2


def test_release_wakes_producers_and_blocks_none_any_more(reply: RecordingReply) -> None:
    flow, calls = Flow(reply), []
    flow.delivered(1, False)
    flow.on_writable(lambda: calls.append("released"))
    flow.release()
    assert calls == ["released"]
    flow.delivered(1, False)
    flow.on_writable(lambda: calls.append("at once"))
    assert calls[1:] == ["at once"]
    [late] = reply.resumes
    late()
    assert len(calls) == 2


class Producers:
    """Threads that send through one flow, and the loop that delivers what they sent. Nobody may be more than the window
    and one response ahead of what the loop took."""

    def __init__(self, flow: Flow, threads: ThreadPoolExecutor) -> None:
        self.flow = flow
        self.sent = 0
        self.taken = 0
        self.ahead = 0
        self._threads = threads
        self._changed = Condition()

    def start(self, count: int, cost: int) -> "Future[None]":
        return self._threads.submit(self._send, count, cost)

    def _send(self, count: int, cost: int) -> None:
        for _ in range(count):
            self.flow.enter(cost)
            with self._changed:
                self.sent += cost
                self.ahead = max(self.ahead, self.sent - self.taken)
                self._changed.notify_all()

    def wait_until_sent(self, total: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.sent >= total, PATIENCE)

    def take(self, writable: bool = True) -> None:
        """Delivers all that was sent so far."""
        with self._changed:
            cost = self.sent - self.taken
            self.taken = self.sent
        self.flow.delivered(cost, writable)


HALF = WINDOW // 2


def waits(future: "Future[Any]") -> bool:
    with pytest.raises(TimeoutError):
        future.result(0.05)
    return True


def test_producer_waits_for_the_loop(reply: RecordingReply, threads: ThreadPoolExecutor) -> None:
    producers = Producers(Flow(reply), threads)
    done = producers.start(20, HALF)
    for total in range(WINDOW, 21 * HALF, WINDOW):
        producers.wait_until_sent(total)
        producers.take()
    done.result(PATIENCE)
    assert producers.ahead == WINDOW


def test_producer_waits_for_a_slow_reader(reply: RecordingReply, threads: ThreadPoolExecutor) -> None:
    producers = Producers(Flow(reply), threads)
    done = producers.start(3, HALF)
    producers.wait_until_sent(WINDOW)
    producers.take(writable=False)
    assert waits(done)
    reply.resumes.pop()()
    done.result(PATIENCE)
    assert producers.sent == 3 * HALF


@pytest.mark.parametrize("most", [1, 3])
def test_window_is_full_at_the_allowed_number_of_responses(
    reply: RecordingReply, threads: ThreadPoolExecutor, most: int
) -> None:
    producers = Producers(Flow(reply, most), threads)
    done = producers.start(most + 1, 1)
    producers.wait_until_sent(most)
    assert waits(done)
    assert producers.sent == most
    for _ in range(most):
        producers.flow.delivered(1, True)
    done.result(PATIENCE)


def test_producer_is_released(reply: RecordingReply, threads: ThreadPoolExecutor) -> None:
    flow = Flow(reply)
    producers = Producers(flow, threads)
    done = [producers.start(100, HALF) for _ in range(3)]
    producers.wait_until_sent(WINDOW)
    assert all(waits(each) for each in done)
    flow.release()
    for each in done:
        each.result(PATIENCE)


def test_several_producers_of_a_request_share_its_window(reply: RecordingReply, threads: ThreadPoolExecutor) -> None:
    cost = WINDOW // 16
    producers = Producers(Flow(reply), threads)
    done = [producers.start(100, cost) for _ in range(3)]
    while producers.taken < 300 * cost:
        producers.wait_until_sent(min(producers.taken + WINDOW, 300 * cost))
        producers.take()
    for each in done:
        each.result(PATIENCE)
    assert producers.ahead <= WINDOW


def test_response_larger_than_the_window_passes(reply: RecordingReply, threads: ThreadPoolExecutor) -> None:
    producers = Producers(Flow(reply), threads)
    done = producers.start(2, 3 * WINDOW)
    producers.wait_until_sent(3 * WINDOW)
    assert waits(done)
    producers.take()
    done.result(PATIENCE)


def test_event_loop_does_not_wait_behind_a_thread_that_does(reply: RecordingReply, threads: ThreadPoolExecutor) -> None:
    with ThreadPoolExecutor(1) as loop:
        flow = loop.submit(Flow, reply).result(PATIENCE)
        producers = Producers(flow, threads)
        done = producers.start(3, HALF)
        try:
            producers.wait_until_sent(WINDOW)
            assert waits(done)
            loop.submit(flow.enter, HALF).result(PATIENCE)
            loop.submit(flow.delivered, HALF, True).result(PATIENCE)
            assert waits(done)
            loop.submit(producers.take).result(PATIENCE)
            done.result(PATIENCE)
        finally:
            flow.release()


def test_event_loop_is_never_blocked(reply: RecordingReply) -> None:
    flow = Flow(reply)
    for _ in range(10):
        flow.enter(WINDOW)
    flow.release()


def test_counted_responses_are_waited_for_one_by_one(reply: RecordingReply) -> None:
    flow = Flow(reply, 2)
    calls: list[int] = []
    for n in range(3):
        flow.delivered(1, False)
        flow.on_writable(partial(calls.append, n))
    sent = list(reply.resumes)
    assert len(sent) == 3
    for n in range(3):
        assert calls == list(range(n))
        sent[n]()
    flow.on_writable(lambda: calls.append(3))
    assert calls == [0, 1, 2, 3]


def test_counted_response_that_is_sent_lets_one_more_go(reply: RecordingReply, threads: ThreadPoolExecutor) -> None:
    producers = Producers(Flow(reply, 3), threads)
    done = producers.start(5, 1)
    producers.wait_until_sent(3)
    for _ in range(3):
        producers.flow.delivered(1, False)
    assert waits(done)
    for sent in (4, 5):
        reply.resumes.pop(0)()
        producers.wait_until_sent(sent)
        assert producers.sent == sent
    done.result(PATIENCE)


def test_counted_responses_that_are_released(reply: RecordingReply) -> None:
    flow = Flow(reply, 1)
    calls: list[int] = []
    for n in range(2):
        flow.delivered(1, False)
        flow.on_writable(partial(calls.append, n))
    flow.release()
    assert calls == [0, 1]
    for late in reply.resumes:
        late()
    assert calls == [0, 1]
