"""A client of HTTP/1.1: one connection for each slot, kept open. Compiled with the hot modules. One thread."""

from time import perf_counter_ns
from typing import ClassVar

from halimede.perf.clients.io import Connection, Io, Owner, Slot, Target

MAX_HEAD_BYTES = 1 << 16
"""Bytes of the head of an answer."""
MAX_KNOWN_HEADS = 256
"""Heads that are remembered. The answers to equal requests mostly have equal heads."""
MAX_ERROR_BYTES = 1 << 14
"""Bytes of an error's body that are kept."""

_HEAD, _BODY, _CHUNKS, _UNTIL_CLOSE = range(4)


class Head:
    """What the head of an answer says. `length` is -1 if it does not say how long the body is."""

    def __init__(self, raw: bytes) -> None:
        lines = raw.split(b"\r\n")
        words = lines[0].split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise ValueError(lines[0][:80].decode("latin-1"))
        self.status = int(words[1])
        self.length = -1
        self.is_chunked = False
        self.closes = words[0] == b"HTTP/1.0"
        self.is_event_stream = False
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            name, value = name.strip().lower(), value.strip().lower()
            if name == b"content-length" and value.isdigit():
                self.length = int(value)
            elif name == b"transfer-encoding":
                self.is_chunked = value.endswith(b"chunked")
            elif name == b"connection":
                self.closes = value == b"close"
            elif name == b"content-type":
                self.is_event_stream = value.startswith(b"text/event-stream")


class HttpSlot(Slot):
    """A slot with a connection of its own."""

    def __init__(self, owner: Owner, index: int, keeps: bool, io: Io, target: Target, heads: dict[bytes, Head]) -> None:
        super().__init__(owner, index, keeps)
        self._link = HttpLink(io, target, self, heads)

    def send(self, request: bytes) -> None:
        self.begin()
        self._link.send(request)

    def close(self) -> None:
        self._link.close()


class HttpLink(Connection):
    """The connection of a slot. `heads` are the known heads, which all slots share."""

    EVENT: ClassVar[bytes] = b"\n\n"

    def __init__(self, io: Io, target: Target, slot: Slot, heads: dict[bytes, Head]) -> None:
        super().__init__(io, target)
        self.slot = slot
        self._heads = heads
        self._request = b""
        self._is_used = False
        self._state = _HEAD
        self._head_bytes = b""
        self._head: Head | None = None
        self._left = 0
        self._body = bytearray()
        self._chunks = bytearray()
        self._events = bytearray()

    def send(self, request: bytes) -> None:
        self._request = request
        self._state = _HEAD
        if self.socket is None:
            self._is_used = False
            self.connect()
        self.write(request)

    def all_sent(self, now: int) -> None:
        self.slot.sent = now

    def lost(self, why: str) -> None:
        slot = self.slot
        if not slot.busy:
            return
        if self._state == _UNTIL_CLOSE:
            self._finish(perf_counter_ns())
            return
        # A server may close a kept connection at any time. A request that met the end is sent once more.
        if self._is_used and not slot.first:
            self.send(self._request)
            return
        self._head_bytes = b""
        slot.is_broken = True
        slot.finish(perf_counter_ns(), why)

    def received(self, count: int, now: int) -> None:
        slot = self.slot
        if not slot.busy:
            self.close()
            return
        if not slot.first:
            slot.first = now
        if self._state == _HEAD:
            self._take_head(count, now)
        else:
            self._take_body(self.io.view[:count], now)

    def _take_head(self, count: int, now: int) -> None:
        buffer = self.io.buffer
        begun = self._head_bytes
        if begun:
            data = begun + bytes(self.io.view[:count])
            end = data.find(b"\r\n\r\n")
            raw = data[:end]
        else:
            data = b""
            end = buffer.find(b"\r\n\r\n", 0, count)
            raw = bytes(self.io.view[:end]) if end >= 0 else b""
        if end < 0:
            self._head_bytes = data or bytes(self.io.view[:count])
            if len(self._head_bytes) > MAX_HEAD_BYTES:
                self._refuse(now, "the head of an answer is too long")
            return
        head = self._heads.get(raw)
        if head is None:
            try:
                head = Head(raw)
            except ValueError as error:
                self._refuse(now, f"the server does not speak HTTP/1.1: {error}")
                return
            if len(self._heads) < MAX_KNOWN_HEADS:
                self._heads[raw] = head
        if 100 <= head.status < 200:
            self._skip_informational(data or bytes(self.io.view[:count]), end + 4, now)
            return
        self._head = head
        self._head_bytes = b""
        self._body.clear()
        self._begin_body(head)
        if begun:
            self._take_body(memoryview(data)[end + 4 :], now)
        else:
            self._take_body(self.io.view[end + 4 : count], now)

    def _skip_informational(self, data: bytes, at: int, now: int) -> None:
        """Goes on after an answer such as 100 Continue."""
        rest = data[at:]
        self._head_bytes = b""
        if rest:
            self.io.buffer[: len(rest)] = rest
            self._take_head(len(rest), now)

    def _begin_body(self, head: Head) -> None:
        if head.is_chunked:
            self._state = _CHUNKS
            self._chunks.clear()
            self._events.clear()
        elif head.length >= 0:
            self._state = _BODY
            self._left = head.length
        else:
            self._state = _UNTIL_CLOSE

    def _take_body(self, data: memoryview, now: int) -> None:
        slot, head = self.slot, self._head
        assert head is not None
        if self._state == _BODY:
            self._left -= len(data)
            if slot.keeps or head.status != 200:
                self._keep(data)
            if self._left <= 0:
                self._finish(now)
        elif self._state == _CHUNKS:
            self._chunks += data
            if self._dechunk(now):
                self._finish(now)
        else:
            if slot.keeps or head.status != 200:
                self._keep(data)

    def _keep(self, data: memoryview) -> None:
        if self.slot.keeps or len(self._body) < MAX_ERROR_BYTES:
            self._body += data

    def _dechunk(self, now: int) -> bool:
        """Takes whole chunks. Returns whether the last one has come."""
        chunks, at = self._chunks, 0
        while True:
            line = chunks.find(b"\r\n", at)
            if line < 0:
                break
            try:
                size = int(bytes(chunks[at:line]).split(b";")[0], 16)
            except ValueError:
                self._refuse(now, "a chunk of an answer has no size")
                return False
            if not size:
                # The trailer ends with an empty line.
                if chunks.find(b"\r\n\r\n", line) < 0 and chunks[line + 2 : line + 4] != b"\r\n":
                    break
                return True
            if len(chunks) < line + 2 + size + 2:
                break
            self._take_chunk(bytes(chunks[line + 2 : line + 2 + size]), now)
            at = line + 2 + size + 2
        del chunks[:at]
        return False

    def _take_chunk(self, data: bytes, now: int) -> None:
        slot, head = self.slot, self._head
        assert head is not None
        if not head.is_event_stream:
            if slot.keeps or head.status != 200:
                self._keep(memoryview(data))
            return
        events = self._events
        events += data.replace(b"\r\n", b"\n")
        while (end := events.find(self.EVENT)) >= 0:
            self._take_event(bytes(events[:end]), now)
            del events[: end + 2]

    def _take_event(self, event: bytes, now: int) -> None:
        """Counts a server-sent event as a response. The mark of the end is none."""
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        text = b"\n".join(lines)
        if not lines or text == b"[DONE]":
            return
        slot = self.slot
        slot.responses += 1
        if slot.keeps:
            slot.stamps.append(now)
            slot.bodies.append(text)

    def _refuse(self, now: int, why: str) -> None:
        self.close()
        self._head_bytes = b""
        self.slot.finish(now, why)

    def _finish(self, now: int) -> None:
        slot, head = self.slot, self._head
        assert head is not None
        self._is_used = True
        self._state = _HEAD
        if head.closes:
            self.close()
        if head.status != 200:
            slot.finish(now, error_text(head.status, bytes(self._body)))
            return
        if not slot.responses:
            slot.responses = 1
            if slot.keeps:
                slot.stamps.append(now)
                slot.bodies.append(bytes(self._body))
        slot.finish(now, "")


def error_text(status: int, body: bytes) -> str:
    """The server's own words in the body of an error, if it has some."""
    import json

    try:
        error = json.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else error
        return f"[{status}] {text}"
    except (ValueError, LookupError, TypeError):
        shown = " ".join(body[:200].decode(errors="replace").split())
        # A page of HTML is for a browser.
        return f"[{status}] {shown}" if shown and not shown.startswith("<") else f"HTTP status {status}"
