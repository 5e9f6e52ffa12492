"""Senders in the worker that are ahead of their readers: they wait for credit, each for its own."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from halimede.workers.child import frames
from halimede.workers.child.batch import WorkerBatch
from halimede.workers.child.channel import Channel
from halimede.workers.child.requests import InferenceRequest
from halimede.workers.child.values import InferenceResponse, Tensor, TritonModelException
from tests.workers.fakes import PATIENCE

BATCH = 7
ELEMENTS = 100_000
FIT = 6
"""How many of these responses (0.4 MB) are sent before the first is taken: those that begin within the window."""


class Server:
    """The other end of the socket: reads answers, and gives credit for what it has read."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._assembler = frames.Assembler()
        self._found: list[frames.Frame] = []
        self._read: dict[int, int] = {}

    def read(self, index: int, count: int) -> None:
        """Reads so many answers, which must all be to this request."""
        for _ in range(count):
            while not self._found:
                self._found = self._assembler.received(self.socket.recv_into(self._assembler.space()))
            answer = self._found.pop(0)
            assert (answer.kind, answer.batch) == (frames.ANSWERS, BATCH)
            assert int.from_bytes(answer.data[-4:], "little") == index
            self._read[index] = self._read.get(index, 0) + len(answer.data) + frames.OVERHEAD

    def credit(self, index: int) -> None:
        credit = frames.frame(frames.CREDIT, [frames.NUMBER.pack(self._read[index])], None, BATCH, index)
        self.socket.sendall(b"".join(credit))

    def send(self, kind: int, batch: int) -> None:
        self.socket.sendall(b"".join(frames.frame(kind, [], None, batch)))


Ends = tuple[WorkerBatch, Server, Channel]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    with ours, theirs:
        channel = Channel(ours)
        batch = WorkerBatch(channel, BATCH, 2, decoupled=True)
        request = InferenceRequest(inputs=(), requested_output_names=["OUTPUT0"], model_name="m")
        batch.opened([request, request], 0)
        batch.handed_over(0)
        frame = frames.Assembler()
        assert frame.received(theirs.recv_into(frame.space()))[0].flags & frames.FINISHED
        yield batch, Server(theirs), channel


@pytest.fixture
def threads(ends: Ends) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(6) as pool:
        yield pool
        ends[1].socket.shutdown(socket.SHUT_RDWR)  # whoever still waits goes on


def flood(batch: WorkerBatch, index: int, count: int) -> None:
    for _ in range(count):
        batch.answer(index, InferenceResponse([Tensor("OUTPUT0", np.full(ELEMENTS, index, np.int32))]), False)


def waits(future: "Future[Any]") -> bool:
    with pytest.raises(TimeoutError):
        future.result(0.05)
    return True


def batch_of(received: "Future[frames.Frame | None]") -> int:
    message = received.result(PATIENCE)
    assert message is not None
    batch: int = message.batch
    return batch


def test_sender_waits_for_credit(ends: Ends, threads: ThreadPoolExecutor) -> None:
    batch, server, _ = ends
    sending = threads.submit(flood, batch, 1, 2 * FIT)
    server.read(1, FIT)
    assert waits(sending)
    server.credit(1)
    server.read(1, FIT)
    sending.result(PATIENCE)


def test_sender_waits_while_the_main_thread_reads(ends: Ends, threads: ThreadPoolExecutor) -> None:
    batch, server, channel = ends
    received = threads.submit(channel.receive)
    sending = threads.submit(flood, batch, 0, 3 * FIT)
    for _ in range(2):
        server.read(0, FIT)
        assert waits(sending)
        server.credit(0)
    server.read(0, FIT)
    sending.result(PATIENCE)
    server.send(frames.REQUESTS, 8)
    assert batch_of(received) == 8


def test_batch_that_arrives_while_a_sender_waits_is_received(ends: Ends, threads: ThreadPoolExecutor) -> None:
    batch, server, channel = ends
    sending = threads.submit(flood, batch, 0, FIT + 1)
    server.read(0, FIT)
    assert waits(sending)
    received = threads.submit(channel.receive)
    server.send(frames.REQUESTS, 8)
    assert batch_of(received) == 8
    server.credit(0)
    server.read(0, 1)
    sending.result(PATIENCE)


def test_sender_of_another_request_does_not_wait(ends: Ends, threads: ThreadPoolExecutor) -> None:
    batch, server, _ = ends
    slow = threads.submit(flood, batch, 0, FIT + 1)
    server.read(0, FIT)
    quick = threads.submit(flood, batch, 1, 4 * FIT)
    for _ in range(4):
        server.read(1, FIT)
        server.credit(1)
    quick.result(PATIENCE)
    assert waits(slow)
    server.credit(0)
    server.read(0, 1)
    slow.result(PATIENCE)


def test_last_answer_does_not_wait(ends: Ends, threads: ThreadPoolExecutor) -> None:
    batch, server, _ = ends
    sending = threads.submit(flood, batch, 0, FIT)
    server.read(0, FIT)
    sending.result(PATIENCE)
    threads.submit(batch.answer, 0, None, True).result(PATIENCE)


def test_sender_whose_request_is_over_meanwhile_is_told(ends: Ends, threads: ThreadPoolExecutor) -> None:
    batch, server, _ = ends
    sending = threads.submit(flood, batch, 0, FIT + 1)
    server.read(0, FIT)
    assert waits(sending)
    batch.failed("broke")
    server.credit(0)  # the server releases what waits for a request that is over
    with pytest.raises(TritonModelException, match="Response sender has been closed"):
        sending.result(PATIENCE)


def test_credit_for_a_batch_that_is_over_is_nothing(ends: Ends, threads: ThreadPoolExecutor) -> None:
    batch, server, channel = ends
    sending = threads.submit(flood, batch, 0, 1)
    server.read(0, 1)
    sending.result(PATIENCE)
    batch.failed("broke")
    server.credit(0)
    server.send(frames.REQUESTS, 8)
    assert batch_of(threads.submit(channel.receive)) == 8


def test_end_of_the_server_releases_a_sender(ends: Ends, threads: ThreadPoolExecutor) -> None:
    batch, server, _ = ends
    sending = threads.submit(flood, batch, 0, FIT + 1)
    server.read(0, FIT)
    server.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(BrokenPipeError):
        sending.result(PATIENCE)
