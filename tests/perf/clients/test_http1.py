"""The HTTP client against a server of the test, which answers in the pieces that a case gives."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

from halimede.perf.clients.http1 import HttpSlot, error_text
from halimede.perf.clients.io import Io, Slot, Target

REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
LIMIT = 10.0


class Owner:
    def __init__(self) -> None:
        self.ended: list[str] = []

    def finished(self, slot: Slot, end: int, error: str) -> None:
        self.ended.append(error)


Connections = Sequence[Sequence[Sequence[bytes]]]
"""For each connection, the pieces of the answer to each of its requests. After them the connection is closed."""


@contextmanager
def server(connections: Connections) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answers in connections:
            sock, _ = listener.accept()
            with closing(sock):
                sock.settimeout(LIMIT)
                for pieces in answers:
                    received = b""
                    while not received.endswith(b"\r\n\r\n"):
                        received += sock.recv(4096) or b"\r\n\r\n"
                    for piece in pieces:
                        sock.sendall(piece)
                        time.sleep(0.005)  # so that the pieces arrive one by one

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
        thread.join(LIMIT)


def ask(connections: Connections, count: int = 1, keeps: bool = True) -> tuple[Owner, list[list[bytes]]]:
    """Sends requests one after the other on one slot. Returns how they ended, and the bodies of each."""
    owner, io = Owner(), Io()
    bodies = []
    with server(connections) as port:
        slot = HttpSlot(owner, 0, keeps, io, Target("127.0.0.1", port, socket.AF_INET, ("127.0.0.1", port)), {})
        for number in range(count):
            slot.send(REQUEST)
            limit = time.monotonic() + LIMIT
            while len(owner.ended) <= number and time.monotonic() < limit:
                io.turn(50_000_000, False)
            bodies.append(slot.bodies)
        slot.close()
    io.close()
    return owner, bodies


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [OK + b"hello"],
        [OK[:9], OK[9:30], OK[30:] + b"he", b"llo"],
        [b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"hello"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r", b"\n2\r\nlo\r\n0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo"],
    ],
    ids=["whole", "in pieces", "continue", "chunks", "until the end"],
)
def test_answer_is_complete(pieces: Sequence[bytes]) -> None:
    owner, bodies = ask([[pieces]])
    assert owner.ended == [""]
    assert bodies == [[b"hello"]]


def test_connection_serves_the_next_request() -> None:
    owner, bodies = ask([[[OK + b"first"], [OK + b"secnd"]]], count=2)
    assert owner.ended == ["", ""]
    assert bodies == [[b"first"], [b"secnd"]]


def test_closed_connection_is_replaced_and_the_request_sent_again() -> None:
    owner, bodies = ask([[[OK + b"first"]], [[OK + b"secnd"]]], count=2)
    assert owner.ended == ["", ""]
    assert bodies == [[b"first"], [b"secnd"]]


def test_connection_that_says_it_closes_is_replaced() -> None:
    closing_head = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    owner, _ = ask([[[closing_head + b"first"]], [[OK + b"secnd"]]], count=2)
    assert owner.ended == ["", ""]


def test_events_are_responses() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    events = b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    owner, bodies = ask([[[head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events)]]])
    assert owner.ended == [""]
    assert bodies == [[b"1", b"2"]]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b'HTTP/1.1 400 Bad Request\r\nContent-Length: 16\r\n\r\n{"error":"wrong"}'[:-1] + b"}"], "400"),
        ([OK + b"he"], "closed the connection"),
        ([b"SSH-2.0 hello\r\n\r\n"], "does not speak HTTP/1.1"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], "a chunk of an answer has no size"),
    ],
    ids=["status", "cut off", "another protocol", "broken chunk"],
)
def test_failed_request_has_a_reason(pieces: Sequence[bytes], text: str) -> None:
    owner, _ = ask([[pieces]])
    (error,) = owner.ended
    assert text in error


def test_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    owner, io = Owner(), Io()
    slot = HttpSlot(owner, 0, False, io, Target("127.0.0.1", port, socket.AF_INET, ("127.0.0.1", port)), {})
    slot.send(REQUEST)
    limit = time.monotonic() + LIMIT
    while not owner.ended and time.monotonic() < limit:
        io.turn(50_000_000, False)
    assert owner.ended == [f"failed to connect to 127.0.0.1:{port}: Connection refused"]
    assert slot.is_broken


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":"wrong shape"}', "[400] wrong shape"),
        (b'{"error":{"message":"too long"}}', "[400] too long"),
        (b"plain words", "[400] plain words"),
        (b"", "HTTP status 400"),
        (b"<!DOCTYPE HTML>\n<html>", "HTTP status 400"),
        (b"two\nlines", "[400] two lines"),
    ],
)
def test_error_has_the_words_of_the_server(body: bytes, text: str) -> None:
    assert error_text(400, body) == text
