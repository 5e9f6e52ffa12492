"""Clients that send too much, or too slowly: what the server holds and does for them is bounded."""

from itertools import count

import pytest

from halimede.transport.buffered_bytes import CONNECTION_FULL, FULL, MAX_WAIT_SECONDS, BufferedBytes
from halimede.transport.http1.exchange import Http1Exchange
from halimede.transport.http1.listener import MAX_FIELDS, MAX_HEAD_BYTES, Http1Limits, Http1Listener
from halimede.transport.http1.reader import FIELD_BYTES, SLICE_SECONDS, SMALL_PART_BYTES
from halimede.transport.message_budget import MAX_MESSAGES_PER_TURN, MEASURED_BYTES
from halimede.transport.stalls import TimeLimits
from tests.transport.http1_fakes import Client, chunked, echo, request
from tests.transport.http2_bench import Clock

LARGE = 1 << 20


def client_of(clock: Clock, limits: Http1Limits | None = None, buffered: BufferedBytes | None = None) -> Client:
    client = Client(listener=Http1Listener(echo, clock.call_later, limits, buffered, clock.time))
    client.clock = clock
    client.listener.rounds.begin()
    return client


def statuses(client: Client) -> list[int]:
    return [answer.status for answer in client.answers]


# Heads.


def test_head_of_many_short_fields_is_refused_while_it_arrives() -> None:
    """5 bytes of a field take 300 in memory."""
    client = Client()
    head = b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 100_000
    sent = 0
    while not client.transport.ended:
        client.send(head[sent : sent + 1000])
        sent += 1000
    assert sent <= 5 * MAX_FIELDS + 2000
    assert statuses(client) == [431]
    assert client.answers[0].body == b'{"error":"the request has more than 512 header fields"}'
    assert client.answers[0].field("Connection") == "close"


def test_most_fields_are_taken() -> None:
    fields = [f"x{number}: {number}" for number in range(MAX_FIELDS - 1)]
    client = Client(echo).send(request("GET", "/a", None, *fields))
    assert statuses(client) == [200]


def test_limit_of_heads_is_an_option() -> None:
    fields = [f"x{number}: {'y' * 1000}" for number in range(40)]
    assert statuses(Client(echo).send(request("GET", "/a", None, *fields))) == [200]
    client = client_of(Clock(), Http1Limits(head_bytes=20_000)).send(request("GET", "/a", None, *fields))
    assert statuses(client) == [431]
    assert b"20000 bytes (--http-max-header-bytes)" in client.answers[0].body


def test_trailers_without_end_are_refused() -> None:
    client = Client().send(chunked("/a", [b"x"], end=b"0\r\n"))
    sent = 0
    while not client.transport.ended:
        client.send(b"x: %b\r\n" % (b"y" * 1000))
        sent += 1000
        assert sent < MAX_HEAD_BYTES + 100_000
    assert statuses(client) == [431]


# Times.


def test_head_that_is_sent_slowly_ends() -> None:
    client = client_of(Clock()).send(b"GET / HTTP/1.1\r\n")
    for number in range(59):
        client.send(b"x%d: y\r\n" % number)
        client.clock.advance(1)
        assert not client.transport.ended
    client.clock.advance(3)
    assert statuses(client) == [408]
    assert b"the head of the request did not arrive within 60 s" in client.answers[0].body
    assert client.transport.closed


def test_body_ends_only_without_progress() -> None:
    client = client_of(Clock()).send(request("POST", "/a", bytes(LARGE))[:-100])
    for _ in range(10):
        client.send(b"x")
        client.clock.advance(59)
        assert not client.transport.ended
    client.clock.advance(3)
    assert statuses(client) == [408]
    assert b"the body of the request did not arrive within 60 s" in client.answers[0].body


def test_chunked_body_ends_only_without_progress() -> None:
    client = client_of(Clock()).send(chunked("/a", [b"x"], end=b""))
    for _ in range(5):
        client.send(b"1\r\nx\r\n")
        client.clock.advance(59)
        assert not client.transport.ended
    client.clock.advance(3)
    assert statuses(client) == [408]


def test_body_that_the_server_has_not_asked_for_does_not_end() -> None:
    """The client waits for `100 Continue`, which waits for the answer to an earlier request."""
    clock = Clock()
    exchanges: list[Http1Exchange] = []
    client = Client(listener=Http1Listener(exchanges.append, clock.call_later, clock=clock.time))
    client.listener.rounds.begin()
    client.send(request("GET", "/slow") + request("POST", "/a", b"", "Expect: 100-continue", "Content-Length: 5"))
    clock.advance(1000)
    assert not client.transport.ended


def test_slow_model_does_not_end_its_connection() -> None:
    clock = Clock()
    exchanges: list[Http1Exchange] = []
    client = Client(listener=Http1Listener(exchanges.append, clock.call_later, clock=clock.time))
    client.listener.rounds.begin()
    client.send(request("POST", "/a", b"x"))
    clock.advance(100_000)
    echo(exchanges[0])
    assert statuses(client) == [200]
    assert not client.transport.ended


def test_idle_connection_is_closed_without_a_word() -> None:
    client = client_of(Clock(), Http1Limits(times=TimeLimits(idle=600)))
    for _ in range(3):
        client.send(request("GET", "/a"))
        client.clock.advance(599)
        assert not client.transport.ended
    client.clock.advance(3)
    assert client.transport.closed
    assert statuses(client) == [200] * 3


def test_unread_answer_ends_only_without_progress() -> None:
    client = client_of(Clock()).send(request("GET", "/a"))
    for unread in (5000, 4000, 3000):
        client.transport.unread = unread
        client.clock.advance(59)
        assert not client.transport.ended
    client.clock.advance(3)
    assert client.transport.aborted


def test_times_of_zero_are_no_limit() -> None:
    limits = Http1Limits(times=TimeLimits(0, 0, 0, 0))
    for sent in (b"", b"GET / HTTP/1.1\r\n", request("POST", "/a", bytes(LARGE))[:-1], request("GET", "/a")):
        client = client_of(Clock(), limits).send(sent)
        client.transport.unread = 100 if sent.endswith(b"\r\n\r\n") else 0
        client.clock.advance(1e6)
        assert not client.transport.ended


# Turns of the loop.


def slow_handler(clock: Clock, handled: list[bytes]) -> Http1Listener:
    """Each request takes a tenth of a slice."""

    def handle(exchange: Http1Exchange) -> None:
        clock.work(SLICE_SECONDS / 10)
        handled.append(exchange.target)
        echo(exchange)

    return Http1Listener(handle, clock.call_later, clock=clock.time)


@pytest.mark.parametrize("target", ["/0", "/%d"], ids=["known heads", "unknown heads"])
def test_pipelined_requests_take_turns(target: str) -> None:
    clock, handled = Clock(), list[bytes]()
    listener = slow_handler(clock, handled)
    client, other = Client(listener=listener), Client(listener=listener)
    client.send(request("GET", "/0"))
    handled.clear()
    targets = [(target % number if "%" in target else target).encode() for number in range(500)]
    client.send(b"".join(request("GET", each.decode()) for each in targets))
    assert len(handled) <= 12
    before = len(handled)
    other.send(request("GET", "/other"))
    assert handled[before:] == [b"/other"]
    while len(handled) < 501:
        clock.advance(0.01)
        client.deliver()
    assert [each for each in handled if each != b"/other"] == targets
    assert len(client.answers) == 501


def test_reads_that_end_within_their_slice_share_a_turn() -> None:
    clock, handled = Clock(), list[bytes]()
    listener = slow_handler(clock, handled)
    clients = [Client(listener=listener) for _ in range(50)]
    for client in clients:
        client.send(request("GET", "/0") * 9)
    # The first clients, whose reads take most of a slice each, use up the turn. Of the others it takes two requests.
    assert len(handled) <= 5 * 9 + 45 * 2
    while len(handled) < 50 * 9:
        clock.advance(0.01)
        for client in clients:
            client.deliver()
    assert all(len(client.answers) == 9 for client in clients)


@pytest.mark.parametrize("fields", [(), ("Content-Encoding: gzip",)], ids=["large", "compressed"])
def test_single_requests_of_many_connections_take_turns(fields: tuple[str, ...]) -> None:
    clock, handled = Clock(), list[bytes]()
    listener = slow_handler(clock, handled)
    clients = [Client(listener=listener) for _ in range(200)]
    whole = request("POST", "/0", bytes(1 if fields else MEASURED_BYTES), *fields)
    for client in clients:
        client.send(whole)
    # The turn has four slices, and a request takes a tenth of one.
    assert 30 <= len(handled) <= 45
    clients[0].send(request("GET", "/v2/health/live"))
    assert handled[-1] == b"/v2/health/live"
    while len(handled) <= 200:
        before = len(handled)
        clock.advance(0)
        assert len(handled) <= before + 45
    assert all(client.answers for client in clients)


def test_small_requests_of_many_connections_take_turns() -> None:
    clock, exchanges = Clock(), list[Http1Exchange]()
    listener = Http1Listener(exchanges.append, clock.call_later, clock=clock.time)
    clients = [Client(listener=listener) for _ in range(300)]
    for client in clients:
        client.send(request("POST", "/a", b"small"))
    assert len(exchanges) == MAX_MESSAGES_PER_TURN
    clock.advance(0)
    assert len(exchanges) == 300


def test_small_chunks_of_many_connections_take_turns() -> None:
    """Each look at the clock shows that half a slice has passed."""
    clock, looks = Clock(), count()
    listener = Http1Listener(echo, clock.call_later, clock=lambda: next(looks) * SLICE_SECONDS / 2)
    clients = [Client(listener=listener) for _ in range(50)]
    whole = chunked("/a", [b"x"] * 1000)
    start = whole.index(b"\r\n\r\n") + 4
    for client in clients:
        client.send(whole[:start])
    clock.advance(0)
    for client in clients:
        client.send(whole[start:])
    assert sum(bool(client.answers) for client in clients) <= 8
    for _ in range(1000):
        clock.advance(0)
        for client in clients:
            client.deliver()
    assert all(client.answers for client in clients)


def test_chunks_of_one_byte_take_turns() -> None:
    clock = Clock()
    client = client_of(clock)
    body = b"x" * 20_000
    client.send(chunked("/a", [body[at : at + 1] for at in range(len(body))]))
    while not client.answers:
        clock.advance(0.01)
        client.deliver()
    assert client.answers[0].body == b"POST /a\n" + body


# Memory.


def test_bytes_of_an_upload_count_while_it_arrives() -> None:
    buffered = BufferedBytes()
    client = client_of(Clock(), buffered=buffered).send(request("POST", "/a", bytes(LARGE))[:-1])
    assert buffered.held == LARGE - 1
    client.send(b"\0")
    assert statuses(client) == [200]
    client.transport.calls.clear()
    assert buffered.held == 0


def test_upload_that_could_never_arrive_is_refused_at_once() -> None:
    client = client_of(Clock(), buffered=BufferedBytes(LARGE - 1)).send(request("POST", "/a", bytes(LARGE))[:200])
    assert statuses(client) == [413]
    assert b"a request of 1048576 bytes is larger than --max-buffered-bytes (1048575)" in client.answers[0].body


def test_uploads_wait_for_memory_then_go_on() -> None:
    clock, buffered = Clock(), BufferedBytes(2 * LARGE)
    first, second = (client_of(clock, buffered=buffered) for _ in range(2))
    whole = request("POST", "/a", bytes(2 * LARGE))
    for client in (first, second):
        client.send(whole[: LARGE + 1000])
    assert not second.transport.reading
    first.lose()
    clock.advance(1)
    assert second.transport.reading
    second.send(whole[LARGE + 1000 : -1])
    assert not second.transport.ended


def test_upload_that_waits_for_memory_for_long_is_refused() -> None:
    clock, buffered = Clock(), BufferedBytes(2 * LARGE)
    buffered.take(LARGE)
    client = client_of(clock, buffered=buffered)
    client.send(request("POST", "/a", bytes(2 * LARGE))[: LARGE + 1000])
    assert not client.transport.reading
    clock.advance(MAX_WAIT_SECONDS + 2)
    assert statuses(client) == [503]
    assert FULL.encode() in client.answers[0].body
    assert buffered.held == LARGE


def test_upload_beyond_the_share_of_a_connection_is_refused_at_once() -> None:
    client = client_of(Clock(), buffered=BufferedBytes(share=LARGE - 1)).send(request("POST", "/a", bytes(LARGE))[:200])
    assert statuses(client) == [413]
    assert b"is larger than --max-connection-bytes (1048575)" in client.answers[0].body


def test_connection_that_has_used_its_share_waits_and_others_do_not() -> None:
    clock, buffered = Clock(), BufferedBytes(share=LARGE)
    first, second = (client_of(clock, buffered=buffered) for _ in range(2))
    # What an earlier request of it still holds.
    first.connection._account.take(LARGE - 2000)
    first.send(request("POST", "/a", bytes(LARGE // 2))[:1000])
    first.send(bytes(2000))
    assert not first.transport.reading
    second.send(request("POST", "/a", bytes(LARGE // 2)))
    assert statuses(second) == [200]
    clock.advance(MAX_WAIT_SECONDS + 2)
    assert statuses(first) == [503]
    assert CONNECTION_FULL.encode() in first.answers[0].body


def test_new_requests_are_refused_while_memory_is_full_but_not_health_checks() -> None:
    buffered = BufferedBytes(LARGE)
    buffered.take(LARGE)
    client = client_of(Clock(), buffered=buffered)
    client.send(request("GET", "/v2/health/live") + request("POST", "/a", b"x"))
    assert statuses(client) == [200, 503]
    buffered.give(1)
    client.send(request("POST", "/a", b"x"))
    assert statuses(client) == [200, 503, 200]
    buffered.take(1)
    client.send(request("POST", "/a", bytes(LARGE // 2))[:1000])
    assert statuses(client)[-1] == 503


def test_bytes_made_from_a_body_count_until_its_answer_or_the_end() -> None:
    buffered = BufferedBytes()
    exchanges: list[Http1Exchange] = []
    client = Client(listener=Http1Listener(exchanges.append, Clock().call_later, None, buffered))
    client.send(request("POST", "/a", b"x") * 2)
    exchanges[0].hold(LARGE)
    assert buffered.held == LARGE
    exchanges[0].respond(200, b"", ())
    assert buffered.held == 0
    exchanges[0].hold(LARGE)
    assert buffered.held == 0, "it was answered"
    exchanges[1].hold(LARGE)
    stream = exchanges[1].begin(200, b"")
    exchanges[1].hold(2 * LARGE)
    assert buffered.held == 2 * LARGE
    stream.send((b"y",), last=True)
    assert buffered.held == 0
    client.send(request("POST", "/a", b"x"))
    exchanges[2].hold(LARGE)
    client.lose()
    assert buffered.held == 0


def test_chunks_of_one_byte_are_joined_as_they_arrive() -> None:
    client = client_of(Clock())
    client.send(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2\r\nxx\r\n" * 2500)
    assert len(client.connection._parts) <= 5000 // SMALL_PART_BYTES + 1
    client.send(b"0\r\n\r\n")
    assert statuses(client) == [200]
    assert client.answers[0].body.endswith(b"x" * 5000)


def test_unfinished_heads_count_and_are_refused_while_memory_is_full() -> None:
    clock, buffered = Clock(), BufferedBytes(2 * 399 * FIELD_BYTES)
    start = b"GET /v2/health/live HTTP/1.1\r\n"
    many = start + b"".join(b"%x:\r\n" % number for number in range(400))
    clients = [client_of(clock, buffered=buffered).send(many) for _ in range(2)]
    clock.advance(1)
    assert buffered.is_full()
    assert statuses(client_of(clock, buffered=buffered).send(many)) == [503]
    few = client_of(clock, buffered=buffered).send(start + b"a: b\r\n\r\n")
    assert statuses(few) == [200]
    for client in clients:
        client.lose()
    assert buffered.held == 0


def test_small_bodies_that_wait_or_arrive_count_once_a_second() -> None:
    clock, buffered = Clock(), BufferedBytes()
    client = Client(listener=Http1Listener(lambda exchange: None, clock.call_later, None, buffered, clock.time))
    client.listener.rounds.begin()
    client.send(request("POST", "/a", bytes(1000)) * 3)
    clock.advance(1)
    assert buffered.held - 2000 in range(1000), "the first is handled"
    client.send(request("POST", "/a", bytes(5000))[:-1])
    clock.advance(1)
    assert buffered.held - 7000 in range(2000)
    client.lose()
    assert buffered.held == 0


def test_unread_answers_count() -> None:
    buffered = BufferedBytes()
    client = client_of(Clock(), buffered=buffered).send(request("GET", "/a"))
    client.transport.unread = 5000
    client.connection.pause_writing()
    assert buffered.held == 5000
    client.transport.unread = 7000
    client.clock.advance(1)
    assert buffered.held == 7000
    client.transport.unread = 0
    client.connection.resume_writing()
    assert buffered.held == 0


def test_large_body_behind_a_request_stops_reading() -> None:
    """Otherwise one client could have sixteen of them."""
    client = Client().send(request("GET", "/slow") + request("POST", "/a", bytes(LARGE)))
    assert not client.transport.reading
    echo(client.exchanges[0])
    echo(client.exchanges[1])
    assert client.transport.reading
