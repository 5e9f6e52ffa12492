"""Clients that send much work in few bytes, or leave half of everything: turns, times and memory are bounded."""

import gzip
import logging

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from halimede.transport.buffered_bytes import CONNECTION_FULL, FULL, MAX_WAIT_SECONDS, BufferedBytes
from halimede.transport.grpc.calls import MAX_SMALL_MESSAGE_BYTES
from halimede.transport.grpc.heads import FIELD_BYTES
from halimede.transport.grpc.messages import PAGE_BYTES
from halimede.transport.grpc.server import GrpcServerOptions
from halimede.transport.grpc.streams import CALL_BYTES, INFLATE_UNITS
from halimede.transport.http2.connection import SLICE_SECONDS
from halimede.transport.http2.headers import MAX_FIELDS
from halimede.transport.http2.reader import UNITS_PER_LOOK
from halimede.transport.message_budget import MAX_MESSAGES_PER_TURN
from halimede.transport.stalls import TimeLimits
from tests.transport.http2_peer import Bench, Peer, request
from tests.transport.http2_wire import Code, Setting, Type, continuation, data, frame, headers, message, window_update

ZEROS = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(b"0" * 58_000)
"""36 kB: the code of this character is among the shortest, so they mean most text."""


def literal(name: bytes, value: bytes, coded: bool = False) -> bytes:
    size = len(value) - 127
    length = bytes([255 if coded else 127, size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    return b"\x00" + bytes([len(name)]) + name + length + value


def without_running(peer: Peer, raw: bytes) -> None:
    """Hands over bytes as one read, without the turns of the loop that follow it."""
    room = peer.protocol.get_buffer(-1)
    room[: len(raw)] = raw
    del room
    peer.protocol.buffer_updated(len(raw))


def bench_of(options: GrpcServerOptions | None = None) -> Bench:
    """A server that looks at its connections."""
    bench = Bench(options)
    bench.server.rounds.begin()
    return bench


# Turns of the loop.


def test_calls_of_one_read_take_turns() -> None:
    bench = bench_of()
    bench.service.work = lambda: bench.clock.work(SLICE_SECONDS / 10)
    peer, other = bench.peer(), bench.peer()
    raw = b"".join(
        headers(2 * number + 1, peer.block(request())) + data(2 * number + 1, message(b"x"), end=True)
        for number in range(500)
    )
    bench.service.opened.clear()
    peer.send(raw[: len(raw) // 2])
    assert len(bench.service.opened) >= 249
    peer.send(raw[len(raw) // 2 :])
    assert len(bench.service.opened) == 500
    assert {answer.status for answer in peer.answers.values()} == {0}
    second = bench_of()
    second.service.work = lambda: second.clock.work(SLICE_SECONDS / 10)
    peer, other = second.peer(), second.peer()
    second.service.opened.clear()
    without_running(peer, raw)
    begun = len(second.service.opened)
    assert begun <= UNITS_PER_LOOK + 12
    assert not peer.transport.reading
    other.echo()
    second.clock.run()
    assert len(second.service.opened) == 501
    assert peer.transport.reading


def test_large_header_blocks_of_all_connections_share_a_turn() -> None:
    bench = bench_of()
    peers = [bench.peer() for _ in range(4)]
    block = peers[0].block(request("/t/Echo")) + literal(b"x", ZEROS, True)
    for peer in peers:
        without_running(peer, headers(1, block, end=True) * 1)
    waiting = [not peer.transport.reading for peer in peers]
    assert waiting == [False, False, True, True]
    bench.clock.run()
    assert all(peer.transport.reading for peer in peers)


def test_block_that_waits_for_its_turn_is_answered() -> None:
    bench = bench_of()
    peer = bench.peer()
    fields = peer.block(request("/t/Echo"))
    streams = [2 * number + 1 for number in range(5)]
    for stream in streams:
        peer.conduct.windows[stream] = 65535
    raw = b"".join(
        headers(stream, fields if stream == 1 else peer.block(request("/t/Echo")), last=False)
        + continuation(stream, literal(b"x", ZEROS, True), last=True)
        for stream in streams
    )
    peer.send(raw)
    for stream in streams:
        assert peer.answers[stream].trailers["grpc-message"] == "received metadata size exceeds limit"


def test_more_fields_than_any_client_sends_end_the_connection() -> None:
    bench = bench_of()
    peer = bench.peer()
    peer.open([*request("/t/Echo"), *((f"{number}", "") for number in range(MAX_FIELDS - 10))], end=True)
    assert not peer.transport.closing
    peer = bench.peer()
    peer.send_raw(headers(1, b"\x00\x01a\x00" * (MAX_FIELDS + 1), end=True))
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM
    bench.others_work()


def test_third_table_size_update_ends_the_connection() -> None:
    bench = bench_of()
    peer = bench.peer()
    peer.send_raw(headers(1, b"\x20\x3f\xe1\x1f\x20" + b"\x20" * 60_000, end=True))
    assert peer.closed_by is Code.COMPRESSION_ERROR


def test_compressed_messages_of_a_stream_take_turns() -> None:
    bench = bench_of()
    peer = bench.peer()
    stream = peer.open(request("/t/Keep", ("grpc-encoding", "gzip")))
    packed = gzip.compress(bytes(60_000))
    peer.conduct.windows[stream] = 65535
    without_running(peer, data(stream, message(packed, compressed=1) * 100))
    per_turn = MAX_MESSAGES_PER_TURN // INFLATE_UNITS
    assert len(bench.service.last.messages) <= per_turn
    bench.clock.turn()
    assert per_turn < len(bench.service.last.messages) + per_turn // 2 <= 3 * per_turn
    bench.clock.run()
    assert bench.service.last.messages == [bytes(60_000)] * 100


# Times.


@pytest.mark.parametrize("path", ["/t/Wait", "/t/Keep"])
def test_half_a_message_ends_only_without_progress(path: str) -> None:
    bench = bench_of()
    peer = bench.peer()
    stream = peer.open(request(path))
    peer.send(data(stream, message(b"x", size=1000)))
    for _ in range(5):
        peer.wait(59)
        peer.send(data(stream, b"x"))
    peer.wait(62)
    assert peer.answers[stream].status == 4
    assert peer.answers[stream].trailers["grpc-message"] == "no part of the message arrived for 60 s"
    bench.others_work()


def test_silent_stream_and_silent_call_do_not_end() -> None:
    bench = bench_of()
    peer = bench.peer()
    between = peer.call("/t/Keep", b"x", end=False)
    before = peer.open(request("/t/Wait"))
    answering = peer.call("/t/Wait", b"x")
    peer.wait(7000)
    for stream in (between, before, answering):
        assert stream not in peer.answers or not peer.answers[stream].ended
        assert peer.reset(stream) is None


def test_message_that_the_server_does_not_take_yet_does_not_end() -> None:
    bench = bench_of()
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x", end=False)
    bench.service.last.call.hold_back()  # type: ignore[attr-defined]  # a stream
    peer.send(data(stream, message(b"x") + message(b"y", size=100)))
    peer.wait(1000)
    assert stream not in peer.answers
    bench.service.last.call.go_on()  # type: ignore[attr-defined]  # a stream
    peer.wait(62)
    assert peer.answers[stream].status == 4


@pytest.mark.parametrize("half", ["frame", "block"])
def test_half_a_frame_and_half_a_header_block_end(half: str) -> None:
    bench = bench_of()
    peer = bench.peer()
    block = peer.block(request())
    peer.send_raw(headers(1, block)[:-1] if half == "frame" else headers(1, block, last=False))
    for _ in range(3):
        peer.wait(19)
        assert not peer.transport.closing
        if half == "block":
            peer.send_raw(continuation(1, b""))
    peer.wait(6)
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM
    bench.others_work()


def test_answer_that_is_not_read_ends_its_call_only() -> None:
    bench = bench_of()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 1000))
    stream = peer.call("/t/Keep", b"x")
    bench.service.last.call.send([bytes(100_000)])
    for _ in range(3):
        peer.wait(59)
        peer.send(window_update(stream, 1000))
    assert peer.reset(stream) is None
    peer.wait(62)
    assert peer.reset(stream) is Code.ENHANCE_YOUR_CALM
    assert bench.service.last.cancels == 1
    assert not peer.transport.closing


def test_connection_that_is_not_read_ends() -> None:
    bench = bench_of()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 1 << 20))
    peer.call("/t/Keep", b"x")
    peer.transport.client_reads = False
    bench.service.last.call.send([bytes(60_000)])
    peer.clock.run()
    for _ in range(3):
        peer.wait(59)
        peer.read(1000)
    assert not peer.transport.closing
    peer.wait(62)
    assert peer.transport.lost
    assert bench.service.last.cancels == 1
    bench.others_work()


def test_times_of_zero_are_no_limit() -> None:
    bench = bench_of(GrpcServerOptions(times=TimeLimits(0, 0, 0, 0)))
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 1000))
    stream = peer.open(request("/t/Wait"))
    peer.send(data(stream, message(b"x", size=1000)))
    unread = peer.call("/t/Keep", b"x")
    bench.service.last.call.send([bytes(100_000)])
    peer.wait(7000)
    assert not peer.transport.closing
    assert (peer.reset(stream), peer.reset(unread)) == (None, None)


# Memory.


def full(limit: int = 1 << 20) -> tuple[Bench, BufferedBytes]:
    buffered = BufferedBytes(limit)
    bench = bench_of(GrpcServerOptions(buffered=buffered))
    buffered.take(limit)
    return bench, buffered


def test_calls_are_refused_while_memory_is_full_but_not_small_ones() -> None:
    bench, buffered = full()
    peer = bench.peer()
    for path in ("/t/Echo", "/t/Keep"):
        answer = peer.answers[peer.call(path, b"x")]
        assert (answer.status, answer.trailers["grpc-message"]) == (14, FULL)
    assert peer.answers[peer.call("/t/Small", b"x")].status == 0
    buffered.give(1)
    bench.others_work()


def test_call_is_refused_while_memory_is_full_before_its_message_arrives() -> None:
    bench, _ = full()
    peer = bench.peer()
    for path, status in (("/t/Wait", 14), ("/t/Keep", 14)):
        assert peer.answers[peer.open(request(path))].status == status
    assert peer.open(request("/t/Small")) not in peer.answers


def test_open_calls_count_with_their_heads() -> None:
    buffered = BufferedBytes()
    peer = bench_of(GrpcServerOptions(buffered=buffered)).peer()
    for path in ("/t/Wait", "/t/Keep"):
        peer.open(request(path, *[("ab", "")] * 300))
    peer.wait(1)
    assert buffered.held > 2 * (CALL_BYTES + 300 * FIELD_BYTES)
    peer.lose()
    assert buffered.held == 0


def test_whole_message_of_a_call_that_does_not_end() -> None:
    buffered = BufferedBytes()
    bench = bench_of(GrpcServerOptions(buffered=buffered))
    peer = bench.peer()
    stream = peer.call("/t/Wait", bytes(5000), end=False)
    peer.wait(1)
    assert buffered.held > 5000
    peer.wait(62)
    assert peer.answers[stream].status == 4
    peer.wait(1)
    assert buffered.held == 0
    bench.others_work()


def test_large_message_is_refused_before_it_arrives() -> None:
    bench, buffered = full()
    peer = bench.peer()
    stream = peer.open(request("/t/Wait"))
    peer.send(data(stream, message(b"x", size=1 << 20)))
    assert peer.answers[stream].status == 14
    buffered.give(1 << 20)
    stream = peer.open(request("/t/Wait"))
    peer.send(data(stream, message(b"x", size=(1 << 20) + 1)))
    assert peer.answers[stream].status == 8
    assert "--max-buffered-bytes (1048576)" in peer.answers[stream].trailers["grpc-message"]


def test_large_messages_beyond_the_share_of_a_connection_wait_then_are_refused() -> None:
    buffered = BufferedBytes(share=1 << 20)
    bench = bench_of(GrpcServerOptions(buffered=buffered))
    peer, other = bench.peer(), bench.peer()
    stream = peer.open(request("/t/Echo"))
    peer.send(data(stream, message(b"x", size=(1 << 20) + 1)))
    assert peer.answers[stream].status == 8
    assert "--max-connection-bytes (1048576)" in peer.answers[stream].trailers["grpc-message"]
    first, second = (peer.open(request("/t/Echo")) for _ in range(2))
    for each in (first, second):
        peer.send(data(each, message(bytes((1 << 19) - 5), size=1 << 19)))
    peer.send(data(second, bytes(3)))
    assert peer.transport.reading
    third = peer.open(request("/t/Echo"))
    peer.send(data(third, message(bytes(70_000), size=80_000)))
    assert not peer.transport.reading
    assert buffered.held == (1 << 20) + 70_000 - 7
    others = other.open(request("/t/Echo"))
    other.send(window_update(0, 1 << 20), window_update(others, 1 << 20))
    other.send(data(others, message(bytes(70_000)), end=True))
    assert other.answers[others].status == 0
    peer.wait(MAX_WAIT_SECONDS + 2)
    for each in (first, second, third):
        assert peer.answers[each].status == 14
        assert CONNECTION_FULL in peer.answers[each].trailers["grpc-message"]
    # The service keeps the other call.
    bench.service.opened.clear()
    assert buffered.held == 0


def test_large_message_waits_for_memory_and_goes_on() -> None:
    buffered = BufferedBytes(1 << 20)
    bench = bench_of(GrpcServerOptions(buffered=buffered))
    peer = bench.peer()
    stream = peer.open(request("/t/Echo"))
    peer.send(data(stream, message(bytes(10_000), size=100_000)))
    buffered.take(1 << 20)
    peer.send(data(stream, bytes(10_000)))
    assert not peer.transport.reading
    buffered.give(1 << 20)
    peer.wait(1)
    assert peer.transport.reading
    peer.send(window_update(0, 1 << 20), window_update(stream, 1 << 20), data(stream, bytes(80_000), end=True))
    assert peer.answers[stream].status == 0


def test_large_message_that_waits_for_long_is_refused() -> None:
    buffered = BufferedBytes(1 << 20)
    bench = bench_of(GrpcServerOptions(buffered=buffered))
    peer = bench.peer()
    stream = peer.open(request("/t/Echo"))
    peer.send(data(stream, message(bytes(10_000), size=100_000)))
    buffered.take(1 << 20)
    peer.send(data(stream, bytes(10_000)))
    peer.wait(MAX_WAIT_SECONDS + 2)
    assert peer.answers[stream].status == 14
    assert peer.transport.reading
    assert buffered.held == 1 << 20


def test_unread_answers_count_until_they_are_read_or_dropped() -> None:
    buffered = BufferedBytes()
    bench = bench_of(GrpcServerOptions(buffered=buffered))
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 0))
    one, other = peer.call("/t/Keep", b"x"), peer.call("/t/Keep", b"x")
    for opened in bench.service.opened[-2:]:
        opened.call.send([bytes(10_000)])
    assert buffered.held == 20_010
    peer.send(window_update(one, 4_005))
    assert buffered.held == 16_005
    peer.send(frame(Type.RST_STREAM, 0, other, bytes(4)))
    assert buffered.held == 6_000
    peer.lose()
    assert buffered.held == 0


def test_small_rpc_takes_no_large_message() -> None:
    bench = bench_of()
    peer = bench.peer()
    stream = peer.open(request("/t/Small"))
    peer.send(data(stream, message(b"x", size=MAX_SMALL_MESSAGE_BYTES + 1)))
    assert peer.answers[stream].status == 8
    assert peer.answers[peer.call("/t/Small", bytes(30_000))].status == 0


# The log.


def test_faults_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "halimede")
    bench = bench_of()
    for _ in range(100):
        bench.connect().send_raw(b"GET / HTTP/1.1\r\n\r\n" + b"\x1b\x9b\r\n")
    assert len(caplog.records) == 1
    bench.clock.advance(1)
    bench.connect().send_raw(b"GET / HTTP/1.1\r\n\r\n")
    text = "gRPC connection ended by the server: PROTOCOL_ERROR: bad connection preface"
    assert [record.getMessage() for record in caplog.records] == [text, f"{text} (99 more since the last such line)"]


def test_small_messages_that_arrive_slowly_count_once_a_second() -> None:
    buffered = BufferedBytes(61_000)
    bench = bench_of(GrpcServerOptions(buffered=buffered))
    peer = bench.peer()
    for _ in range(8):
        peer.send(data(peer.open(request("/t/Echo")), message(bytes(1000), size=60_000)))
    peer.wait(1)
    # Of an incomplete message, the page of its first byte counts, and what has arrived.
    assert buffered.held - 8 * (1000 + PAGE_BYTES) in range(8 * CALL_BYTES, 9 * CALL_BYTES)
    answer = peer.answers[peer.call("/t/Echo", b"x")]
    assert (answer.status, answer.trailers["grpc-message"]) == (14, FULL)
    peer.wait(MAX_WAIT_SECONDS + 2)
    peer.transport.lose()
    assert buffered.held == 0


def test_messages_that_the_service_holds_count_once_a_second() -> None:
    buffered = BufferedBytes(100_000)
    bench = bench_of(GrpcServerOptions(buffered=buffered))
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x", end=False)
    bench.service.last.holds = 100_000
    peer.wait(1)
    assert buffered.held - 100_000 in range(CALL_BYTES, 2 * CALL_BYTES)
    peer.send(data(stream, message(b"y")))
    assert (peer.answers[stream].status, peer.answers[stream].trailers["grpc-message"]) == (14, FULL)
    peer.wait(1)
    assert buffered.held == 0


def test_streams_of_lost_connections_end_in_several_turns() -> None:
    bench = bench_of()
    peer = bench.peer()
    for _ in range(300):
        peer.call("/t/Keep", b"x")
    peer.transport.eof()
    bench.clock.turn()
    assert 0 < sum(call.cancels for call in bench.service.opened) < 300
    bench.clock.run()
    assert [call.cancels for call in bench.service.opened] == [1] * 300
