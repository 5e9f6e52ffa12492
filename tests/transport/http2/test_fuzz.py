"""The same bytes, given to the `h2` library and to our connection, give the same calls. Corrupted bytes give the same
calls or an error, and never an exception or silence."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from halimede.transport.grpc.server import GrpcServer
from tests.transport.http2_bench import Clock, Service, Transport
from tests.transport.http2_peer import Bench, request
from tests.transport.http2_wire import HEAD, PREFACE, Code, Frame, Type, continuation, frame, frames, headers, message

PATH = "/t/Keep"
MAX_FRAME = 1 << 20


@dataclass
class Seen:
    """What one side has seen of a stream: its own metadata, whole messages, and how it ended."""

    metadata: list[tuple[str, str]] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    end: str = ""


# What a client does. Streams are numbered 0, 1, 2 by their order; what is impossible for one by then is left out.

values = st.sampled_from(["1", "20S", "x" * 40, "00-4bf92f3577b34da6a3ce929d0e0e4736-01", "ü"])
metadata = st.lists(st.tuples(st.sampled_from(["key-a", "key-b", "key-traceparent"]), values), max_size=3)
opening = st.tuples(st.just("open"), metadata, st.sampled_from([False, False, False, True]))
sending = st.tuples(
    st.just("send"), st.integers(0, 5), st.binary(max_size=60), st.sampled_from([None, None, 0, 1, 255])
)
ending = st.tuples(st.just("end"), st.integers(0, 5))
rarer = st.one_of(
    st.tuples(st.just("send large"), st.integers(0, 5), st.sampled_from([2000, 9000])),
    st.tuples(st.just("empty"), st.integers(0, 5), st.sampled_from([None, 7])),
    st.tuples(st.just("trailers"), st.integers(0, 5), metadata),
    st.tuples(st.just("reset"), st.integers(0, 5), st.sampled_from([0, 8, 2])),
    st.tuples(st.just("priority"), st.integers(0, 5), st.integers(1, 256)),
    st.tuples(st.just("ping")),
    st.tuples(st.just("settings"), st.sampled_from([0, 100, 65_535]), st.sampled_from([0, 300, 4096])),
    st.tuples(st.just("window"), st.integers(-1, 5), st.integers(1, 5000)),
)
steps = st.builds(
    lambda begin, rest: [*begin, *rest],
    st.lists(opening, min_size=1, max_size=3),
    st.lists(st.one_of(sending, sending, sending, opening, ending, rarer, rarer), min_size=8, max_size=25),
)


Plan = list[Any]
"""Steps: tuples of a kind and what belongs to it."""


class Client:
    """Makes the bytes of a client out of steps, by `h2`."""

    def __init__(self) -> None:
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self._h2.initiate_connection()
        self._open: list[int] = []
        self._bytes = bytearray(self._h2.data_to_send())

    def run(self, plan: Plan) -> bytes:
        for kind, *args in plan:
            self._step(kind, *args)
            self._bytes += self._h2.data_to_send()
        return bytes(self._bytes)

    def _step(self, kind: str, *args: Any) -> None:
        if kind == "open":
            self._begin(*args)
        elif kind == "ping":
            self._h2.ping(b"fuzzfuzz")
        elif kind == "settings":
            window, table = args
            self._h2.update_settings({4: window, 1: table})
        elif kind == "window" and args[0] == -1:
            self._h2.increment_flow_control_window(args[1])
        elif self._open:
            self._on_stream(kind, *args)

    def _begin(self, more: list[tuple[str, str]], end: bool) -> None:
        stream = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream, request(PATH, *more), end_stream=end)
        if not end:
            self._open.append(stream)

    def _on_stream(self, kind: str, at: int, *args: Any) -> None:
        stream = self._open[at % len(self._open)]
        connection: h2.connection.H2Connection = self._h2
        match kind, args:
            case "send", (bytes(payload), padding):
                connection.send_data(stream, message(payload), pad_length=padding)
            case "send large", (int(size),):
                if size + 5 <= connection.local_flow_control_window(stream):
                    connection.send_data(stream, message(bytes(size)))
            case "empty", (padding,):
                connection.send_data(stream, b"", pad_length=padding)
            case "end", ():
                connection.end_stream(stream)
            case "trailers", (list(fields),):
                connection.send_headers(stream, [*fields, ("key-end", "1")], end_stream=True)
            case "reset", (int(code),):
                connection.reset_stream(stream, code)
            case "priority", (int(weight),):
                connection.prioritize(stream, weight=weight)
            case "window", (int(size),):
                connection.increment_flow_control_window(size, stream)
        if kind in ("end", "trailers", "reset"):
            self._open.remove(stream)


def recut(raw: bytes, cuts: list[int]) -> bytes:
    """Header blocks cut into HEADERS and CONTINUATION frames, here and there."""
    out = [PREFACE]
    for number, each in enumerate(frames(raw.removeprefix(PREFACE))):
        cut = cuts[number % len(cuts)] if cuts else 0
        if each.type != Type.HEADERS or each.flags & 0x28 or not cut:
            out.append(rebuilt(each))
            continue
        block, ends = each.payload, bool(each.flags & 1)
        parts = [block[at : at + 9 * cut] for at in range(0, len(block), 9 * cut)] or [b""]
        out.append(headers(each.stream, parts[0], ends, last=len(parts) == 1))
        out += [continuation(each.stream, part, last=at == len(parts)) for at, part in enumerate(parts[1:], 2)]
    return b"".join(out)


def rebuilt(each: Frame) -> bytes:
    return frame(each.type, each.flags, each.stream, each.payload)


def by_h2(raw: bytes) -> dict[int, Seen]:
    """What `h2` makes of the bytes; raises what it raises."""
    config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
    connection = h2.connection.H2Connection(config)
    connection.local_settings = h2.settings.Settings(
        client=False,
        initial_values={3: 1024, 4: 4 << 20, 5: MAX_FRAME, 6: 1 << 16},  # type: ignore[dict-item]  # numbers
    )
    connection.max_inbound_frame_size = MAX_FRAME
    connection.initiate_connection()
    connection.increment_flow_control_window((64 << 20) - 65_535)
    seen: dict[int, Seen] = {}
    data: dict[int, bytes] = {}
    for event in connection.receive_data(raw):
        match event:
            case h2.events.RequestReceived(stream_id=int(stream), headers=fields):
                assert fields is not None
                own = [(str(name), str(value)) for name, value in fields]
                seen[stream] = Seen([pair for pair in own if pair[0].startswith("key")])
                data[stream] = b""
            case h2.events.DataReceived(stream_id=int(stream), data=bytes(part)):
                data[stream] += part
            case h2.events.StreamEnded(stream_id=int(stream)):
                seen[stream].end = "half closed"
            case h2.events.StreamReset(stream_id=int(stream)) if stream in seen:
                seen[stream].end = "cancelled"
            case h2.events.ConnectionTerminated():
                raise h2.exceptions.ProtocolError
    for stream, body in data.items():
        seen[stream].messages = list(split(body))
    return seen


def split(body: bytes) -> Iterator[bytes]:
    while len(body) >= 5 and len(body) >= 5 + int.from_bytes(body[1:5], "big"):
        size = int.from_bytes(body[1:5], "big")
        yield body[5 : 5 + size]
        body = body[5 + size :]


class Ours:
    """Our server, fed with bytes in pieces; nothing that it does may raise."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.service = Service()
        self.transport = Transport(self.clock)
        self.protocol = GrpcServer(self.service.rpcs(), None, self.clock).connect()
        self.transport.begin(self.protocol)

    def feed(self, raw: bytes, sizes: list[int]) -> None:
        at, turn = 0, 0
        while at < len(raw) and not self.transport.closing and self.transport.reading:
            room = self.protocol.get_buffer(-1)
            size = min(len(room), len(raw) - at, sizes[turn % len(sizes)] if sizes else len(raw))
            room[:size] = raw[at : at + size]
            del room
            self.protocol.buffer_updated(size)
            self.clock.run()
            at, turn = at + size, turn + 1
        self.check()

    def check(self) -> None:
        assert self.transport.misused == []
        assert self.service.wrong == []
        broken = [each for each in self.written if each.type == Type.GOAWAY and each.code == Code.INTERNAL_ERROR]
        assert not broken, "see the log"

    @property
    def written(self) -> list[Frame]:
        found = list(frames(bytes(self.transport.arrived)))
        assert sum(len(each.payload) + HEAD for each in found) == len(self.transport.arrived)
        return found

    @property
    def failed(self) -> bool:
        """Whether the client was told of an error: the connection's, or a stream's."""
        return any(each.type in (Type.GOAWAY, Type.RST_STREAM) for each in self.written)

    def seen(self) -> list[Seen]:
        return [
            Seen(
                [(key, str(value)) for key, value in opened.metadata if key.startswith("key")],
                opened.messages,
                "cancelled" if opened.cancels else "half closed" if opened.half_closes else "",
            )
            for opened in self.service.opened
        ]


sizes = st.one_of(st.just([1]), st.lists(st.integers(1, 400), max_size=8))
cuts = st.lists(st.sampled_from([0, 0, 1, 5]), max_size=5)


@settings(max_examples=150)
@given(steps, sizes, cuts)
def test_legal_bytes_give_the_calls_that_h2_sees(plan: Plan, sizes: list[int], cuts: list[int]) -> None:
    raw = recut(Client().run(plan), cuts)
    pings = sum(each.type == Type.PING for each in frames(raw.removeprefix(PREFACE)))
    assume(pings <= 3)  # by gRPC's rule more of them are too many
    expected = by_h2(raw)
    ours = Ours()
    ours.feed(raw, sizes if len(raw) < 20_000 else [1000, *sizes])
    assert ours.seen() == [expected[stream] for stream in sorted(expected)]
    assert not ours.failed
    ours.protocol.connection_lost(None)
    assert all(opened.cancels == 1 for opened in ours.service.opened)


# Bytes that went wrong

flips = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), min_size=1, max_size=4)
shuffles = st.lists(
    st.tuples(
        st.sampled_from(["swap", "drop", "twice", "flags", "type", "stream"]), st.integers(0, 40), st.integers(0, 255)
    ),
    min_size=1,
    max_size=4,
)


def flipped(raw: bytes, flips: list[tuple[int, int]]) -> bytes:
    """Bits turned over, behind the preface."""
    out = bytearray(raw)
    for at, bit in flips:
        out[len(PREFACE) + at % (len(raw) - len(PREFACE))] ^= 1 << bit
    return bytes(out)


def shuffled(raw: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    """Frames in another order, left out, doubled, or with another flag, type or stream."""
    parts = list(frames(raw.removeprefix(PREFACE)))
    for what, at, value in changes:
        at %= len(parts)
        one = parts[at]
        if what == "swap":
            other = value % len(parts)
            parts[at], parts[other] = parts[other], one
        elif what == "drop" and len(parts) > 1:
            del parts[at]
        elif what == "twice":
            parts.insert(value % len(parts), one)
        elif what == "flags":
            parts[at] = Frame(one.type, value, one.stream, one.payload)
        elif what == "type":
            parts[at] = Frame(value % 12, one.flags, one.stream, one.payload)
        else:
            parts[at] = Frame(one.type, one.flags, value % 9, one.payload)
    return PREFACE + b"".join(map(rebuilt, parts))


def survive(raw: bytes, sizes: list[int]) -> None:
    """Nothing raises, what is written is frames, every call ends once, and with `h2` in doubt nobody is silent."""
    whole = len(PREFACE) + sum(HEAD + len(each.payload) for each in frames(raw.removeprefix(PREFACE)))
    raw = raw[:whole]  # of a frame that is not all there we take the messages that are, and `h2` nothing
    ours = Ours()
    ours.feed(raw, sizes)
    try:
        expected = by_h2(raw)
    except Exception:
        expected = None
    if expected is not None and not ours.failed and not ours.transport.closing:
        calls = [expected[stream] for stream in sorted(expected) if expected[stream].metadata]
        assert [seen for seen in ours.seen() if seen.metadata] == calls or answered(ours)
    ours.transport.lose()
    ours.clock.advance(60)
    ours.check()
    assert ours.clock.waiting == 0, "a timer outlives its connection"


def answered(ours: Ours) -> bool:
    """Whether a call was refused by a gRPC or HTTP status, which `h2` knows nothing of."""
    return any(each.ends_stream for each in ours.written)


@settings(max_examples=150)
@given(steps, sizes, flips)
def test_flipped_bits(plan: Plan, sizes: list[int], flips: list[tuple[int, int]]) -> None:
    survive(flipped(Client().run(plan), flips), sizes)


@settings(max_examples=150)
@given(steps, sizes, cuts, shuffles)
def test_shuffled_frames(
    plan: Plan,
    sizes: list[int],
    cuts: list[int],
    changes: list[tuple[str, int, int]],
) -> None:
    survive(shuffled(recut(Client().run(plan), cuts), changes), sizes)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 255), st.integers(0, 7), st.binary(max_size=40)), max_size=20)
)
def test_frames_by_chance(random: list[tuple[int, int, int, bytes]]) -> None:
    raw = PREFACE + frame(Type.SETTINGS) + b"".join(frame(*each) for each in random)
    survive(raw, [])


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes(raw: bytes, greeted: bool) -> None:
    bench = Bench()
    ours = Ours()
    ours.feed((PREFACE + frame(Type.SETTINGS) if greeted else b"") + raw, [])
    ours.clock.advance(30)
    assert greeted or ours.transport.lost
    bench.others_work()
