"""HTTP/2 frames as a client writes them, valid or not, and a parser of those that a server wrote (RFC 9113, sections 4,
6 and 7).

It shares no constant with the code under test.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = 9
LARGEST_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_SIZE = 16_384

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20


class Type(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Code(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


def frame(type: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Any frame; the reserved bit of the stream id may be set by an id of 2^31 and more."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", type, flags, stream) + payload


def settings(*pairs: tuple[int, int], ack: bool = False) -> bytes:
    return frame(Type.SETTINGS, ACK if ack else 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def ping(data: bytes = b"12345678", ack: bool = False) -> bytes:
    return frame(Type.PING, ACK if ack else 0, 0, data)


def window_update(stream: int, size: int) -> bytes:
    return frame(Type.WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def rst_stream(stream: int, code: int = Code.CANCEL) -> bytes:
    return frame(Type.RST_STREAM, 0, stream, struct.pack(">I", code))


def goaway(last: int = 0, code: int = Code.NO_ERROR, text: bytes = b"") -> bytes:
    return frame(Type.GOAWAY, 0, 0, struct.pack(">II", last, code) + text)


def priority(stream: int, on: int = 0, weight: int = 15, exclusive: bool = False) -> bytes:
    return frame(Type.PRIORITY, 0, stream, priority_fields(on, weight, exclusive))


def priority_fields(on: int = 0, weight: int = 15, exclusive: bool = False) -> bytes:
    return struct.pack(">IB", on | exclusive << 31, weight)


def data(stream: int, payload: bytes = b"", end: bool = False, padding: int | None = None) -> bytes:
    flags = END_STREAM if end else 0
    return frame(Type.DATA, flags | (PADDED if padding is not None else 0), stream, padded(payload, padding))


def padded(payload: bytes, padding: int | None) -> bytes:
    return payload if padding is None else bytes([padding]) + payload + bytes(padding)


def headers(
    stream: int,
    block: bytes,
    end: bool = False,
    last: bool = True,
    padding: int | None = None,
    fields: bytes | None = None,
) -> bytes:
    """HEADERS with a block, or the first part of one where it is not the `last`; `fields`: those of a priority."""
    flags = (END_STREAM if end else 0) | (END_HEADERS if last else 0)
    flags |= (PADDED if padding is not None else 0) | (PRIORITY if fields is not None else 0)
    return frame(Type.HEADERS, flags, stream, padded((fields or b"") + block, padding))


def continuation(stream: int, block: bytes = b"", last: bool = False) -> bytes:
    return frame(Type.CONTINUATION, END_HEADERS if last else 0, stream, block)


def message(payload: bytes, compressed: int = 0, size: int | None = None) -> bytes:
    """A message in gRPC's framing; `size` where it should lie."""
    return struct.pack(">BI", compressed, len(payload) if size is None else size) + payload


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as it was read."""

    type: int
    flags: int
    stream: int
    payload: bytes

    @property
    def ends_stream(self) -> bool:
        return self.type in (Type.DATA, Type.HEADERS) and bool(self.flags & END_STREAM)

    @property
    def code(self) -> int:
        """The error code of a RST_STREAM or GOAWAY."""
        at = {Type.RST_STREAM: 0, Type.GOAWAY: 4}[Type(self.type)]
        return int.from_bytes(self.payload[at : at + 4], "big")

    @property
    def number(self) -> int:
        """The 31-bit number that the payload begins with: a window's increment, a last stream."""
        return int.from_bytes(self.payload[:4], "big") & LARGEST_WINDOW

    @property
    def settings(self) -> dict[int, int]:
        return dict(struct.iter_unpack(">HI", self.payload))

    @property
    def body(self) -> bytes:
        """The payload of DATA or HEADERS without padding and priority."""
        payload, flags = self.payload, self.flags
        if flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        return payload[5:] if self.type == Type.HEADERS and flags & PRIORITY else payload


def frames(data: bytes) -> Iterator[Frame]:
    """The whole frames that bytes begin with."""
    at = 0
    while len(data) - at >= HEAD:
        size = int.from_bytes(data[at : at + 3], "big")
        kind, flags, stream = struct.unpack_from(">BBI", data, at + 3)
        if len(data) - at - HEAD < size:
            return
        yield Frame(kind, flags, stream & LARGEST_WINDOW, bytes(data[at + HEAD : at + HEAD + size]))
        at += HEAD + size


def messages(data: bytes) -> list[bytes]:
    """The messages that all of `data` consists of, in gRPC's framing, none of them compressed."""
    found = []
    while data:
        flag, size = struct.unpack_from(">BI", data)
        assert not flag, "a compressed message"
        assert len(data) >= 5 + size, "a message is cut short"
        found.append(data[5 : 5 + size])
        data = data[5 + size :]
    return found
