"""The sending half of one HTTP/2 connection: frames in order, and DATA within the windows of the peer.

Streams whose data must wait take turns, one frame each. All frames of a turn of the loop are written together at its
end. Event-loop thread only.

| data of a stream | event | then |
| --- | --- | --- |
| fits into the windows, and nothing waits | `send_data` | put at once |
| does not fit | `enqueue` | queued on the stream, which enters the queue of turns (`_turns`) |
| queued, and the stream's window is empty | the stream has its turn | it leaves the queue of turns |
| queued, not in the queue of turns | `wake` after WINDOW_UPDATE or SETTINGS | it enters the queue of turns |
| queued, last byte put | | the trailers are put, if there are any |
| queued | `forget` | dropped |
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import BufferedShare, ConnectionBytes
from halimede.transport.http2.frames import (
    DATA,
    DEFAULT_WINDOW_BYTES,
    HEAD,
    MAX_MAX_FRAME_BYTES,
    MAX_WINDOW_BYTES,
    MIN_MAX_FRAME_BYTES,
    Code,
    ConnectionFault,
    Setting,
    rst_stream,
    window_update,
)
from halimede.transport.http2.headers import HeaderEncoder
from halimede.transport.peers import names_of
from halimede.transport.sockets import peer_of

JOIN_BYTES = 1 << 16
"""Up to this size buffers are joined and written at once, because one write costs less than the copy."""
MAX_BURST_BYTES = 1 << 20
"""Bytes that are written before the transport is asked whether it takes more."""
CONGESTED_BYTES = 1 << 26
"""While this many bytes wait for the windows of one client, over all its streams, none of its new calls begins."""


def _nothing(of: object = None) -> None:
    """What a lost connection's writer calls."""


class SendingStream(Protocol):
    """A stream as the writer sees it."""

    id: int
    window: int
    queued: int
    waiting: bool
    over: bool
    remote_ended: bool

    @property
    def trailers(self) -> object | None: ...

    def take(self, limit: int) -> list[Buffer]: ...
    def data_sent(self) -> None: ...
    def drop(self) -> None: ...
    def put_trailers(self) -> None: ...


class FrameWriter:
    """Writes frames.

    `finished` is called with a stream after its trailers were put, `abandoned` with a stream that this side has reset,
    and `on_uncongested` when the client has taken enough of the waiting bytes. `call_soon` runs a callback at the end
    of the loop's turn.
    """

    __slots__ = (
        "_call_soon",
        "_deferred",
        "_flush_due",
        "_frames",
        "_peer_names",
        "_share",
        "_size",
        "_transport",
        "_turns",
        "abandoned",
        "account",
        "backlog",
        "closed",
        "data_frames",
        "encoder",
        "finished",
        "initial_window",
        "max_frame",
        "on_uncongested",
        "pending",
        "sent_data",
        "window",
        "write_paused",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        call_soon: Callable[[Callable[[], None]], object],
        finished: Callable[[SendingStream], None],
        abandoned: Callable[[SendingStream], None],
        on_uncongested: Callable[[], None],
        account: ConnectionBytes,
    ) -> None:
        self._transport = transport
        self._peer_names: tuple[str, ...] | None = None
        self._call_soon = call_soon
        self.finished = finished
        self.abandoned = abandoned
        self.on_uncongested = on_uncongested
        self.encoder = HeaderEncoder()
        self.window = DEFAULT_WINDOW_BYTES
        self.initial_window = DEFAULT_WINDOW_BYTES
        self.max_frame = MIN_MAX_FRAME_BYTES
        self.write_paused = False
        self.backlog = 0
        """Bytes written while the transport asked to pause: answers that the client requests and does not read."""
        self.closed = False
        """Set when the connection is lost, or ends with what was written. Nothing is written after that."""
        self.pending = 0
        """Bytes that wait for windows, over all streams."""
        self.data_frames = 0
        """DATA frames put so far. Each gives the client reason for window updates."""
        self.sent_data = False
        """Whether headers or data were put since this was last cleared. The timers clear it (gRPC's ping strikes)."""
        self.account = account
        """Counts the bytes that the connection holds."""
        self._share = BufferedShare(account)
        self._frames: list[Buffer] = []
        self._size = 0
        self._turns: deque[SendingStream] = deque()
        self._flush_due = False
        self._deferred: dict[SendingStream, Callable[[], None]] = {}

    @property
    def peer(self) -> str:
        """The address of the client, without its port; empty for a Unix socket."""
        return peer_of(self._transport)

    def peer_names(self) -> tuple[str, ...]:
        """Returns the names in the certificate that the client has shown."""
        if self._peer_names is None:
            self._peer_names = names_of(self._transport)
        return self._peer_names

    def release(self) -> None:
        """The connection is lost. The writer lets go of it, so that its memory is freed without the garbage
        collector."""
        self.closed = True
        self.finished = self.abandoned = _nothing
        self.on_uncongested = _nothing
        self._call_soon = _nothing
        self._share.set(0)
        self._frames.clear()
        self._deferred.clear()

    # Putting frames.

    def put(self, frames: bytes) -> None:
        """Puts whole frames that no window counts. They reset the client's ping strikes (gRPC's rule)."""
        self._frames.append(frames)
        self._size += len(frames)
        self.sent_data = True
        if not self._flush_due:
            self._schedule()

    def put_control(self, frames: bytes) -> None:
        """Puts frames that are neither headers nor data. They do not reset the client's ping strikes."""
        self._frames.append(frames)
        self._size += len(frames)
        if not self._flush_due:
            self._schedule()

    def can_send_now(self, size: int) -> bool:
        """Whether the connection can send data of this size in one frame now."""
        # Data of other streams waits already, and must not be overtaken.
        if self._turns or self.write_paused or self._size >= MAX_BURST_BYTES:
            return False
        return size <= self.max_frame and size <= self.window

    def put_data(self, head: bytes, buffers: Sequence[Buffer], size: int) -> None:
        """Puts a DATA frame, and the frames before it in `head`. The windows must have room."""
        self._frames.append(head)
        self._frames += buffers
        self.window -= size
        self._size += size + len(head)
        self.data_frames += 1
        self.sent_data = True
        if not self._flush_due:
            self._schedule()

    def grant(self, stream_id: int, count: int) -> None:
        """Lets the peer send `count` bytes more on a stream, or on the connection (stream 0)."""
        self.put(window_update(stream_id, count))

    def reset(self, stream: SendingStream, code: Code) -> None:
        self.put_control(rst_stream(stream.id, code))
        self.abandoned(stream)

    # Streams that wait.

    @property
    def congested(self) -> bool:
        """Whether so many bytes wait for this client that no new call of it may begin."""
        return self.pending >= CONGESTED_BYTES

    def apply_setting(self, number: int, value: int, streams: Iterable[SendingStream]) -> None:
        """Applies one setting of the peer (section 6.5.2). Raises ConnectionFault."""
        if number == Setting.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW_BYTES:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "initial window too large")
            difference, self.initial_window = value - self.initial_window, value
            for stream in streams:
                # The window may become negative (section 6.9.2).
                stream.window += difference
                if stream.window > MAX_WINDOW_BYTES:
                    raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a stream's window is too large")
                self.wake(stream)
        elif number == Setting.MAX_FRAME_SIZE:
            if not MIN_MAX_FRAME_BYTES <= value <= MAX_MAX_FRAME_BYTES:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
            self.max_frame = value
        elif number == Setting.HEADER_TABLE_SIZE:
            self.encoder.limit_table(value)
        elif number == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")

    def when_uncongested(self, stream: SendingStream, begin: Callable[[], None]) -> None:
        """Calls `begin` once, when the client is no longer congested. A stream that is over is forgotten."""
        self._deferred[stream] = begin

    def _resume_deferred(self) -> None:
        self.on_uncongested()
        while self._deferred and not self.congested:
            self._deferred.pop(next(iter(self._deferred)))()

    def enqueue(self, stream: SendingStream, size: int) -> None:
        """Counts `size` more queued bytes of the stream."""
        self.pending += size
        self._share.set(self.pending)
        self.wake(stream)

    def wake(self, stream: SendingStream) -> None:
        """Gives the stream a turn if it can send."""
        # A stream that waits is in the queue already. One without window could send nothing in its turn.
        if stream.queued and not stream.waiting and stream.window > 0:
            stream.waiting = True
            self._turns.append(stream)
            if not self._flush_due:
                self._schedule()

    def forget(self, stream: SendingStream) -> None:
        """Drops what a stream that is over had queued."""
        self._deferred.pop(stream, None)
        if stream.waiting:
            stream.waiting = False
            # During its own turn the stream is not in the queue.
            with suppress(ValueError):
                self._turns.remove(stream)
        self._sent(stream.queued)
        stream.drop()

    def _pump(self) -> None:
        """Puts the data that may be sent now, one frame of each stream in turn."""
        turns = self._turns
        while turns and not self.write_paused and self._size < MAX_BURST_BYTES and self.window > 0:
            stream = turns.popleft()
            size = min(self.max_frame, self.window, stream.window, stream.queued)
            # A window may have closed since the stream took its turn (section 6.9.2).
            if stream.over or size <= 0:
                stream.waiting = False
                continue
            stream.window -= size
            self.put_data(HEAD.pack(size << 8 | DATA, 0, stream.id), stream.take(size), size)
            self._sent(size)
            if stream.queued:
                turns.append(stream)
            else:
                stream.waiting = False
                if stream.trailers is not None:
                    # The stream is over, so no sender waits for room in its queue.
                    stream.put_trailers()
                    continue
            # Only now, after the stream has left or entered the queue: the sender may queue more.
            stream.data_sent()

    def _sent(self, count: int) -> None:
        was_congested = self.congested
        self.pending -= count
        self._share.set(self.pending)
        # Later in the loop's turn: a call that begins here would send while another stream is sending.
        if was_congested and not self.congested:
            self._call_soon(self._resume_deferred)

    # Writing.

    @property
    def unwritten(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size()

    def hold(self) -> None:
        """Collects frames until the caller calls `flush`."""
        # Nothing is scheduled: the mark only keeps `put` from doing so.
        self._flush_due = True

    def _schedule(self) -> None:
        self._flush_due = True
        self._call_soon(self.flush)

    def flush(self) -> None:
        """Writes the frames that were put, and as much queued data as the windows and the transport take."""
        # A sender that is woken meanwhile puts frames, which the loop below writes. Without the mark, `put` would
        # schedule another flush for them.
        self._flush_due = True
        if self._turns:
            self._pump()
        while self._frames:
            frames, size = self._frames, self._size
            self._frames, self._size = [], 0
            # The connection is lost. The frames are dropped.
            if self.closed:
                break
            # Counted against a client that asks for answers and does not read them.
            if self.write_paused:
                self.backlog += size
            if size <= JOIN_BYTES:
                self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
            else:
                self._transport.writelines(frames)
            if self._turns:
                self._pump()
        self._flush_due = False
