"""gRPC calls with any number of messages in both directions, and their back-pressure.

Knows nothing of inference. Event-loop thread only; a large message is compressed and decompressed on another thread.

The path of a received message: bytes of the client → `_backlog` (waiting bytes) → the reader → `_inbox` (waiting
messages) → decompression → `StreamObserver.message`.

| condition | messages wait in | ends when |
| --- | --- | --- |
| the client does not take its answers (`full`) | `_inbox`, `_backlog` | `drained` |
| the service holds back (`_held_back`) | `_inbox`, `_backlog` | `go_on` |
| a message is being decompressed (`_decompressing`) | `_inbox`, `_backlog` | `_inflated` |
| the budget of the turn is spent | `_backlog` | `_read_on`, in a later turn |

The path of a sent message: `send` → `_to_compress` → HTTP/2 stream. The status waits in `_status` until `_to_compress`
is empty.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import FULL
from halimede.transport.grpc.calls import OK, Bidirectional, Cancel, Message, StreamObserver
from halimede.transport.grpc.heads import ANSWER_HEAD, ENCODED_HEADS, OK_STATUS, CallHead, status_field, text_fields
from halimede.transport.grpc.messages import (
    IDENTITY,
    INTERNAL,
    LARGE_MESSAGE_BYTES,
    PREFIX,
    UNAVAILABLE,
    UNKNOWN,
    MessageFault,
    deflate,
)
from halimede.transport.grpc.streams import UNREADABLE, CallServer, CallStream
from halimede.transport.http2.writer import FrameWriter

log = logging.getLogger(__name__)

BACKLOG_BYTES_PER_TURN = 1 << 16
"""Waiting bytes that are parsed in one turn of the loop."""
MAX_PARSED_MESSAGES = 32
"""Messages that are parsed before the first of them is delivered. At most this many wait as objects; the others wait
as bytes."""


class BidirectionalCall(CallStream):
    """A call with any number of messages in both directions.

    While the client does not take its answers, or the service holds back, messages are not delivered, and the client's
    window is not refilled. What arrives then waits as bytes, because small messages take much more memory as objects.
    """

    __slots__ = (
        "_backlog",
        "_begun",
        "_decompressing",
        "_half_closed_told",
        "_held_back",
        "_inbox",
        "_observer",
        "_on_sent",
        "_read_on_due",
        "_resumes",
        "_status",
        "_taken",
        "_to_compress",
        "_unread",
    )

    def __init__(self, server: CallServer, out: FrameWriter, stream_id: int, head: CallHead) -> None:
        super().__init__(server, out, stream_id, head)
        self._observer: StreamObserver | None = None
        self._begun = False
        self._half_closed_told = False
        self._inbox: deque[tuple[int, Buffer]] = deque()
        self._backlog = bytearray()
        """Bytes that arrived after the messages in the inbox."""
        self._unread = 0
        self._decompressing = False
        self._held_back = False
        self._read_on_due = False
        self._to_compress: deque[Message] = deque()
        """Messages that wait for compression. The first is being compressed on another thread."""
        self._status: tuple[int, str] | None = None
        self._resumes: list[Callable[[], None]] = []
        self._taken = 0
        """Bytes of the queue that were sent."""
        self._on_sent: deque[tuple[int, Callable[[], None]]] = deque()
        """Callbacks of `on_sent`, each with the value of `_taken` at which it is called."""

    def begin(self) -> None:
        """Calls the service, which opens its side."""
        if not self._may_begin:
            self.reject(FULL)
            return
        rpc = self._head.rpc
        assert isinstance(rpc, Bidirectional)
        try:
            self._observer = rpc.open(self)
        except Exception:
            log.exception("failed to open a gRPC stream")
            self.finish(UNKNOWN, "internal error")

    # From the connection.

    def received(self, data: memoryview) -> None:
        self._unread += len(data)
        # Messages wait already, so these bytes must wait behind them.
        if self._inbox or self._backlog:
            self._backlog += data
            return
        read = self._read(data)
        if read < len(data) and not self.over:
            self._backlog += data[read:]
        self._settle()

    def room(self) -> memoryview | None:
        # With a backlog the next bytes belong behind it, not into the incomplete message.
        return None if self._backlog else super().room()

    def partial_bytes(self) -> int | None:
        # The client waits for the server, not the server for the client.
        if self._held_back or self._decompressing or self._inbox or self._backlog or not self._writable:
            return None
        return super().partial_bytes()

    def small_bytes(self) -> int:
        held = 0 if self._observer is None else self._observer.held_bytes()
        return len(self._backlog) + held + super().small_bytes()

    def filled(self, count: int) -> None:
        assert self._reader is not None
        self._unread += count
        self._reader.filled(count)
        self._deliver()

    def _read(self, data: memoryview) -> int:
        """Parses bytes and delivers messages, until the budget of the turn, the client or the service stops it. Returns
        the number of bytes taken."""
        reader, budget = self._reader or self._new_reader(), self._server.message_budget
        at, end = 0, len(data)
        try:
            # A message that waits in the inbox stops the parsing. The rest stays bytes.
            while at < end and budget.left and not self._inbox and not self.over:
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
        # A resumed sender may register again.
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            if not self.over:
                self._guarded(resume)
        self._deliver()

    @property
    def _writable(self) -> bool:
        """Whether the service should send more now."""
        # One message may be compressed while the next is prepared.
        return not self.full and len(self._to_compress) < 2

    # Called by the writer, while data wait for the client's window.

    def take(self, limit: int) -> list[Buffer]:
        before = self.queued
        taken = super().take(limit)
        self._taken += before - self.queued
        return taken

    def data_sent(self) -> None:
        while self._on_sent and self._on_sent[0][0] <= self._taken:
            self._guarded(self._on_sent.popleft()[1])
        super().data_sent()

    def drop(self) -> None:
        self._on_sent.clear()
        super().drop()

    # Received messages.

    def _deliver(self) -> None:
        self._hand_on_all()
        self._settle()

    def _hand_on_all(self) -> None:
        """Delivers messages, in order, as long as the client takes its answers and the service its messages."""
        observer, inbox, reader = self._observer, self._inbox, self._reader
        if reader is not None and reader.messages:
            self._server.message_budget.spend(len(reader.messages))
            inbox.extend(reader.messages)
            reader.messages.clear()
        account = self.out.account
        # Not `seems_full`, which is a call.
        if (account.full or account.of.full) and inbox and account.is_full():
            self.fail(UNAVAILABLE, account.complaint)
            return
        while inbox and not self._decompressing and not self._held_back and self._writable:
            # A message may end the call.
            if self.over or observer is None:
                return
            # Decompressing takes longer than the parsing that the budget stops.
            if inbox[0][0] and not self._server.message_budget.left:
                self._read_on_later()
                return
            flag, message = inbox.popleft()
            try:
                whole = self._inflate(message, self._inflated) if flag else message
            except MessageFault as fault:
                self.fail(fault.code, fault.text)
                return
            # Another thread decompresses it. The messages behind it wait, to keep the order.
            if whole is None:
                self._decompressing = True
            else:
                self._hand_on(whole)

    def _settle(self) -> None:
        """Called after messages were delivered. Refills the client's window, and continues with the backlog."""
        if not self._inbox and not self._held_back and self._writable:
            # Bytes in the backlog stay unread, so that the client cannot send as many again.
            backlog = len(self._backlog)
            read, self._unread = self._unread - backlog, backlog
            self.consume(read)
            if backlog or self.remote_ended:
                self._go_further(backlog)

    def _go_further(self, backlog: int) -> None:
        """Continues with the backlog, or tells the service that the client has ended its side."""
        # The service learns once, after all messages, that the client has ended its side.
        if self._decompressing or self._half_closed_told or self.over or self._observer is None:
            return
        if backlog:
            self._read_on_later()
        else:
            self._half_closed_told = True
            # A client that ends within a message has broken the protocol.
            if self._reader is None or self._reader.is_between:
                self._guarded(self._observer.half_closed)
            else:
                self.fail(INTERNAL, UNREADABLE)

    def _read_on_later(self) -> None:
        """Parses the backlog in another turn of the loop, because it may be long."""
        if not self._read_on_due:
            self._read_on_due = True
            self._server.message_budget.wait(partial(self._guarded, self._read_on))

    def _read_on(self) -> None:
        self._read_on_due = False
        if self._backlog and not self._inbox and not self._held_back and not self.over:
            # A copy, because a bytearray that has views cannot be shortened.
            read = self._read(memoryview(bytes(memoryview(self._backlog)[:BACKLOG_BYTES_PER_TURN])))
            del self._backlog[:read]
            self._settle()
        else:
            self._deliver()

    def _inflated(self, message: Buffer) -> None:
        self._decompressing = False
        self._hand_on(message)
        self._deliver()

    def _hand_on(self, message: Buffer) -> None:
        observer = self._observer
        if observer is not None and not self.over:
            try:
                observer.message(message)
            except Exception:
                self._break()

    def _guarded(self, step: Callable[[], None]) -> None:
        """Calls code of the service. Its errors end this call and no other."""
        try:
            step()
        except Exception:
            self._break()

    def _break(self) -> None:
        log.exception("gRPC stream failed")
        self.fail(UNKNOWN, "internal error")

    def canceller(self) -> Cancel | None:
        observer, self._observer = self._observer, None
        # Neither waiting senders nor waiting messages are of use now.
        self._resumes.clear()
        self._inbox.clear()
        self._backlog.clear()
        return None if observer is None else observer.cancelled

    # From the service.

    def send(self, message: Message) -> bool:
        if self._head.answers == IDENTITY:
            return self._send(0, message)
        self._to_compress.append(message)
        # Otherwise an earlier message is being compressed, and this one follows it.
        if len(self._to_compress) == 1:
            self._compress()
        return self._writable

    def _send(self, flag: int, message: Message) -> bool:
        if not self._begun:
            self._begun = True
            self.send_headers(ENCODED_HEADS[self._head.answers])
        return self.send_data(PREFIX.pack(flag, sum(map(len, message))), *message)

    def _compress(self) -> None:
        """Compresses and sends messages, in order. A large one is compressed on another thread, and the rest follows
        it."""
        waiting, encoding = self._to_compress, self._head.answers
        while waiting:
            if (size := sum(map(len, waiting[0]))) >= LARGE_MESSAGE_BYTES:
                # Others may wait for a thread before it.
                self.out.account.take(size)
                self._server.off_loop(partial(deflate, waiting[0], encoding), partial(self._compressed, size))
                return
            self._send(*deflate(waiting.popleft(), encoding))
        if self._status is not None:
            self._send_status(*self._status)

    def _compressed(self, size: int, packed: tuple[int, Message] | MessageFault) -> None:
        self.out.account.give(size)
        self._to_compress.popleft()
        # The client may have gone while the other thread worked.
        if self.over:
            self._to_compress.clear()
            return
        if isinstance(packed, MessageFault):
            self._to_compress.clear()
            self.fail(packed.code, packed.text)
            return
        self._send(*packed)
        self._compress()
        # There is room for one more message to be compressed.
        self.drained()

    def on_writable(self, resume: Callable[[], None]) -> None:
        if self._writable or self.over:
            resume()
        else:
            self._resumes.append(resume)

    def on_sent(self, done: Callable[[], None]) -> None:
        if self.over:
            done()
        # Messages that are being compressed are not queued yet. Ask again when they are.
        elif self._to_compress:
            self._resumes.append(partial(self.on_sent, done))
        # `done` is called when the client's window has taken everything that is queued now.
        elif self.queued:
            self._on_sent.append((self._taken + self.queued, done))
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
        if self._to_compress:
            # The first status counts.
            self._status = self._status or (code, text)
        else:
            self._send_status(code, text)

    def _send_status(self, code: int, text: str) -> None:
        # If no message was sent, head and status are one header block ("trailers only").
        status = OK_STATUS if code == OK else (status_field(code),)
        self.send_trailers(status if self._begun else (*ANSWER_HEAD, *status), *text_fields(text))
