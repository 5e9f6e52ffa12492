"""One HTTP/2 stream: its queue of data to send, and the number of bytes that the peer may send on it.

It is the base class of the streams of a protocol on top, such as gRPC. Event-loop thread only.

| state | event | then |
| --- | --- | --- |
| open | the client sends END_STREAM | `remote_ended`: the answer may still be sent |
| open | the trailers are written | `over`; the client gets RST_STREAM with NO_ERROR |
| `remote_ended` | the trailers are written | `over` |
| open or `remote_ended` | a reset by either side, or the connection is lost | `over`; the queue is dropped |
"""

from collections import deque
from collections.abc import Sequence

from halimede.tensors import Buffer
from halimede.transport.http2.frames import DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, Code, header_frames
from halimede.transport.http2.headers import Field, Fields
from halimede.transport.http2.writer import FrameWriter

RECEIVE_WINDOW_BYTES = 1 << 22
"""Bytes that the peer may send on a stream ahead of its receiver."""
FULL_QUEUE_BYTES = 1 << 20
"""Queued bytes from which on the sender should wait, until half of them are gone."""


class Trailers:
    """The header block that ends a stream. It is encoded when it is sent, because the table may change until then."""

    __slots__ = ("fields", "once")

    def __init__(self, fields: Fields, once: tuple[Field, ...]) -> None:
        self.fields = fields
        self.once = once


class Http2Stream:
    """A stream. Derived classes receive; they and their users call the methods that send.

    A stream is over when both sides have ended it, or one has reset it. Sending on it has no effect then.
    """

    __slots__ = (
        "_expected",
        "_full",
        "_unconsumed",
        "id",
        "out",
        "over",
        "queue",
        "queued",
        "receive_window",
        "remote_ended",
        "trailers",
        "waiting",
        "window",
    )

    def __init__(self, out: FrameWriter, stream_id: int, content_length: int | None = None) -> None:
        self.out = out
        self.id = stream_id
        self.window = out.initial_window
        self.receive_window = RECEIVE_WINDOW_BYTES
        self.queue: deque[Buffer] | None = None
        self.queued = 0
        self.trailers: Trailers | None = None
        self.waiting = False
        self.remote_ended = False
        self.over = False
        self._expected = content_length
        self._full = False
        self._unconsumed = 0

    # What the connection calls.

    def received(self, data: memoryview) -> None:
        """Receives a part of the body. `data` is valid until this returns."""
        raise NotImplementedError

    def room(self) -> memoryview | None:
        """Returns a buffer for the next bytes of the body, if this stream wants them without a copy."""
        return None

    def filled(self, count: int) -> None:
        """Tells that `count` bytes were received into the buffer that `room` returned."""

    def ended(self) -> None:
        """The peer has ended its side."""
        raise NotImplementedError

    def gone(self) -> None:
        """The stream ended before it was answered: the peer reset it, or the connection is lost."""
        raise NotImplementedError

    def drained(self) -> None:
        """The queue was full and is not any more."""

    def partial_bytes(self) -> int | None:
        """Returns how much of an incomplete message has arrived, or None if the stream waits for no part of one."""
        return None

    def small_bytes(self) -> int:
        """Returns the bytes of messages that have arrived and are not counted one by one, because they are small."""
        return 0

    def reject(self, text: str) -> None:
        """Ends the stream, because the server has no room for its message."""

    def stalled(self, seconds: float) -> None:
        """Ends the stream, because nothing of its incomplete message has arrived for so long."""

    def end_is_early(self, length: int, ends: bool) -> bool:
        """Counts a part of the body against the announced content-length. Returns whether they disagree (section
        8.1.1)."""
        if self._expected is None:
            return False
        self._expected -= length
        return self._expected < 0 or (ends and self._expected > 0)

    # Receiving window.

    def consume(self, count: int) -> None:
        """Gives bytes back to the window of the stream. The peer gets a WINDOW_UPDATE when half of it is free."""
        self._unconsumed += count
        # After END_STREAM or a reset the client sends no more, so it needs no window.
        if self._unconsumed >= RECEIVE_WINDOW_BYTES // 2 and not self.remote_ended and not self.over:
            self.out.grant(self.id, self._unconsumed)
            self.receive_window += self._unconsumed
            self._unconsumed = 0

    # Sending.

    @property
    def full(self) -> bool:
        return self._full

    def send_headers(self, fields: Fields, *once: Field) -> None:
        if not self.over:
            out = self.out
            out.put(header_frames(0, self.id, out.encoder.encode(fields, *once), out.max_frame))

    def send_data(self, *buffers: Buffer) -> bool:
        """Sends what the windows allow, and queues the rest. Returns False if `FULL_QUEUE_BYTES` or more are queued."""
        if self.over:
            return True
        out = self.out
        size = sum(map(len, buffers))
        # Data of this stream that wait must go first.
        if not self.queued and out.can_send_now(size) and size <= self.window:
            self.window -= size
            out.put_data(HEAD.pack(size << 8 | DATA, 0, self.id), buffers, size)
            return True
        if self.queue is None:
            self.queue = deque()
        # Empty buffers would make a DATA frame without data.
        self.queue.extend(b for b in buffers if len(b))
        self.queued += size
        self._full = self._full or self.queued >= FULL_QUEUE_BYTES
        out.enqueue(self, size)
        return not self._full

    def send_trailers(self, fields: Fields, *once: Field) -> None:
        """Ends this side of the stream, after the queued data."""
        if self.over or self.trailers is not None:
            return
        self.trailers = Trailers(fields, once)
        if not self.queued:
            self.put_trailers()

    def send_whole(self, fields: Fields, buffers: Sequence[Buffer], trailers: Fields) -> None:
        """Sends headers, all data, and trailers. If the windows have room, they are written as one piece."""
        out = self.out
        size = sum(map(len, buffers))
        # The general case: each part waits for the windows by itself.
        if self.over or self.queued or size > self.window or not out.can_send_now(size):
            self.send_headers(fields)
            self.send_data(*buffers)
            self.send_trailers(trailers)
            return
        # Both blocks enter the table in the order in which they are sent.
        head, tail = out.encoder.encode(fields), out.encoder.encode(trailers)
        self.window -= size
        start = HEAD.pack(len(head) << 8 | HEADERS, END_HEADERS, self.id) + head + HEAD.pack(size << 8, 0, self.id)
        out.put_data(start, buffers, size)
        out.put(HEAD.pack(len(tail) << 8 | HEADERS, END_HEADERS | END_STREAM, self.id) + tail)
        out.finished(self)

    def reset(self, code: Code) -> None:
        """Resets the stream: both sides end at once."""
        if not self.over:
            self.out.reset(self, code)

    # Called by the writer.

    def take(self, limit: int) -> list[Buffer]:
        """Takes at most `limit` bytes from the head of the queue."""
        queue = self.queue
        assert queue is not None
        taken: list[Buffer] = []
        while queue and limit:
            buffer = queue[0]
            length = len(buffer)
            if length > limit:
                # The buffer is larger than the limit: a part of it is taken, and the rest stays.
                view = memoryview(buffer)
                queue[0] = view[limit:]
                taken.append(view[:limit])
                self.queued -= limit
                break
            taken.append(queue.popleft())
            limit -= length
            self.queued -= length
        return taken

    def drop(self) -> None:
        """Drops the queue."""
        self.queue = None
        self.queued = 0

    def data_sent(self) -> None:
        """A part of the queue was sent: wakes the sender if it waits."""
        # A sender is woken when half of the queue is gone, so that it can send many messages at once.
        if self._full and self.queued < FULL_QUEUE_BYTES // 2:
            self._full = False
            self.drained()

    def put_trailers(self) -> None:
        """Writes the trailers, which end this side."""
        trailers = self.trailers
        assert trailers is not None
        out = self.out
        block = out.encoder.encode(trailers.fields, *trailers.once)
        out.put(header_frames(END_STREAM, self.id, block, out.max_frame))
        out.finished(self)
