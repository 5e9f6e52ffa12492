"""Compression of gRPC messages both ways: through grpcio, and on the wire if the test chooses the bytes (G36)."""

import gzip
import random
import struct
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import grpc
import grpc.aio
import pytest

from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import BufferedBytes
from halimede.transport.grpc.calls import GrpcCall, Unary
from halimede.transport.grpc.messages import LARGE_MESSAGE_BYTES
from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from tests.transport.grpc_fakes import Echo, chat, error_of, run, served, unary
from tests.transport.http2_bench import Clock
from tests.transport.http2_peer import Peer, request
from tests.transport.http2_wire import data, message

ALGORITHMS = [grpc.Compression.Gzip, grpc.Compression.Deflate]
ACCEPTS = {"identity": 0b001, "deflate": 0b011, "gzip": 0b101, "all": 0b111}
SIZES = [0, 1, 10_000, LARGE_MESSAGE_BYTES - 1, LARGE_MESSAGE_BYTES, 1 << 20]


@cache
def words(size: int) -> bytes:
    """Bytes that compress to about a third, and differ everywhere."""
    return random.Random(size).choices(range(1 << 20), k=size // 4 + 1).__repr__().encode()[:size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_request_compressed_by_the_channel(algorithm: grpc.Compression, size: int) -> None:
    async def test() -> None:
        async with served(Echo(), compression=algorithm) as channel:
            message = words(size)
            assert await unary(channel, "/t/Echo", message) == b"<" + message + b">"

    run(test)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_request_compressed_by_the_call(algorithm: grpc.Compression) -> None:
    async def test() -> None:
        async with served(Echo()) as channel:
            for size in (100, 1 << 20):
                message = words(size)
                assert await unary(channel, "/t/Echo", message, compression=algorithm) == b"<" + message + b">"
                assert await unary(channel, "/t/Echo", message) == b"<" + message + b">"

    run(test)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_stream_compressed_keeps_the_order(algorithm: grpc.Compression) -> None:
    """Large messages are decompressed on another thread. Small ones must not overtake them."""
    messages = [words(size) for size in (1 << 20, 10, 2 << 20, 0, 5, LARGE_MESSAGE_BYTES, 1)]

    async def test() -> None:
        async with served(Echo(), compression=algorithm) as channel:
            call = chat(channel, messages)
            assert [await call.read() for _ in messages] == messages
            assert await call.details() == "bye"

    run(test)


@pytest.mark.parametrize("size", [1 << 20, 80 << 20])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_request_that_inflates_beyond_the_limit(algorithm: grpc.Compression, size: int) -> None:
    """The message is small on the wire, and too large when decompressed, on the loop and on another thread."""
    limit = size // 2
    refused = (grpc.StatusCode.RESOURCE_EXHAUSTED, f"Decompressed message larger than max ({limit})")

    async def test() -> None:
        async with served(echo := Echo(), GrpcServerOptions(max_receive_bytes=limit), compression=algorithm) as channel:
            assert await error_of(unary(channel, "/t/Echo", bytes(size))) == refused
            call = chat(channel)
            await call.write(bytes(size))
            assert (await call.code(), await call.details()) == refused
            assert (echo.calls, echo.streams[0].messages, echo.streams[0].ended) == ([], [], ["cancelled"])
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"

    run(test)


# Answers


@pytest.mark.parametrize("accepts", ACCEPTS)
@pytest.mark.parametrize("level", ["none", "low", "medium", "high"])
def test_answers_compressed_for_a_client(level: str, accepts: str) -> None:
    """The client reads what was sent, whatever the level and the encodings that it accepts."""
    settings = {"grpc.compression_enabled_algorithms_bitset": ACCEPTS[accepts]}
    messages = [words(size) for size in SIZES]

    async def test() -> None:
        async with served(Echo(compressed=True), GrpcServerOptions(response_compression=level), settings) as channel:
            for message in messages:
                assert await unary(channel, "/t/Echo", message) == b"<" + message + b">"
            call = chat(channel, messages)
            assert [await call.read() for _ in messages] == messages
            assert await call.details() == "bye"

    run(test)


INFLATE: dict[str, Any] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


def peer_of(echo: Echo, level: str) -> Peer:
    clock = Clock()
    return Peer(GrpcServer(echo.rpcs(), GrpcServerOptions(response_compression=level), clock), clock).greet()


def answered(level: str, accept: str | None, sent: bytes, path: str = "/t/Echo", compressed: bool = True) -> Any:
    """The `grpc-encoding` of an answer, the compressed flag of its message, and what that says."""
    peer = peer_of(Echo(compressed=compressed), level)
    answer = peer.answers[peer.call(path, sent, more=[] if accept is None else [("grpc-accept-encoding", accept)])]
    flag, size = struct.unpack_from(">BL", answer.data)
    body = bytes(answer.data[5:])
    assert size == len(body)
    encoding = answer.head.get("grpc-encoding", "identity")
    return encoding, flag, INFLATE[encoding](body) if flag else body


@pytest.mark.rows("G36")
@pytest.mark.parametrize(
    ("level", "accept", "encoding"),
    [
        # The choices of Triton.
        ("none", "identity, deflate, gzip", "identity"),
        ("low", "identity, deflate, gzip", "gzip"),
        ("medium", "identity, deflate, gzip", "deflate"),
        ("high", "identity, deflate, gzip", "deflate"),
        ("low", "gzip,deflate", "gzip"),
        ("high", "gzip,deflate", "deflate"),
        *((level, "deflate", "deflate") for level in ("low", "medium", "high")),
        *((level, "gzip", "gzip") for level in ("low", "medium", "high")),
        *((level, "snappy,gzip", "gzip") for level in ("low", "medium", "high")),
        *((level, "identity", "identity") for level in ("low", "medium", "high")),
        *((level, None, "identity") for level in ("low", "medium", "high")),
    ],
)
@pytest.mark.parametrize("path", ["/t/Echo", "/t/Chat"])
def test_answer_encoding_by_level_and_client(path: str, level: str, accept: str | None, encoding: str) -> None:
    sent = b"a" * 1000
    expected = sent if path == "/t/Chat" else b"<" + sent + b">"
    assert answered(level, accept, sent, path) == (encoding, int(encoding != "identity"), expected)


@pytest.mark.parametrize("path", ["/t/Echo", "/t/Chat"])
def test_answer_that_does_not_shrink_is_sent_uncompressed(path: str) -> None:
    """The head names the encoding all the same."""
    sent = random.Random(1).randbytes(100)
    expected = sent if path == "/t/Chat" else b"<" + sent + b">"
    assert answered("high", "gzip", sent, path) == ("gzip", 0, expected)


class Held(GrpcServer):
    """A server without threads. `work` is what they would do."""

    work: list[tuple[Callable[[], Any], Callable[[Any], None]]]

    def off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.work.append((work, done))


def test_large_answer_counts_until_it_is_compressed() -> None:
    """Any number may wait for a thread. Those that find no room are refused."""
    size = 4 * LARGE_MESSAGE_BYTES
    clock, echo, buffered = Clock(), Echo(compressed=True), BufferedBytes(size)
    options = GrpcServerOptions(response_compression="high", buffered=buffered)
    server = Held(echo.rpcs(), options, clock)
    server.work = []
    peer = Peer(server, clock).greet()
    more = [("grpc-accept-encoding", "gzip")]
    first, second, third = [peer.call("/t/Wait", b"x", more=more) for _ in range(3)]
    for call in echo.calls[:2]:
        call.send([bytes(size)])
        call.finish()
    assert buffered.held >= size
    ((work, done),) = server.work
    peer.look()
    assert peer.answers[second].status == 14
    done(work())
    peer.look()
    assert INFLATE["gzip"](bytes(peer.answers[first].data[5:])) == bytes(size)
    assert buffered.held < size
    echo.calls[2].send([b"fine"])
    echo.calls[2].finish()
    peer.look()
    assert peer.answers[third].data.endswith(b"fine")


def test_answers_of_other_rpcs_are_not_compressed() -> None:
    assert answered("high", "gzip", b"a" * 1000, compressed=False) == ("identity", 0, b"<" + b"a" * 1000 + b">")


def test_stream_of_many_small_compressed_messages_at_once() -> None:
    """Thousands in one read of the socket, each answered while it is handed on."""
    count = 4000

    async def test() -> None:
        options = GrpcServerOptions(response_compression="high")
        async with served(Echo(compressed=True), options, compression=grpc.Compression.Gzip) as channel:
            call = chat(channel)
            packed = [b"a" * 60 for _ in range(count)]
            for start in range(0, count, 500):
                for each in packed[start : start + 500]:
                    await call.write(each)
                assert [await call.read() for _ in range(500)] == packed[start : start + 500]
            call.cancel()

    run(test)


@pytest.mark.parametrize("level", ["none", "high"])
def test_stream_of_many_small_compressed_messages_in_one_frame(level: str) -> None:
    echo = Echo(compressed=True)
    peer = peer_of(echo, level)
    more = [("grpc-accept-encoding", "gzip"), ("grpc-encoding", "deflate")]
    one = message(zlib.compress(b"a" * 40), compressed=1)
    count = 16_384 // len(one)
    stream = peer.call("/t/Chat", end=False, more=more)
    peer.send(data(stream, one * count, end=True))
    assert echo.streams[0].messages == [b"a" * 40] * count
    assert peer.answers[stream].trailers["grpc-message"] == "bye"


def test_stream_of_large_compressed_answers_waits_for_each() -> None:
    """At most one message waits while another is compressed on another thread. The status comes after all of them."""

    async def test() -> None:
        echo = Echo(patient=True, compressed=True)
        async with served(echo, GrpcServerOptions(response_compression="low")) as channel:
            call = chat(channel)
            await call.write(b"x")
            assert await call.read() == b"x"
            server, block = echo.streams[0].call, words(1 << 20)
            assert server.send([block])
            assert not server.send([block])
            assert not server.send([b"last"])
            resumed: list[str] = []
            server.on_writable(lambda: resumed.append("now"))
            assert resumed == []
            server.finish(3, "done")
            assert [await call.read() for _ in range(3)] == [block, block, b"last"]
            assert (await call.code(), await call.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "done")

    run(test)


@pytest.mark.parametrize("admitted", [True, False])
def test_call_that_is_not_admitted_is_not_decompressed(admitted: bool) -> None:
    handled: list[bytes] = []

    def handle(content: Buffer, call: GrpcCall) -> None:
        handled.append(bytes(content))
        call.finish()

    def admit(call: GrpcCall) -> bool:
        if not admitted:
            call.finish(16, "who are you?")
        return admitted

    clock = Clock()
    peer = Peer(GrpcServer({"/t/Infer": Unary(handle, admit=admit)}, loop=clock), clock).greet()
    stream = peer.open(request("/t/Infer", ("grpc-encoding", "gzip")))
    packed = gzip.compress(b"x")
    peer.send(data(stream, b"\1" + len(packed).to_bytes(4) + packed, end=True))
    assert handled == ([b"x"] if admitted else [])
    assert peer.answers[stream].status == (0 if admitted else 16)
