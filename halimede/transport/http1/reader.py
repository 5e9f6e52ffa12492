"""The receiving half of one HTTP/1 connection: turns bytes into whole requests. Knows nothing of answers.

httptools parses heads. The reader itself receives a body with a Content-Length that does not come with its head,
straight into the buffer that the request keeps; in a large one the first tensor lies on a 64-byte boundary. A message
that cannot be read, or is too large, is refused while it arrives. Event-loop thread only.

A turn of the loop has a limit: if the bytes of one read take `SLICE_SECONDS`, the rest waits in `_put_off` for a later
turn. Each request and each long read spend of the budget of the turn, which all connections share. When it is spent,
requests wait for later turns. What follows many requests that wait for earlier answers stays in `_put_off`, too,
because requests take more memory than their bytes.

The states, with the attributes that hold them:

| state | attributes | event | then |
| --- | --- | --- | --- |
| between requests | `_between` | a head that is known, with its body | the request is taken; stay |
| between requests | `_between` | a head that is known, body incomplete | in a sized body |
| between requests | `_between` | any other bytes | in a head |
| in a head | `_in_head` | the parser has the whole head | in a body |
| in a body | not `_in_head` | body sized and incomplete | in a sized body |
| in a body | not `_in_head` | the parser has the whole body | the request is taken; between requests |
| in a sized body | `_missing` | the last byte | the request is taken; between requests |
"""

import asyncio
import logging
from time import monotonic_ns
from typing import Any

import httptools

from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import FULL, BufferedShare, ConnectionBytes
from halimede.transport.buffers import MIN_REUSED_BYTES
from halimede.transport.http1.exchange import Http1Head
from halimede.transport.http1.headers import Headers
from halimede.transport.http1.listener import MAX_FIELDS, Http1Listener

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 14
"""Bytes of one header or of the request line. The limit of Triton lies between 8 and 16 kB."""
MAX_CHUNKS = 65536
"""Non-empty chunks of a body (H16)."""
MAX_CHUNKED_BYTES = (1 << 31) - 1
"""Bytes of a body of unknown size, which might never end. It is the limit of a gRPC message (G15)."""
SLICE_SECONDS = 0.001
"""Time that the bytes of one read may take in a turn of the loop."""
FIELD_BYTES = 180
"""About what a header field takes, which may have three bytes."""
FEW_FIELDS = 64
"""A head with more fields is refused while the server holds as many bytes as it may."""
SMALL_PART_BYTES = 1 << 10
"""A smaller part of a body is joined with the next one."""
MAX_PIECE_BYTES = 1 << 13
"""Bytes that the parser gets at once. Then the clock is looked at: chunks of one byte take a millisecond for 10 kB."""

MAX_HEAD_PIECE_BYTES = 1 << 10
"""The same while a head may come. The requests of a piece become objects, each of which takes a kilobyte and more."""

_NOT_CHUNKED = "; the request has 'Transfer-Encoding: chunked', so its body must be sent in chunks"
_OTHER_WORDS = {"Pause on PRI/Upgrade": "this port does not speak HTTP/2; gRPC clients need the gRPC port"}
"""What is said instead of a text of the parser."""
UNMEASURED, BEGUN = 0.0, -1.0
"""Values of `_slice_end` before and after the first request of a read. After that it is a time, which is above both."""
_MORE_HEAD = " (--http-max-header-bytes)"
NO_HEAD = Http1Head(b"", b"", Headers(), False, False, 0)


class RequestReader(asyncio.BufferedProtocol):
    """Reads requests. The derived class takes them."""

    def __init__(self, listener: Http1Listener) -> None:
        self._listener = listener
        self._usual = b"", NO_HEAD
        self._parsed = False
        self._silent_bytes = 0
        self._ending = False
        """Whether no further request is taken."""
        self._slice_end = UNMEASURED
        self._put_off = b""
        self._turn_due = False
        """Whether received bytes or requests wait for a later turn of the loop."""
        self._crowded = False
        """Whether too many requests wait for earlier answers. Nothing is read meanwhile."""
        self._short_of_memory = False
        """Whether the rest of a body waits because the server, or this connection, holds too many bytes."""
        self._buffered = listener.buffers.buffered
        self._account = ConnectionBytes(self._buffered)
        self._chunked_share = BufferedShare(self._account)
        self._renew_parser()
        self._begin()

    # For the derived class.

    def _take(self, head: Http1Head, body: Buffer, since: int = 0) -> None:
        """Takes a whole request. `since` is when its body began to arrive, in monotonic nanoseconds."""
        raise NotImplementedError

    def _refuse(self, text: str, status: int = 400) -> None:
        """Refuses the message that is being received, and takes no other. `text` needs no escapes in JSON."""
        raise NotImplementedError

    def _continue(self) -> None:
        """Asks for a body that the client announced, when it is the turn of its request (RFC 9110, 10.1.1)."""
        raise NotImplementedError

    def _pause_reading(self) -> None:
        raise NotImplementedError

    def _wait_for_turn(self) -> None:
        """Sets `_turn_due`, and goes on in a later turn of the loop. Until then nothing is read."""
        raise NotImplementedError

    def abort(self) -> None:
        """Drops the connection without sending what is buffered."""
        raise NotImplementedError

    # From the loop.

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listener.scratch if self._missing is None else self._missing

    def buffer_updated(self, nbytes: int) -> None:
        self._slice_end = UNMEASURED
        try:
            if self._missing is not None:
                self._received_body(nbytes)
                return
            # Only between two requests can a known head begin.
            start = self._take_known(nbytes) if self._between else 0
            if start < nbytes:
                rest = self._listener.scratch[start:nbytes]
                if self._turn_due or self._crowded:
                    self._put_off = bytes(rest)
                elif len(rest) > MAX_HEAD_PIECE_BYTES and not self._listener.turns.left:
                    self._put_off = bytes(rest)
                    self._wait_for_turn()
                else:
                    self._feed_measured(rest)
            elif self._slice_end > UNMEASURED:
                self._spend_part_of_slice()
        except Exception:
            log.exception("HTTP connection closed after an internal error")
            self.abort()

    def _is_late(self) -> bool:
        """Whether this turn of the loop has done enough for this client."""
        # Most reads bring one request, which needs no look at the clock.
        if self._slice_end == UNMEASURED:
            self._slice_end = BEGUN
            return not self._listener.turns.left
        now = self._listener.clock()
        if self._slice_end == BEGUN:
            self._slice_end = now + SLICE_SECONDS if self._listener.turns.left else now
        return now >= self._slice_end

    def _spend_part_of_slice(self) -> None:
        """Spends the share of a slice that this read took. Without this, hundreds of connections whose reads each end
        just within their slice would add up in one turn."""
        left = self._slice_end - self._listener.clock()
        self._listener.turns.spend_time(min(SLICE_SECONDS, SLICE_SECONDS - left))

    def _feed_measured(self, data: memoryview) -> None:
        """Parses bytes, and spends what that took: chunks of one byte take a millisecond for 10 kB."""
        listener = self._listener
        began = listener.clock()
        self._feed(data)
        listener.turns.spend_time(listener.clock() - began)

    # Reading.

    def _take_known(self, nbytes: int) -> int:
        """Takes the requests at the beginning of the receive buffer whose heads are known. Returns where the rest
        begins. Only between two requests."""
        listener, start = self._listener, 0
        self._unknown = b""
        while start < nbytes and not (self._ending or self._turn_due or self._crowded):
            text, head = self._usual
            # Most clients repeat one head. Comparing with the last one avoids a search for its end, a copy and a
            # lookup.
            if head is not NO_HEAD and listener.received.startswith(text, start, nbytes):
                end = start + len(text)
            else:
                end = listener.received.find(b"\r\n\r\n", start, nbytes) + 4
                # No whole head has come. `find` returned -1.
                if end < 4:
                    break
                text = bytes(listener.scratch[start:end])
                head = listener.heads.get(text, NO_HEAD)
                if head is NO_HEAD:
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
        self._head = NO_HEAD
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
            piece = data[: MAX_HEAD_PIECE_BYTES if self._in_head else MAX_PIECE_BYTES]
            self._silent_bytes += len(piece)
            try:
                self._parser.feed_data(piece)
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
            data = data[len(piece) :]
            most = self._listener.limits.head_bytes
            # Endless trailers and chunk extensions count too, because only `on_body` resets the count.
            if self._silent_bytes > most:
                self._refuse(f"the head of the request, or its trailers, exceed {most} bytes{_MORE_HEAD}", 431)
            elif data and (self._crowded or self._is_late()):
                self._put_off = bytes(data)
                if not self._crowded:
                    self._wait_for_turn()
                return
        if self._ending:
            return
        if self._head.body_size:
            self._receive_rest(*self._parts)
        # The size of a chunked body is not known before it has arrived.
        elif self._chunked_bytes != self._chunked_share.size:
            self._chunked_share.set(self._chunked_bytes)
            if self._chunked_bytes >= MIN_REUSED_BYTES and self._account.seems_full:
                self._wait_for_memory()

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
        size, buffers = self._head.body_size, self._listener.buffers
        if size >= MIN_REUSED_BYTES and not self._may_receive(size):
            return
        try:
            body = buffers.aligned(size, _first_tensor(self._head))
        except (MemoryError, ValueError):
            self._refuse(f"no memory for a request body of {size} bytes")
            return
        at = 0
        for part in parts:
            body[at : at + len(part)] = part
            at += len(part)
        self._body = body
        self._missing = body[at:]
        buffers.arrived(body, at, self._account)
        self._since = monotonic_ns()

    def _may_receive(self, size: int) -> bool:
        """Whether there is room for a large body. Refuses its request if not."""
        account = self._account
        if text := account.too_large(size):
            self._refuse(text, 413)
        elif account.seems_full and account.is_full():
            self._refuse(account.complaint, 503)
        return not self._ending

    def _received_body(self, nbytes: int) -> None:
        missing, buffers = self._missing, self._listener.buffers
        assert missing is not None
        buffers.arrived(missing, nbytes, self._account)
        # The body is still incomplete.
        if nbytes < len(missing):
            self._missing = missing[nbytes:]
            if self._account.seems_full:
                self._wait_for_memory()
            return
        self._missing = None
        if self._parsed:
            # The parser still waits for the body, which it never saw. A new parser costs a third of a microsecond.
            self._renew_parser()
            self._parsed = False
        self._complete()

    def _wait_for_memory(self) -> None:
        """Reads on when other bytes are freed. `look` ends the wait."""
        self._short_of_memory = True
        self._pause_reading()

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
        if self._in_head and not self._ending:
            self._headers.add(name, value)
            if len(self._headers.sent) > MAX_FIELDS:
                self._refuse(f"the request has more than {MAX_FIELDS} header fields", 431)
            elif len(self._headers.sent) > FEW_FIELDS and self._buffered.full and self._buffered.is_full():
                self._refuse(FULL, 503)

    def on_headers_complete(self) -> None:
        if not self._in_head or self._ending:
            return
        self._in_head = False
        # The lines are measured only if the whole head is longer than one line may be.
        if self._silent_bytes > MAX_LINE_BYTES and self._longest_line() > MAX_LINE_BYTES:
            self._refuse(f"the request line, or a header, exceeds {MAX_LINE_BYTES} bytes", 431)
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
            b"content-encoding" in headers,
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
        parts = self._parts
        # Each part costs forty bytes and more besides its own.
        if parts and len(parts[-1]) < SMALL_PART_BYTES:
            parts[-1] += part
        else:
            parts.append(part)
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

    def _complete(self) -> None:
        """The request that was being received is complete."""
        body: Buffer = b""
        if self._body is not None:
            body = self._body
        elif self._parts:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        head, since = self._head, self._since
        self._chunked_share.set(0)
        self._begin()
        self._take(head, body, since)

    def _drop_arriving(self) -> None:
        """Frees what has arrived of a request that is not taken."""
        self._parts.clear()
        self._headers = Headers()
        self._body = self._missing = None
        self._put_off = b""
        self._chunked_share.set(0)


def _first_tensor(head: Http1Head) -> int:
    """Returns where the first tensor begins in the body: after the JSON."""
    # The front refuses a value that is not a number. Here it only means that no tensor is aligned.
    length = head.headers.get(b"inference-header-content-length")
    return int(length) if length and len(length) < 20 and length.isdigit() else 0


def _only_chunked(headers: Headers) -> bool:
    """Whether the transfer coding is `chunked`, once, and nothing else."""
    codings = [value.strip().lower() for name, value in headers.sent if name.lower() == b"transfer-encoding"]
    return codings == [b"chunked"]
