"""gRPC calls as HTTP/2 streams: the base of all calls, and calls with one message each way.

A call receives messages, has a deadline, and ends with a status. Knows no inference. Event-loop thread only; a large
message is compressed and decompressed on another thread.

| state of a unary call | event | then |
| --- | --- | --- |
| receiving | a second message | UNIMPLEMENTED |
| receiving | the client ends its side | begun, or waiting if the client is congested |
| waiting | the client takes what waits for it | begun |
| begun, message compressed | it is decompressed | served |
| served | `finish` | the answer, or the status |
| before `finish` | the deadline passes | DEADLINE_EXCEEDED; the service is cancelled |
| before `finish` | reset, or the connection is lost | the service is cancelled |
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, Protocol

from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import FULL, ConnectionBytes
from halimede.transport.buffers import Buffers
from halimede.transport.event_loop import EventLoop, TimerHandle
from halimede.transport.grpc.calls import MAX_SMALL_MESSAGE_BYTES, OK, Cancel, Message, Metadata, Unary
from halimede.transport.grpc.heads import (
    ANSWER_HEAD,
    ENCODED_HEADS,
    OK_STATUS,
    CallHead,
    Refusal,
    status_field,
    text_fields,
)
from halimede.transport.grpc.messages import (
    DEADLINE_EXCEEDED,
    IDENTITY,
    INTERNAL,
    LARGE_MESSAGE_BYTES,
    PREFIX,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    UNKNOWN,
    MessageFault,
    MessageReader,
    deflate,
    inflate,
)
from halimede.transport.http2.frames import Code
from halimede.transport.http2.stream import Http2Stream
from halimede.transport.http2.writer import FrameWriter
from halimede.transport.message_budget import MEASURED_BYTES, MessageBudget

log = logging.getLogger(__name__)

MAX_COMPRESSED_ON_LOOP_BYTES = 1 << 14
"""Size of a message that is decompressed on the loop. One of empty blocks yields nothing and takes long all the
same."""
MAX_INFLATED_ON_LOOP_BYTES = 1 << 16
"""Size that a small message may have after decompression on the loop, which takes 0.2 ms. 64 kB may become 64 MB, which
takes 200 ms and is for another thread."""
INFLATE_UNITS = 16
"""What decompression on the loop spends of the turn's budget of messages."""
EXPIRY_UNITS = 2
"""What the end of a call at its deadline spends of the turn's budget of messages."""
CALL_BYTES = 1 << 12
"""About what an open call takes without its head and messages. A client opens it with fourteen bytes."""
UNREADABLE = "Unable to parse request"
"""Triton's text for a call whose message is missing, incomplete, or cannot be decompressed."""


class CallServer(Protocol):
    """What a call needs of its server. `off_loop` runs `work` on another thread, then `done` with its result or the
    MessageFault that it raised."""

    loop: EventLoop
    max_receive_bytes: int
    buffers: Buffers
    message_budget: MessageBudget

    def off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None: ...


class RefusedCall(Http2Stream):
    """A call that was answered by its head alone."""

    __slots__ = ()

    def refuse(self, refusal: Refusal) -> None:
        if refusal.status == 200:
            self.send_trailers((*ANSWER_HEAD, status_field(refusal.code)), *text_fields(refusal.text))
        else:
            self.send_trailers(((b":status", b"%d" % refusal.status),))


class CallStream(Http2Stream):
    """What both kinds of calls have: a head, a deadline, and received messages. It implements `GrpcCall`."""

    __slots__ = ("_head", "_reader", "_server", "_timer", "began")

    def __init__(self, server: CallServer, out: FrameWriter, stream_id: int, head: CallHead) -> None:
        super().__init__(out, stream_id, head.content_length)
        self._server = server
        self._head = head
        self._reader: MessageReader | None = None
        self._timer: TimerHandle | None = None
        # The deadline runs from the head on, not from the message.
        if head.timeout is not None:
            self._timer = server.loop.call_later(head.timeout, self._expired)

    @property
    def metadata(self) -> Metadata:
        return self._head.metadata

    @property
    def peer(self) -> str:
        return self.out.peer

    def peer_names(self) -> Sequence[str]:
        return self.out.peer_names()

    def _new_reader(self) -> MessageReader:
        rpc = self._head.rpc
        self.began = monotonic_ns()
        first_tensor = rpc.first_tensor if rpc else None
        self._reader = MessageReader(self._max_message_bytes, first_tensor, self._server.buffers, self.out.account)
        return self._reader

    @property
    def _max_message_bytes(self) -> int:
        """Bytes of a message, on the wire and decompressed."""
        rpc, limit = self._head.rpc, self._server.max_receive_bytes
        return min(limit, MAX_SMALL_MESSAGE_BYTES) if rpc is not None and rpc.small else limit

    def partial_bytes(self) -> int | None:
        return None if self._reader is None else self._reader.partial_bytes

    def small_bytes(self) -> int:
        return CALL_BYTES + self._head.memory_bytes + (0 if self._reader is None else self._reader.small_bytes)

    def reject(self, text: str) -> None:
        self.fail(UNAVAILABLE, text)

    def stalled(self, seconds: float) -> None:
        self.fail(DEADLINE_EXCEEDED, f"no part of the message arrived for {seconds:g} s")

    @property
    def _may_begin(self) -> bool:
        """Whether the server has room for the answer to a call."""
        buffered, rpc = self._server.buffers.buffered, self._head.rpc
        return not buffered.full or (rpc is not None and rpc.small) or not buffered.is_full()

    def room(self) -> memoryview | None:
        return None if self._reader is None else self._reader.room()

    def gone(self) -> None:
        self._stop_timer()
        self._cancel_service()

    def end(self, code: int, text: str) -> None:
        """Ends the call with a status, after what was sent."""
        raise NotImplementedError

    def canceller(self) -> Cancel | None:
        """Returns, once, the callback that tells the service that its answer has no reader."""
        raise NotImplementedError

    def _cancel_service(self) -> None:
        cancel = self.canceller()
        # The service has its own code there, which may fail. Nothing of the transport depends on it.
        if cancel is not None:
            try:
                cancel()
            except Exception:
                log.exception("failed to cancel a gRPC call")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        budget = self._server.message_budget
        # The loop calls all timers that are due in one turn, and clients can let thousands be due together.
        if budget.left:
            budget.spend(EXPIRY_UNITS)
            self._exceed()
        else:
            budget.wait(self._exceed_later)

    def _exceed_later(self) -> None:
        """In a later turn, when the budget is new."""
        self._server.message_budget.spend(EXPIRY_UNITS)
        try:
            self._exceed()
        except Exception:
            log.exception("failed to end a gRPC call")

    def _exceed(self) -> None:
        self.fail(DEADLINE_EXCEEDED, "Deadline Exceeded")

    def fail(self, code: int, text: str) -> None:
        """Ends the call for a reason of the transport. The service need not answer."""
        if not self.over:
            self.end(code, text)
            self.give_up()
            self._cancel_service()

    def give_up(self) -> None:
        """Resets the call, unless its status was already sent: queued messages are not waited for."""
        if not self.over:
            self.reset(Code.CANCEL)

    def _inflate(self, message: Buffer, later: Callable[[Buffer], None]) -> Buffer | None:
        """Returns the decompressed message. A large one is given to `later` instead. Raises MessageFault."""
        encoding, limit = self._head.encoding, self._max_message_bytes
        # The message says that it is compressed, and the head does not say how.
        if encoding == IDENTITY:
            raise MessageFault(INTERNAL, UNREADABLE)
        account = self.out.account
        if account.seems_full and account.is_full():
            raise MessageFault(UNAVAILABLE, account.complaint)
        if len(message) < MAX_COMPRESSED_ON_LOOP_BYTES:
            self._server.message_budget.spend(INFLATE_UNITS)
            try:
                return inflate(message, encoding, min(limit, MAX_INFLATED_ON_LOOP_BYTES))
            except MessageFault as fault:
                # It is too large for the loop, and perhaps not for the server.
                if fault.code != RESOURCE_EXHAUSTED or limit <= MAX_INFLATED_ON_LOOP_BYTES:
                    raise

        # No nested functions: compiled, they and what they refer to would live until the garbage collector runs.
        work = partial(_inflate_large, message, encoding, limit, account)
        self._server.off_loop(work, partial(self._inflated_elsewhere, later))
        return None

    def _inflated_elsewhere(self, later: Callable[[Buffer], None], result: Buffer | MessageFault) -> None:
        """Another thread has decompressed a message."""
        if isinstance(result, MessageFault):
            self.fail(result.code, result.text)
        # The client may have gone meanwhile.
        elif not self.over:
            later(self._server.buffers.counted(result, self.out.account))


def _inflate_large(message: Buffer, encoding: str, limit: int, account: ConnectionBytes) -> Buffer:
    """Any thread."""
    # Messages that were decompressed while this one waited for a thread have perhaps filled the memory.
    if account.of.full:
        raise MessageFault(UNAVAILABLE, FULL)
    return inflate(message, encoding, limit)


class UnaryCall(CallStream):
    """A call with one message in and one out."""

    __slots__ = ("_answer", "_cancel", "_finished", "_message")

    def __init__(self, server: CallServer, out: FrameWriter, stream_id: int, head: CallHead) -> None:
        super().__init__(server, out, stream_id, head)
        self._message: Buffer | None = None
        self._answer: Message = ()
        self._cancel: Cancel | None = None
        self._finished = False

    # From the connection.

    def partial_bytes(self) -> int | None:
        # A whole message is incomplete, too, until the client has ended its side.
        if self.remote_ended:
            return None
        arrived = 0 if self._message is None else len(self._message)
        if (reader := self._reader) is not None:
            arrived += (reader.partial_bytes or 0) + sum(len(message) for _, message in reader.messages)
        return arrived or None

    def small_bytes(self) -> int:
        return super().small_bytes() + (0 if self._message is None else len(self._message))

    def received(self, data: memoryview) -> None:
        reader, size = self._reader, len(data)
        if reader is None:
            if size >= 5 and self._message is None:
                flag, length = PREFIX.unpack_from(data)
                limit = self._server.max_receive_bytes
                # A whole, small, plain message in one frame, which most are, needs no reader.
                if length == size - 5 and not flag and length < LARGE_MESSAGE_BYTES and length <= limit:
                    self._message = bytes(data[5:])
                    return
            # The message comes in parts, is large, or is compressed.
            reader = self._new_reader()
        try:
            reader.feed(data, 2)
        except MessageFault as fault:
            self.fail(fault.code, fault.text)
            return
        self._took(size)

    def filled(self, count: int) -> None:
        assert self._reader is not None
        self._reader.filled(count)
        self._took(count)

    def _took(self, count: int) -> None:
        reader = self._reader
        assert reader is not None
        # Checked while receiving, so that a client cannot send messages without end.
        if len(reader.messages) + (self._message is not None) > 1:
            self.fail(UNIMPLEMENTED, "Too many messages")
        self.consume(count)

    def ended(self) -> None:
        message, reader = self._message, self._reader
        flag = 0
        if reader is not None:
            # The client ended its side within a message.
            if not reader.is_between:
                self.fail(INTERNAL, UNREADABLE)
                return
            if reader.messages:
                flag, message = reader.messages.pop()
        if message is None:
            self.fail(INTERNAL, UNREADABLE)
        # A client that does not read its answers could otherwise have any number of them made.
        elif self.out.congested:
            self.out.when_uncongested(self, partial(self._begin, flag, message))
        else:
            self._begin(flag, message)

    def _begin(self, flag: int, message: Buffer) -> None:
        if not self._may_begin:
            self.reject(FULL)
            return
        rpc = self._head.rpc
        assert isinstance(rpc, Unary)
        if flag and rpc.admit is not None and not rpc.admit(self):
            return
        try:
            whole = self._inflate(message, self._serve) if flag else message
        except MessageFault as fault:
            self.fail(fault.code, fault.text)
            return
        if whole is not None:
            self._serve(whole)

    def _serve(self, message: Buffer) -> None:
        if self.over:
            return
        rpc = self._head.rpc
        assert isinstance(rpc, Unary)
        budget = self._server.message_budget
        # Each of thousands of connections can bring one call. Small questions, such as health checks, do not wait.
        if not budget.left and not rpc.small:
            budget.wait(partial(self._serve, message))
            return
        began = monotonic_ns() if len(message) >= MEASURED_BYTES else 0
        try:
            cancel = rpc.handler(message, self)
        except Exception:
            log.exception("gRPC handler failed")
            self.finish(UNKNOWN, "internal error")
            return
        finally:
            budget.spend(1)
            if began:
                budget.spend_time((monotonic_ns() - began) / 1e9)
        if not self._finished:
            # The handler may have answered already. There is nothing to cancel then.
            self._cancel = cancel

    def canceller(self) -> Cancel | None:
        cancel, self._cancel = self._cancel, None
        return cancel

    # From the service.

    def send(self, message: Message) -> bool:
        self._answer = message
        return True

    def on_writable(self, resume: Callable[[], None]) -> None:
        resume()

    def finish(self, code: int = OK, text: str = "") -> None:
        if not self._finished:
            self._finished = True
            self._cancel = None
            self.end(code, text)

    def end(self, code: int, text: str) -> None:
        if self._timer is not None:
            self._stop_timer()
        if code:
            # A failed call has no message: head and status are one header block ("trailers only").
            self.send_trailers((*ANSWER_HEAD, status_field(code)), *text_fields(text))
        elif self._head.answers == IDENTITY:
            answer = self._answer
            self.send_whole(ANSWER_HEAD, (PREFIX.pack(0, sum(map(len, answer))), *answer), OK_STATUS)
        # A small answer is compressed here. A large one would hold the loop.
        elif (size := sum(map(len, self._answer))) < LARGE_MESSAGE_BYTES:
            self._send_compressed(deflate(self._answer, self._head.answers))
        else:
            self._compress_elsewhere(size)

    def _compress_elsewhere(self, size: int) -> None:
        """Compresses the answer of `size` bytes, which count until then: others may wait for a thread before it."""
        account = self.out.account
        if account.is_full():
            self._send_compressed(MessageFault(UNAVAILABLE, account.complaint))
            return
        account.take(size)
        self._server.off_loop(partial(deflate, self._answer, self._head.answers), partial(self._compressed, size))

    def _compressed(self, size: int, packed: tuple[int, Message] | MessageFault) -> None:
        self.out.account.give(size)
        self._send_compressed(packed)

    def _send_compressed(self, packed: tuple[int, Message] | MessageFault) -> None:
        if isinstance(packed, MessageFault):
            self.send_trailers((*ANSWER_HEAD, status_field(packed.code)), *text_fields(packed.text))
            return
        flag, answer = packed
        prefix = PREFIX.pack(flag, sum(map(len, answer)))
        self.send_whole(ENCODED_HEADS[self._head.answers], (prefix, *answer), OK_STATUS)
