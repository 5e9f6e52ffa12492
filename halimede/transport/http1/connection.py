"""One HTTP/1 connection: turns bytes into whole requests, and answers into bytes. Knows nothing of inference.

httptools parses heads. The connection itself receives a body with a Content-Length that does not come with its head,
straight into the buffer that the request keeps; in a large one the first tensor lies on a 64-byte boundary. Requests
are answered one after another, in order. A message that cannot be read is refused with status 400 after the answers to
the earlier ones, and the connection ends. There is no time limit for a head, a body or an idle connection. Event-loop
thread only.

The states of receiving, with the attributes that hold them:

| state | attributes | event | then |
| --- | --- | --- | --- |
| between requests | `_between` | a head that is known, with its body | the request is taken; stay |
| between requests | `_between` | a head that is known, body incomplete | in a sized body |
| between requests | `_between` | any other bytes | in a head |
| in a head | `_in_head` | the parser has the whole head | in a body |
| in a body | not `_in_head` | body sized and incomplete | in a sized body |
| in a body | not `_in_head` | the parser has the whole body | the request is taken; between requests |
| in a sized body | `_missing` | the last byte | the request is taken; between requests |

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
from time import monotonic_ns
from typing import Any

import httptools

from halimede.tensors import Buffer
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
from halimede.transport.http1.headers import Headers
from halimede.transport.http1.listener import Http1Listener
from halimede.transport.lingering import close_flushing, close_lingering

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 1 << 20
"""Bytes of a head, of trailers, and of anything else that brings no part of a body."""
MAX_LINE_BYTES = 1 << 14
"""Bytes of one header or of the request line. The limit of Triton lies between 8 and 16 kB."""
MAX_CHUNKS = 65536
"""Non-empty chunks of a body (H16)."""
MAX_CHUNKED_BYTES = (1 << 31) - 1
"""Bytes of a body of unknown size, which might never end. It is the limit of a gRPC message (G15)."""
MAX_PIPELINED_REQUESTS = 16
"""Requests of one connection that wait for the answer to an earlier one (pipelining), from which on nothing more is
read. Those that the last read has brought are taken too, so that many small ones may wait."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CUT_OFF = "the connection ended before the end of the request"
_NOT_CHUNKED = "; the request has 'Transfer-Encoding: chunked', so its body must be sent in chunks"
_OTHER_WORDS = {"Pause on PRI/Upgrade": "this port does not speak HTTP/2; gRPC clients need the gRPC port"}
"""What is said instead of a text of the parser."""
_NO_HEAD = Http1Head(b"", b"", Headers(), False, False, 0)


class Http1Connection(asyncio.BufferedProtocol):
    """The protocol object of one client. The loop calls it, and so do the exchanges that it made."""

    def __init__(self, listener: Http1Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set before anything else is called
        self._writer: Writer = None  # type: ignore[assignment]  # the same, until the client has ended its side
        self._half_closed: HalfClosed | None = None
        self._renew_parser()
        self._parsed = False
        self._usual = b"", _NO_HEAD
        self._current: Http1Exchange | Http1AnswerStream | None = None
        self._waiting: deque[Http1Exchange] = deque()
        self._silent_bytes = 0
        self._ending = False
        self._refusal = ""
        self._refusal_status = 400
        self._arrived: tuple[int, int, int] | None = None
        self._closed = False
        self._reading = True
        self._write_paused = False
        self._handing_on = False
        self._begin()

    # From the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport, which the base type cannot say
        self._writer = self._transport
        self._listener.add(self)
        if self._listener.closing_idle:
            self.close_if_idle()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listener.scratch if self._missing is None else self._missing

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._missing is not None:
                self._received_body(nbytes)
                return
            # Only between two requests can a known head begin.
            start = self._take_known(nbytes) if self._between else 0
            if start < nbytes:
                self._feed(self._listener.scratch[start:nbytes])
        except Exception:
            log.exception("HTTP connection closed after an internal error")
            self.abort()

    def eof_received(self) -> bool:
        """The client has ended its side, or is gone. Requests that arrived whole are still answered."""
        if not self._between and not self._ending:
            self._refusal = _CUT_OFF
        self._ending = True
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
        self._ending = True
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
        if isinstance(self._current, Http1AnswerStream):
            self._current.pause_writing()
        self._pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        if isinstance(self._current, Http1AnswerStream):
            if len(self._waiting) < MAX_PIPELINED_REQUESTS:
                # Without reading, the server would not notice that the client goes while the stream is silent.
                self._read_on()
            self._current.resume_writing()
        else:
            self._next()

    # Reading.

    def _take_known(self, nbytes: int) -> int:
        """Takes the requests at the beginning of the receive buffer whose heads are known. Returns where the rest
        begins. Only between two requests."""
        listener, start = self._listener, 0
        self._unknown = b""
        while start < nbytes and not self._ending:
            text, head = self._usual
            # Most clients repeat one head. Comparing with the last one avoids a search for its end, a copy and a
            # lookup.
            if head is not _NO_HEAD and listener.received.startswith(text, start, nbytes):
                end = start + len(text)
            else:
                end = listener.received.find(b"\r\n\r\n", start, nbytes) + 4
                # No whole head has come. `find` returned -1.
                if end < 4:
                    break
                text = bytes(listener.scratch[start:end])
                head = listener.heads.get(text, _NO_HEAD)
                if head is _NO_HEAD:
                    # The parser reads it. If it is an ordinary head, it is known the next time.
                    self._unknown = text
                    break
                self._usual = text, head
            start = end + head.body_size
            # The body is incomplete. Its rest is received straight into the buffer of the request.
            if start > nbytes:
                self._between = self._in_head = False
                self._head = head
                self._receive_rest(listener.scratch[end:nbytes])
                return nbytes
            self._take(head, bytes(listener.scratch[end:start]) if head.body_size else b"")
        return start

    def _begin(self) -> None:
        """Resets what is known of the request being received."""
        self._target = b""
        self._headers = Headers()
        self._head = _NO_HEAD
        self._unknown = b""
        """Text of the head of this request, if its parsed form is worth remembering."""
        self._parts: list[bytes] = []
        self._body: memoryview | None = None
        self._missing: memoryview | None = None
        self._since = 0
        self._between = True
        self._in_head = True
        self._chunks = 0
        self._chunked_bytes = 0
        self._chunk_filled = False
        self._owes_continue = False

    def _feed(self, data: memoryview) -> None:
        """Parses received bytes. Upgrades are not offered: such a request counts as an ordinary one, although the
        parser stops after its head."""
        self._parsed = True
        while data and not self._ending:
            self._silent_bytes += len(data)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._go_on_without_upgrade()
                continue
            except httptools.HttpParserCallbackError:
                # A callback of ours raised. The client is not at fault.
                raise
            except httptools.HttpParserError as error:
                self._refuse(f"malformed HTTP request: {self._reason(str(error))}")
                return
            break
        # Endless trailers and chunk extensions count too, because only `on_body` resets the count.
        if self._silent_bytes > MAX_HEAD_BYTES:
            self._refuse(f"the head of the request, or its trailers, exceed {MAX_HEAD_BYTES} bytes")
        elif self._head.body_size and not self._ending:
            self._receive_rest(*self._parts)

    def _reason(self, text: str) -> str:
        """Returns what the client needs to know of an error of the parser."""
        # Some clients announce chunks and send a body of a known length, in one piece.
        hint = _NOT_CHUNKED if not self._in_head and b"transfer-encoding" in self._headers else ""
        return _OTHER_WORDS.get(text, text) + hint

    def _go_on_without_upgrade(self) -> None:
        """Lets a new parser read the body of a request that asked for an upgrade. The new parser gets a head that does
        not ask for one."""
        size = b"Content-Length: %d" % self._head.body_size
        self._renew_parser()
        body = b"Transfer-Encoding: chunked" if b"transfer-encoding" in self._headers else size
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % body)

    def _receive_rest(self, *parts: Buffer) -> None:
        """Receives the rest of the body straight into the buffer that the request keeps, behind `parts`."""
        try:
            body = self._listener.buffers.aligned(self._head.body_size, _first_tensor(self._head))
        except (MemoryError, ValueError):
            self._refuse(f"no memory for a request body of {self._head.body_size} bytes")
            return
        at = 0
        for part in parts:
            body[at : at + len(part)] = part
            at += len(part)
        self._body = body
        self._missing = body[at:]
        self._since = monotonic_ns()

    def _received_body(self, nbytes: int) -> None:
        missing = self._missing
        assert missing is not None
        # The body is still incomplete.
        if nbytes < len(missing):
            self._missing = missing[nbytes:]
            return
        self._missing = None
        if self._parsed:
            # The parser still waits for the body, which it never saw. A new parser costs a third of a microsecond.
            self._renew_parser()
            self._parsed = False
        self._complete()

    def _renew_parser(self) -> None:
        self._parser: Any = httptools.HttpRequestParser(self)
        # A length beside chunks is accepted and ignored (RFC 9112, section 6.3).
        self._parser.set_dangerous_leniencies(lenient_chunked_length=True)

    # From the parser.

    def on_message_begin(self) -> None:
        self._between = False

    def on_url(self, url: bytes) -> None:
        if self._in_head:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # Headers after a chunked body are trailers. They are ignored.
        if self._in_head:
            self._headers.add(name, value)

    def on_headers_complete(self) -> None:
        if not self._in_head:
            return
        self._in_head = False
        # The lines are measured only if the whole head is longer than one line may be.
        if self._silent_bytes > MAX_LINE_BYTES and self._longest_line() > MAX_LINE_BYTES:
            self._refuse(f"the request line, or a header, exceeds {MAX_LINE_BYTES} bytes")
            return
        self._silent_bytes = 0
        parser, headers = self._parser, self._headers
        # The server cannot decode any other coding, and would take the encoded bytes for the body.
        chunked = b"transfer-encoding" in headers
        if chunked and not _only_chunked(headers):
            self._refuse("a Transfer-Encoding other than 'chunked' is not supported")
            return
        length = headers.get(b"content-length")
        self._head = Http1Head(
            parser.get_method(),
            self._target,
            headers,
            # Where the next request begins is in doubt if a peer between counts the length (RFC 9112, section 6.1).
            parser.should_keep_alive() and not (chunked and length is not None),
            parser.get_http_version() == "1.0",
            int(length) if length and not chunked else 0,
        )
        # A head with `Expect` is not remembered, because a known head skips this answer. HTTP/1.0 has no interim
        # answers.
        if b"expect" in headers and not self._head.http10:
            self._owes_continue = True
            self._continue()
        elif self._unknown and not chunked and not parser.should_upgrade():
            self._listener.learn(self._unknown, self._head)

    def _longest_line(self) -> int:
        return max(len(self._target), *(len(name) + len(value) for name, value in self._headers.items()), 0)

    def on_body(self, part: bytes) -> None:
        self._silent_bytes = 0
        self._chunk_filled = True
        if self._ending:
            return
        self._parts.append(part)
        self._chunked_bytes += len(part)
        if self._chunked_bytes > MAX_CHUNKED_BYTES:
            self._refuse(f"Chunked request body exceeds maximum of {MAX_CHUNKED_BYTES} bytes.")

    def on_chunk_complete(self) -> None:
        # The chunk of no bytes that ends a body does not count.
        if self._chunk_filled:
            self._chunk_filled = False
            self._chunks += 1
            if self._chunks > MAX_CHUNKS and not self._ending:
                self._refuse(
                    f"Chunked request body exceeds maximum of {MAX_CHUNKS} non-empty chunks. "
                    "Send fewer or larger HTTP chunks."
                )

    def on_message_complete(self) -> None:
        # A request that asks for an upgrade is complete only after its body, which another parser reads.
        if not self._parser.should_upgrade():
            self._complete()

    # Requests.

    def _complete(self) -> None:
        """The request that was being received is complete."""
        body: Buffer = b""
        if self._body is not None:
            body = self._body
        elif self._parts:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        head, since = self._head, self._since
        self._begin()
        self._take(head, body, since)

    def _take(self, head: Http1Head, body: Buffer, since: int = 0) -> None:
        """Hands a whole request on, or lets it wait for the answer to the one before."""
        if self._ending:
            return
        exchange = Http1Exchange(self, head, body, since)
        if self._current is None and not self._write_paused:
            self._hand_on(exchange)
            return
        self._waiting.append(exchange)
        # A client that sends without reading is stopped by its own send buffer.
        if len(self._waiting) >= MAX_PIPELINED_REQUESTS:
            self._pause_reading()

    def _hand_on(self, exchange: Http1Exchange) -> None:
        """Calls the handler. An error in it is answered with status 500, and the connection goes on."""
        self._current = exchange
        try:
            self._listener.handler(exchange)
        except Exception:
            log.exception("failed to handle %s", exchange.target)
            exchange.fail()

    def _next(self) -> None:
        """Hands on the requests that wait, and reads on if none is left. If the handler answers at once, from within
        this call, the loop here takes the next request instead of calling deeper."""
        if self._handing_on:
            return
        self._handing_on = True
        while self._waiting and self._current is None and not self._write_paused:
            self._hand_on(self._waiting.popleft())
        self._handing_on = False
        if self._current is not None:
            self._probe()
            # Half, so that reading does not stop and go on with each request.
            if len(self._waiting) <= MAX_PIPELINED_REQUESTS // 2 and not self._write_paused:
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
        if not self._reading and self._half_closed is None:
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
        self._parts.clear()
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


def _first_tensor(head: Http1Head) -> int:
    """Returns where the first tensor begins in the body: after the JSON."""
    # The front refuses a value that is not a number. Here it only means that no tensor is aligned.
    length = head.headers.get(b"inference-header-content-length")
    return int(length) if length and len(length) < 20 and length.isdigit() else 0


def _only_chunked(headers: Headers) -> bool:
    """Whether the transfer coding is `chunked`, once, and nothing else."""
    codings = [value.strip().lower() for name, value in headers.sent if name.lower() == b"transfer-encoding"]
    return codings == [b"chunked"]
