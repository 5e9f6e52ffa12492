"""HTTP/2 frames: their numbers, how one is written, and the two kinds of fault (RFC 9113, sections 4, 6 and 7).

Pure. Knows no connection.
"""

from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first (RFC 9113, section 3.4)."""
HEAD_BYTES = 9
"""Length of the head of a frame."""
HEAD = Struct(">LBL")
"""The head of a frame: `length << 8 | kind`, flags, stream id."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

STREAM_ID_MASK = 2**31 - 1
"""The bits of a stream id, and the largest id. The bit above is reserved and ignored."""
MAX_WINDOW_BYTES = 2**31 - 1
"""The largest flow-control window (section 6.9.1)."""
DEFAULT_WINDOW_BYTES = 2**16 - 1
"""The window that every stream and connection begins with (section 6.9.2)."""
MIN_MAX_FRAME_BYTES = 2**14
"""The smallest SETTINGS_MAX_FRAME_SIZE, and its initial value (section 6.5.2)."""
MAX_MAX_FRAME_BYTES = 2**24 - 1
"""The largest SETTINGS_MAX_FRAME_SIZE (section 6.5.2)."""
MAX_SETTINGS_PER_FRAME = 32
"""Settings in one frame. Each change of the initial window is work for every open stream."""


class Setting(IntEnum):
    """The numbers of settings (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """The error codes of RST_STREAM and GOAWAY (section 7)."""

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


class ConnectionFault(Exception):
    """A connection error (section 5.4.1): GOAWAY with the code, and `text` as its debug data; then close."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamFault(Exception):
    """A stream error: the server sends RST_STREAM with the code (section 5.4.2)."""

    def __init__(self, stream_id: int, code: Code) -> None:
        super().__init__(code.name)
        self.stream_id = stream_id
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Returns a whole frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def header_frames(flags: int, stream_id: int, block: bytes, most: int) -> bytes:
    """Returns a header block in a HEADERS frame, and in CONTINUATION frames if it is longer than `most`, the largest
    frame that the peer takes (section 6.10)."""
    # One frame, as in nearly every answer.
    if len(block) <= most:
        return HEAD.pack(len(block) << 8 | HEADERS, flags | END_HEADERS, stream_id) + block
    parts = [frame(HEADERS, flags, stream_id, block[:most])]
    parts += (frame(CONTINUATION, 0, stream_id, block[at : at + most]) for at in range(most, len(block), most))
    # END_HEADERS stands in the last frame only.
    last = len(block) % most or most
    parts[-1] = frame(CONTINUATION, END_HEADERS, stream_id, block[-last:])
    return b"".join(parts)


def settings_frame(settings: dict[Setting, int]) -> bytes:
    """Returns a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(number, value) for number, value in settings.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Returns the number and value of each setting, but of several valid initial windows the last one alone: each is
    work for every open stream, and only the sum of the changes counts. The length of the payload must be a multiple of
    6. Raises ConnectionFault if there are too many."""
    if len(payload) > MAX_SETTINGS_PER_FRAME * _SETTING.size:
        raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many settings in one frame")
    found = list(_SETTING.iter_unpack(payload))
    windows = [at for at, each in enumerate(found) if _is_window(each)]
    for at in reversed(windows[:-1]):
        del found[at]
    return found


def _is_window(setting: tuple[int, int]) -> bool:
    number, value = setting
    return number == Setting.INITIAL_WINDOW_SIZE and value <= MAX_WINDOW_BYTES


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4))


def rst_stream(stream_id: int, code: Code) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4))


def goaway(last_stream_id: int, code: Code, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, last_stream_id.to_bytes(4) + code.to_bytes(4) + text.encode())


_SETTING = Struct(">HL")
