"""The calls of a gRPC server: HTTP/2 streams that take messages, have a deadline, and end with a status.

No inference words. Event-loop thread only; a large message that is compressed is inflated or deflated elsewhere.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from halimede.tensors import Buffer
from halimede.transport.buffers import Buffers
from halimede.transport.grpc_calls import OK, Bidirectional, Cancel, Message, Metadata, Unary
from halimede.transport.grpc_calls import Stream as Receiver
from halimede.transport.grpc_heads import (
    ANSWER_HEAD,
    ENCODED_HEADS,
    OK_STATUS,
    CallHead,
    Refusal,
    status_field,
    text_fields,
)
from halimede.transport.grpc_messages import (
    IDENTITY,
    INTERNAL,
    LARGE,
    PREFIX,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    MessageFault,
    MessageReader,
    deflate,
    inflate,
)
from halimede.transport.http2.frames import Code
from halimede.transport.http2.keeper import Handle, Loop
from halimede.transport.http2.outbox import Outbox
from halimede.transport.http2.stream import Stream

log = logging.getLogger(__name__)

UNKNOWN, DEADLINE_EXCEEDED = 2, 4
INFLATED_ON_LOOP = 1 << 18
"""What a small message may become on the loop: 64 kB can be 64 MB, and 200 ms, which is for another thread."""
UNREADABLE = "Unable to parse request"
"""What the original says of a call whose message is missing, incomplete or not to be inflated."""


class Server(Protocol):
    """What a call needs of its server. `off_loop` runs `work` on another thread, then `done` with its result or the
    MessageFault it raised."""

    loop: Loop
    max_receive_bytes: int
    buffers: Buffers

    def off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None: ...


class RefusedCall(Stream):
    """A call that was answered by its head alone."""

    __slots__ = ()

    def refuse(self, refusal: Refusal) -> None:
        if refusal.status == 200:
            self.send_trailers((*ANSWER_HEAD, status_field(refusal.code)), *text_fields(refusal.text))
        else:
            self.send_trailers(((b":status", b"%d" % refusal.status),))


class Call(Stream):
    """What both kinds of calls have: a head, a deadline, and messages that come in. See `grpc_calls.Call`."""

    __slots__ = ("_head", "_reader", "_server", "_timer")

    def __init__(self, server: Server, out: Outbox, stream_id: int, head: CallHead) -> None:
        super().__init__(out, stream_id, head.content_length)
        self._server = server
        self._head = head
        self._reader: MessageReader | None = None
        self._timer: Handle | None = None
        if head.timeout is not None:
            self._timer = server.loop.call_later(head.timeout, self._expired)

    @property
    def metadata(self) -> Metadata:
        return self._head.metadata

    def _new_reader(self) -> MessageReader:
        rpc = self._head.rpc
        first_tensor = rpc.first_tensor if rpc else None
        self._reader = MessageReader(self._server.max_receive_bytes, first_tensor, self._server.buffers.aligned)
        return self._reader

    def room(self) -> memoryview | None:
        return None if self._reader is None else self._reader.room()

    def gone(self) -> None:
        self._stop_timer()
        self._cancel_service()

    def end(self, code: int, text: str) -> None:
        """Ends the call with a status, after what was sent."""
        raise NotImplementedError

    def canceller(self) -> Cancel | None:
        """What tells the service that its answer has no taker; not twice."""
        raise NotImplementedError

    def _cancel_service(self) -> None:
        cancel = self.canceller()
        if cancel is not None:
            try:
                cancel()
            except Exception:
                log.exception("cancelling a call broke")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        self.fail(DEADLINE_EXCEEDED, "Deadline Exceeded")

    def fail(self, code: int, text: str) -> None:
        """Ends the call for a reason of its own; the service is told that it need not answer."""
        if not self.over:
            self.end(code, text)
            self.give_up()
            self._cancel_service()

    def give_up(self) -> None:
        """What is queued before the status is not worth waiting for: without it the call is reset."""
        if not self.over:
            self.reset(Code.CANCEL)

    def _inflate(self, message: Buffer, later: Callable[[Buffer], None]) -> Buffer | None:
        """The message as it was before compression; a large one is handed on later. Raises MessageFault."""
        encoding, limit = self._head.encoding, self._server.max_receive_bytes
        if encoding == IDENTITY:
            raise MessageFault(INTERNAL, UNREADABLE)
        if len(message) < LARGE:
            try:
                return inflate(message, encoding, min(limit, INFLATED_ON_LOOP))
            except MessageFault as fault:
                if fault.code != RESOURCE_EXHAUSTED or limit <= INFLATED_ON_LOOP:
                    raise

        def finished(result: Buffer | MessageFault) -> None:
            if isinstance(result, MessageFault):
                self.fail(result.code, result.text)
            elif not self.over:
                later(result)

        self._server.off_loop(partial(inflate, message, encoding, limit), finished)
        return None


class UnaryCall(Call):
    """One message in, one out."""

    __slots__ = ("_answer", "_cancel", "_finished", "_message")

    def __init__(self, server: Server, out: Outbox, stream_id: int, head: CallHead) -> None:
        super().__init__(server, out, stream_id, head)
        self._message: Buffer | None = None
        self._answer: Message = ()
        self._cancel: Cancel | None = None
        self._finished = False

    # From the connection.

    def received(self, data: memoryview) -> None:
        reader, size = self._reader, len(data)
        if reader is None:
            if size >= 5 and self._message is None:
                flag, length = PREFIX.unpack_from(data)
                limit = self._server.max_receive_bytes
                if length == size - 5 and not flag and length < LARGE and length <= limit:
                    self._message = bytes(data[5:])
                    return
            reader = self._new_reader()
        try:
            reader.feed(data)
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
        if len(reader.messages) + (self._message is not None) > 1:
            self.fail(UNIMPLEMENTED, "Too many messages")
        self.consume(count)

    def ended(self) -> None:
        message, reader = self._message, self._reader
        flag = 0
        if reader is not None:
            if not reader.is_between:
                self.fail(INTERNAL, UNREADABLE)
                return
            if reader.messages:
                flag, message = reader.messages.pop()
        if message is None:
            self.fail(INTERNAL, UNREADABLE)
        elif self.out.choked:
            self.out.when_unchoked(self, partial(self._begin, flag, message))
        else:
            self._begin(flag, message)

    def _begin(self, flag: int, message: Buffer) -> None:
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
        try:
            cancel = rpc.handler(message, self)
        except Exception:
            log.exception("a gRPC handler broke")
            self.finish(UNKNOWN, "internal error")
            return
        if not self._finished:
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
            self.send_trailers((*ANSWER_HEAD, status_field(code)), *text_fields(text))
        elif self._head.answers == IDENTITY:
            answer = self._answer
            self.send_whole(ANSWER_HEAD, (PREFIX.pack(0, sum(map(len, answer))), *answer), OK_STATUS)
        elif sum(map(len, self._answer)) < LARGE:
            self._send_compressed(deflate(self._answer, self._head.answers))
        else:
            self._server.off_loop(partial(deflate, self._answer, self._head.answers), self._send_compressed)

    def _send_compressed(self, packed: tuple[int, Message] | MessageFault) -> None:
        if isinstance(packed, MessageFault):
            self.send_trailers((*ANSWER_HEAD, status_field(packed.code)), *text_fields(packed.text))
            return
        flag, answer = packed
        prefix = PREFIX.pack(flag, sum(map(len, answer)))
        self.send_whole(ENCODED_HEADS[self._head.answers], (prefix, *answer), OK_STATUS)


class StreamCall(Call):
    """Any number of messages both ways.

    While the client does not take what it is sent, its own messages are not delivered, and its window is not refilled.
    """

    __slots__ = ("_begun", "_busy", "_inbox", "_outbox", "_receiver", "_resumes", "_status", "_told_end", "_unread")

    def __init__(self, server: Server, out: Outbox, stream_id: int, head: CallHead) -> None:
        super().__init__(server, out, stream_id, head)
        self._receiver: Receiver | None = None
        self._begun = False
        self._told_end = False
        self._inbox: deque[tuple[int, Buffer]] = deque()
        self._unread = 0
        self._busy = False
        self._outbox: deque[Message] = deque()
        """Messages of which the first is being compressed, on another thread."""
        self._status: tuple[int, str] | None = None
        self._resumes: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Opens the service's side."""
        rpc = self._head.rpc
        assert isinstance(rpc, Bidirectional)
        try:
            self._receiver = rpc.open(self)
        except Exception:
            log.exception("opening a gRPC stream broke")
            self.finish(UNKNOWN, "internal error")

    # From the connection.

    def received(self, data: memoryview) -> None:
        reader = self._reader or self._new_reader()
        try:
            reader.feed(data)
        except MessageFault as fault:
            self.fail(fault.code, fault.text)
            return
        self._took(len(data))

    def filled(self, count: int) -> None:
        assert self._reader is not None
        self._reader.filled(count)
        self._took(count)

    def _took(self, count: int) -> None:
        self._unread += count
        reader = self._reader
        assert reader is not None
        if reader.messages:
            self._inbox.extend(reader.messages)
            reader.messages.clear()
        self._deliver()

    def ended(self) -> None:
        if self._reader is not None and not self._reader.is_between:
            self.fail(INTERNAL, UNREADABLE)
            return
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

    def _deliver(self) -> None:
        """Hands on what has come, in order, as long as the client takes its answers."""
        receiver, inbox = self._receiver, self._inbox
        while inbox and not self._busy and self._writable and not self.over and receiver is not None:
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
        if not inbox and self._writable:
            unread, self._unread = self._unread, 0
            self.consume(unread)
            if self.remote_ended and not self._busy and not self._told_end and not self.over and receiver is not None:
                self._told_end = True
                self._guarded(receiver.half_closed)

    def _inflated(self, message: Buffer) -> None:
        self._busy = False
        self._hand_on(message)
        self._deliver()

    def _hand_on(self, message: Buffer) -> None:
        if self._receiver is not None and not self.over:
            self._guarded(partial(self._receiver.message, message))

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            log.exception("a gRPC stream broke")
            self.fail(UNKNOWN, "internal error")

    def canceller(self) -> Cancel | None:
        receiver, self._receiver = self._receiver, None
        self._resumes.clear()
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
            if sum(map(len, outbox[0])) >= LARGE:
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
        if self._writable:
            resume()
        else:
            self._resumes.append(resume)

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
