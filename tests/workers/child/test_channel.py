"""The worker's end of the socket: batches and replies that arrive for different threads."""

import asyncio
import select
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from halimede.workers.child import frames
from halimede.workers.child.channel import Channel
from tests.workers.fakes import PATIENCE


class Server:
    """The other end of the socket, spoken to frame by frame."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._assembler = frames.Assembler()
        self._found: list[frames.Frame] = []

    def question(self) -> tuple[int, frames.Frame]:
        """The next question and its number."""
        while not self._found:
            self._found = self._assembler.received(self.socket.recv_into(self._assembler.space()))
        found = self._found.pop(0)
        assert found.kind == frames.QUESTION
        return found.unpack(frames.NUMBER)[0], found

    def send(self, kind: int, batch: int, count: int = 0) -> None:
        self.socket.sendall(b"".join(frames.frame(kind, [], None, batch, count)))


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Server]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    with ours, theirs:
        yield Channel(ours), Server(theirs)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def result(future: "Future[Any]") -> Any:
    return future.result(PATIENCE)


def test_question_says_what_it_is_about(ends: tuple[Channel, Server], threads: ThreadPoolExecutor) -> None:
    channel, server = ends
    answer = threads.submit(channel.ask, frames.IS_CANCELLED, 7, 2)
    number, question = server.question()
    assert (question.flags, question.batch, question.count) == (frames.IS_CANCELLED, 7, 2)
    server.send(frames.REPLY, number, 1)
    assert result(answer) == 1


def test_server_that_was_killed_with_frames_unread_is_gone(ends: tuple[Channel, Server]) -> None:
    channel, server = ends
    channel.send([b"unread"])
    server.socket.close()
    with pytest.raises(BrokenPipeError):
        channel.wait_until(lambda: False)


def test_replies_reach_who_asked_in_any_order(ends: tuple[Channel, Server], threads: ThreadPoolExecutor) -> None:
    channel, server = ends
    answers = {index: threads.submit(channel.ask, 1, 7, index) for index in range(3)}
    for number, question in reversed([server.question() for _ in answers]):
        server.send(frames.REPLY, number, question.count + 10)
    assert {index: result(answer) for index, answer in answers.items()} == {0: 10, 1: 11, 2: 12}


def test_batch_that_arrives_before_a_reply_waits_for_its_receiver(
    ends: tuple[Channel, Server], threads: ThreadPoolExecutor
) -> None:
    channel, server = ends
    answer = threads.submit(channel.ask, 1, 7, 0)
    number, _ = server.question()
    server.send(frames.REQUESTS, 8)
    server.send(frames.REPLY, number)
    assert result(answer) == 0
    received = result(threads.submit(channel.receive))
    assert received.batch == 8


def test_receiver_that_waits_first_reads_the_reply_of_another(
    ends: tuple[Channel, Server], threads: ThreadPoolExecutor
) -> None:
    channel, server = ends
    received = threads.submit(channel.receive)
    for count in range(5):
        answer = threads.submit(channel.ask, 1, 7, 0)
        number, _ = server.question()
        server.send(frames.REPLY, number, count)
        assert result(answer) == count
    server.send(frames.REQUESTS, 8)
    assert result(received).batch == 8


def test_thread_that_waits_for_a_reply_reads_on_when_the_receiver_has_its_batch(
    ends: tuple[Channel, Server], threads: ThreadPoolExecutor
) -> None:
    channel, server = ends
    received = threads.submit(channel.receive)
    answer = threads.submit(channel.ask, 1, 7, 0)
    number, _ = server.question()
    server.send(frames.REQUESTS, 8)
    assert result(received).batch == 8
    server.send(frames.REPLY, number, 1)
    assert result(answer) == 1


def test_end_of_the_server_ends_all_waits(ends: tuple[Channel, Server], threads: ThreadPoolExecutor) -> None:
    channel, server = ends
    received = threads.submit(channel.receive)
    answer = threads.submit(channel.ask, 1, 7, 0)
    server.question()
    server.socket.shutdown(socket.SHUT_WR)
    assert result(received) is None
    with pytest.raises(BrokenPipeError):
        result(answer)


def test_sending_goes_on_beside_a_receiver(ends: tuple[Channel, Server], threads: ThreadPoolExecutor) -> None:
    channel, server = ends
    received = threads.submit(channel.receive)
    channel.send(frames.frame(frames.QUESTION, [frames.NUMBER.pack(5)]))
    assert server.question()[0] == 5
    server.send(frames.CLOSE, 0)
    assert result(received).kind == frames.CLOSE


def test_frame_that_an_alarm_breaks_off_is_the_last(
    ends: tuple[Channel, Server], threads: ThreadPoolExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the server would take the next frame for the rest of the broken one."""
    channel, server = ends
    main_thread = threading.get_ident()

    heard = threading.Event()

    def ring(*_: object) -> None:
        if not heard.is_set():
            heard.set()
            raise TimeoutError("over")

    def alarm() -> bool:
        """Rings when the first bytes of the frame have arrived. The rest cannot go: the server reads none. Rings again
        until it is heard: a signal just before a system call that blocks does not wake Python."""
        readable, _, _ = select.select([server.socket], [], [], PATIENCE)
        for _ in range(1000):
            signal.pthread_kill(main_thread, signal.SIGALRM)
            if heard.wait(0.01):
                break
        return bool(readable)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        alarmed = threads.submit(alarm)
        with pytest.raises(TimeoutError, match="over"):
            channel.send(frames.frame(frames.CALL, [], [bytes(1 << 24)]))
        assert result(alarmed)
    finally:
        signal.signal(signal.SIGALRM, before)
    size = 0
    while received := len(server.socket.recv(1 << 20)):
        size += received
    assert 0 < size < 1 << 24
    with pytest.raises(BrokenPipeError):
        channel.send(frames.frame(frames.LOG, []))
    assert capsys.readouterr().err == "a message to the server was broken off (TimeoutError): this worker ends\n"


def test_loops_that_begin_at_once_watch_the_same_descriptor(
    ends: tuple[Channel, Server], threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, _ = ends
    made: list[Any] = []
    both = Barrier(2)

    def epoll() -> Any:
        with suppress(BrokenBarrierError):  # nobody else is let in
            both.wait(0.05)
        made.append(epolls())
        return made[-1]

    class Loop(asyncio.SelectorEventLoop):
        def add_reader(self, fd: Any, *watch: Any) -> None:  # type: ignore[override]
            watched.append(fd)

    epolls = select.epoll
    watched: list[int] = []
    monkeypatch.setattr(select, "epoll", epoll)
    loops = [Loop() for _ in range(2)]
    for one in [threads.submit(channel.watched_by, loop) for loop in loops]:
        result(one)
    for loop in loops:
        loop.close()
    assert [each.fileno() for each in made] * 2 == watched


def test_what_a_finaliser_says_while_a_socket_is_offered_follows_it(ends: tuple[Channel, Server]) -> None:
    channel, server = ends

    class Offered(socket.socket):
        def fileno(self) -> int:
            channel.send_from_finaliser(frames.frame(frames.QUESTION, [frames.NUMBER.pack(7)], None))
            return super().fileno()

    channel.offer(frames.frame(frames.QUESTION, [frames.NUMBER.pack(6)], None), Offered())
    assert [server.question()[0] for _ in range(2)] == [6, 7]
