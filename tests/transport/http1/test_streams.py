"""Answers in parts on one connection: chunks, older clients, slow readers, clients that leave, what comes after."""

import pytest

from halimede.transport.http1.connection import MAX_PIPELINED_REQUESTS
from halimede.transport.http1.exchange import JOIN_BYTES, Http1AnswerStream, Http1Exchange
from tests.transport.http1_fakes import Client, echo, request

FIELDS = b"Content-Type: text/event-stream\r\n"
HEAD = b"HTTP/1.1 200 OK\r\n" + FIELDS + b"Transfer-Encoding: chunked\r\n"


def begun(*fields: str, version: str = "1.1", status: int = 200) -> tuple[Client, Http1Exchange, Http1AnswerStream]:
    client = Client().send(request("POST", "/", b"x", *fields, version=version))
    return client, client.exchanges[0], client.exchanges[0].begin(status, FIELDS)


def written(client: Client) -> bytes:
    assert client.transport.misused == []
    return client.transport.written


def test_parts_are_chunks_and_the_head_goes_with_the_first() -> None:
    client, _, stream = begun()
    assert written(client) == b""
    assert stream.send((b"data: ", b"1"))
    assert written(client) == HEAD + b"\r\n7\r\ndata: 1\r\n"
    stream.send((memoryview(b"x" * 16),))
    stream.send((), last=True)
    assert written(client) == HEAD + b"\r\n7\r\ndata: 1\r\n10\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n"
    assert [len(call) for call in client.transport.calls] == [1, 1, 1]


def test_empty_part_is_not_the_end() -> None:
    client, _, stream = begun()
    stream.send((b"",))
    stream.send((b"",))
    assert written(client) == HEAD + b"\r\n"
    stream.send((b"a",), last=True)
    assert written(client) == HEAD + b"\r\n1\r\na\r\n0\r\n\r\n"


def test_only_part_is_one_write() -> None:
    client, _, stream = begun(status=503)
    stream.send((b"a",), last=True)
    head = HEAD.replace(b"200 OK", b"503 Service Unavailable")
    assert client.transport.calls == [[head + b"\r\n1\r\na\r\n0\r\n\r\n"]]


def test_large_part_is_not_copied() -> None:
    client, _, stream = begun()
    large = bytearray(JOIN_BYTES + 1)
    stream.send((large,), last=True)
    (call,) = client.transport.calls
    assert call[2] is large
    assert written(client) == HEAD + b"\r\n10001\r\n" + large + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("fields", [(), ("Connection: keep-alive",)])
def test_older_client_gets_the_parts_as_they_are_and_the_end(fields: tuple[str, ...]) -> None:
    client, _, stream = begun(*fields, version="1.0")
    stream.send((b"a",))
    stream.send((b"b" * JOIN_BYTES, b"c"))
    assert not client.transport.closed
    stream.send((), last=True)
    assert written(client) == b"HTTP/1.0 200 OK\r\n" + FIELDS + b"\r\na" + b"b" * JOIN_BYTES + b"c"
    assert client.transport.closed


def test_closing_stream_has_connection_close() -> None:
    client, _, stream = begun("Connection: close")
    stream.send((b"a",), last=True)
    assert written(client) == HEAD + b"Connection: close\r\n\r\n1\r\na\r\n0\r\n\r\n"
    assert client.transport.closed


def test_requests_behind_a_stream_wait_for_its_end() -> None:
    client, _, stream = begun()
    client.send(request("GET", "/next"))
    stream.send((b"a",))
    assert len(client.exchanges) == 1
    stream.send((), last=True)
    echo(client.exchanges[1])
    assert written(client).endswith(b"\r\n\r\nGET /next\n")
    client.send(request("GET", "/third"))
    assert client.exchanges[2].target == b"/third"


def test_exchange_that_has_begun_takes_no_other_answer() -> None:
    client, exchange, stream = begun()
    stream.send((b"a",))
    exchange.respond(500, b"", (b"no",))
    exchange.begin(500, b"").send((b"no",), last=True)
    stream.send((b"b",), last=True)
    assert written(client) == HEAD + b"\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n"


def test_exchange_that_was_answered_begins_nothing() -> None:
    client, exchange, stream = begun()
    stream.send((), last=True)
    before = written(client)
    assert stream.send((b"late",)) is True
    assert exchange.begin(200, FIELDS).send((b"late",)) is True
    assert written(client) == before


def test_handler_that_breaks_after_it_has_begun_breaks_the_answer_off() -> None:
    """The client would wait forever for the rest, and no other answer can be given."""
    streams: list[Http1AnswerStream] = []
    gone: list[bool] = []

    def handler(exchange: Http1Exchange) -> None:
        exchange.on_gone = lambda: gone.append(True)
        streams.append(exchange.begin(200, FIELDS))
        streams[0].send((b"a",))
        raise ValueError

    client = Client(handler).send(request("POST", "/", b"x"))
    assert client.transport.aborted
    client.lose()
    assert gone == [True]
    assert streams[0].send((b"b",), last=True) is True
    assert written(client) == HEAD + b"\r\n1\r\na\r\n"


def test_handler_that_breaks_before_its_first_part_is_answered() -> None:
    streams: list[Http1AnswerStream] = []

    def handler(exchange: Http1Exchange) -> None:
        streams.append(exchange.begin(200, FIELDS))
        raise ValueError

    client = Client(handler).send(request("POST", "/", b"x"))
    streams[0].send((b"late",), last=True)
    assert [answer.status for answer in client.answers] == [500]
    assert not client.transport.ended


def test_handler_that_breaks_after_its_last_part_changes_nothing() -> None:
    def handler(exchange: Http1Exchange) -> None:
        exchange.begin(200, FIELDS).send((b"a",), last=True)
        raise ValueError

    client = Client(handler).send(request("POST", "/", b"x"))
    assert written(client) == HEAD + b"\r\n1\r\na\r\n0\r\n\r\n"
    assert not client.transport.ended


# Slow readers.


def test_slow_reader_is_not_writable_until_it_reads() -> None:
    client, _, stream = begun()
    resumed: list[str] = []
    stream.on_writable(lambda: resumed.append("at once"))
    client.connection.pause_writing()
    assert stream.send((b"a",)) is False
    stream.on_writable(lambda: resumed.append("first"))
    stream.on_writable(lambda: resumed.append("second"))
    assert resumed == ["at once"]
    client.connection.resume_writing()
    assert resumed == ["at once", "first", "second"]
    assert stream.send((b"b",)) is True
    client.connection.pause_writing()
    client.connection.resume_writing()
    assert len(resumed) == 3


def test_stream_that_begins_for_a_slow_reader_is_not_writable() -> None:
    client = Client().send(request("POST", "/", b"x"))
    client.connection.pause_writing()
    stream = client.exchanges[0].begin(200, FIELDS)
    assert stream.send((b"a",)) is False
    client.connection.resume_writing()
    assert stream.send((b"b",)) is True


def test_slow_reader_is_read_from_again_while_its_stream_goes_on() -> None:
    """Otherwise a client that goes while the stream is silent would go unnoticed."""
    client, _, stream = begun()
    client.connection.pause_writing()
    assert not client.transport.reading
    client.connection.resume_writing()
    assert client.transport.reading
    for number in range(MAX_PIPELINED_REQUESTS):
        client.send(request("GET", f"/{number}"))
    assert not client.transport.reading
    client.connection.pause_writing()
    client.connection.resume_writing()
    assert not client.transport.reading
    stream.send((), last=True)
    assert client.exchanges[1].target == b"/0"


def test_stream_that_ends_when_it_is_resumed_hands_on_what_waited() -> None:
    client, _, stream = begun()
    client.send(request("GET", "/next"))
    client.connection.pause_writing()

    def end() -> None:
        stream.send((b"a",), last=True)

    stream.on_writable(end)
    assert len(client.exchanges) == 1
    client.connection.resume_writing()
    assert client.exchanges[1].target == b"/next"


def test_ended_stream_resumes_all_senders() -> None:
    client, _, stream = begun()
    client.connection.pause_writing()
    resumed: list[bool] = []
    stream.on_writable(lambda: resumed.append(False))
    stream.send((), last=True)
    assert stream.send((b"late",)) is True
    stream.on_writable(lambda: resumed.append(True))
    client.connection.resume_writing()
    assert resumed == [True]


# Ends.


def test_client_that_leaves_is_reported_once_and_nothing_is_written() -> None:
    client, exchange, stream = begun()
    gone: list[bool] = []
    exchange.on_gone = lambda: gone.append(exchange.gone)
    client.send(request("GET", "/next"))
    client.connection.pause_writing()
    stream.on_writable(lambda: gone.append(False))
    before = written(client)
    client.lose()
    assert gone == [True]
    assert stream.send((b"a",)) is True
    assert stream.send((b"b",), last=True) is True
    assert written(client) == before
    assert len(client.exchanges) == 1


def test_client_that_sends_no_more_gets_the_rest() -> None:
    client, _, stream = begun()
    stream.send((b"a",))
    client.end()
    assert not client.transport.closed
    stream.send((b"b",), last=True)
    assert written(client).endswith(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
    assert client.transport.closed


def test_stream_under_way_ends_its_connection_when_the_server_drains() -> None:
    client, _, stream = begun()
    stream.send((b"a",))
    client.listener.drain()
    assert not client.transport.closed
    stream.send((), last=True)
    assert client.transport.closed


def test_stream_under_way_keeps_its_connection_for_the_next_request() -> None:
    """Its head did not say that the connection ends, so the client may send another request."""
    client, _, stream = begun()
    stream.send((b"a",))
    client.listener.drain(5.0)
    stream.send((), last=True)
    assert not client.transport.closed
    client.send(request("GET", "/b"))
    echo(client.exchanges[1])
    assert written(client).endswith(b"Connection: close\r\nContent-Type: text/plain\r\n\r\nGET /b\n")
    assert client.transport.closed


def test_stream_begun_while_the_server_drains_has_connection_close() -> None:
    client = Client().send(request("POST", "/", b"x"))
    client.listener.drain()
    client.exchanges[0].begin(200, FIELDS).send((b"a",), last=True)
    assert b"Connection: close\r\n" in written(client)
    assert client.transport.closed
