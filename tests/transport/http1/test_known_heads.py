"""Heads that are not parsed again: what one connection sends never changes how another one's requests are read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.transport.http1.exchange import Http1Exchange
from halimede.transport.http1.listener import Http1Listener
from tests.transport.http1_fakes import Client, echo, request
from tests.transport.http2_bench import Clock

EVIL = b"POST /evil HTTP/1.1\r\nContent-Length: 40\r\n\r\n"
GOOD = request("GET", "/good", None, "Authorization: secret")
PIECES = [b"\r\n", b"\r", b"\n", b"\r\n\r\n", b"GET /a HTTP/1.1\r\n", b"GET /b HTTP/1.1\n", b"Host: x\r\n", b"X: y\n"]


class Recorded:
    """A port whose requests are answered at once and kept."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, bytes, bytes]] = []
        clock = Clock()
        self.listener = Http1Listener(self._handle, clock.call_later, clock=clock.time)

    def _handle(self, exchange: Http1Exchange) -> None:
        self.seen.append((exchange.method, exchange.target, bytes(exchange.body)))
        echo(exchange)

    def send(self, *reads: bytes) -> Client:
        return Client(listener=self.listener).send_parts(reads)


@pytest.mark.parametrize("blank", [b"\r\n\r\n", b"\r\n", b"\n", b"\n\r\n\r\n", b"\r\n\r\n\r\n\r\n"])
@pytest.mark.parametrize("evil", [EVIL, request("GET", "/evil")], ids=["with a body", "without"])
def test_empty_lines_before_a_request_poison_no_other_connection(blank: bytes, evil: bytes) -> None:
    sent = blank + evil
    for cut in range(len(sent)):
        port = Recorded()
        port.send(sent[:cut], sent[cut:])
        for end in range(len(blank) + 1):
            port.seen.clear()
            port.send((blank + GOOD)[:end], (blank + GOOD)[end:])
            assert port.seen == [(b"GET", b"/good", b"")], f"cut at {cut}, then at {end}"


def test_every_split_of_two_requests_leaves_their_own_heads() -> None:
    sent = b"\r\n" + request("GET", "/a") + b"\r\n\r\n" + request("POST", "/b", b"xy")
    for cut in range(len(sent)):
        port = Recorded()
        port.send(sent[:cut], sent[cut:])
        for text, head in port.listener.heads.items():
            assert text.startswith(head.method + b" " + head.target + b" HTTP/1.1\r\n")
            assert text.index(b"\r\n\r\n") == len(text) - 4


def test_head_that_comes_whole_is_known_the_next_time() -> None:
    port = Recorded()
    port.send(GOOD)
    assert list(port.listener.heads) == [GOOD]
    port.send(GOOD + GOOD)
    assert port.seen == [(b"GET", b"/good", b"")] * 3


@given(st.lists(st.lists(st.sampled_from([*PIECES, EVIL, GOOD]), max_size=6), max_size=4), st.data())
@settings(max_examples=200, deadline=None)
def test_requests_do_not_depend_on_other_connections(earlier: list[list[bytes]], data: st.DataObject) -> None:
    last = data.draw(st.lists(st.sampled_from([*PIECES, EVIL, GOOD]), max_size=6))
    shared, alone = Recorded(), Recorded()
    for reads in earlier:
        shared.send(*reads)
    shared.seen.clear()
    assert shared.send(*last).transport.written == alone.send(*last).transport.written
    assert shared.seen == alone.seen
