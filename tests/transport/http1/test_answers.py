"""Answers written to one connection: their bytes, their order when requests are pipelined, slow readers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.transport.http1.connection import MAX_PIPELINED_REQUESTS
from halimede.transport.http1.exchange import JOIN_BYTES, Http1Exchange
from halimede.transport.http1.listener import RECEIVE_BUFFER_BYTES
from tests.transport.http1_fakes import Client, echo, request, responses


def asked(method: str = "GET", *fields: str, version: str = "1.1") -> tuple[Client, Http1Exchange]:
    client = Client().send(request(method, "/", None, *fields, version=version))
    return client, client.exchanges[0]


# Bytes.


def test_answer_with_fields_keeps_them_before_the_length() -> None:
    client, exchange = asked()
    exchange.respond(200, b"Content-Type: application/json\r\nX-A: b\r\n", [b'{"a":', b"1}"])
    assert client.transport.written == (
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-A: b\r\nContent-Length: 7\r\n\r\n{"a":1}'
    )


def test_answer_without_fields_is_plain_text() -> None:
    client, exchange = asked()
    exchange.respond(200, b"", ())
    assert client.transport.written == b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: text/plain\r\n\r\n"


def test_closing_answer_has_connection_close_after_the_length() -> None:
    client, exchange = asked("GET", "Connection: close")
    exchange.respond(404, b"", [b"no"])
    assert client.transport.written == (
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\nno"
    )


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (200, "HTTP/1.1 200 OK"),
        (400, "HTTP/1.1 400 Bad Request"),
        (403, "HTTP/1.1 403 Forbidden"),
        (404, "HTTP/1.1 404 Not Found"),
        (405, "HTTP/1.1 405 Not Allowed"),
        (500, "HTTP/1.1 500 Internal Server Error"),
        (501, "HTTP/1.1 501 Not Implemented"),
        (503, "HTTP/1.1 503 Service Unavailable"),
    ],
)
def test_status_line_has_tritons_reason(status: int, line: str) -> None:
    client, exchange = asked()
    exchange.respond(status, b"", ())
    assert client.answers[0].line == line


def test_head_is_answered_without_the_body() -> None:
    client, exchange = asked("HEAD")
    exchange.respond(405, b"", [b'{"error":"Method Not Allowed"}'])
    (answer,) = responses(client.transport.written, heads_only=True)
    assert answer.field("Content-Length") == "30"
    assert client.transport.written.endswith(b"\r\n\r\n")


def test_small_answer_is_one_write() -> None:
    client, exchange = asked()
    exchange.respond(200, b"", [b"ab", memoryview(b"cd"), bytearray(b"ef")])
    assert [len(call) for call in client.transport.calls] == [1]
    assert client.answers[0].body == b"abcdef"


def test_large_answer_is_written_as_the_buffers_it_has() -> None:
    """Tensors are not copied: the transport gets the same objects."""
    client, exchange = asked()
    head, tensor = b'{"outputs":[]}', memoryview(bytearray(b"t" * (JOIN_BYTES + 1)))
    exchange.respond(200, b"", [head, tensor])
    (call,) = client.transport.calls
    assert call[1] is head
    assert call[2] is tensor
    assert client.answers[0].field("Content-Length") == str(len(head) + len(tensor))


@pytest.mark.parametrize("size", [JOIN_BYTES - 1, JOIN_BYTES, JOIN_BYTES + 1])
def test_answer_around_the_joining_size_is_whole(size: int) -> None:
    client, exchange = asked()
    exchange.respond(200, b"", [b"a", b"b" * (size - 1)])
    assert client.answers[0].body == b"a" + b"b" * (size - 1)


def test_second_answer_to_one_request_is_ignored() -> None:
    client, exchange = asked()
    exchange.respond(200, b"", [b"one"])
    exchange.respond(500, b"", [b"two"])
    assert [answer.body for answer in client.answers] == [b"one"]


def test_second_answer_does_not_become_the_answer_of_the_next_request() -> None:
    client, exchange = asked()
    exchange.respond(200, b"", [b"one"])
    client.send(request("GET", "/next"))
    exchange.respond(500, b"", [b"two"])
    echo(client.exchanges[1])
    assert [answer.body for answer in client.answers] == [b"one", b"GET /next\n"]


# Pipelining.


def test_pipelined_requests_are_handled_one_after_the_other() -> None:
    client = Client().send(b"".join(request("GET", f"/{i}") for i in range(3)))
    assert len(client.exchanges) == 1
    for number in range(3):
        assert client.exchanges[-1].target == b"/%d" % number
        echo(client.exchanges[-1])
    assert [answer.body for answer in client.answers] == [b"GET /0\n", b"GET /1\n", b"GET /2\n"]


def test_pipelined_requests_answered_at_once_do_not_pile_up_calls() -> None:
    count = RECEIVE_BUFFER_BYTES // 40
    held: list[Http1Exchange] = []

    def handle(exchange: Http1Exchange) -> None:
        if exchange.target == b"/first":
            held.append(exchange)
        else:
            echo(exchange)

    client = Client(handle).send(request("GET", "/first") + request("GET", "/") * count)
    echo(held[0])
    client.clock.advance(0)
    client.deliver()
    assert len(client.answers) == count + 1


def test_pipelining_without_end_stops_reading_and_goes_on_later() -> None:
    client = Client()
    client.send(b"".join(request("GET", f"/{i}") for i in range(MAX_PIPELINED_REQUESTS * 3)), 40)
    assert not client.transport.reading
    answered = 0
    while answered < len(client.exchanges):
        echo(client.exchanges[answered])
        answered += 1
        client.deliver(40)
    assert [one.target for one in client.exchanges] == [b"/%d" % i for i in range(MAX_PIPELINED_REQUESTS * 3)]
    assert client.transport.reading


@pytest.mark.parametrize("idle_seconds", [0.0, 5.0])
def test_pipelined_requests_are_all_answered_while_the_server_drains(idle_seconds: float) -> None:
    client = Client().send(request("GET", "/a") + request("GET", "/b"))
    client.listener.drain(idle_seconds)
    for number in range(2):
        echo(client.exchanges[number])
    assert [answer.field("Connection") for answer in client.answers] == [None, "close"]
    assert client.transport.closed


# A client that does not read.


def test_slow_reader_gets_no_further_request_handled_until_it_reads() -> None:
    """Otherwise a client that pipelines and never reads fills the memory with answers."""
    client = Client().send(b"".join(request("GET", f"/{i}") for i in range(3)))
    client.connection.pause_writing()
    echo(client.exchanges[0])
    assert len(client.exchanges) == 1
    client.connection.resume_writing()
    assert len(client.exchanges) == 2
    echo(client.exchanges[1])
    echo(client.exchanges[2])
    assert len(client.answers) == 3


def test_slow_reader_without_a_request_waiting_is_not_read_from() -> None:
    client = Client().send(request("GET", "/a"))
    client.connection.pause_writing()
    echo(client.exchanges[0])
    for number in range(MAX_PIPELINED_REQUESTS * 4):
        client.send(request("GET", f"/{number}"))
    assert len(client.exchanges) == 1
    assert not client.transport.reading
    client.connection.resume_writing()
    answered = 1
    client.deliver()
    while answered < len(client.exchanges):
        echo(client.exchanges[answered])
        answered += 1
        client.clock.advance(0)
        client.deliver()
    assert len(client.answers) == 1 + MAX_PIPELINED_REQUESTS * 4


def test_slow_reader_that_reads_again_with_nothing_waiting_goes_on() -> None:
    client = Client().send(request("GET", "/a"))
    echo(client.exchanges[0])
    client.connection.pause_writing()
    client.connection.resume_writing()
    client.send(request("GET", "/b"))
    echo(client.exchanges[1])
    assert [answer.body for answer in client.answers] == [b"GET /a\n", b"GET /b\n"]


def test_slow_reader_of_the_last_answer_is_closed_when_it_has_read() -> None:
    client, exchange = asked("GET", "Connection: close")
    client.connection.pause_writing()
    echo(exchange)
    client.connection.resume_writing()
    assert client.transport.closed


def test_slow_reader_does_not_hold_a_drain() -> None:
    """The transport flushes what the client has not read. The connection waits for nothing more."""
    client, exchange = asked()
    client.connection.pause_writing()
    echo(exchange)
    client.listener.drain()
    assert client.transport.closed


@given(st.lists(st.sampled_from(["send", "answer", "pause", "resume"]), max_size=80))
@settings(max_examples=200, deadline=None)
def test_answers_keep_their_order_however_the_client_sends_and_reads(steps: list[str]) -> None:
    """Nothing is lost and nothing is read twice, in whatever order things happen."""
    client, sent, answered, write_paused = Client(), 0, 0, False

    def answer() -> None:
        nonlocal answered
        if answered < len(client.exchanges):
            echo(client.exchanges[answered])
            answered += 1
        client.clock.advance(0)
        client.deliver()

    for step in steps:
        if step == "send":
            client.send(b"".join(request("POST", f"/{sent + i}", b"b" * i) for i in range(7)))
            sent += 7
        elif step == "answer":
            answer()
        elif (step == "pause") is not write_paused:
            write_paused = not write_paused
            (client.connection.pause_writing if write_paused else client.connection.resume_writing)()
            client.deliver()
        assert len(client.exchanges) <= answered + 1, "handed on before the answer to the one before"
    if write_paused:
        client.connection.resume_writing()
        client.deliver()
    while answered < len(client.exchanges):
        answer()
    assert [one.target for one in client.exchanges] == [b"/%d" % number for number in range(sent)]
    assert [one.body.split(b"\n")[0] for one in client.answers] == [b"POST /%d" % number for number in range(sent)]
    assert client.transport.reading
