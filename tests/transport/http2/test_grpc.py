"""gRPC over raw frames: what a client library would never send, and how answers look on the wire."""

import asyncio
import zlib

import pytest

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import Cancel, GrpcCall, Unary
from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from tests.transport.http2_bench import Clock
from tests.transport.http2_peer import Bench, Peer, request
from tests.transport.http2_wire import (
    DEFAULT_WINDOW,
    Code,
    Setting,
    Type,
    data,
    headers,
    message,
    rst_stream,
    window_update,
)

HEAD = {":status": "200", "content-type": "application/grpc", "grpc-accept-encoding": "identity,deflate,gzip"}


def test_answer_on_the_wire() -> None:
    peer = Bench().peer()
    stream = peer.call("/t/Echo", b"x")
    assert [(frame.type, frame.ends_stream) for frame in peer.fresh()] == [
        (Type.HEADERS, False),
        (Type.DATA, False),
        (Type.HEADERS, True),
    ]
    answer = peer.answers[stream]
    assert answer.head == HEAD
    assert (bytes(answer.data), answer.trailers) == (message(b"<x>"), {"grpc-status": "0"})


def test_answer_of_a_status_alone() -> None:
    bench = Bench()
    peer = bench.peer()
    for path in ("/t/Wait", "/t/Keep"):
        stream = peer.call(path, b"x")
        bench.service.last.call.finish(5, "50 % of ä\n\x7f")
        peer.look()
        answer = peer.answers[stream]
        assert answer.trailers_only
        assert answer.trailers == HEAD | {"grpc-status": "5", "grpc-message": "50 %25 of %C3%A4%0A%7F"}


def test_answer_to_a_fresh_header_table_is_the_same_later() -> None:
    """The first head fills the client's table, later ones are made of its entries."""
    peer = Bench().peer()
    streams = [peer.call("/t/Echo", b"x") for _ in range(3)]
    blocks = [frame.payload for frame in peer.fresh_of(Type.HEADERS)]
    assert [peer.answers[stream].head for stream in streams] == [HEAD] * 3
    assert len(blocks[2]) < len(blocks[0])
    assert blocks[2] == blocks[4]


@pytest.mark.parametrize("size", [20_000, 300_000])
def test_answer_with_a_text_longer_than_a_frame(size: int) -> None:
    """Its header block goes on in CONTINUATION frames, or the text is cut: no frame is larger than the client takes."""
    bench = Bench()
    peer = bench.peer()
    peer.decoder.max_header_list_size = 1 << 24
    stream = peer.call("/t/Wait", b"x")
    bench.service.last.call.finish(13, "é" * size)
    peer.look()
    answer = peer.answers[stream]
    assert answer.status == 13
    assert answer.trailers["grpc-message"].startswith("%C3%A9%C3%A9")
    peer.echo()


# Requests that are no calls


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS", "CONNECT", "post"])
@pytest.mark.parametrize("end", [False, True])
def test_method_other_than_post(method: str, end: bool) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request(method=method), end=end)
    answer = peer.answers[stream]
    assert (answer.trailers_only, answer.trailers) == (True, {":status": "405"})
    assert answer.reset == (None if end else Code.NO_ERROR)
    assert bench.service.opened == []
    peer.echo()


@pytest.mark.parametrize("kind", [None, "", "application/json", "application/grpcx", "text/html", "APPLICATION/GRPC"])
def test_content_type_other_than_grpc(kind: str | None) -> None:
    peer = Bench().peer()
    fields = request()[:-1]
    stream = peer.open(fields if kind is None else [*fields, ("content-type", kind)])
    answer = peer.answers[stream]
    assert (answer.trailers_only, answer.trailers) == (True, {":status": "415"})
    peer.echo()


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"])
def test_content_type_of_grpc(kind: str) -> None:
    peer = Bench().peer()
    stream = peer.open([*request()[:-1], ("content-type", kind)])
    peer.send(data(stream, message(b"x"), end=True))
    assert peer.answers[stream].messages == [b"<x>"]


@pytest.mark.parametrize(
    "path", ["/t/Nothing", "/", "*", "t/Echo", "/t/Echo/", "/t/Echo?x=1", "/\xff", "/" + "x" * 5000]
)
def test_path_that_is_unknown(path: str) -> None:
    peer = Bench().peer()
    stream = peer.new_stream()
    fields = [(name.encode(), value.encode("latin-1")) for name, value in request(path)]
    peer.send(headers(stream, bytes(peer.encoder.encode(fields))), data(stream, message(b"x"), end=True))
    answer = peer.answers[stream]
    assert (answer.trailers_only, answer.status, "grpc-message" in answer.trailers) == (True, 12, False)
    peer.echo()


# Metadata


def test_metadata_of_invalid_utf8() -> None:
    """A field's value is bytes: it is taken, and nothing breaks."""
    bench = Bench()
    peer = bench.peer()
    stream = peer.new_stream()
    fields = [(name.encode(), value.encode()) for name, value in request("/t/Wait")]
    peer.send(headers(stream, bytes(peer.encoder.encode([*fields, (b"key", b"\xff\xfe\x80a")]))))
    peer.send(data(stream, message(b"x"), end=True))
    assert any(key == "key" and str(value).endswith("a") for key, value in bench.service.last.metadata)
    peer.echo()


def test_metadata_that_is_binary() -> None:
    bench = Bench()
    peer = bench.peer()
    more = [("a-bin", "AAECAw=="), ("b-bin", "/+8"), ("c-bin", ""), ("text", "ü"), ("text", "2")]
    peer.call("/t/Keep", more=more)
    found = [pair for pair in bench.service.last.metadata if pair[0][0] in "abct"]
    assert found == [("a-bin", b"\0\1\2\3"), ("b-bin", b"\xff\xef"), ("c-bin", b""), ("text", "ü"), ("text", "2")]


@pytest.mark.parametrize("value", ["!", "AAE", "A", "AA==AA", "ä"])
def test_metadata_with_invalid_base64(value: str) -> None:
    """Whatever is made of it, the connection goes on."""
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Wait", b"x", more=[("a-bin", value)])
    answer = peer.answers.get(stream)
    assert bench.service.opened or (answer is not None and answer.status == 13)
    peer.echo()


# Messages


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_message_in_pieces(path: str, size: int) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request(path))
    raw = message(b"hello world")
    for at in range(0, len(raw), size):
        assert all(not opened.messages for opened in bench.service.opened)
        peer.send(data(stream, raw[at : at + size]))
    peer.send(data(stream, end=True))
    assert bench.service.last.messages == [b"hello world"]


def test_messages_in_one_frame_and_across_frames() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request("/t/Keep"))
    payloads = [b"", b"a", b"bc" * 100, b"", b"d"]
    raw = b"".join(map(message, payloads))
    for at in (0, 1, 6, 20, len(raw)):
        bench.service.last.messages.clear()
        peer.send(data(stream, raw[:at]), data(stream, raw[at:]))
        assert bench.service.last.messages == payloads
    peer.send(data(stream, end=True))
    assert bench.service.last.half_closes == 1


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
@pytest.mark.parametrize("raw", [message(b"x", size=3), message(b"")[:3], message(b"x") + b"\0"], ids=len)
def test_message_cut_short_by_the_end(path: str, raw: bytes) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request(path))
    peer.send(data(stream, raw, end=True))
    assert peer.answers[stream].status == 13
    assert all(not opened.half_closes for opened in bench.service.opened)
    peer.echo()


@pytest.mark.parametrize("way", ["headers", "data", "trailers"])
def test_unary_call_without_a_message(way: str) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request("/t/Wait"), end=way == "headers")
    if way == "data":
        peer.send(data(stream, end=True))
    elif way == "trailers":
        peer.send(headers(stream, peer.block([("a", "b")]), end=True))
    assert (peer.answers[stream].status, bench.service.opened) == (13, [])
    peer.echo()


@pytest.mark.parametrize("together", [False, True])
def test_unary_call_with_two_messages(together: bool) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request("/t/Wait"))
    if together:
        peer.send(data(stream, message(b"a") + message(b"b"), end=True))
    else:
        peer.send(data(stream, message(b"a")), data(stream, message(b"b"), end=True))
    assert (peer.answers[stream].status, bench.service.opened) == (12, [])
    peer.echo()


@pytest.mark.parametrize("sizes", [(1, 300_000), (300_000, 1), (300_000, 300_000)])
def test_unary_call_with_a_small_and_a_large_message(sizes: tuple[int, int]) -> None:
    """A large message is received into its own buffer, a small one is not."""
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request("/t/Wait"))
    first, second = (data(stream, message(bytes(size))) for size in sizes)
    peer.send(first, second, data(stream, end=True))
    assert (peer.answers[stream].status, bench.service.opened) == (12, [])
    peer.echo()


@pytest.mark.parametrize("payload", [b"", bytes(100_000)], ids=len)
def test_unary_call_with_messages_without_end(payload: bytes) -> None:
    """Nobody keeps what has no use: the second message already ends the call."""
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request("/t/Wait"))
    peer.send_raw(data(stream, message(payload)) * 20)
    assert (peer.answers[stream].status, peer.reset(stream)) == (12, Code.NO_ERROR)
    assert bench.service.opened == []
    peer.echo()


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
def test_message_larger_than_allowed(path: str) -> None:
    """Told by its prefix alone."""
    bench = Bench(GrpcServerOptions(max_receive_bytes=1000))
    peer = bench.peer()
    taken = peer.call(path, bytes(1000))
    stream = peer.call(path, end=False)
    peer.send(data(stream, message(b"", size=1001)))
    answer = peer.answers[stream]
    assert (answer.status, answer.trailers["grpc-message"]) == (8, "Received message larger than max (1001 vs. 1000)")
    assert taken not in peer.answers
    assert [opened.messages for opened in bench.service.opened if opened.messages] == [[bytes(1000)]]
    bench.others_work()


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
def test_message_larger_than_any(path: str) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call(path, end=False)
    peer.send(data(stream, message(b"x", size=2**32 - 1)))
    assert (
        peer.answers[stream].trailers["grpc-message"]
        == f"Received message larger than max ({2**32 - 1} vs. {2**31 - 1})"
    )
    assert peer.answers[stream].status == 8
    bench.others_work()


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
@pytest.mark.parametrize("flag", [2, 0xFF])
def test_message_with_an_unknown_flag(path: str, flag: int) -> None:
    peer = Bench().peer()
    stream = peer.call(path, end=False)
    peer.send(data(stream, message(b"x", compressed=flag), end=True))
    assert peer.answers[stream].status == 13
    peer.echo()


# Compression


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
@pytest.mark.parametrize("encoding", [None, "identity"])
def test_message_compressed_without_an_encoding(path: str, encoding: str | None) -> None:
    peer = Bench().peer()
    stream = peer.call(path, end=False, more=[("grpc-encoding", encoding)] if encoding else [])
    peer.send(data(stream, message(zlib.compress(b"x"), compressed=1), end=True))
    assert peer.answers[stream].status == 13
    peer.echo()


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
def test_message_compressed(path: str) -> None:
    bench = Bench()
    peer = bench.peer()
    for encoding, bits in (("deflate", 15), ("gzip", 31)):
        packed = zlib.compress(b"hello" * 100, wbits=bits)
        stream = peer.call(path, end=False, more=[("grpc-encoding", encoding)])
        peer.send(data(stream, message(packed, compressed=1), end=True))
        assert bench.service.last.messages == [b"hello" * 100]


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
@pytest.mark.parametrize(
    "packed", [b"", b"garbage", zlib.compress(b"x" * 100)[:-3], zlib.compress(b"x", wbits=31)], ids=len
)
def test_message_compressed_wrongly(path: str, packed: bytes) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call(path, end=False, more=[("grpc-encoding", "deflate")])
    peer.send(data(stream, message(packed, compressed=1), end=True))
    assert peer.answers[stream].status == 13
    assert all(not opened.messages for opened in bench.service.opened)
    peer.echo()


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
def test_message_that_inflates_beyond_the_limit(path: str) -> None:
    bench = Bench(GrpcServerOptions(max_receive_bytes=60_000))
    peer = bench.peer()
    bomb = zlib.compress(bytes(8 << 20), 9)
    assert len(bomb) < 10_000
    stream = peer.call(path, end=False, more=[("grpc-encoding", "deflate")])
    peer.send(data(stream, message(bomb, compressed=1), end=True))
    assert peer.answers[stream].status == 8
    assert all(not opened.messages for opened in bench.service.opened)
    bench.others_work()


@pytest.mark.parametrize("size", [100, 16 << 20])
def test_message_that_inflates_to_much_leaves_the_loop(size: int) -> None:
    """A few kB that become many MB hold up nobody else."""

    async def test() -> None:
        taken, clock = asyncio.Event(), Clock()
        sizes: list[int] = []

        def take(message: Buffer, call: GrpcCall) -> None:
            sizes.append(len(message))
            taken.set()

        peer = Peer(GrpcServer({"/t/Take": Unary(take)}, None, clock), clock).greet()
        stream = peer.open(request("/t/Take", ("grpc-encoding", "deflate")))
        peer.send(data(stream, message(zlib.compress(bytes(size), 9), compressed=1), end=True))
        assert taken.is_set() == (size < 1000)
        await asyncio.wait_for(taken.wait(), 10)
        assert sizes == [size]

    asyncio.run(test())


def test_encoding_that_is_unknown() -> None:
    peer = Bench().peer()
    stream = peer.call("/t/Echo", b"x", more=[("grpc-encoding", "snappy")])
    answer = peer.answers[stream]
    assert (answer.trailers_only, answer.status) == (True, 12)
    assert "snappy" in answer.trailers["grpc-message"]
    assert answer.trailers["grpc-accept-encoding"] == "identity,deflate,gzip"


# Deadlines


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [("1H", 3600), ("2M", 120), ("3S", 3), ("40m", 0.04), ("5000u", 0.005), ("99999999n", 0.099999999), ("007S", 7)],
)
@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
def test_deadline(path: str, timeout: str, seconds: float) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call(path, b"x", more=[("grpc-timeout", timeout)])
    peer.wait(seconds * 0.999)
    assert bench.service.last.cancels == 0
    peer.wait(seconds * 0.002)
    assert bench.service.last.cancels == 1
    answer = peer.answers[stream]
    assert (answer.status, answer.trailers["grpc-message"]) == (4, "Deadline Exceeded")
    bench.service.last.call.send([b"late"])
    bench.service.last.call.finish()
    peer.echo()


@pytest.mark.parametrize("timeout", ["", "S", "1", "1x", "1 S", "-1S", "+1S", "1.5S", "123456789S", "1SS", "٣S"])
def test_deadline_malformed(timeout: str) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Wait", b"x", more=[("grpc-timeout", timeout)])
    assert (peer.answers[stream].status, bench.service.opened) == (13, [])
    peer.echo()


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
def test_deadline_before_the_message_is_there(path: str) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call(path, end=False, more=[("grpc-timeout", "1S")])
    peer.send(data(stream, message(b"x", size=100_000)))
    peer.wait(1.1)
    assert (peer.answers[stream].status, peer.reset(stream)) == (4, Code.NO_ERROR)
    peer.send_raw(data(stream, bytes(99_999), end=True))
    assert all(not opened.messages for opened in bench.service.opened)
    peer.echo()


@pytest.mark.parametrize("path", ["/t/Echo", "/t/Chat"])
def test_deadline_after_the_answer_has_no_effect(path: str) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call(path, b"x", more=[("grpc-timeout", "1S")])
    peer.wait(2)
    assert (peer.answers[stream].status, bench.service.last.cancels) == (0, 0)


def test_deadline_of_a_stream_whose_answers_wait() -> None:
    """Trailers cannot overtake data: the stream is reset."""
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 0))
    stream = peer.call("/t/Keep", b"x", end=False, more=[("grpc-timeout", "1S")])
    bench.service.last.call.send([b"abc"])
    peer.wait(1.1)
    assert peer.reset(stream) is Code.CANCEL
    assert bench.service.last.cancels == 1
    peer.send(window_update(0, 100))
    assert bench.clock.waiting <= 3


# What the service does


def test_service_that_has_finished_is_not_cancelled() -> None:
    """The client goes while the answer waits for its window: the handler is done with the call."""
    bench = Bench()
    for end in (rst_stream(1), b""):
        peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 0))
        peer.call("/t/Echo", b"x")
        echoed = bench.service.last
        peer.call("/t/Wait", b"x")
        waited = bench.service.last
        waited.call.send([b"y"])
        waited.call.finish()
        peer.send(end, rst_stream(3) if end else b"")
        peer.lose()
        assert (echoed.cancels, waited.cancels) == (0, 0)


def test_service_that_finishes_twice_answers_once() -> None:
    bench = Bench()
    for window in (0, DEFAULT_WINDOW):
        peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, window))
        for path in ("/t/Wait", "/t/Keep"):
            stream = peer.call(path, b"x")
            call = bench.service.last.call
            call.send([b"y"])
            call.finish()
            call.finish(3, "again")
            peer.send(window_update(stream, 100))
            assert (peer.answers[stream].messages, peer.answers[stream].status) == ([b"y"], 0)


class Broken:
    """A service whose every step raises."""

    def __init__(self) -> None:
        clock = Clock()
        self.server = GrpcServer({"/t/Break": Unary(self._break), "/t/Late": Unary(self._late)}, None, clock)
        self.peer = Peer(self.server, clock).greet()

    def _break(self, message: Buffer, call: GrpcCall) -> None:
        raise ZeroDivisionError

    def _late(self, message: Buffer, call: GrpcCall) -> Cancel:
        def cancel() -> None:
            raise ZeroDivisionError

        return cancel


def test_error_of_the_service_keeps_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    peer = broken.peer
    stream = peer.call("/t/Break", b"x")
    assert peer.answers[stream].status in (2, 13)
    peer.send(rst_stream(peer.call("/t/Late", b"x")))
    peer.send_raw(window_update(peer.call("/t/Late", b"x"), 0))
    late = peer.call("/t/Late", b"x", more=[("grpc-timeout", "1S")])
    peer.wait(2)
    assert peer.answers[late].status == 4
    assert not peer.transport.closing
    peer.call("/t/Late", b"x")
    peer.lose()
    assert "ZeroDivisionError" in caplog.text
