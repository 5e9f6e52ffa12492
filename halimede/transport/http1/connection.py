"""One HTTP/1 connection: takes the requests that `reader` reads, and answers them. Knows nothing of inference.

Requests are answered one after another, in order. A message that cannot be read is refused after the answers to the
earlier ones, and the connection ends. If the requests of one read take long, the rest waits for a later turn of the
loop. The listener calls `look` once a second, which ends a connection whose client is too slow. Event-loop thread only.

The states of answering:

| state | attributes | event | then |
| --- | --- | --- | --- |
| idle | no `_current` | a request is taken | answering |
| answering | `_current` is an exchange | a request is taken | it waits in `_waiting` |
| answering | `_current` is an exchange | `answer` | the next of `_waiting`, or idle |
| answering | `_current` is an exchange | `begin` | streaming |
| streaming | `_current` is an answer stream | its last part | the next of `_waiting`, or idle |
| any | | `pause_writing` | `_write_paused`: nothing is read, and no waiting request is handed on |
| any | | `_ending` is set | no request is taken; closes when idle, after the answer of `_refusal` |
| idle | a request is arriving | `close_if_idle` twice without a byte between | refused |
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import FULL, MAX_WAIT_SECONDS, BufferedBytes, BufferedShare
from halimede.transport.buffers import MIN_REUSED_BYTES
from halimede.transport.http1.exchange import (
    JOIN_BYTES,
    JSON,
    STATUS_LINES,
    Http1AnswerStream,
    Http1Exchange,
    Http1Head,
    Writer,
)
from halimede.transport.http1.half_closed import HalfClosed
from halimede.transport.http1.listener import Http1Listener
from halimede.transport.http1.reader import BEGUN, FIELD_BYTES, UNMEASURED, RequestReader
from halimede.transport.lingering import close_flushing, close_lingering
from halimede.transport.message_budget import MEASURED_BYTES
from halimede.transport.sockets import peer_of, unsent_bytes
from halimede.transport.stalls import Stall, is_over

log = logging.getLogger(__name__)

MAX_PIPELINED_REQUESTS = 16
"""Requests of one connection that wait for the answer to an earlier one (pipelining), from which on nothing more is
read. Of what was read, some more may be taken."""
MAX_WAITING_BODY_BYTES = 1 << 20
"""Size of a body that waits for the answer to an earlier request, from which on nothing more is read."""
URGENT = b"/v2/health/"
"""Requests that ask whether the server lives do not wait because other connections have taken the turn."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CUT_OFF = "the connection ended before the end of the request"
_UNREAD, _MEMORY, _IDLE, _OTHERS, _HEAD, _BODY = "unread answer", "memory", "request", "others", "head", "body"
"""What a connection waits for."""


class Http1Connection(RequestReader):
    """The protocol object of one client. The loop calls it, and so do the exchanges that it made."""

    def __init__(self, listener: Http1Listener) -> None:
        super().__init__(listener)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set before anything else is called
        self._writer: Writer = None  # type: ignore[assignment]  # the same, until the client has ended its side
        self._half_closed: HalfClosed | None = None
        self._current: Http1Exchange | Http1AnswerStream | None = None
        self._waiting: deque[Http1Exchange] = deque()
        self._refusal = ""
        self._refusal_status = 400
        self._arrived: tuple[int, int, int] | None = None
        self._closed = False
        self._reading = True
        self._write_paused = False
        self._handing_on = False
        self._requests = 0
        self._stall = Stall()
        self._unsent_share = BufferedShare(self._account)
        self._small_share = BufferedShare(self._account)
        self._made_share = BufferedShare(self._account)

    # From the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport, which the base type cannot say
        self._writer = self._transport
        self._listener.add(self)
        if self._listener.closing_idle:
            self.close_if_idle()

    def _wait_for_turn(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._pause_reading()
            self._listener.turns.wait(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._closed:
            return
        self._slice_end = UNMEASURED
        try:
            if self._put_off and not self._crowded:
                data, self._put_off = self._put_off, b""
                self._feed_measured(memoryview(data))
            # Also reads on, if nothing was put off again.
            self._next()
        except Exception:
            log.exception("HTTP connection closed after an internal error")
            self.abort()

    def eof_received(self) -> bool:
        """The client has ended its side, or is gone. Requests that arrived whole are still answered."""
        if not self._between and not self._ending:
            self._refusal = _CUT_OFF
        self._ending = True
        self._drop_arriving()
        if self._current is None and not self._waiting:
            self._say_refusal()
            self._transport.close()
            return False
        self._writer = self._half_closed = HalfClosed(self._transport, self._listener.call_later)
        if isinstance(self._current, Http1AnswerStream):
            self._current.writer = self._writer
        self._probe()
        return True

    def _probe(self) -> None:
        """Starts probing whether a client that has ended its side still reads, if its answer has not begun."""
        current = self._current
        due = current is not None and not (isinstance(current, Http1AnswerStream) and current.begun)
        if due and self._half_closed is not None:
            self._half_closed.probe()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending = self._closed = True
        self._drop_arriving()
        self._unsent_share.set(0)
        self._small_share.set(0)
        self._made_share.set(0)
        # It refers back to the connection, which would keep its memory until the garbage collector runs.
        self._parser = None
        self._listener.remove(self)
        current, waiting = self._current, list(self._waiting)
        self._current = None
        self._waiting.clear()
        if isinstance(current, Http1AnswerStream):
            # The stream passes it on to its exchange.
            current.leave()
        elif current is not None:
            waiting.insert(0, current)
        for exchange in waiting:
            exchange.leave()

    def pause_writing(self) -> None:
        """The client does not read its answers. The server reads nothing more from it until it does."""
        self._write_paused = True
        self._unsent_share.set(self._transport.get_write_buffer_size())
        if isinstance(self._current, Http1AnswerStream):
            self._current.pause_writing()
        self._pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._unsent_share.set(0)
        if isinstance(self._current, Http1AnswerStream):
            if len(self._waiting) < MAX_PIPELINED_REQUESTS:
                # Without reading, the server would not notice that the client goes while the stream is silent.
                self._read_on()
            self._current.resume_writing()
        else:
            self._next()

    # Requests.

    @property
    def peer(self) -> str:
        """The address of the client, without its port; empty for a Unix socket."""
        return peer_of(self._transport)

    def _take(self, head: Http1Head, body: Buffer, since: int = 0) -> None:
        """Hands a whole request on, or lets it wait for the answer to the one before."""
        if self._ending:
            return
        exchange = Http1Exchange(self, head, body, since)
        self._requests += 1
        if self._current is None and not self._write_paused and not self._waiting:
            first = self._slice_end == UNMEASURED
            # This is what `_is_late` does for the first request of a read. Most reads bring no other.
            if first:
                self._slice_end = BEGUN
                late = not self._listener.turns.left and not head.target.startswith(URGENT)
            else:
                late = self._is_late()
            if not late:
                self._hand_on(exchange)
                return
            self._wait_for_turn()
        self._waiting.append(exchange)
        # A client that sends without reading is stopped by its own send buffer.
        if len(self._waiting) >= MAX_PIPELINED_REQUESTS or len(body) >= MAX_WAITING_BODY_BYTES:
            self._crowded = True
            self._pause_reading()

    def _hand_on(self, exchange: Http1Exchange) -> None:
        """Calls the handler. An error in it is answered with status 500, and the connection goes on."""
        self._current = exchange
        # A small request that changes nothing, such as a health check, is always answered.
        if self._buffered.full and exchange.method == b"POST":
            self._refuse_for_memory(exchange)
            return
        listener = self._listener
        small = len(exchange.body) < MEASURED_BYTES and not exchange.head.compressed
        began = 0.0 if small else listener.clock()
        try:
            listener.handler(exchange)
        except Exception:
            log.exception("failed to handle %s", exchange.target)
            exchange.fail()
        listener.turns.spend(1)
        if not small:
            listener.turns.spend_time(listener.clock() - began)

    def _refuse_for_memory(self, exchange: Http1Exchange) -> None:
        # Whether there is room was found out some time ago.
        if self._buffered.is_full():
            exchange.respond(503, JSON, (b'{"error":"%b"}' % FULL.encode(),))
        else:
            self._listener.handler(exchange)

    def _next(self) -> None:
        """Hands on the requests that wait, and reads on if none is left. If the handler answers at once, from within
        this call, the loop here takes the next request instead of calling deeper."""
        if self._handing_on or self._turn_due:
            return
        self._handing_on = True
        self._slice_end = UNMEASURED
        try:
            while self._waiting and self._current is None and not self._write_paused:
                if self._is_late():
                    self._wait_for_turn()
                    break
                self._hand_on(self._waiting.popleft())
        finally:
            self._handing_on = False
        # Half, so that reading does not stop and go on with each request.
        if len(self._waiting) <= MAX_PIPELINED_REQUESTS // 2:
            self._crowded = False
        if self._turn_due:
            return
        if self._current is not None:
            self._probe()
            if not self._crowded and not self._write_paused:
                # Without reading, the server would not notice that the client goes while its answer is made.
                self._read_on()
        elif not self._write_paused and not self._end_if_idle():
            self._continue()
            self._read_on()

    def _continue(self) -> None:
        """Asks for a body that the client announced, when it is the turn of its request (RFC 9110, 10.1.1)."""
        if self._owes_continue and self._current is None and not self._waiting and not self._ending:
            self._owes_continue = False
            self._transport.write(_CONTINUE)

    def _read_on(self) -> None:
        if self._put_off and not self._crowded:
            # It goes before what is still to be read.
            self._wait_for_turn()
        if not self._reading and self._half_closed is None and not self._turn_due and not self._short_of_memory:
            self._reading = True
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _refuse(self, text: str, status: int = 400) -> None:
        """Refuses the message that is being received, after the answers to earlier ones, and ends the connection.
        `text` needs no escapes in JSON."""
        # The parser may go on after the last request, as after `Connection: close`.
        if self._ending:
            return
        self._drop_arriving()
        self._small_share.set(0)
        self._refusal, self._refusal_status = text, status
        self._end()

    def _say_refusal(self) -> None:
        """Writes the answer to the message that was refused, if there is one. All earlier answers were written."""
        text, self._refusal = self._refusal, ""
        if text:
            body = b'{"error":"%b"}' % text.encode()
            line = STATUS_LINES[b"1.0" if self._head.http10 else b"1.1"][self._refusal_status]
            close = b"" if self._head.http10 else b"Connection: close\r\n"
            self._writer.write(b"%b%bContent-Length: %d\r\n%b\r\n%b" % (line, JSON, len(body), close, body))

    # Answering.

    @property
    def memory_is_short(self) -> bool:
        return self._buffered.full

    @property
    def buffered(self) -> BufferedBytes:
        return self._buffered

    def hold(self, exchange: Http1Exchange, size: int) -> None:
        # If it is not the current one, it was answered, or the client has gone.
        if exchange is self._current or (
            isinstance(self._current, Http1AnswerStream) and self._current.answers(exchange)
        ):
            self._made_share.set(size)

    def answer(self, exchange: Http1Exchange, status: int, fields: bytes, body: Sequence[Buffer]) -> None:
        if exchange is not self._current:
            # It was answered before, or the client has gone.
            return
        asked = exchange.head
        # While the server drains, requests that have arrived are still answered.
        keep_alive = asked.keep_alive and (not self._listener.draining or bool(self._waiting))
        size = sum(map(len, body))
        if asked.http10:
            lines, connection = STATUS_LINES[b"1.0"], b"Connection: keep-alive\r\n" if keep_alive else b""
        else:
            lines, connection = STATUS_LINES[b"1.1"], b"" if keep_alive else b"Connection: close\r\n"
        tail = b"\r\n" if fields else b"Content-Type: text/plain\r\n\r\n"
        head = b"%b%bContent-Length: %d\r\n%b%b" % (lines[status], fields, size, connection, tail)
        self._current = None
        if self._made_share.size:
            self._made_share.set(0)
        # The answer to HEAD has the headers of the answer to GET, and no body.
        if asked.method == b"HEAD":
            self._writer.write(head)
        elif size <= JOIN_BYTES:
            self._writer.write(b"".join((head, *body)))
        else:
            self._writer.writelines([head, *body])
        if not keep_alive:
            self._end_after_answer()
        # If requests come one at a time, nothing else remains to do.
        if self._ending or self._waiting or not self._reading or self._owes_continue:
            self._next()

    def begin(self, exchange: Http1Exchange, status: int, fields: bytes) -> Http1AnswerStream:
        """Begins an answer in parts. The stream takes the place of the exchange until it has ended, so that no other
        answer can come in between."""
        # HTTP/1.0 has no chunks: only the end of the connection marks the end of the answer.
        keep_alive = exchange.head.keep_alive and not exchange.head.http10
        keep_alive = keep_alive and (not self._listener.draining or bool(self._waiting))
        framing = b"" if exchange.head.http10 else b"Transfer-Encoding: chunked\r\n"
        connection = b"" if keep_alive or exchange.head.http10 else b"Connection: close\r\n"
        line = STATUS_LINES[b"1.0" if exchange.head.http10 else b"1.1"][status]
        head = b"%b%b%b%b\r\n" % (line, fields, framing, connection)
        stream = Http1AnswerStream(self._writer, exchange, head, lambda: self._streamed(keep_alive), self._write_paused)
        if exchange is self._current:
            self._current = stream
        else:
            # The exchange was answered before, or the client has gone: what the stream gets is dropped.
            stream.abandon()
        return stream

    def _streamed(self, keep_alive: bool) -> None:
        """The last part of an answer in parts was written."""
        self._current = None
        self._made_share.set(0)
        # The end was not announced if the server began to drain within the answer: a request may be on its way.
        if not keep_alive or (self._listener.closing_idle and not self._waiting):
            self._end_after_answer()
        self._next()

    def _end_after_answer(self) -> None:
        """The answer that was written is the last one."""
        self._waiting.clear()
        self._refusal = ""
        self._ending = True

    def fail(self, exchange: Http1Exchange) -> None:
        """Answers with an internal error. If another answer has begun, the connection is cut off instead."""
        current = self._current
        if isinstance(current, Http1AnswerStream) and current.answers(exchange):
            current.abandon()
            # A part of the answer was sent. Only a cut shows the client that it is not complete.
            if current.begun:
                self.abort()
                return
            self._current = exchange
        self.answer(exchange, 500, JSON, (b'{"error":"the server failed to handle the request"}',))

    # Ending.

    def close_if_idle(self) -> bool:
        """Closes the connection if no answer is due or being sent, and no request is arriving. Refuses a request of
        which nothing has arrived since the call before. Returns False if the listener must call it again."""
        if self._current is not None or self._waiting or self._closed:
            return True
        # Bytes that have arrived wait for a turn of the loop.
        if self._turn_due:
            return False
        if self._between:
            self._ending = self._closed = True
            self._transport.close()
            return True
        arrived = self._silent_bytes, self._chunked_bytes, 0 if self._missing is None else len(self._missing)
        if arrived != self._arrived:
            self._arrived = arrived
            return False
        self._refuse("Server exiting", 503)
        return True

    def look(self, now: float) -> None:
        """Ends the connection if its client is too slow, or reads on if memory was freed. Called once a second."""
        if self._closed:
            return
        if self._write_paused:
            self._unsent_share.set(self._transport.get_write_buffer_size())
        # Small bodies, and heads, are counted once a second.
        small = sum([len(each.body) for each in self._waiting if len(each.body) < MIN_REUSED_BYTES])
        fields = len(self._headers.sent) + sum([len(each.headers.sent) for each in self._waiting])
        small += len(self._body) if self._body and len(self._body) < MIN_REUSED_BYTES else 0
        self._small_share.set(small + FIELD_BYTES * fields)
        situation, progress, limit = self._situation()
        seconds = self._stall.seconds(situation, progress, now)
        if self._short_of_memory and not self._account.is_full():
            self._short_of_memory = False
            self._read_on()
        elif is_over(limit, seconds):
            self._give_up(situation, limit)

    def _situation(self) -> tuple[str, int, float]:
        """Returns what the server waits for, a number that changes when the client makes progress, and the limit of the
        time without progress."""
        times = self._listener.limits.times
        if unsent := unsent_bytes(self._transport):
            return _UNREAD, unsent, times.unread
        if self._short_of_memory:
            return _MEMORY, 0, MAX_WAIT_SECONDS
        if self._between:
            idle = self._current is None and not self._waiting and not self._turn_due
            return _IDLE, self._requests, times.idle if idle else 0
        # The client cannot send: the server does not read, or has not asked for the body yet.
        if not self._reading or self._owes_continue or self._ending:
            return _OTHERS, 0, 0
        if self._in_head:
            return _HEAD, self._requests, times.head
        arrived = self._silent_bytes + self._chunked_bytes
        return _BODY, arrived - (0 if self._missing is None else len(self._missing)), times.body

    def _give_up(self, situation: str, limit: float) -> None:
        if situation is _UNREAD:
            self.abort()
        elif situation is _IDLE:
            self._ending = self._closed = True
            self._transport.close()
        elif situation is _MEMORY:
            self._short_of_memory = False
            self._refuse(self._account.complaint, 503)
        else:
            self._refuse(f"the {situation} of the request did not arrive within {limit:g} s", 408)

    def abort(self) -> None:
        """Drops the connection without sending what is buffered."""
        self._transport.abort()

    def _end(self) -> None:
        """Takes no further request, and closes when the earlier ones are answered. Until then it reads and discards
        bytes, because it would not notice otherwise that the client goes."""
        self._ending = True
        self._end_if_idle()

    def _end_if_idle(self) -> bool:
        if not self._ending or self._current is not None or self._waiting:
            return False
        if not self._closed:
            self._closed = True
            self._say_refusal()
            listener = self._listener
            # After the client has ended its side, there is no end to wait for.
            if self._half_closed is None:
                close_lingering(self._transport, listener.scratch, listener.call_later, self.connection_lost)
            else:
                close_flushing(self._transport, listener.call_later)
        return True
