"""The receiving half of one HTTP/2 connection: bytes to frames (RFC 9113, sections 3.4, 4 and 6).

Frames are parsed in the buffer that the loop received them in. The data of a DATA frame is handed on in parts, as it
comes, and the rest of a large frame is received straight into the buffer of its receiver. Other frames and header
blocks are handed on whole. Knows no streams. Event-loop thread only.

| state | attributes | takes | then |
| --- | --- | --- | --- |
| preface | `_preface_left` > 0 | the client's preface | not greeted |
| not greeted | not `_greeted` | SETTINGS | between frames |
| between frames | | a whole frame | it is handed on; stay |
| between frames | | the head of a DATA frame | in data |
| between frames | | HEADERS without END_HEADERS | in a block |
| between frames | | the head of a frame that is skipped | skipping |
| in a block | `_block` | CONTINUATION of the same stream | between frames, after END_HEADERS |
| in data | `_data_left` or `_padding_left` > 0 | data, then padding | between frames |
| in data, direct | `_direct` | data, received into the receiver's buffer | in data, or between frames |
| skipping | `_skip` > 0 | the payload | between frames |
| stopped | `_stopped` | nothing more | |
| put off | `put_off` | nothing, until `read` is called again | as before |

A client may put much work into few bytes. So the reader counts units of work, and from time to time asks the derived
class whether the rest of the bytes must wait for a later turn of the loop.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from halimede.transport.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    MAX_WINDOW_BYTES,
    MIN_MAX_FRAME_BYTES,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    STREAM_ID_MASK,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Code,
    ConnectionFault,
)

RECEIVE_BUFFER_BYTES = 1 << 18
"""Bytes per read. Frames other than DATA must fit into it whole."""
MAX_FRAME_BYTES = 1 << 20
"""The largest frame that is accepted (SETTINGS_MAX_FRAME_SIZE). Only DATA may be as large."""
MAX_BLOCK_BYTES = 1 << 16
"""Bytes of a header block, and the largest frame that must be in the receive buffer as a whole."""
MAX_CONTINUATIONS = 64
"""CONTINUATION frames of a header block. Without a limit, small ones would cost the server more than the client."""

UNITS_PER_LOOK = 16
"""Units of work after which the reader asks whether the turn is too long. A frame is one unit, and another one for each
256 bytes."""
LATE_UNITS = 2
"""The same in a turn whose budget is spent: a call with a small message."""
LARGE_BLOCK_BYTES = 1 << 12
"""Size of a part of a header block from which on the turns of all connections are asked first."""
_UNIT_SHIFT = 8

_WHOLE = frozenset((HEADERS, CONTINUATION, SETTINGS, RST_STREAM, PING, PRIORITY))
"""The kinds of frames that are delivered whole."""


class ReceiveBuffer:
    """The buffer that all connections of a loop receive into, one after the other."""

    def __init__(self) -> None:
        self.bytes = bytearray(RECEIVE_BUFFER_BYTES)
        self.view = memoryview(self.bytes)


class DataReceiver(Protocol):
    """Receives the parts of a DATA frame: the stream, as the reader sees it."""

    def received(self, data: memoryview) -> None: ...
    def room(self) -> memoryview | None: ...
    def filled(self, count: int) -> None: ...

    @property
    def over(self) -> bool: ...


@dataclass(slots=True)
class _Block:
    """A header block that comes in several frames."""

    stream_id: int
    ends: bool
    data: bytes
    frames: int = 0


class FrameReader(asyncio.BufferedProtocol):
    """Reads frames. Derived classes handle them in the methods `on_...`. An exception of theirs ends the connection."""

    def __init__(self, receive_buffer: ReceiveBuffer) -> None:
        self._receive_buffer = receive_buffer
        self._kept = b""
        self._preface_left = len(PREFACE)
        self._greeted = False
        self._block: _Block | None = None
        self._skip = 0
        self._stopped = False
        self.first_units = UNITS_PER_LOOK
        """Units of work before the first look of a read."""
        self.put_off = False
        """Whether received bytes wait for a later turn of the loop. Nothing may be received until `read(0)` has parsed
        them."""
        # The DATA frame under way: its receiver (None if its data are dropped), what is still to come, and where to.
        self._receiver: DataReceiver | None = None
        self._data_left = 0
        self._padding_left = 0
        self._data_ends = False
        self._direct: memoryview | None = None

    # For derived classes.

    def on_data(self, stream_id: int, data: memoryview, ends: bool) -> None:
        """Handles a whole DATA frame. `data` is not empty, and is valid until this returns."""
        raise NotImplementedError

    def on_data_begin(self, stream_id: int, length: int, left: int, ends: bool) -> DataReceiver | None:
        """Handles the head of a DATA frame of `length` bytes, padding included, of which `left` bytes of data are to
        come."""
        raise NotImplementedError

    def on_data_end(self, receiver: DataReceiver, ends: bool) -> None:
        """Handles the end of a DATA frame whose data were delivered in parts."""
        raise NotImplementedError

    def on_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        """Handles a whole header block."""
        raise NotImplementedError

    def on_continued(self, stream_id: int) -> None:
        """Handles the first frame of a header block that continues in further frames."""
        raise NotImplementedError

    def on_window_update(self, stream_id: int, increment: int) -> None:
        raise NotImplementedError

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> None:
        """Handles a frame of another kind, which is delivered whole."""
        raise NotImplementedError

    def on_other(self, kind: int, length: int, stream_id: int) -> None:
        """Handles a frame whose payload is skipped."""
        raise NotImplementedError

    def must_wait(self, block_bytes: int) -> bool:
        """Whether the next frame must wait for a later turn of the loop. `block_bytes` is the size of the header block
        that it brings or continues, 0 if that is small."""
        raise NotImplementedError

    @property
    def within_frame(self) -> bool:
        """Whether a part of a frame has arrived."""
        return bool(self._kept or self._data_left or self._padding_left or self._skip)

    @property
    def block_stream(self) -> int:
        """The stream of the header block that is incomplete, or 0."""
        return 0 if self._block is None else self._block.stream_id

    # Receiving.

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._direct is not None:
            return self._direct
        kept = self._kept
        if not kept:
            return self._receive_buffer.view
        # The loop calls `buffer_updated` next, so no other connection uses the shared buffer in between.
        self._receive_buffer.bytes[: len(kept)] = kept
        return self._receive_buffer.view[len(kept) :]

    def read(self, nbytes: int) -> None:
        """Parses the bytes that the loop has put into the buffer. Raises ConnectionFault."""
        if self._direct is not None:
            self._fill(nbytes)
            return
        end = len(self._kept) + nbytes
        self._kept = b""
        self.put_off = False
        at = self._on_preface(end) if self._preface_left else 0
        at = self._parse(at, end)
        if at < end:
            self._kept = bytes(self._receive_buffer.view[at:end])

    def stop_reading(self) -> None:
        """The connection is over: nothing that comes is looked at any more."""
        self._stopped = True
        self._direct = None
        self._receiver = None

    def _on_preface(self, end: int) -> int:
        """Checks the bytes of the preface that have arrived (section 3.4)."""
        done = len(PREFACE) - self._preface_left
        came = bytes(self._receive_buffer.view[: min(end, self._preface_left)])
        if not PREFACE.startswith(came, done):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "bad connection preface")
        self._preface_left -= len(came)
        return len(came)

    def _parse(self, at: int, end: int) -> int:
        """Handles what is complete between two positions of the receive buffer. Returns where the rest begins, which is
        kept."""
        received, view, unpack = self._receive_buffer.bytes, self._receive_buffer.view, HEAD.unpack_from
        units = self.first_units
        while not self._stopped:
            # A DATA frame of an earlier read continues.
            if self._data_left or self._padding_left:
                at = self._on_part(at, end)
            if self._skip:
                step = min(self._skip, end - at)
                self._skip -= step
                at += step
            start = at + HEAD_BYTES
            # The head of the next frame is incomplete. It is kept for the next read.
            if start > end:
                return at
            word, flags, stream_id = unpack(received, at)
            length, kind = word >> 8, word & 0xFF
            stream_id &= STREAM_ID_MASK
            if units <= 0:
                units = UNITS_PER_LOOK
                if self.must_wait(0):
                    self.put_off = True
                    return at
            units -= 1 + (length >> _UNIT_SHIFT)
            # Section 4.2. The size is checked before anything is received.
            if length > MAX_FRAME_BYTES:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "frame too large")
            # One test for the two rare states, so that ordinary frames pay for one only.
            if not self._greeted or self._block is not None:
                self._check_order(kind, flags, stream_id)
            stop = start + length
            if kind == DATA:
                # The most frequent case: a whole frame without padding, delivered with one call.
                if stop <= end and length and not flags & PADDED:
                    self.on_data(stream_id, view[start:stop], bool(flags & END_STREAM))
                    at = stop
                    continue
                if flags & PADDED and length and start == end:
                    # The byte with the length of the padding has not come.
                    return at
                at = self._begin_data(start, length, flags, stream_id)
            # After DATA and HEADERS this is the most frequent kind.
            elif kind == WINDOW_UPDATE:
                if length != 4:
                    raise ConnectionFault(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
                if stop > end:
                    return at
                self.on_window_update(stream_id, int.from_bytes(received[start:stop]) & MAX_WINDOW_BYTES)
                at = stop
            elif kind in _WHOLE:
                # Such a frame must fit into the receive buffer.
                if length > MAX_BLOCK_BYTES:
                    raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "frame too large for its kind")
                if stop > end:
                    return at
                # A block is decoded when its last frame has come.
                if flags & END_HEADERS and (length >= LARGE_BLOCK_BYTES or self._block is not None):
                    block_bytes = length + (0 if self._block is None else len(self._block.data))
                    if block_bytes >= LARGE_BLOCK_BYTES and self.must_wait(block_bytes):
                        self.put_off = True
                        return at
                self._take(kind, flags, stream_id, view[start:stop])
                at = stop
            else:
                self.on_other(kind, length, stream_id)
                self._skip = length
                at = start
        return end

    def _check_order(self, kind: int, flags: int, stream_id: int) -> None:
        """Checks that SETTINGS come first (section 3.4), and that nothing interrupts a header block (section 6.10)."""
        if not self._greeted:
            if kind != SETTINGS or flags & ACK:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._greeted = True
        block = self._block
        if block is not None and (kind != CONTINUATION or stream_id != block.stream_id):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a header block is interrupted")

    def _take(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> None:
        """Handles a frame that has arrived as a whole."""
        if kind == HEADERS:
            if flags & (PADDED | WITH_PRIORITY):
                payload = _without_extras(flags, stream_id, payload)
            # Nearly every block is a single frame.
            if flags & END_HEADERS:
                self.on_block(stream_id, bytes(payload), bool(flags & END_STREAM))
            else:
                # The stream id is checked now, before the rest of the block is collected.
                self.on_continued(stream_id)
                self._block = _Block(stream_id, bool(flags & END_STREAM), bytes(payload))
        elif kind == CONTINUATION:
            self._on_continuation(flags, stream_id, payload)
        else:
            self.on_frame(kind, flags, stream_id, payload)

    def _on_continuation(self, flags: int, stream_id: int, payload: memoryview) -> None:
        block = self._block
        if block is None:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION of nothing")
        block.data += payload
        block.frames += 1
        # The CONTINUATION flood (CERT VU#421644): the block could continue forever.
        if len(block.data) > MAX_BLOCK_BYTES or block.frames > MAX_CONTINUATIONS:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "header block too large")
        if flags & END_HEADERS:
            self._block = None
            self.on_block(stream_id, block.data, block.ends)

    # DATA in parts.

    def _begin_data(self, at: int, length: int, flags: int, stream_id: int) -> int:
        """Begins a DATA frame that is padded, empty or incomplete. Returns where its data begin."""
        left, padding = length, 0
        if flags & PADDED:
            if not length:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "DATA without the length of its padding")
            padding = self._receive_buffer.bytes[at]
            at += 1
            left = length - 1 - padding
            if left < 0:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "more padding than frame")
        self._data_ends = bool(flags & END_STREAM)
        self._receiver = self.on_data_begin(stream_id, length, left, self._data_ends)
        # Set after `on_data_begin`, which may raise.
        self._data_left, self._padding_left = left, padding
        if not left:
            self._end_data()
        return at

    def _on_part(self, at: int, end: int) -> int:
        """Handles the bytes of the current DATA frame that have arrived."""
        if self._data_left and at < end:
            step = min(self._data_left, end - at)
            self._data_left -= step
            receiver = self._receiver
            if receiver is not None and not receiver.over:
                receiver.received(self._receive_buffer.view[at : at + step])
                # For fewer bytes, a separate read costs more than the copy.
                if self._data_left >= MIN_MAX_FRAME_BYTES and (room := receiver.room()) is not None:
                    self._direct = room[: self._data_left]
            at += step
            if not self._data_left:
                self._end_data()
        if not self._data_left:
            step = min(self._padding_left, end - at)
            self._padding_left -= step
            at += step
        return at

    def _fill(self, nbytes: int) -> None:
        """A part of a large message was received into its buffer."""
        receiver, direct = self._receiver, self._direct
        assert receiver is not None
        assert direct is not None
        self._data_left -= nbytes
        self._direct = direct[nbytes:] if nbytes < len(direct) else None
        if not receiver.over:
            receiver.filled(nbytes)
        if not self._data_left:
            self._end_data()

    def _end_data(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None and not receiver.over:
            self.on_data_end(receiver, self._data_ends)


def _without_extras(flags: int, stream_id: int, payload: memoryview) -> memoryview:
    """Returns the header block without padding and priority (section 6.2)."""
    padding = 0
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "HEADERS without the length of their padding")
        padding, payload = payload[0], payload[1:]
    if flags & WITH_PRIORITY:
        if len(payload) < 5:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "HEADERS without their priority")
        if int.from_bytes(payload[:4]) & STREAM_ID_MASK == stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a stream that depends on itself")
        payload = payload[5:]
    if padding > len(payload):
        raise ConnectionFault(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[: len(payload) - padding]
