"""The calls of a gRPC server that carry any number of messages both ways, and how each side slows the other.

No inference words. Event-loop thread only; a large message that is compressed is inflated or deflated elsewhere.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import OK, Bidirectional, Cancel, Message
from halimede.transport.grpc.calls import StreamObserver as Receiver
from halimede.transport.grpc.heads import ANSWER_HEAD, ENCODED_HEADS, OK_STATUS, CallHead, status_field, text_fields
from halimede.transport.grpc.messages import (
    IDENTITY,
    INTERNAL,
    LARGE_MESSAGE_BYTES,
    PREFIX,
    UNKNOWN,
    MessageFault,
    deflate,
)
from halimede.transport.grpc.streams import UNREADABLE, CallServer, CallStream
from halimede.transport.http2.writer import FrameWriter

log = logging.getLogger(__name__)

BACKLOG_BYTES_PER_TURN = 1 << 16
"""Bytes that are taken in one turn of the loop of what had to wait."""
MAX_PARSED_MESSAGES = 32
"""Messages that are made of bytes before the first of them is handed on. So many may wait as objects, where the rest
waits as bytes."""


class BidirectionalCall(CallStream):
    """Any number of messages both ways.

    While the client does not take what it is sent, or the service holds back, messages are not delivered, and the
    client's window is not refilled. What comes then waits as bytes, so that many small messages take no more memory.
    """

    __slots__ = (
        "_backlog",
        "_begun",
        "_busy",
        "_due",
        "_held_back",
        "_inbox",
        "_marks",
        "_outbox",
        "_receiver",
        "_resumes",
        "_status",
        "_taken",
        "_told_end",
        "_unread",
    )

    def __init__(self, server: CallServer, out: FrameWriter, stream_id: int, head: CallHead) -> None:
        super().__init__(server, out, stream_id, head)
        self._receiver: Receiver | None = None
        self._begun = False
        self._told_end = False
        self._inbox: deque[tuple[int, Buffer]] = deque()
        self._backlog = bytearray()
        """What came after messages that wait in the inbox."""
        self._unread = 0
        self._busy = False
        self._held_back = False
        self._due = False
        self._outbox: deque[Message] = deque()
        """Messages of which the first is being compressed, on another thread."""
        self._status: tuple[int, str] | None = None
        self._resumes: list[Callable[[], None]] = []
        self._taken = 0
        """Bytes of the queue that have gone out."""
        self._marks: deque[tuple[int, Callable[[], None]]] = deque()
        """Whom to tell when so many have."""

    def begin(self) -> None:
        """Opens the service's side."""
        rpc = self._head.rpc
        assert isinstance(rpc, Bidirectional)
        try:
            self._receiver = rpc.open(self)
        except Exception:
            log.exception("failed to open a gRPC stream")
            self.finish(UNKNOWN, "internal error")

    # From the connection.

    def received(self, data: memoryview) -> None:
        self._unread += len(data)
        if self._inbox or self._backlog:
            self._backlog += data
            return
        read = self._read(data)
        if read < len(data) and not self.over:
            self._backlog += data[read:]
        self._settle()

    def room(self) -> memoryview | None:
        return None if self._backlog else super().room()

    def filled(self, count: int) -> None:
        assert self._reader is not None
        self._unread += count
        self._reader.filled(count)
        self._deliver()

    def _read(self, data: memoryview) -> int:
        """Hands on what the turn, the client and the service have room for; how much of the bytes was taken."""
        reader, turns = self._reader or self._new_reader(), self._server.turns
        at, end = 0, len(data)
        try:
            while at < end and turns.left and not self._inbox and not self.over:
                at += reader.feed(data[at:] if at else data, MAX_PARSED_MESSAGES)
                self._hand_on_all()
        except MessageFault as fault:
            self.fail(fault.code, fault.text)
        return at

    def ended(self) -> None:
        self._deliver()

    def drained(self) -> None:
        if not self._writable:
            return
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            if not self.over:
                self._guarded(resume)
        self._deliver()

    @property
    def _writable(self) -> bool:
        """Whether the service should send more now."""
        return not self.full and len(self._outbox) < 2

    # From the outbox.

    def take(self, limit: int) -> list[Buffer]:
        before = self.queued
        taken = super().take(limit)
        self._taken += before - self.queued
        return taken

    def data_sent(self) -> None:
        while self._marks and self._marks[0][0] <= self._taken:
            self._guarded(self._marks.popleft()[1])
        super().data_sent()

    def drop(self) -> None:
        self._marks.clear()
        super().drop()

    # What comes.

    def _deliver(self) -> None:
        self._hand_on_all()
        self._settle()

    def _hand_on_all(self) -> None:
        """Hands on what has come, in order, as long as the client takes its answers and the service its messages."""
        receiver, inbox, reader = self._receiver, self._inbox, self._reader
        if reader is not None and reader.messages:
            self._server.turns.spend(len(reader.messages))
            inbox.extend(reader.messages)
            reader.messages.clear()
        while inbox and not self._busy and not self._held_back and self._writable:
            if self.over or receiver is None:
                return
            flag, message = inbox.popleft()
            try:
                whole = self._inflate(message, self._inflated) if flag else message
            except MessageFault as fault:
                self.fail(fault.code, fault.text)
                return
            if whole is None:
                self._busy = True
            else:
                self._hand_on(whole)

    def _settle(self) -> None:
        """After messages were handed on: lets the client send as much again, and goes on with what is there."""
        if not self._inbox and not self._held_back and self._writable:
            backlog = len(self._backlog)
            read, self._unread = self._unread - backlog, backlog
            self.consume(read)
            if backlog or self.remote_ended:
                self._go_further(backlog)

    def _go_further(self, backlog: int) -> None:
        """With what came after the messages that were handed on."""
        if self._busy or self._told_end or self.over or self._receiver is None:
            return
        if backlog:
            self._read_on_later()
        else:
            self._told_end = True
            if self._reader is None or self._reader.is_between:
                self._guarded(self._receiver.half_closed)
            else:
                self.fail(INTERNAL, UNREADABLE)

    def _read_on_later(self) -> None:
        """In another turn of the loop, since much may have come."""
        if not self._due:
            self._due = True
            self._server.turns.wait(partial(self._guarded, self._read_on))

    def _read_on(self) -> None:
        self._due = False
        if self._backlog and not self._inbox and not self._held_back and not self.over:
            read = self._read(memoryview(bytes(memoryview(self._backlog)[:BACKLOG_BYTES_PER_TURN])))
            del self._backlog[:read]
            self._settle()
        else:
            self._deliver()

    def _inflated(self, message: Buffer) -> None:
        self._busy = False
        self._hand_on(message)
        self._deliver()

    def _hand_on(self, message: Buffer) -> None:
        receiver = self._receiver
        if receiver is not None and not self.over:
            try:
                receiver.message(message)
            except Exception:
                self._break()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            self._break()

    def _break(self) -> None:
        log.exception("gRPC stream failed")
        self.fail(UNKNOWN, "internal error")

    def canceller(self) -> Cancel | None:
        receiver, self._receiver = self._receiver, None
        self._resumes.clear()
        self._inbox.clear()
        self._backlog.clear()
        return None if receiver is None else receiver.cancelled

    # From the service.

    def send(self, message: Message) -> bool:
        if self._head.answers == IDENTITY:
            return self._send(0, message)
        self._outbox.append(message)
        if len(self._outbox) == 1:
            self._compress()
        return self._writable

    def _send(self, flag: int, message: Message) -> bool:
        if not self._begun:
            self._begun = True
            self.send_headers(ENCODED_HEADS[self._head.answers])
        return self.send_data(PREFIX.pack(flag, sum(map(len, message))), *message)

    def _compress(self) -> None:
        """Sends what waits to be compressed, in order; for a large message it leaves the loop, and goes on after it."""
        outbox, encoding = self._outbox, self._head.answers
        while outbox:
            if sum(map(len, outbox[0])) >= LARGE_MESSAGE_BYTES:
                self._server.off_loop(partial(deflate, outbox[0], encoding), self._compressed)
                return
            self._send(*deflate(outbox.popleft(), encoding))
        if self._status is not None:
            self._send_status(*self._status)

    def _compressed(self, packed: tuple[int, Message] | MessageFault) -> None:
        self._outbox.popleft()
        if self.over:
            self._outbox.clear()
            return
        if isinstance(packed, MessageFault):
            self._outbox.clear()
            self.fail(packed.code, packed.text)
            return
        self._send(*packed)
        self._compress()
        self.drained()

    def on_writable(self, resume: Callable[[], None]) -> None:
        if self._writable or self.over:
            resume()
        else:
            self._resumes.append(resume)

    def on_sent(self, done: Callable[[], None]) -> None:
        if self.over:
            done()
        elif self._outbox:  # by then more may have been sent, which is waited for as well
            self._resumes.append(partial(self.on_sent, done))
        elif self.queued:
            self._marks.append((self._taken + self.queued, done))
        else:
            done()

    def hold_back(self) -> None:
        self._held_back = True

    def go_on(self) -> None:
        self._held_back = False
        self._read_on_later()

    def finish(self, code: int = OK, text: str = "") -> None:
        self.end(code, text)

    def end(self, code: int, text: str) -> None:
        self._stop_timer()
        if self._outbox:
            self._status = self._status or (code, text)
        else:
            self._send_status(code, text)

    def _send_status(self, code: int, text: str) -> None:
        status = OK_STATUS if code == OK else (status_field(code),)
        self.send_trailers(status if self._begun else (*ANSWER_HEAD, *status), *text_fields(text))
