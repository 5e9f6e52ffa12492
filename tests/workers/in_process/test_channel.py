import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from halimede.workers.child import frames
from halimede.workers.in_process.channel import LocalChannel
from tests.workers.fakes import PATIENCE, on_loop, turning_loop


class Server:
    """The other end: answers a QUESTION with its own tensor, as many times as its index says."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.channel = LocalChannel(loop, self.arrived)
        self.held: list[frames.Frame] | None = None

    def arrived(self, frame: frames.Frame) -> None:
        assert asyncio.get_running_loop() is self.loop
        if self.held is None:
            self.answer(frame)
        else:
            self.held.append(frame)

    def answer(self, frame: frames.Frame) -> None:
        (number,) = frame.unpack(frames.NUMBER)
        self.channel.deliver(frames.frame(frames.REPLY, [], None, number, frame.count + 1))


@pytest.fixture
def server() -> Iterator[Server]:
    with turning_loop() as loop:
        yield Server(loop)


def test_many_threads_are_answered_each(server: Server) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda i: server.channel.ask(frames.IS_READY, 0, i), range(500)))
    assert found == list(range(1, 501))


@pytest.mark.parametrize("size", [10, 100_000])
def test_frame_is_not_the_sender_s_memory(server: Server, size: int) -> None:
    server.held = []
    array = np.zeros(size, np.uint8)
    record = frames.tensor_record("x", 2, (size,), size)
    server.channel.send(frames.frame(frames.CALL, [record], [array], 1))
    array[:] = 1
    on_loop(server.loop, lambda: None)
    _, _, _, view = server.held[0].tensor()
    assert not any(view)
    assert not view.readonly


def test_coroutines_and_threads_wait_side_by_side(server: Server) -> None:
    """A loop is told of what a thread that reads for itself has left behind."""
    channel, done = server.channel, threading.Event()

    def ask_on() -> None:
        while not done.is_set():
            channel.ask(frames.IS_READY, 0, 0)

    async def calls() -> int:
        loop = asyncio.get_running_loop()
        for _ in range(300):
            number, answered = channel.new_number(), loop.create_future()

            def arrived(frame: frames.Frame, answered: "asyncio.Future[int]" = answered) -> None:
                loop.call_soon_threadsafe(answered.set_result, frame.count)

            channel.expect(number, arrived)
            answer = frames.frame(frames.CALL_ANSWER, [], None, number, 7, frames.FINISHED)
            server.loop.call_soon_threadsafe(channel.deliver, answer)
            channel.watched_by(loop)
            assert await asyncio.wait_for(answered, PATIENCE) == 7
            channel.unwatched_by(loop)
        return 300

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        assert asyncio.run(calls()) == 300
    finally:
        done.set()
        thread.join(PATIENCE)


def test_answer_that_came_before_the_loop_watches_is_read(server: Server) -> None:
    channel = server.channel
    seen: list[int] = []
    number = channel.new_number()
    channel.expect(number, lambda frame: seen.append(frame.count))
    channel.deliver(frames.frame(frames.CALL_ANSWER, [], None, number, 7, frames.FINISHED))

    async def watch() -> None:
        channel.watched_by(asyncio.get_running_loop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(watch())
    assert seen == [7]


def test_end_wakes_all_who_wait(server: Server) -> None:
    server.held = []

    def ask(index: int) -> str:
        try:
            server.channel.ask(frames.IS_READY, 0, index)
        except BrokenPipeError as error:
            return str(error)
        return "answered"

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, i) for i in range(4)]
        server.channel.close()
        assert [each.result(PATIENCE) for each in asked] == ["the model is being unloaded"] * 4
    assert ask(5) == "the model is being unloaded"


def test_loop_that_has_ended_is_a_server_that_is_gone() -> None:
    with turning_loop() as loop:
        channel = LocalChannel(loop, lambda frame: None)
    with pytest.raises(BrokenPipeError, match=r"^the server is gone$"):
        channel.ask(frames.IS_READY, 0, 0)
