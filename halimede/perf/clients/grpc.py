"""A client of gRPC: some slots share a connection, as with the channels of other clients. Compiled with the hot
modules. One thread.
"""

from time import perf_counter_ns
from urllib.parse import unquote

from halimede.perf.clients.io import Connection, Io, Owner, Slot, Target
from halimede.transport.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    MAX_WINDOW_BYTES,
    MIN_MAX_FRAME_BYTES,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    STREAM_ID_MASK,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Code,
    ConnectionFault,
    Setting,
    frame,
    read_settings,
    rst_stream,
    settings_frame,
    window_update,
)
from halimede.transport.http2.headers import Fields, HeaderDecoder, HeaderEncoder, RequestHead

SLOTS_PER_CONNECTION = 6
"""Slots that share a connection: as many as the clients of Triton let share a channel."""
REPLENISH_BYTES = 1 << 29
"""Received bytes after which the peer's window is filled again."""
MAX_FRAME_BYTES = 1 << 20
"""The largest frame that this client takes."""
MAX_KNOWN_BLOCKS = 64

CODES = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
]
"""The names of the status codes of gRPC, by number."""

FINAL = b"triton_final_response"
"""The parameter that says whether a response is the last of its request."""
FINAL_IS_TRUE = b"\x12\x02\x08\x01"
"""The value `bool_param: true` that follows the key in the entry of the map."""


class Answer:
    """What the head or the trailers of an answer say; `status` is -1 if they have no gRPC status."""

    def __init__(self, fields: dict[bytes, bytes]) -> None:
        status = fields.get(b"grpc-status", b"")
        self.status = int(status) if status.isdigit() else -1
        self.text = unquote(fields.get(b"grpc-message", b"").decode("latin-1"))
        http = fields.get(b":status", b"200")
        if http != b"200" and self.status < 0:
            self.status = 2
            self.text = f"HTTP status {http.decode('latin-1')}"


class Call:
    """An RPC. `slot` is None after it was cancelled."""

    def __init__(self, number: int, slot: "GrpcSlot", window: int) -> None:
        self.number = number
        self.slot: GrpcSlot | None = slot
        self.window = window
        self.queued: list[memoryview] = []
        self.ends = False
        self.received = 0


class GrpcSlot(Slot):
    """A slot of a unary method, or with `streams` of a bidirectional one, whose call then stays open.

    `reads` says whether responses are looked at: messages of a stream always are.
    """

    def __init__(
        self, owner: Owner, index: int, keeps: bool, channel: "Channel", head: Fields, streams: bool, decoupled: bool
    ) -> None:
        super().__init__(owner, index, keeps)
        self._channel = channel
        self._head = head
        self._streams = streams
        self._decoupled = decoupled
        self._call: Call | None = None
        self._bytes = bytearray()
        self.last = 0

    def send(self, request: bytes) -> None:
        self.begin()
        if not self._streams:
            self._channel.call(self, self._head, request, True)
            return
        if self._call is None:
            self._call = self._channel.call(self, self._head, request, False)
        else:
            self._channel.continue_call(self._call, request)

    def close(self) -> None:
        if self._call is not None:
            self._channel.cancel(self._call)
            self._call = None

    def data(self, view: memoryview, now: int) -> None:
        if not self.first:
            self.first = now
        if not self._streams:
            if self.keeps:
                self._bytes += view
            return
        received = self._bytes
        received += view
        while len(received) >= 5:
            size = int.from_bytes(received[1:5], "big")
            if len(received) < 5 + size:
                return
            message = bytes(received[5 : 5 + size])
            del received[: 5 + size]
            self._message(message, now)

    def _message(self, message: bytes, now: int) -> None:
        """A message of ModelStreamInfer: an error (field 1) or a response (field 2)."""
        if not self.busy:
            return
        if message[:1] == b"\x0a":
            self.finish(now, stream_error(message))
            return
        is_final, is_null = True, False
        if self._decoupled:
            at = message.find(FINAL)
            value = at + len(FINAL)
            is_final = at >= 0 and message[value : value + 4] == FINAL_IS_TRUE
            is_null = is_final and not has_outputs(message)
        if self.keeps:
            self.stamps.append(now)
            self.bodies.append(message)
        if is_null:
            self.null_last = True
        else:
            self.responses += 1
            self.last = now
            if self.responses == self.period and self.on_period is not None:
                self.on_period()
        if is_final:
            # The empty last response says only that the one before it was the last.
            self.finish(self.last if is_null and self.responses else now, "")

    def ended(self, status: int, text: str, now: int) -> None:
        """The call has ended."""
        self._call = None
        body = bytes(self._bytes)
        self._bytes.clear()
        if not self.busy:
            return
        if status:
            self.finish(now, status_text(status, text))
            return
        if self._streams:
            self.finish(now, "the server ended the stream")
            return
        self.responses = 1
        if self.keeps:
            self.stamps.append(now)
            self.bodies.append(body[5:])
        self.finish(now, "")


class CallSlot(GrpcSlot):
    """A slot whose request is a whole call of any method: all its messages, and as many responses as come back."""

    def __init__(self, owner: Owner, index: int, keeps: bool, channel: "Channel", head: Fields) -> None:
        super().__init__(owner, index, keeps, channel, head, True, False)

    def send(self, request: bytes) -> None:
        self.begin()
        self._channel.call(self, self._head, request, True)

    def _message(self, message: bytes, now: int) -> None:
        self.responses += 1
        if self.keeps:
            self.stamps.append(now)
            self.bodies.append(message)

    def ended(self, status: int, text: str, now: int) -> None:
        self._bytes.clear()
        if self.busy:
            self.finish(now, status_text(status, text) if status else "")


def status_text(status: int, text: str) -> str:
    """The name of a status that is not OK, with its text."""
    name = CODES[status] if 0 <= status < len(CODES) else str(status)
    return f"[StatusCode.{name}] {text}"


class Channel(Connection):
    """A connection of HTTP/2 with the calls of some slots."""

    def __init__(self, io: Io, target: Target) -> None:
        super().__init__(io, target)
        self._calls: dict[int, Call] = {}
        self._known: dict[bytes, Answer] = {}
        self._reset()

    def _reset(self) -> None:
        self._next = 1
        self._window = DEFAULT_WINDOW_BYTES
        self._initial_window = DEFAULT_WINDOW_BYTES
        self._max_frame = MIN_MAX_FRAME_BYTES
        self._encoder = HeaderEncoder()
        self._decoder: HeaderDecoder[None] = HeaderDecoder(_nothing, _never)
        self._known.clear()
        self._rest = bytearray()
        self._needed = 0
        self._block = b""
        self._block_flags = 0
        self._received = 0
        self._blocked: list[Call] = []
        self._sending: GrpcSlot | None = None
        self._is_going = False

    def start(self) -> None:
        """Connects and introduces this client."""
        self._reset()
        self.connect()
        if self.socket is None:
            return
        settings = {
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: MAX_WINDOW_BYTES,
            Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        }
        grant = window_update(0, MAX_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
        self.write(PREFACE + settings_frame(settings) + grant)

    # ---- calls

    def call(self, slot: GrpcSlot, head: Fields, message: bytes, ends: bool) -> Call:
        """Begins a call with one message; `ends` if it has no other."""
        if self.socket is None or (self._is_going and not self._calls):
            self.close()
            self.start()
        number = self._next
        self._next = number + 2
        call = Call(number, slot, self._initial_window)
        self._calls[number] = call
        block = self._encoder.encode(head)
        opening = HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS, number) + block
        self._put(call, opening, message, ends)
        return call

    def continue_call(self, call: Call, message: bytes) -> None:
        """Sends one more message."""
        self._put(call, b"", message, False)

    def _put(self, call: Call, opening: bytes, message: bytes, ends: bool) -> None:
        size = len(message)
        self._sending = call.slot
        call.ends = ends
        if size <= self._max_frame and size <= self._window and size <= call.window and not call.queued:
            self._window -= size
            call.window -= size
            flags = END_STREAM if ends else 0
            self.write(opening + HEAD.pack(size << 8 | DATA, flags, call.number) + message)
            return
        call.queued.append(memoryview(message))
        pieces = [opening]
        self._fill(call, pieces)
        self.write(b"".join(pieces))

    def _fill(self, call: Call, pieces: list[bytes]) -> None:
        """Adds as many frames of a call as the windows allow."""
        while call.queued:
            rest = call.queued[0]
            size = min(len(rest), self._max_frame, self._window, call.window)
            if size <= 0:
                if call not in self._blocked:
                    self._blocked.append(call)
                return
            is_last = size == len(rest) and len(call.queued) == 1
            pieces.append(HEAD.pack(size << 8 | DATA, END_STREAM if is_last and call.ends else 0, call.number))
            pieces.append(bytes(rest[:size]))
            self._window -= size
            call.window -= size
            if size == len(rest):
                call.queued.pop(0)
            else:
                call.queued[0] = rest[size:]

    def _unblock(self) -> None:
        blocked, self._blocked = self._blocked, []
        pieces: list[bytes] = []
        for call in blocked:
            if call.number in self._calls:
                self._fill(call, pieces)
        if pieces:
            self.write(b"".join(pieces))

    def cancel(self, call: Call) -> None:
        """Gives a call up."""
        if self._calls.pop(call.number, None) is not None and self.socket is not None:
            self.write(rst_stream(call.number, Code.CANCEL))

    # ---- the connection

    def all_sent(self, now: int) -> None:
        if self._sending is not None:
            self._sending.sent = now
            self._sending = None

    def lost(self, why: str) -> None:
        calls, self._calls = self._calls, {}
        now = perf_counter_ns()
        for call in calls.values():
            if call.slot is not None:
                call.slot.is_broken = True
                call.slot.ended(14, why, now)

    def received(self, count: int, now: int) -> None:
        rest = self._rest
        if rest:
            rest += self.io.view[:count]
            if len(rest) < self._needed:
                return
            taken = bytes(rest)
            used = self._frames(memoryview(taken), now)
            del rest[:used]
        else:
            view = self.io.view[:count]
            used = self._frames(view, now)
            if used < count and self.socket is not None:
                self._rest = bytearray(view[used:])

    def _frames(self, view: memoryview, now: int) -> int:
        """Handles whole frames. Returns the bytes that were used."""
        at, end = 0, len(view)
        self._needed = 0
        while at + HEAD_BYTES <= end:
            word, flags, number = HEAD.unpack_from(view, at)
            size, kind = word >> 8, word & 0xFF
            begin = at + HEAD_BYTES
            if begin + size > end:
                self._needed = HEAD_BYTES + size
                break
            at = begin + size
            number &= STREAM_ID_MASK
            try:
                self._frame(kind, flags, number, view[begin:at], now)
            except (ConnectionFault, ValueError, IndexError) as fault:
                self._fail(f"the server does not speak gRPC: {fault}")
                break
            if self.socket is None:
                break
        return at

    def _frame(self, kind: int, flags: int, number: int, payload: memoryview, now: int) -> None:
        if kind == DATA:
            self._data(flags, number, payload, now)
        elif kind == HEADERS:
            if flags & (PADDED | WITH_PRIORITY):
                payload = _without_padding(payload, flags)
            self._headers(flags, number, bytes(payload), now)
        elif kind == CONTINUATION:
            self._headers(flags | self._block_flags, number, self._block + bytes(payload), now)
        elif kind == WINDOW_UPDATE:
            self._grant(number, int.from_bytes(payload, "big"))
        elif kind == SETTINGS:
            if not flags & ACK:
                self._settings(bytes(payload))
        elif kind == PING:
            if not flags & ACK:
                self.write(frame(PING, ACK, 0, bytes(payload)))
        elif kind == RST_STREAM:
            self._end(number, 2, f"the server reset the stream (code {int.from_bytes(payload, 'big')})", now)
        elif kind == GOAWAY:
            self._go(int.from_bytes(payload[:4], "big") & STREAM_ID_MASK, bytes(payload[8:]), now)

    def _data(self, flags: int, number: int, payload: memoryview, now: int) -> None:
        size = len(payload)
        self._received += size
        if self._received >= REPLENISH_BYTES:
            self.write(window_update(0, self._received))
            self._received = 0
        call = self._calls.get(number)
        if call is None:
            return
        call.received += size
        if call.received >= REPLENISH_BYTES:
            self.write(window_update(number, call.received))
            call.received = 0
        if flags & PADDED:
            payload = _without_padding(payload, flags & PADDED)
        if call.slot is not None:
            call.slot.data(payload, now)
        if flags & END_STREAM:
            self._end(number, 2, "the server sent no status", now)

    def _headers(self, flags: int, number: int, block: bytes, now: int) -> None:
        if not flags & END_HEADERS:
            self._block, self._block_flags = block, flags & END_STREAM
            return
        self._block, self._block_flags = b"", 0
        answer = self._known.get(block)
        if answer is None:
            answer = Answer(dict(self._decoder.fields(block)))
            # A block of indexes alone means the same until another kind of block changes the table.
            if min(block, default=0) > 0x80 and 0xFF not in block:
                if len(self._known) < MAX_KNOWN_BLOCKS:
                    self._known[block] = answer
            else:
                self._known.clear()
        if flags & END_STREAM:
            status = 2 if answer.status < 0 else answer.status
            self._end(number, status, answer.text, now)
            return
        call = self._calls.get(number)
        if call is not None and call.slot is not None and not call.slot.first:
            call.slot.first = now

    def _end(self, number: int, status: int, text: str, now: int) -> None:
        call = self._calls.pop(number, None)
        if call is not None and call.slot is not None:
            call.slot.ended(status, text, now)

    def _grant(self, number: int, size: int) -> None:
        if number:
            call = self._calls.get(number)
            if call is None:
                return
            call.window += size
        else:
            self._window += size
        if self._blocked:
            self._unblock()

    def _settings(self, payload: bytes) -> None:
        for number, value in read_settings(payload):
            if number == Setting.INITIAL_WINDOW_SIZE:
                for call in self._calls.values():
                    call.window += value - self._initial_window
                self._initial_window = value
            elif number == Setting.MAX_FRAME_SIZE:
                self._max_frame = value
            elif number == Setting.HEADER_TABLE_SIZE:
                self._encoder.limit_table(value)
        self.write(frame(SETTINGS, ACK, 0))
        if self._blocked:
            self._unblock()

    def _go(self, last: int, text: bytes, now: int) -> None:
        """The server takes no more calls here."""
        self._is_going = True
        why = "the server closes the connection" + (f": {text[:100].decode(errors='replace')}" if text else "")
        for number in [number for number in self._calls if number > last]:
            self._end(number, 14, why, now)


def _nothing(head: RequestHead) -> None:
    return None


def _never(compiled: None) -> bool:
    return False


def _without_padding(payload: memoryview, flags: int) -> memoryview:
    begin, end = 0, len(payload)
    if flags & PADDED:
        begin, end = 1, end - payload[0]
    if flags & WITH_PRIORITY:
        begin += 5
    return payload[begin:end]


def has_outputs(message: bytes) -> bool:
    """Whether a ModelStreamInferResponse has outputs."""
    from halimede.protocol.inference_pb2 import ModelStreamInferResponse

    return bool(ModelStreamInferResponse.FromString(message).infer_response.outputs)


def stream_error(message: bytes) -> str:
    """The error of a ModelStreamInferResponse."""
    from halimede.protocol.inference_pb2 import ModelStreamInferResponse

    return str(ModelStreamInferResponse.FromString(message).error_message)


def grpc_head(path: str, authority: str, metadata: Fields, encoding: str, tls: bool) -> Fields:
    """The fields that begin a call."""
    fields = [
        (b":scheme", b"https" if tls else b"http"),
        (b":method", b"POST"),
        (b":authority", authority.encode()),
        (b":path", path.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"halimede-perf"),
        (b"grpc-accept-encoding", b"identity"),
    ]
    if encoding != "identity":
        fields.append((b"grpc-encoding", encoding.encode()))
    return (*fields, *metadata)
