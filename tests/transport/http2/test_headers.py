"""Header blocks: what a request must be (RFC 9113, 8.1.1, 8.2, 8.3), compression errors (4.3), limits (10.5.1)."""

import pytest

from tests.transport.http2_peer import Bench, Fields, Peer, request
from tests.transport.http2_wire import Code, continuation, data, headers, message

LIST_BYTES = 16 << 10
MOST_LIST_BYTES = 64 << 10
ENTRY = 32
"""What a field counts besides its name and value (6.5.2)."""


def raw_field(name: bytes, value: bytes, kind: int = 0x00) -> bytes:
    """A literal field with a literal name, neither of them Huffman-coded; nothing is checked."""
    assert len(name) < 127
    assert len(value) < 127
    return bytes([kind, len(name)]) + name + bytes([len(value)]) + value


REQUEST = b"".join(raw_field(name.encode(), value.encode()) for name, value in request("/t/Keep"))


# Malformed requests

MALFORMED: dict[str, Fields] = {
    "no method": request(method=None),
    "no scheme": request(scheme=None),
    "no path": [field for field in request() if field[0] != ":path"],
    "empty path": request(""),
    "empty method": request(method=""),
    "empty scheme": request(scheme=""),
    "method twice": [(":method", "POST"), *request()],
    "scheme twice": [(":scheme", "http"), *request()],
    "path twice": [(":path", "/t/Echo"), *request()],
    "authority twice": [(":authority", "x"), *request()],
    "status": [(":status", "200"), *request()],
    "unknown pseudo-header": [(":protocol", "websocket"), *request()],
    "pseudo-header of no name": [(":", "x"), *request()],
    "pseudo-header after a field": [*request(), (":authority", "x")],
    "a field first": [("key", "value"), *request()],
    "upper-case name": request("/t/Echo", ("Key", "value")),
    "space in a name": request("/t/Echo", ("ke y", "value")),
    "colon in a name": request("/t/Echo", ("ke:y", "value")),
    "control in a name": request("/t/Echo", ("key\x01", "value")),
    "delete in a name": request("/t/Echo", ("key\x7f", "value")),
    "name beyond ASCII": request("/t/Echo", ("clé", "value")),
    "name of nothing": request("/t/Echo", ("", "value")),
    "line feed in a value": request("/t/Echo", ("key", "a\nb")),
    "carriage return in a value": request("/t/Echo", ("key", "a\rb")),
    "null in a value": request("/t/Echo", ("key", "a\0b")),
    "connection": request("/t/Echo", ("connection", "close")),
    "keep-alive": request("/t/Echo", ("keep-alive", "timeout=5")),
    "proxy-connection": request("/t/Echo", ("proxy-connection", "close")),
    "transfer-encoding": request("/t/Echo", ("transfer-encoding", "chunked")),
    "upgrade": request("/t/Echo", ("upgrade", "h2c")),
    "te of gzip": request("/t/Echo", ("te", "gzip")),
    "te of trailers and more": request("/t/Echo", ("te", "trailers, gzip")),
    "content-length of words": request("/t/Echo", ("content-length", "x")),
    "content-length below zero": request("/t/Echo", ("content-length", "-1")),
    "content-length with a sign": request("/t/Echo", ("content-length", "+6")),
    "content-length of nothing": request("/t/Echo", ("content-length", "")),
    "content-length twice, not the same": request("/t/Echo", ("content-length", "6"), ("content-length", "7")),
    "nothing at all": [],
}


def raw_block(fields: Fields) -> bytes:
    return b"".join(raw_field(name.encode("utf-8"), value.encode("latin-1")) for name, value in fields)


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=list(MALFORMED))
def test_request_malformed(fields: Fields) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.new_stream()
    peer.send(headers(stream, raw_block(fields)))
    assert peer.reset(stream) is Code.PROTOCOL_ERROR
    assert bench.service.opened == []
    peer.echo()


@pytest.mark.parametrize("name", ["connection", "pseudo-header after a field", "te of gzip", "upper-case name"])
def test_request_malformed_again(name: str) -> None:
    """The second block is of indexed fields alone, which the server may know from the third time on."""
    bench = Bench()
    peer = bench.peer()
    fields = MALFORMED[name]
    first = b"".join(raw_field(name.encode(), value.encode(), kind=0x40) for name, value in fields)
    again = bytes(0x80 | 61 + len(fields) - at for at in range(len(fields)))
    for block in (first, again, again, again):
        stream = peer.new_stream()
        peer.send(headers(stream, block))
        assert peer.reset(stream) is Code.PROTOCOL_ERROR
    assert bench.service.opened == []


def test_request_without_authority() -> None:
    peer = Bench().peer()
    stream = peer.open(request(authority=None))
    peer.send(data(stream, message(b"x"), end=True))
    assert peer.answers[stream].messages == [b"<x>"]


def test_request_without_te() -> None:
    """grpc-core asks for it of no client; a proxy may have taken it away."""
    peer = Bench().peer()
    stream = peer.open([field for field in request() if field[0] != "te"])
    peer.send(data(stream, message(b"x"), end=True))
    assert peer.answers[stream].messages == [b"<x>"]


@pytest.mark.parametrize("length", ["5", "7", "0", "99999999999999999999999999"])
def test_content_length_that_is_not_that_of_the_data(length: str) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request("/t/Keep", ("content-length", length)))
    peer.send_raw(data(stream, message(b"x"), end=True))
    assert peer.reset(stream) is Code.PROTOCOL_ERROR
    assert bench.service.last.half_closes == 0
    assert bench.service.last.cancels == 1
    peer.echo()


@pytest.mark.parametrize("padding", [None, 100])
def test_content_length_that_is(padding: int | None) -> None:
    """Padding does not count."""
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request("/t/Echo", ("content-length", "6"), ("content-length", "6")))
    peer.send(data(stream, message(b"x")[:2], padding=padding), data(stream, message(b"x")[2:], end=True))
    assert peer.answers[stream].messages == [b"<x>"]


def test_content_length_and_no_data() -> None:
    peer = Bench().peer()
    stream = peer.open(request("/t/Keep", ("content-length", "6")), end=True)
    assert peer.reset(stream) is Code.PROTOCOL_ERROR
    peer.echo()


def test_malformed_request_keeps_the_header_tables_equal() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.open([*request("/t/Keep", ("kept", "yes")), ("connection", "close")])
    peer.call("/t/Keep", more=[("kept", "yes")])
    assert ("kept", "yes") in bench.service.last.metadata


# Compression errors

BAD_BLOCKS = {
    "index 0": b"\x80",
    "index beyond both tables": b"\xfe",
    "index far beyond": b"\xff\xff\xff\xff\x0f",
    "index that never ends": b"\xff" + b"\x80" * 20 + b"\x01",
    "index cut short": b"\xff",
    "index cut short later": b"\xff\x80",
    "name index beyond": b"\x7f\x20\x01a",
    "string cut short": b"\x00\x05abc",
    "value missing": b"\x00\x01a",
    "string of 2^32": b"\x00\x7f\xff\xff\xff\xff\x0f",
    "huffman with a wrong end": b"\x00\x81\x00\x01a",
    "huffman of the end symbol": b"\x00\x84\xff\xff\xff\xff\x01a",
    "table larger than allowed": b"\x3f\xe2\x1f",
    "table size in the middle": REQUEST + b"\x20",
    "table size cut short": b"\x3f",
}


@pytest.mark.parametrize("block", BAD_BLOCKS.values(), ids=list(BAD_BLOCKS))
@pytest.mark.parametrize("trailers", [False, True], ids=["head", "trailers"])
def test_malformed_block(block: bytes, trailers: bool) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x", end=False) if trailers else peer.new_stream()
    peer.send_raw(headers(stream, block, end=True))
    assert peer.closed_by is Code.COMPRESSION_ERROR
    assert [opened.cancels for opened in bench.service.opened] == [1] * trailers
    bench.others_work()


def test_malformed_block_on_a_refused_stream() -> None:
    """The table is shared: also the blocks of streams that nobody wants are decoded (4.3)."""
    bench = Bench()
    peer = bench.peer()
    stream = peer.open([("connection", "close")])
    assert peer.reset(stream) is Code.PROTOCOL_ERROR
    peer.send_raw(headers(stream, b"\xbf\xbf\xff", end=True))
    assert peer.closed_by is Code.COMPRESSION_ERROR
    bench.others_work()


def test_malformed_block_is_not_repeated_to_the_client() -> None:
    """The debug data of GOAWAY stays short, whatever the client sent."""
    peer = Bench().peer()
    peer.send_raw(headers(1, b"\xff" + b"\x80" * 60_000))
    assert peer.closed_by is Code.COMPRESSION_ERROR
    assert peer.goaway is not None
    assert len(peer.goaway.payload) < 200


def test_block_with_table_sizes_within_bounds() -> None:
    bench = Bench()
    peer = bench.peer()
    for size in (b"\x20", b"\x3f\xe1\x1f", b"\x20\x3f\xe1\x1f"):
        peer.send(headers(peer.new_stream(), size + REQUEST))
    assert len(bench.service.opened) == 3


def test_block_of_nothing_is_malformed() -> None:
    peer = Bench().peer()
    stream = peer.new_stream()
    peer.send(headers(stream, b"") + headers(peer.new_stream(), b""))
    assert peer.reset(stream) is Code.PROTOCOL_ERROR
    peer.echo()


# The size of the list

COUNTED = sum(len(name) + len(value) + ENTRY for name, value in request("/t/Keep"))


def with_list_of(size: int) -> list[tuple[str, str]]:
    """A request for `/t/Keep` whose header list is of this size."""
    fields = request("/t/Keep")
    left = size - COUNTED
    while left:
        take = left if left <= 1000 else min(1000, left - 100)
        fields.append(("k", "v" * (take - ENTRY - 1)))
        left -= take
    return fields


def test_header_list_of_exactly_the_limit() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(with_list_of(LIST_BYTES))
    assert len(bench.service.opened) == 1
    assert peer.reset(stream) is None


@pytest.mark.parametrize("size", [LIST_BYTES + 1, MOST_LIST_BYTES - 1000])
@pytest.mark.parametrize("end", [False, True])
def test_header_list_over_the_limit(size: int, end: bool) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(with_list_of(size), end=end)
    answer = peer.answers[stream]
    assert answer.trailers_only
    assert (answer.status, answer.trailers["grpc-message"]) == (8, "received metadata size exceeds limit")
    assert bench.service.opened == []
    assert peer.reset(stream) in (None, Code.NO_ERROR)
    peer.echo()
    bench.others_work()


def too_large(peer: Peer, fields: Fields) -> None:
    peer.send_raw(headers(1, peer.block(fields)))
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM


def test_header_list_far_over_the_limit() -> None:
    bench = Bench()
    too_large(bench.peer(), with_list_of(MOST_LIST_BYTES + 2000))
    assert bench.service.opened == []
    bench.others_work()


def test_header_list_that_inflates() -> None:
    """One large entry of the table, indexed again and again: 16 kB on the wire are 64 MB."""
    bench = Bench()
    peer = bench.peer()
    block = peer.block(request("/t/Keep", ("bomb", "b" * 3900)))
    peer.send_raw(headers(1, block + b"\xbe" * 16_000))
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM
    assert bench.service.opened == []
    bench.others_work()


def test_header_list_that_inflates_in_the_trailers() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x", end=False, more=[("bomb", "b" * 3900)])
    peer.send_raw(headers(stream, b"\xbe" * 16_000, end=True))
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM
    assert bench.service.last.cancels == 1
    bench.others_work()


def test_continuation_flood_of_empty_frames() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.send_raw(headers(1, b"\x83", last=False) + continuation(1) * 70)
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM
    assert bench.service.opened == []
    bench.others_work()


def test_continuation_flood_of_single_bytes_with_no_end() -> None:
    bench = Bench()
    peer = bench.peer()
    block = peer.block(request("/t/Keep", ("key", "v" * 200)))
    peer.send_raw(b"".join([headers(1, b"", last=False), *(continuation(1, bytes([byte])) for byte in block)]))
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM
    bench.others_work()


@pytest.mark.parametrize("size", [16_000, 60_000])
def test_continuation_flood_of_large_frames(size: int) -> None:
    """Told by the bytes of the block, before they are decoded."""
    bench = Bench()
    peer = bench.peer()
    field = raw_field(b"key", b"v" * 100)
    part = field * (size // len(field))
    frames = [headers(1, REQUEST, last=False), *[continuation(1, part)] * (2 + (64 << 10) // len(part))]
    peer.send_raw(b"".join(frames))
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM
    assert bench.service.opened == []
    bench.others_work()


def test_header_block_larger_than_the_limit_in_one_frame() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.send_raw(headers(1, b"\x00\x01k\x7f\xff\x7f" + bytes(100_000)))
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM
    bench.others_work()


def test_continuation_at_the_bound_is_taken() -> None:
    bench = Bench()
    peer = bench.peer()
    block = peer.block(request("/t/Keep"))
    parts = [headers(1, block, last=False), continuation(1) * 62, continuation(1, last=True)]
    peer.send(*parts)
    assert len(bench.service.opened) == 1
