"""Requests read from one connection: heads, keep-alive, any split of the bytes, malformed and cut-off requests."""

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.transport.http1.exchange import Http1Exchange
from halimede.transport.http1.listener import MAX_HEAD_BYTES
from tests.transport.http1_fakes import Client, chunked, echo, request

STREAM = (
    request("GET", "/one?x=1"),
    request("POST", "/two", b"abc", "X-A: 1"),
    chunked("/three", [b"de", b"f" * 40, b"\r\n0\r\n\r\n"]),
    request("POST", "/four", b""),
    request("POST", "/five", b"0123456789" * 30, "Upgrade-Insecure-Requests: 1"),
    request("GET", "/six", b"a body that nobody asked for"),
    request("DELETE", "/seven", None, "Connection: close"),
)
HEAD_TOO_LARGE = f"the head of the request, or its trailers, exceed {MAX_HEAD_BYTES} bytes (--http-max-header-bytes)"
CUT_OFF = "the connection ended before the end of the request"
EXPECTED = [
    (b"GET", b"/one?x=1", b""),
    (b"POST", b"/two", b"abc"),
    (b"POST", b"/three", b"de" + b"f" * 40 + b"\r\n0\r\n\r\n"),
    (b"POST", b"/four", b""),
    (b"POST", b"/five", b"0123456789" * 30),
    (b"GET", b"/six", b"a body that nobody asked for"),
    (b"DELETE", b"/seven", b""),
]


def seen(client: Client) -> list[tuple[bytes, bytes, bytes]]:
    return [(one.method, one.target, bytes(one.body)) for one in client.exchanges]


def refusals(client: Client) -> list[str]:
    """The reasons of the answers, all of which must be refusals that end the connection: with 431 for too large
    heads, else with 400."""
    for answer in client.answers:
        status = 431 if b"exceed" in answer.body else 400
        assert (answer.status, answer.field("Connection")) == (status, "close")
    return [json.loads(answer.body)["error"] for answer in client.answers]


def recording() -> Client:
    """A client whose requests are recorded and answered at once."""

    def handle(exchange: Http1Exchange) -> None:
        client.exchanges.append(exchange)
        echo(exchange)

    client = Client(handle)
    return client


def test_request_with_headers_is_handed_on_whole() -> None:
    client = Client().send(b"POST /v2/a?b=c HTTP/1.1\r\nHost: x\r\nX-Odd:  a b \r\ncontent-LENGTH: 2\r\n\r\nhi")
    (exchange,) = client.exchanges
    assert (exchange.method, exchange.target, bytes(exchange.body)) == (b"POST", b"/v2/a?b=c", b"hi")
    assert exchange.headers[b"host"] == b"x"
    assert exchange.headers[b"x-odd"].strip() == b"a b"
    assert exchange.headers[b"content-length"] == b"2"
    assert [name for name, _ in exchange.headers.sent] == [b"Host", b"X-Odd", b"content-LENGTH"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_stream_in_reads_of_one_size_gives_the_same_requests(size: int) -> None:
    client = recording().send(b"".join(STREAM), size)
    assert seen(client) == EXPECTED
    assert [answer.status for answer in client.answers] == [200] * len(EXPECTED)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_stream_split_anywhere_gives_the_same_requests(data: st.DataObject) -> None:
    stream = b"".join(STREAM)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=40)))
    client = recording()
    client.send_parts(stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True))
    assert seen(client) == EXPECTED
    assert [answer.body for answer in client.answers] == [b"%b %b\n%b" % one for one in EXPECTED]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_stream_answered_late_gives_the_same_requests(data: st.DataObject) -> None:
    """The requests and the order of the answers are the same, whenever the answers come between the reads."""
    stream = b"".join(STREAM)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=20)))
    client, answered = Client(), 0
    for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        client.send(stream[a:b])
        if data.draw(st.booleans()) and answered < len(client.exchanges):
            echo(client.exchanges[answered])
            answered += 1
    while answered < len(client.exchanges):
        echo(client.exchanges[answered])
        answered += 1
        client.deliver()
    assert seen(client) == EXPECTED
    assert [answer.body for answer in client.answers] == [b"%b %b\n%b" % one for one in EXPECTED]


def test_keep_alive_connection_takes_the_next_request_after_the_answer() -> None:
    client = recording()
    for number in range(5):
        client.send(request("GET", f"/{number}"))
        assert len(client.answers) == number + 1
    assert not client.transport.ended
    assert all(answer.field("Connection") is None for answer in client.answers)


def test_half_a_head_does_not_match_a_known_head() -> None:
    """Bytes of an earlier read still lie in the buffer, behind those of this read."""
    whole = request("POST", "/a", b"first")
    client = recording().send(whole).send(whole)
    head, half = whole[:-5], len(whole) // 2
    client.send(head[:half])
    assert len(client.exchanges) == 2
    client.send(head[half:]).send(b"se")
    assert len(client.exchanges) == 2
    client.send(b"con")
    assert [bytes(exchange.body) for exchange in client.exchanges] == [b"first", b"first", b"secon"]


def test_heads_that_take_turns_are_told_apart() -> None:
    one, other = request("POST", "/a", b"12"), request("POST", "/ab", b"345")
    client = recording()
    for _ in range(3):
        client.send(one + other)
    assert seen(client) == [(b"POST", b"/a", b"12"), (b"POST", b"/ab", b"345")] * 3


def test_connection_close_is_answered_and_closed() -> None:
    client = recording().send(request("GET", "/", None, "Connection: close"))
    (answer,) = client.answers
    assert answer.field("Connection") == "close"
    assert client.transport.closed


def test_requests_after_connection_close_are_ignored() -> None:
    client = recording().send(request("GET", "/a", None, "Connection: close") + request("GET", "/b"))
    assert [answer.body for answer in client.answers] == [b"GET /a\n"]
    assert client.transport.closed


def test_requests_after_connection_close_are_ignored_if_it_is_answered_later() -> None:
    client = Client().send(request("GET", "/a", None, "Connection: close") + request("GET", "/b"))
    assert not client.transport.ended
    echo(client.exchanges[0])
    assert [answer.body for answer in client.answers] == [b"GET /a\n"]
    assert len(client.exchanges) == 1
    assert client.transport.closed


def test_http_1_0_is_answered_in_its_version_and_closed() -> None:
    client = recording().send(request("GET", "/", version="1.0"))
    (answer,) = client.answers
    assert answer.line == "HTTP/1.0 200 OK"
    assert client.transport.closed


def test_http_1_0_keep_alive_is_kept() -> None:
    client = recording().send(request("GET", "/", None, "Connection: Keep-Alive", version="1.0") * 2)
    assert [answer.line for answer in client.answers] == ["HTTP/1.0 200 OK"] * 2
    assert client.answers[0].field("Connection") == "keep-alive"
    assert not client.transport.ended


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_upgrade_is_not_followed(protocol: str) -> None:
    asked = request("GET", "/a", None, "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}")
    client = recording().send(asked + request("GET", "/b"))
    assert [answer.body for answer in client.answers] == [b"GET /a\n", b"GET /b\n"]


@pytest.mark.parametrize("size", [None, 1, 50])
def test_upgrade_with_a_body_is_an_ordinary_request(size: int | None) -> None:
    """The body belongs to its request, and is never read as the next request."""
    body = request("GET", "/smuggled")
    asked = request("POST", "/a", body, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
    client = recording().send(asked + request("GET", "/b"), size)
    assert seen(client) == [(b"POST", b"/a", body), (b"GET", b"/b", b"")]


def test_upgrade_with_a_chunked_body_is_an_ordinary_request() -> None:
    asked = chunked("/a", [b"ab", b"c"], "Connection: Upgrade", "Upgrade: h2c")
    client = recording().send(asked + request("GET", "/b"))
    assert seen(client) == [(b"POST", b"/a", b"abc"), (b"GET", b"/b", b"")]


def test_two_thousand_upgrade_requests_in_one_read_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    client = recording().send(request("GET", "/", None, "Connection: Upgrade", "Upgrade: h2c") * 2000)
    for _ in range(10):  # the rest waits for later turns
        client.clock.advance(0)
        client.deliver()
    assert len(client.answers) == 2000
    assert not caplog.records


def test_empty_lines_before_a_request_are_skipped() -> None:
    client = recording().send(b"\r\n\r\n" + request("GET", "/a"))
    assert len(client.answers) == 1


def test_first_of_equal_headers_counts() -> None:
    """As in Triton (observed with 2.51)."""
    client = Client().send(request("GET", "/", None, "Content-Encoding: gzip", "content-encoding: br"))
    assert client.exchanges[0].headers[b"content-encoding"] == b"gzip"
    assert [value for name, value in client.exchanges[0].headers.sent if name.lower() == b"content-encoding"] == [
        b"gzip",
        b"br",
    ]


def test_many_headers_are_taken() -> None:
    fields = tuple(f"X-{i}: y" for i in range(500))
    client = Client().send(request("POST", "/", b"ok", *fields))
    (exchange,) = client.exchanges
    assert exchange.headers[b"x-0"] == exchange.headers[b"x-499"] == b"y"
    assert bytes(exchange.body) == b"ok"


def test_head_that_never_ends_is_closed_at_the_limit() -> None:
    client, sent = Client(), 0
    client.send(b"GET / HTTP/1.1\r\n")
    while not client.transport.ended:
        client.send(b"X-A: " + b"b" * 995 + b"\r\n")
        sent += 1002
        assert sent < MAX_HEAD_BYTES + 10_000
    assert sent > MAX_HEAD_BYTES - 10_000
    assert refusals(client) == [HEAD_TOO_LARGE]


def test_head_line_that_never_ends_is_closed_at_the_limit() -> None:
    client = Client().send(b"GET /" + b"a" * (2 * MAX_HEAD_BYTES))
    assert client.transport.closed
    assert refusals(client) == [HEAD_TOO_LARGE]


@pytest.mark.parametrize("line", ["X-Long: " + "a" * 100_000, "Expect: " + "a" * 100_000])
def test_line_far_beyond_the_limit_is_refused(line: str) -> None:
    client = recording().send(request("POST", "/", b"abc", line))
    assert client.transport.closed
    assert refusals(client) == ["the request line, or a header, exceeds 16384 bytes"]


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"\x00\x00\x00\x00\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nnocolon\r\n\r\n",
        b"GET / HTTP/1.1\r\n: empty\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET / FTP/1.1\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: abc\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 1e3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 2\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 9223372036854775808\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 9223372036854775700\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: x\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    ],
)
def test_malformed_request_is_refused(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    client = recording().send(sent)
    assert client.transport.ended
    (reason,) = refusals(client)
    assert reason
    assert client.exchanges == []
    assert not caplog.records, "a client's mistake is no line in the log"


def test_malformed_request_after_one_in_flight_is_closed_after_its_answer() -> None:
    client = Client().send(request("GET", "/a") + b"nonsense\r\n\r\n")
    assert not client.transport.ended
    echo(client.exchanges[0])
    assert [answer.status for answer in client.answers] == [200, 400]
    assert client.answers[0].body == b"GET /a\n"
    assert client.transport.closed


def test_malformed_request_behind_connection_close_is_not_answered() -> None:
    client = Client().send(request("GET", "/a", None, "Connection: close") + b"nonsense\r\n\r\n")
    echo(client.exchanges[0])
    assert [answer.body for answer in client.answers] == [b"GET /a\n"]
    assert client.transport.closed


def test_malformed_request_in_http_1_0_is_refused_in_its_version() -> None:
    client = Client().send(request("POST", "/", None, "Transfer-Encoding: chunked", version="1.0") + b"zz\r\n")
    (answer,) = client.answers
    assert (answer.line, answer.field("Connection")) == ("HTTP/1.0 400 Bad Request", None)
    assert client.transport.closed


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"hello\r\n\r\n", "malformed HTTP request: Invalid method encountered"),
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "malformed HTTP request: this port does not speak HTTP/2; gRPC clients need the gRPC port",
        ),
        (
            request("POST", "/", b'{"inputs":[]}', "Transfer-Encoding: chunked"),
            "malformed HTTP request: Invalid character in chunk size; the request has 'Transfer-Encoding: chunked', "
            "so its body must be sent in chunks",
        ),
        (
            request("POST", "/", b"abc", "Transfer-Encoding: gzip"),
            "a Transfer-Encoding other than 'chunked' is not supported",
        ),
    ],
    ids=["a word", "HTTP/2", "a body that is not in chunks", "another coding"],
)
def test_refusal_says_why(sent: bytes, reason: str) -> None:
    assert refusals(Client().send(sent)) == [reason]


@pytest.mark.parametrize("size", [None, 1])
@pytest.mark.parametrize("length_first", [True, False])
@pytest.mark.parametrize("length", [3, 300, 0])
def test_chunks_beside_a_length_are_read_by_the_chunks_and_closed(
    length: int, length_first: bool, size: int | None
) -> None:
    """RFC 9112, 6.3: the transfer coding overrides the length."""
    fields = [f"Content-Length: {length}", "Transfer-Encoding: chunked"]
    head = request("POST", "/a", None, *(fields if length_first else reversed(fields)))
    client = recording().send(head + b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n" + request("GET", "/smuggled"), size)
    assert seen(client) == [(b"POST", b"/a", b"abcdefg")]
    (answer,) = client.answers
    assert (answer.status, answer.field("Connection")) == (200, "close")
    assert client.transport.closed


def test_content_length_too_small_ends_after_the_first_request() -> None:
    """Bytes beyond the stated length are no request."""
    client = recording().send(b'POST /a HTTP/1.1\r\nContent-Length: 2\r\n\r\n{"a":1}')
    assert seen(client) == [(b"POST", b"/a", b'{"')]
    assert client.transport.closed


def test_content_length_too_large_waits_until_the_client_ends() -> None:
    client = Client().send(b"POST /a HTTP/1.1\r\nContent-Length: 10000000000\r\n\r\nabc")
    assert not client.exchanges
    assert not client.transport.ended
    client.end()
    assert client.transport.closed
    assert refusals(client) == [CUT_OFF]


@pytest.mark.parametrize(
    "whole",
    [
        request("GET", "/health"),
        request("POST", "/infer", b'{"inputs":[]}'),
        request("POST", "/infer", b"x" * 400, "Inference-Header-Content-Length: 10"),
        chunked("/infer", [b"ab", b"cdef"]),
    ],
    ids=["get", "post", "binary", "chunked"],
)
@pytest.mark.parametrize("step", [None, 1])
def test_request_cut_off_anywhere_is_refused_and_never_handled(whole: bytes, step: int | None) -> None:
    for cut in range(len(whole)):
        client = recording().send(whole[:cut], step)
        client.end()
        assert client.exchanges == [], f"handled when cut at {cut}"
        assert refusals(client) == ([CUT_OFF] if cut else [])
        assert client.transport.closed
        client.lose()
        assert not client.listener.connections


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_request_cut_off_behind_one_in_flight_does_not_harm_it(cut: int) -> None:
    client = Client().send(request("GET", "/a") + request("POST", "/b", b"x" * 100)[:cut])
    client.end()
    assert not client.transport.ended
    echo(client.exchanges[0])
    assert [answer.status for answer in client.answers] == [200, 400]
    assert client.answers[0].body == b"GET /a\n"
    assert client.transport.closed
    assert len(client.exchanges) == 1


def test_handler_that_breaks_does_not_leave_the_client_waiting(caplog: pytest.LogCaptureFixture) -> None:
    def handle(exchange: Http1Exchange) -> None:
        raise ValueError("a defect of ours")

    client = Client(handle).send(request("GET", "/"))
    assert client.transport.ended or [answer.status for answer in client.answers] == [500]
    assert "a defect of ours" in caplog.text


def test_error_in_the_handler_of_a_waiting_request_does_not_reach_the_answering_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Answers come from the engine, which must not meet an error of the next request's handler."""
    taken: list[Http1Exchange] = []

    def handle(exchange: Http1Exchange) -> None:
        taken.append(exchange)
        if exchange.target == b"/b":
            raise ValueError("a defect of ours")

    client = Client(handle).send(request("GET", "/a") + request("GET", "/b"))
    echo(taken[0])
    assert client.answers[0].body == b"GET /a\n"
    assert client.transport.ended or [answer.status for answer in client.answers] == [200, 500]
    assert "a defect of ours" in caplog.text


def test_connections_of_one_listener_do_not_mix() -> None:
    """All connections share the buffer for heads."""
    first = recording()
    second = Client(listener=first.listener)
    whole = request("POST", "/a", b"x" * 50)
    for a, b in zip(range(0, len(whole), 3), range(0, len(whole), 3), strict=True):
        first.send(whole[a : a + 3])
        second.send(whole[b : b + 3])
    assert seen(first) == [(b"POST", b"/a", b"x" * 50)] * 2
    assert first.transport.written == second.transport.written != b""
