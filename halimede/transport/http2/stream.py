"""One stream of a connection: what it still has to send and how much the peer may send on it.

The base of what a user of the transport makes of a stream. Event-loop thread only.
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
"""Bytes waiting to be sent from which on a stream asks its sender to wait, until half of them are gone."""


class Trailers:
    """The header block that ends a stream, encoded when it is its turn: the table may have changed by then."""

    __slots__ = ("fields", "once")

    def __init__(self, fields: Fields, once: tuple[Field, ...]) -> None:
        self.fields = fields
        self.once = once


class Http2Stream:
    """Derived classes receive; the methods that send are for them and their users.

    A stream is over when both sides have ended, or one has reset it; sending on it does nothing then.
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
        """A part of the body; `data` holds until this returns."""
        raise NotImplementedError

    def room(self) -> memoryview | None:
        """Where the next bytes of the body shall be received, if this stream wants them without a copy."""
        return None

    def filled(self, count: int) -> None:
        """So many bytes were received into what `room` gave."""

    def ended(self) -> None:
        """The peer sends no more."""
        raise NotImplementedError

    def gone(self) -> None:
        """The stream is over before it was answered: reset by the peer, or the connection is lost."""
        raise NotImplementedError

    def drained(self) -> None:
        """What was full takes more again."""

    def end_is_early(self, length: int, ends: bool) -> bool:
        """Counts the body against the content-length that was announced; whether they disagree (8.1.1)."""
        if self._expected is None:
            return False
        self._expected -= length
        return self._expected < 0 or (ends and self._expected > 0)

    # Receiving window.

    def consume(self, count: int) -> None:
        """Notes bytes that need no more room, and lets the peer send as many again once it is worth a frame."""
        self._unconsumed += count
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
        """Sends as much as the windows allow, and queues the rest; False from `FULL_QUEUE_BYTES` queued bytes on."""
        if self.over:
            return True
        out = self.out
        size = sum(map(len, buffers))
        if not self.queued and out.takes(size) and size <= self.window:
            self.window -= size
            out.put_data(HEAD.pack(size << 8 | DATA, 0, self.id), buffers, size)
            return True
        if self.queue is None:
            self.queue = deque()
        self.queue.extend(b for b in buffers if len(b))
        self.queued += size
        self._full = self._full or self.queued >= FULL_QUEUE_BYTES
        out.enqueue(self, size)
        return not self._full

    def send_trailers(self, fields: Fields, *once: Field) -> None:
        """Ends the stream on this side, after the data that still waits."""
        if self.over or self.trailers is not None:
            return
        self.trailers = Trailers(fields, once)
        if not self.queued:
            self.put_trailers()

    def send_whole(self, fields: Fields, buffers: Sequence[Buffer], trailers: Fields) -> None:
        """Headers, all of the data, and trailers: the whole answer in one go where the windows have room for it."""
        out = self.out
        size = sum(map(len, buffers))
        if self.over or self.queued or size > self.window or not out.takes(size):
            self.send_headers(fields)
            self.send_data(*buffers)
            self.send_trailers(trailers)
            return
        head, tail = out.encoder.encode(fields), out.encoder.encode(trailers)
        self.window -= size
        start = HEAD.pack(len(head) << 8 | HEADERS, END_HEADERS, self.id) + head + HEAD.pack(size << 8, 0, self.id)
        out.put_data(start, buffers, size)
        out.put(HEAD.pack(len(tail) << 8 | HEADERS, END_HEADERS | END_STREAM, self.id) + tail)
        out.finished(self)

    def reset(self, code: Code) -> None:
        """Ends the stream at once, on both sides."""
        if not self.over:
            self.out.reset(self, code)

    # What the outbox calls.

    def take(self, limit: int) -> list[Buffer]:
        """Buffers of at most `limit` bytes from the head of the queue."""
        queue = self.queue
        assert queue is not None
        taken: list[Buffer] = []
        while queue and limit:
            buffer = queue[0]
            length = len(buffer)
            if length > limit:
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
        """What is queued will not be sent."""
        self.queue = None
        self.queued = 0

    def data_sent(self) -> None:
        """After a part of the queue was sent: wakes the sender that waits."""
        if self._full and self.queued < FULL_QUEUE_BYTES // 2:
            self._full = False
            self.drained()

    def put_trailers(self) -> None:
        """Writes the trailers, which end this side, and lets go of the stream."""
        trailers = self.trailers
        assert trailers is not None
        out = self.out
        block = out.encoder.encode(trailers.fields, *trailers.once)
        out.put(header_frames(END_STREAM, self.id, block, out.max_frame))
        out.finished(self)
