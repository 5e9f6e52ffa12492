"""How the body of a request arrives: at once, in parts, into its own buffer, in chunks, after `100 Continue`."""

import ctypes

import pytest

from halimede.tensors import Buffer
from halimede.transport.buffers import ALIGNMENT_BYTES
from halimede.transport.http1.exchange import Http1Exchange
from halimede.transport.http1.listener import RECEIVE_BUFFER_BYTES
from halimede.transport.http1.reader import MAX_CHUNKS
from tests.transport.http1_fakes import Client, chunked, echo, request

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def address(buffer: Buffer) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def pattern(size: int) -> bytes:
    """Bytes in which every shift and every gap is noticed."""
    return b"".join(i.to_bytes(4, "little") for i in range(size // 4 + 1))[:size]


def body_of(client: Client) -> Buffer:
    (exchange,) = client.exchanges
    return exchange.body


@pytest.mark.parametrize(
    "size", [0, 1, 2, 100, RECEIVE_BUFFER_BYTES - 200, RECEIVE_BUFFER_BYTES, RECEIVE_BUFFER_BYTES + 1, 1_000_003]
)
@pytest.mark.parametrize("step", [None, 997, 65_536])
def test_body_of_any_size_in_any_reads_arrives_whole(size: int, step: int | None) -> None:
    body = pattern(size)
    client = Client().send(request("POST", "/", body), step)
    assert bytes(body_of(client)) == body


def test_body_after_its_head_in_another_read_arrives_whole() -> None:
    client = Client().send(request("POST", "/", b"abcdef")[:-6])
    assert not client.exchanges
    client.send(b"abc").send(b"def")
    assert bytes(body_of(client)) == b"abcdef"


def test_large_body_is_received_into_the_buffer_of_its_request() -> None:
    """What comes after the first read is not copied: the request keeps the memory that was received into."""
    size = 1_000_000
    client = Client().send(request("POST", "/", b"x" * size)[:-size])
    room = client.connection.get_buffer(-1)
    assert len(room) == size
    where = address(room)
    client.send(pattern(size))
    body = body_of(client)
    assert isinstance(body, memoryview)
    assert (address(body), body.nbytes, body.format) == (where, size, "B")
    assert body == pattern(size)


def test_body_in_place_is_not_reused_for_the_next_request() -> None:
    client = Client()
    for fill in (b"a", b"b"):
        client.send(request("POST", "/", fill * (2 * RECEIVE_BUFFER_BYTES)))
        echo(client.exchanges[-1])
    assert bytes(client.exchanges[0].body) == b"a" * (2 * RECEIVE_BUFFER_BYTES)
    assert bytes(client.exchanges[1].body) == b"b" * (2 * RECEIVE_BUFFER_BYTES)


@pytest.mark.parametrize("head", [0, 1, 63, 64, 100, 151, 4095])
def test_first_tensor_of_a_body_in_place_lies_on_a_64_byte_boundary(head: int) -> None:
    """TensorFlow refuses a smaller alignment. The first tensor begins where the JSON ends."""
    body = b"j" * head + pattern(2 * RECEIVE_BUFFER_BYTES)
    client = Client().send(request("POST", "/", body, f"Inference-Header-Content-Length: {head}"))
    received = body_of(client)
    assert (address(received) + head) % ALIGNMENT_BYTES == 0
    assert received == body


@pytest.mark.parametrize("head", ["x", "-5", "", "99999999999999999999", "1.5", "1" * 5000])
def test_body_with_a_wrong_inference_header_length_reaches_the_front_end(head: str) -> None:
    body = pattern(2 * RECEIVE_BUFFER_BYTES)
    client = Client().send(request("POST", "/", body, f"Inference-Header-Content-Length: {head}"))
    assert body_of(client) == body


def test_body_without_memory_for_it_is_refused() -> None:
    client = Client().send(b"POST / HTTP/1.1\r\nContent-Length: 4611686018427387904\r\n\r\nabc")
    assert client.transport.ended
    (answer,) = client.answers
    assert answer.status == 400
    assert answer.body == b'{"error":"no memory for a request body of 4611686018427387904 bytes"}'


def test_body_in_place_is_followed_by_the_next_request() -> None:
    large = request("POST", "/large", pattern(3 * RECEIVE_BUFFER_BYTES + 5))
    client = Client(lambda exchange: echo(exchange)).send((large + request("GET", "/next")) * 3)
    assert [answer.body.split(b"\n", 1)[0] for answer in client.answers] == [b"POST /large", b"GET /next"] * 3


def test_body_in_place_keeps_what_its_head_said_of_the_connection() -> None:
    body = pattern(2 * RECEIVE_BUFFER_BYTES)
    client = Client(echo).send(request("POST", "/", body, "Connection: close"))
    assert client.answers[0].field("Connection") == "close"
    assert client.transport.closed
    old = Client(echo).send(request("POST", "/", body, version="1.0"))
    assert old.answers[0].line == "HTTP/1.0 200 OK"


# Chunks.


def test_chunked_body_is_joined() -> None:
    client = Client().send(chunked("/", [b"ab", b"c" * 300, b"d"]))
    assert bytes(body_of(client)) == b"ab" + b"c" * 300 + b"d"


def test_chunked_body_without_chunks_is_empty() -> None:
    assert bytes(body_of(Client().send(chunked("/", [])))) == b""


def test_chunk_larger_than_one_read_is_joined() -> None:
    part = pattern(2 * RECEIVE_BUFFER_BYTES + 1)
    client = Client().send(chunked("/", [part, b"end"]))
    assert bytes(body_of(client)) == part + b"end"


@pytest.mark.parametrize("size", [None, 1, 5])
def test_chunk_extensions_are_ignored(size: int | None) -> None:
    sent = request("POST", "/", None, "Transfer-Encoding: chunked") + b'3;a=b;c="d"\r\nabc\r\n1\r\nd\r\n0;e\r\n\r\n'
    assert bytes(body_of(Client().send(sent, size))) == b"abcd"


@pytest.mark.parametrize("size", [None, 1])
def test_trailers_are_read_and_are_no_headers(size: int | None) -> None:
    """A trailer must not replace the header field that frames the body."""
    sent = chunked(
        "/a",
        [b"abc"],
        "Inference-Header-Content-Length: 3",
        end=b"0\r\nInference-Header-Content-Length: 0\r\nX-Sum: 1\r\n\r\n",
    )
    client = Client(None).send(sent, size)
    (exchange,) = client.exchanges
    assert exchange.headers[b"inference-header-content-length"] == b"3"
    assert b"x-sum" not in exchange.headers
    echo(exchange)
    client.send(request("GET", "/b"))
    assert client.exchanges[-1].target == b"/b"


def test_trailers_that_never_end_are_refused() -> None:
    client = Client().send(chunked("/", [b"abc"], end=b"0\r\n"))
    for number in range(4000):
        if client.transport.ended:
            break
        client.send(b"X-%d: " % number + b"a" * 1000 + b"\r\n")
    assert client.transport.ended
    assert [answer.status for answer in client.answers] == [431]


def test_most_chunks_that_are_allowed_are_taken() -> None:
    client = Client().send(chunked("/", [b"x"] * MAX_CHUNKS))
    assert bytes(body_of(client)) == b"x" * MAX_CHUNKS


@pytest.mark.parametrize("step", [None, 1000])
@pytest.mark.parametrize("end", [b"0\r\n\r\n", b""], ids=["ended", "going on"])
def test_one_chunk_too_many_is_refused_and_closed(step: int | None, end: bytes) -> None:
    client = Client().send(chunked("/", [b"x"] * (MAX_CHUNKS + 1), end=end), step)
    (answer,) = client.answers
    assert answer.status == 400
    assert answer.body == (
        b'{"error":"Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."}'
    )
    assert answer.field("Content-Type") == "application/json"
    assert answer.field("Connection") == "close"
    assert client.transport.closed
    assert not client.exchanges


def test_chunks_of_one_request_do_not_count_for_the_next() -> None:
    client = Client(echo)
    for _ in range(2):
        client.send(chunked("/", [b"x"] * (MAX_CHUNKS - 1)))
    assert [answer.status for answer in client.answers] == [200, 200]


@pytest.mark.parametrize("size", [10, 1000])
def test_chunked_body_without_end_is_refused_and_closed(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds also within a single chunk that never ends."""
    monkeypatch.setattr("halimede.transport.http1.reader.MAX_CHUNKED_BYTES", 100_000)
    client = Client()
    client.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    if size == 1000:
        client.send(b"7fffffff\r\n")
    for _ in range(100_000 // size):
        client.send(b"x" * size if size == 1000 else b"a\r\n" + b"x" * size + b"\r\n")
    assert not client.answers
    client.send(b"x" if size == 1000 else b"1\r\nx\r\n")
    (answer,) = client.answers
    assert (answer.status, answer.field("Connection")) == (400, "close")
    assert answer.body == b'{"error":"Chunked request body exceeds maximum of 100000 bytes."}'
    assert not client.exchanges


# 100-continue.


def test_expect_gets_continue_before_the_body() -> None:
    whole = request("POST", "/", b"abc", "Expect: 100-continue")
    client = Client().send(whole[:-3])
    assert client.transport.written == CONTINUE
    client.send(b"abc")
    assert bytes(body_of(client)) == b"abc"
    echo(client.exchanges[0])
    assert client.transport.written.startswith(CONTINUE + b"HTTP/1.1 200 OK\r\n")


def test_expect_of_an_older_client_is_ignored() -> None:
    """The client would take the interim answer for the answer (RFC 9110, section 10.1.1)."""
    whole = request("POST", "/", b"abc", "Expect: 100-continue", version="1.0")
    client = Client(echo).send(whole[:-3]).send(whole[-3:])
    assert [answer.body for answer in client.answers] == [b"POST /\nabc"]


def test_expect_behind_a_refused_request_gets_no_answer_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    long = request("GET", "/a", None, "X: " + "y" * 17_000)
    client = Client().send(long + request("POST", "/b", b"abc", "Expect: 100-continue")[:-3])
    assert client.transport.closed
    assert [answer.status for answer in client.answers] == [431]
    assert not caplog.records


def test_expect_with_a_sized_body_gets_continue() -> None:
    size = 2 * RECEIVE_BUFFER_BYTES
    whole = request("POST", "/", pattern(size), "Expect: 100-continue")
    client = Client().send(whole[:-size])
    assert client.transport.written == CONTINUE
    client.send(whole[-size:])
    assert body_of(client) == pattern(size)


def test_expect_behind_a_request_in_flight_gets_continue_in_its_turn() -> None:
    """The 100 must not come before the answer to the earlier request, and it must come, because the client waits for
    it."""
    client = Client().send(request("GET", "/a") + request("POST", "/b", b"abc", "Expect: 100-continue")[:-3])
    assert client.transport.written == b""
    echo(client.exchanges[0])
    assert client.transport.written.endswith(b"GET /a\n" + CONTINUE)
    client.send(b"abc")
    assert [bytes(one.body) for one in client.exchanges] == [b"", b"abc"]


def test_expect_with_its_body_behind_a_request_in_flight_is_answered() -> None:
    client = Client().send(request("GET", "/a") + request("POST", "/b", b"abc", "Expect: 100-continue"))
    taken: list[Http1Exchange] = client.exchanges
    echo(taken[0])
    echo(taken[1])
    assert client.transport.written.replace(CONTINUE, b"").count(b"HTTP/1.1 200 OK") == 2
