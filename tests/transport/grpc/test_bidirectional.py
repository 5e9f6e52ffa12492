"""Calls with many messages whose service holds back, or registers for what was sent, on a clock moved by hand."""

import asyncio
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import grpc.aio
import pytest

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import Bidirectional, GrpcStreamCall
from halimede.transport.grpc.messages import LARGE_MESSAGE_BYTES
from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from halimede.transport.http2.stream import RECEIVE_WINDOW_BYTES
from halimede.transport.message_budget import MAX_MESSAGES_PER_TURN
from tests.transport.grpc.test_compression import words
from tests.transport.grpc_fakes import WAIT, chat, run, running
from tests.transport.http2_bench import Clock
from tests.transport.http2_peer import Peer
from tests.transport.http2_wire import Setting, Type, data, message, rst_stream, window_update

FRAME = 16_384
Stepwise = Callable[["Careful"], None]


class Careful:
    """The service's side of a stream, which runs `step` after each message."""

    def __init__(self, call: GrpcStreamCall, step: Stepwise) -> None:
        self.call = call
        self.step = step
        self.messages: list[bytes] = []
        self.ended: list[str] = []

    def message(self, message: Buffer) -> None:
        self.messages.append(bytes(message))
        self.step(self)

    def half_closed(self) -> None:
        self.ended.append("half closed")
        self.call.finish()

    def held_bytes(self) -> int:
        return 0

    def cancelled(self) -> None:
        self.ended.append("cancelled")


class Bench:
    """A connection with one stream. Its service holds back from the first message on, unless `step` says otherwise."""

    def __init__(self, step: Stepwise = lambda stream: stream.call.hold_back(), *settings: tuple[int, int]) -> None:
        self._step = step
        self.streams: list[Careful] = []
        self.clock = Clock()
        server = GrpcServer({"/t/Careful": Bidirectional(self._open)}, None, self.clock)
        self.peer = Peer(server, self.clock).greet(*settings)
        self.id = self.peer.call("/t/Careful", b"first", end=False)
        self.stream = self.streams[0]
        self.call = self.stream.call
        self.peer.fresh()

    def _open(self, call: GrpcStreamCall) -> Careful:
        self.streams.append(Careful(call, self._step))
        return self.streams[-1]

    def send(self, body: bytes, end: bool = False) -> None:
        """A body in frames."""
        parts = [body[at : at + FRAME] for at in range(0, len(body), FRAME)]
        self.peer.send(*(data(self.id, part, end and part is parts[-1]) for part in parts))

    def granted(self) -> int:
        """Returns how many more bytes the client may send on the stream since the last call."""
        return sum(frame.number for frame in self.peer.fresh_of(Type.WINDOW_UPDATE) if frame.stream == self.id)

    def go_on(self) -> None:
        self.call.go_on()
        self.peer.look()


def numbered(count: int, size: int = 100) -> list[bytes]:
    return [b"%0*d" % (size, n) for n in range(count)]


def test_stream_held_back_gets_nothing_until_it_may_go_on() -> None:
    bench = Bench()
    sent = numbered(1000)
    bench.send(b"".join(map(message, sent)), end=True)
    assert (bench.stream.messages, bench.stream.ended) == ([b"first"], [])
    for n in range(3):  # each holds back again
        bench.go_on()
        assert bench.stream.messages == [b"first", *sent[: n + 1]]
    bench.stream.step = lambda stream: None
    bench.go_on()
    assert (bench.stream.messages, bench.stream.ended) == ([b"first", *sent], ["half closed"])
    assert bench.peer.answers[bench.id].status == 0


@pytest.mark.parametrize("size", [0, 100, FRAME, 300_000])
def test_stream_held_back_closes_the_window_of_its_client(size: int) -> None:
    bench = Bench()
    count = (RECEIVE_WINDOW_BYTES - 1000) // (size + 5) if size else 2000
    body = b"".join(map(message, numbered(count, size) if size else [b""] * count))
    bench.send(body)
    assert bench.granted() == 0
    bench.stream.step = lambda stream: None
    bench.go_on()
    assert len(bench.stream.messages) == 1 + count
    assert bool(bench.granted()) == (len(body) > RECEIVE_WINDOW_BYTES // 2)
    bench.send(message(b"more"))
    assert bench.stream.messages[-1] == b"more"


def test_stream_held_back_takes_no_more_memory_than_its_window() -> None:
    """The smallest messages are used, because they take the most memory as objects."""
    bench = Bench()
    part = message(b"") * (FRAME // 5)
    tracemalloc.start()
    try:
        for _ in range((RECEIVE_WINDOW_BYTES - 1000) // len(part)):
            bench.peer.send(data(bench.id, part))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bench.stream.messages == [b"first"]
    assert taken < 2 * RECEIVE_WINDOW_BYTES
    bench.peer.send(rst_stream(bench.id))
    assert bench.stream.ended == ["cancelled"]


def test_stream_held_back_in_the_middle_of_a_large_message() -> None:
    bench = Bench()
    sent = [bytes(3 * RECEIVE_WINDOW_BYTES // 2), b"after"]
    body, at = b"".join(map(message, sent)), RECEIVE_WINDOW_BYTES - 1000
    bench.send(body[:at])
    assert bench.granted() == 0
    bench.stream.step = lambda stream: None
    bench.go_on()
    assert bench.granted() > len(body) - at - 1000
    bench.send(body[at:])
    assert bench.stream.messages[1:] == sent


def test_stream_of_tiny_messages_does_not_hold_the_loop() -> None:
    """This holds also if they all come in one read."""
    bench = Bench(lambda stream: None)
    count = 40_000
    raw, protocol = data(bench.id, message(b"") * count), bench.peer.protocol
    room = protocol.get_buffer(-1)
    room[: len(raw)] = raw
    protocol.buffer_updated(len(raw))
    delivered = [1, len(bench.stream.messages)]
    while not bench.clock.idle:
        bench.clock.turn()
        delivered.append(len(bench.stream.messages))
    assert delivered[-1] == 1 + count
    assert max(after - before for before, after in pairwise(delivered)) < 2 * MAX_MESSAGES_PER_TURN
    assert bench.granted() == 0
    bench.send(message(b"end"), end=True)
    assert (bench.stream.messages[-1], bench.stream.ended) == (b"end", ["half closed"])


def test_stream_held_back_in_a_read_keeps_the_rest_of_it_as_bytes() -> None:
    bench = Bench()
    raw, protocol = data(bench.id, message(b"") * 40_000), bench.peer.protocol
    room = protocol.get_buffer(-1)
    room[: len(raw)] = raw
    tracemalloc.start()
    try:
        protocol.buffer_updated(len(raw))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bench.stream.messages == [b"first"]
    assert taken < 2 * len(raw)


def test_resumed_stream_does_not_hold_the_loop() -> None:
    bench = Bench()
    bench.send(b"".join(map(message, numbered(10_000))))
    bench.stream.step = lambda stream: None
    bench.call.go_on()
    turns: list[int] = []

    def turn() -> None:
        turns.append(len(bench.stream.messages))
        if turns[-1] < 10_001:
            bench.clock.call_soon(turn)

    turn()
    bench.peer.look()
    most = max(after - before for before, after in pairwise(turns))
    assert 0 < most < 2000


def test_stream_that_holds_back_and_goes_on_within_a_message() -> None:
    def step(stream: Careful) -> None:
        stream.call.hold_back()
        stream.call.go_on()

    bench = Bench(step)
    sent = numbered(500)
    bench.send(b"".join(map(message, sent)), end=True)
    assert (bench.stream.messages[1:], bench.stream.ended) == (sent, ["half closed"])


def test_stream_held_back_that_ends_within_a_message() -> None:
    bench = Bench()
    bench.send(message(b"whole") + message(b"cut off")[:-1], end=True)
    assert bench.stream.messages == [b"first"]
    bench.stream.step = lambda stream: None
    bench.go_on()
    assert bench.stream.messages[1:] == [b"whole"]
    assert bench.stream.ended == ["cancelled"]
    assert bench.peer.answers[bench.id].status == 13


def test_stream_held_back_may_be_finished() -> None:
    bench = Bench()
    bench.send(b"".join(map(message, numbered(100))))
    bench.call.finish(3, "enough")
    bench.go_on()
    assert bench.stream.messages == [b"first"]
    assert (bench.peer.answers[bench.id].status, bench.peer.reset(bench.id)) == (3, 0)


# What was sent


def test_stream_tells_when_each_message_is_on_its_way() -> None:
    bench = Bench(lambda stream: None, (Setting.INITIAL_WINDOW_SIZE, 0))
    sent: list[int] = []
    bench.call.on_sent(partial(sent.append, 0))
    assert sent == [0], "nothing waits"
    for n in (1, 2, 3):
        bench.call.send([bytes(995)])
        bench.call.on_sent(partial(sent.append, n))
        bench.call.on_sent(partial(sent.append, n))
    for granted, told in ((999, []), (1, [1, 1]), (500, []), (1500, [2, 2, 3, 3])):
        sent.clear()
        bench.peer.send(window_update(bench.id, granted))
        assert sent == told
    bench.peer.send(window_update(bench.id, 5000))
    bench.call.send([b"x"])
    bench.call.on_sent(partial(sent.append, 4))
    assert sent == [2, 2, 3, 3, 4]


def test_reset_stream_calls_no_on_sent_callback() -> None:
    bench = Bench(lambda stream: None, (Setting.INITIAL_WINDOW_SIZE, 0))
    sent: list[int] = []
    bench.call.send([b"x"])
    bench.call.on_sent(partial(sent.append, 1))
    bench.peer.send(rst_stream(bench.id))
    bench.peer.look()
    assert (sent, bench.stream.ended) == ([], ["cancelled"])


def test_finished_stream_resumes_all_senders() -> None:
    """The stream is ended while a large message of it is being compressed."""
    streams: list[Careful] = []
    work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def open_stream(call: GrpcStreamCall) -> Careful:
        streams.append(Careful(call, lambda stream: None))
        return streams[-1]

    class Server(GrpcServer):
        def off_loop(self, task: Callable[[], Any], done: Callable[[Any], None]) -> None:
            work.append((task, done))

    clock, rpcs = Clock(), {"/t/Careful": Bidirectional(open_stream, True)}
    peer = Peer(Server(rpcs, GrpcServerOptions(response_compression="high"), clock), clock).greet()
    stream = peer.call("/t/Careful", b"x", end=False, more=[("grpc-accept-encoding", "gzip")])
    call = streams[0].call
    for _ in range(2):
        call.send([bytes(4 * LARGE_MESSAGE_BYTES)])
    peer.send(rst_stream(stream))
    told: list[str] = []
    call.on_sent(partial(told.append, "sent"))
    call.on_writable(partial(told.append, "writable"))
    assert told == ["sent", "writable"]
    (first,) = work
    first[1](first[0]())
    peer.look()
    assert told == ["sent", "writable"]


def test_stream_may_send_again_in_on_sent() -> None:
    bench = Bench(lambda stream: None, (Setting.INITIAL_WINDOW_SIZE, 0))
    sent: list[int] = []

    def more() -> None:
        sent.append(len(sent))
        if len(sent) < 5:
            bench.call.send([bytes(95)])
            bench.call.on_sent(more)

    bench.call.send([bytes(95)])
    bench.call.on_sent(more)
    for n in range(5):
        bench.peer.send(window_update(bench.id, 100))
        assert sent == list(range(n + 1))


def test_stream_of_compressed_messages_tells_when_they_are_sent() -> None:
    """A large message is compressed on another thread first."""

    async def test() -> None:
        streams: list[Careful] = []
        told = asyncio.Event()

        def step(stream: Careful) -> None:
            stream.call.send([words(4 * LARGE_MESSAGE_BYTES)])
            stream.call.on_sent(told.set)
            assert not told.is_set()

        def open_stream(call: GrpcStreamCall) -> Careful:
            streams.append(Careful(call, step))
            return streams[-1]

        rpcs = {"/t/Careful": Bidirectional(open_stream, True)}
        async with (
            running(rpcs, GrpcServerOptions(response_compression="high")) as (_, target),
            grpc.aio.insecure_channel(target) as channel,
        ):
            call = chat(channel, path="/t/Careful")
            await call.write(b"x")
            assert await call.read() == words(4 * LARGE_MESSAGE_BYTES)
            await asyncio.wait_for(told.wait(), WAIT)
            call.cancel()

    run(test)
