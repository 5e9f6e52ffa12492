"""A client of one HTTP/2 connection that writes raw frames, and holds the server to RFC 9113 with every byte that comes
back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import hpack

from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from tests.transport.http2_bench import Clock, Service, Transport
from tests.transport.http2_wire import (
    ACK,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    HEAD,
    PREFACE,
    Code,
    Frame,
    Setting,
    Type,
    data,
    frames,
    headers,
    message,
    messages,
    settings,
)

Fields = Sequence[tuple[str, str]]


def request(path: str = "/t/Echo", *more: tuple[str, str], **instead: str | None) -> list[tuple[str, str]]:
    """The fields of a gRPC request; `instead` changes pseudo-headers (`method="GET"`) or leaves them out (None)."""
    pseudo = {"method": "POST", "scheme": "http", "path": path, "authority": "x", **instead}
    found = [(f":{name}", value) for name, value in pseudo.items() if value is not None]
    return [*found, ("te", "trailers"), ("content-type", "application/grpc"), *more]


@dataclass
class Answer:
    """What the server wrote on one stream."""

    heads: list[list[tuple[str, str]]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None

    @property
    def head(self) -> dict[str, str]:
        return dict(self.heads[0])

    @property
    def messages(self) -> list[bytes]:
        return messages(bytes(self.data))

    @property
    def trailers(self) -> dict[str, str]:
        assert self.ended, "no trailers yet"
        return dict(self.heads[-1])

    @property
    def status(self) -> int:
        return int(self.trailers["grpc-status"])

    @property
    def trailers_only(self) -> bool:
        return self.ended and len(self.heads) == 1 and not self.data


class Conduct:
    """The server's side of the rules: what it may write, given what the client has written (sections 4.2, 5.1, 6.9)."""

    def __init__(self) -> None:
        self.frame_size = DEFAULT_FRAME_SIZE
        self.initial_window = DEFAULT_WINDOW
        self.connection_window = DEFAULT_WINDOW
        self.windows: dict[int, int] = {}
        self.client_reset: set[int] = set()
        self.ended: set[int] = set()
        self.reset: set[int] = set()

    def client_wrote(self, frame: Frame) -> None:
        """To be told before the server reads it."""
        if frame.type == Type.WINDOW_UPDATE and len(frame.payload) == 4:
            if frame.stream:
                self.windows[frame.stream] = self.window(frame.stream) + frame.number
            else:
                self.connection_window += frame.number
        elif frame.type == Type.SETTINGS and not frame.flags & ACK and len(frame.payload) % 6 == 0:
            self._settings(frame.settings)
        elif frame.type == Type.HEADERS:
            self.windows.setdefault(frame.stream, self.initial_window)

    def _settings(self, changes: dict[int, int]) -> None:
        self.frame_size = changes.get(Setting.MAX_FRAME_SIZE, self.frame_size)
        if (new := changes.get(Setting.INITIAL_WINDOW_SIZE)) is not None:
            self.windows = {stream: size + new - self.initial_window for stream, size in self.windows.items()}
            self.initial_window = new

    def window(self, stream: int) -> int:
        return self.windows.get(stream, self.initial_window)

    def check(self, frame: Frame) -> None:
        """Of a frame that the server wrote."""
        assert len(frame.payload) <= self.frame_size, "a frame larger than the client takes"
        if not frame.stream:
            return
        assert frame.stream not in self.reset, f"{frame} after RST_STREAM"
        assert frame.stream not in self.client_reset, f"{frame} after the client's RST_STREAM"
        if frame.type in (Type.DATA, Type.HEADERS):
            assert frame.stream not in self.ended, f"{frame} after END_STREAM"
            assert frame.stream in self.windows, f"{frame} on a stream that was never opened"
        if frame.type == Type.DATA:
            self.connection_window -= len(frame.payload)
            self.windows[frame.stream] -= len(frame.payload)
            assert not frame.payload or min(self.connection_window, self.windows[frame.stream]) >= 0, "window overrun"
        if frame.ends_stream:
            self.ended.add(frame.stream)
        if frame.type == Type.RST_STREAM:
            self.reset.add(frame.stream)


class Peer:
    """One connection. `send` hands over bytes as a loop would; afterwards `frames` holds all that the server wrote."""

    def __init__(self, server: GrpcServer, clock: Clock, wrong: Sequence[str] = ()) -> None:
        self.clock = clock
        self.wrong = wrong
        self.transport = Transport(clock)
        self.protocol: Any = server.connect()
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.conduct = Conduct()
        self.frames: list[Frame] = []
        self.answers: dict[int, Answer] = {}
        self._unread = b""
        self._parsed = 0
        self._seen = 0
        self._block: tuple[Frame, bytes] | None = None
        self._next_stream = 1
        self.transport.begin(self.protocol)
        self.look()

    def greet(self, *pairs: tuple[int, int]) -> "Peer":
        """The preface, these settings and the ACK of the server's."""
        self.send(PREFACE + settings(*pairs), settings(ack=True))
        self.fresh()
        return self

    # Sending

    def send(self, *pieces: bytes, size: int | None = None) -> "Peer":
        """Sends bytes (frames, with or without the preface before them), at most `size` in one read."""
        raw = b"".join(pieces)
        written = list(frames(raw.removeprefix(PREFACE)))
        for frame in written:
            self.conduct.client_wrote(frame)
        self.send_raw(raw, size)
        for frame in written:
            if frame.type == Type.RST_STREAM and len(frame.payload) == 4:
                self.conduct.client_reset.add(frame.stream)
        return self

    def send_raw(self, raw: bytes, size: int | None = None) -> None:
        """Sends bytes that need not be frames."""
        self._unread += raw
        self.deliver(size)

    def deliver(self, size: int | None = None) -> None:
        """Hands over what waits, as long as the connection reads."""
        at, unread = 0, memoryview(self._unread)
        while at < len(unread) and self.transport.reading and not self.transport.closing:
            room = self.protocol.get_buffer(-1)
            assert len(room) > 0
            part = unread[at : at + min(len(room), size or len(room))]
            room[: len(part)] = part
            del room
            self.protocol.buffer_updated(len(part))
            self.clock.run()
            at += len(part)
        self._unread = bytes(unread[at:])
        self.look()

    @property
    def unread(self) -> int:
        """Bytes that the server has not read: what a socket would hold for it."""
        return len(self._unread)

    def read(self, size: int = 2**31) -> None:
        """A client that did not read reads so many bytes."""
        self.transport.client_takes(size)
        self.deliver()

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.deliver()

    def lose(self, error: Exception | None = None) -> None:
        self.transport.lose(error)
        self.look()

    def eof(self) -> None:
        """The client sends no more."""
        self.transport.eof()
        self.look()

    # Calls

    def block(self, fields: Fields) -> bytes:
        return bytes(self.encoder.encode(fields))

    def new_stream(self) -> int:
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        return stream

    def open(self, fields: Fields | None = None, end: bool = False) -> int:
        """Opens a stream by HEADERS; its id."""
        stream = self.new_stream()
        self.send(headers(stream, self.block(request() if fields is None else fields), end))
        return stream

    def call(self, path: str, *payloads: bytes, end: bool = True, more: Fields = ()) -> int:
        """A call with these messages, each in one DATA frame; the id of its stream."""
        stream = self.new_stream()
        parts = [headers(stream, self.block(request(path, *more)), end and not payloads)]
        last = len(payloads) - 1
        parts += [data(stream, message(payload), end and at == last) for at, payload in enumerate(payloads)]
        self.send(*parts)
        return stream

    def echo(self, payload: bytes = b"ping") -> None:
        """A whole call that must succeed."""
        answer = self.answers[self.call("/t/Echo", payload)]
        assert (answer.status, answer.messages, answer.reset) == (0, [b"<" + payload + b">"], None)

    # What the server wrote

    def look(self) -> None:
        """Reads what has arrived."""
        self.clock.run()
        assert self.transport.misused == []
        assert list(self.wrong) == []
        arrived = bytes(self.transport.arrived[self._parsed :])
        for frame in frames(arrived):
            self._parsed += HEAD + len(frame.payload)
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        if not self.frames:
            assert (frame.type, frame.flags, frame.stream) == (Type.SETTINGS, 0, 0), "the preface begins with SETTINGS"
        assert self._block is None or frame.type == Type.CONTINUATION, "a frame within a header block"
        assert frame.type != Type.GOAWAY or frame.code != Code.INTERNAL_ERROR, "the connection broke: see the log"
        self.frames.append(frame)
        self.conduct.check(frame)
        answer = self.answers.setdefault(frame.stream, Answer()) if frame.stream else Answer()
        if frame.type in (Type.HEADERS, Type.CONTINUATION):
            self._take_block(frame, answer)
        elif frame.type == Type.DATA:
            assert answer.heads, "DATA before HEADERS"
            answer.data += frame.body
        elif frame.type == Type.RST_STREAM:
            answer.reset = frame.code
        answer.ended |= frame.ends_stream

    def _take_block(self, frame: Frame, answer: Answer) -> None:
        first, so_far = self._block or (frame, b"")
        assert frame.stream == first.stream
        so_far += frame.body
        self._block = (first, so_far)
        if frame.flags & END_HEADERS:
            answer.heads.append([(str(name), str(value)) for name, value in self.decoder.decode(so_far)])
            self._block = None

    def fresh(self) -> list[Frame]:
        """The frames that came since this was last asked."""
        self.look()
        found = self.frames[self._seen :]
        self._seen = len(self.frames)
        return found

    def fresh_of(self, type: Type) -> list[Frame]:
        return [frame for frame in self.fresh() if frame.type == type]

    @property
    def goaway(self) -> Frame | None:
        """The last GOAWAY."""
        return next((frame for frame in reversed(self.frames) if frame.type == Type.GOAWAY), None)

    @property
    def closed_by(self) -> Code | None:
        """The code of the GOAWAY before the close; None while the connection is open."""
        if not self.transport.closing:
            return None
        assert self.goaway is not None, "closed without GOAWAY"
        return Code(self.goaway.code)

    def reset(self, stream: int) -> Code | None:
        code = self.answers.get(stream, Answer()).reset
        return None if code is None else Code(code)


class Bench:
    """A server, its service and its clock, and a well-behaved connection that was there before any attack."""

    def __init__(self, options: GrpcServerOptions | None = None) -> None:
        self.clock = Clock()
        self.service = Service()
        self.server = GrpcServer(self.service.rpcs(), options, self.clock, self.clock.time)
        self.neighbour = self.peer()

    def connect(self) -> Peer:
        """A connection on which the client has sent nothing."""
        return Peer(self.server, self.clock, self.service.wrong)

    def peer(self, *pairs: tuple[int, int]) -> Peer:
        return self.connect().greet(*pairs)

    def others_work(self) -> None:
        """The connection that was there before, and a new one."""
        self.neighbour.echo()
        self.peer().echo()
