"""The frames between server and worker: layout, building, and putting together again what a stream socket delivers.

A frame is a fixed header, a part of small records (`meta`) and the bytes of its tensors, each on a 64-byte boundary.
Knows no requests and no models; both processes use it. A frame is built and parsed on one thread at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Where tensors begin: some runtimes abort on less, and vector units like it."""

HEADER = struct.Struct("<4sHHIIQQqq")
"""Magic, kind, flags, count, bytes of meta, bytes of the whole frame, batch number, two moments (monotonic ns)."""
_META, _SIZE = 4, 5
_MAGIC = b"HLM1"

START, READY, REFUSED, REQUESTS, ANSWERS, FAILED, CLOSE, LOG, QUESTION, REPLY, CREDIT = range(1, 12)
CALL, CALL_ANSWER, CANCEL_CALL, METRIC = range(12, 16)
"""Kinds. START and READY carry JSON, REFUSED and FAILED a text, LOG a level (count) and texts, CLOSE nothing.

A worker may ask the server at any time: a QUESTION says what (flags) about which request (batch, count) or model
(meta), and its number (meta); the REPLY has that number (batch) and the answer (count), or says why there is none.
CREDIT says how much of what was answered to a request (batch, count) its reader has taken, in all (meta). A worker may
call other models at any time: CALL has a request and its number (batch), each CALL_ANSWER to it has that number. CREDIT
from a worker is about a call (batch). METRIC says what was done (flags) to a metric (batch), and the amount (meta);
nobody answers it. The others follow no order among themselves but their own: START, READY, then
batches."""

FINISHED = 1
"""Flag of ANSWERS and FAILED: the instance can take the next batch. Answers to this one may follow."""

IS_CANCELLED, IS_READY, LOAD, UNLOAD, MAKE_FAMILY, MAKE_METRIC, METRIC_VALUE = range(1, 8)
"""Flags of a QUESTION: whether the client of the request has gone; whether a model is ready; that one be loaded, or
unloaded; that a family of metrics be made, or a metric; what the value of one is."""

REFUSAL = 1
"""Flag of a REPLY: it is a text that says why not."""

STREAMED = 1
"""Flag of a CALL: any number of answers may come, as far ahead of their reader as CREDIT allows. Else there is one."""

LET_RUN = 1
"""Flag of CANCEL_CALL: the inference may go on, but nobody reads the answers any more."""

ROWS = 1
"""Flag of a LOG: only the first line of the text is a message, the others are shown as they are below it."""

NUMBER = struct.Struct("<Q")
"""The number of a QUESTION, the amount of a CREDIT."""

WINDOW = 1 << 21
"""How far the answers to one request may be ahead of its reader. Only those count that are not the last."""
CREDIT_STEP = 1 << 20
"""What a CREDIT is worth at least. Together with what a socket holds it is less than the window, so that a worker whose
readers keep up finds its credit there when it looks, and does not wait."""
OVERHEAD = 4 << 10
"""What an answer counts besides the bytes of its frame: many small ones fill memory too."""

_KINDS = frozenset(range(START, METRIC + 1))
_LENGTH = struct.Struct("<I")
_SHORT = struct.Struct("<H")
_TENSOR = struct.Struct("<HBBHQ")
_PADDING = [bytes(n) for n in range(ALIGNMENT)]
_JOINED = 32 << 10
_SMALL = 4 << 10
_ARENA = 16 << 10
_SCRATCH = 64 << 10
_REMEMBERED = 1 << 10
"""Longer records are read each time, so that those which are kept have a bound."""


def cost(size: int, most_ahead: int) -> int:
    """What an answer whose frame has this size takes of the window: at least so much that `most_ahead` answers fill it,
    where that is not 0."""
    size += OVERHEAD
    return max(size, -(-WINDOW // most_ahead)) if most_ahead else size


class FrameError(Exception):
    """What arrived is no frame: the other side is not to be trusted any more."""


def blank(size: int) -> memoryview:
    """`size` bytes of new memory, on a 64-byte boundary, not cleared."""
    array = np.empty(size + ALIGNMENT, np.uint8)
    start = -array.ctypes.data % ALIGNMENT
    return array.data[start : start + size]


class Arena:
    """New aligned memory for frames. Asking for an address costs a microsecond, so that small frames share a piece: it
    lives as long as one of its frames does, and is small enough that keeping one tensor does not keep much."""

    def __init__(self) -> None:
        self._piece = blank(_ARENA)
        self._at = 0

    def take(self, size: int) -> memoryview:
        if size > _SMALL:
            return blank(size)
        if self._at + size > _ARENA:
            self._piece, self._at = blank(_ARENA), 0
        start = self._at
        self._at += size + (-size % ALIGNMENT)
        return self._piece[start : start + size]


# ---- building


def text_record(text: str) -> bytes:
    """A text with its length before it. Lone surrogates become question marks."""
    raw = text.encode("utf-8", "replace")
    return _LENGTH.pack(len(raw)) + raw


@lru_cache(maxsize=4096)
def tensor_record(name: str, number: int, shape: tuple[int, ...], size: int) -> bytes:
    """Name, datatype number, shape and byte size of a tensor. Cached: a model sees few different ones."""
    raw = name.encode()
    head = _TENSOR.pack(_TENSOR.size + 8 * len(shape) + len(raw), number, len(shape), len(raw), size)
    return head + struct.pack(f"<{len(shape)}q", *shape) + raw


@lru_cache(maxsize=1024)
def names_record(names: tuple[str, ...]) -> bytes:
    """A few names, as the outputs that a request asks for."""
    body = b"".join([text_record(name) for name in names])
    return _SHORT.pack(len(body) + 4) + _SHORT.pack(len(names)) + body


_KIND_OF = {bool: b"b", int: b"i", float: b"f", str: b"s"}


def parameters_record(parameters: dict[str, Any]) -> bytes:
    """Parameters (bool, int, float or str) by name, in their order; the values as text, which holds any integer."""
    parts = [_LENGTH.pack(len(parameters))]
    for name, value in parameters.items():
        text = value if isinstance(value, str) else repr(value)
        parts += [_KIND_OF[type(value)], text_record(name), text_record(text)]
    return b"".join(parts)


def frame(
    kind: int,
    meta: list[bytes],
    tensors: list[Any] | None = None,
    batch: int = 0,
    count: int = 0,
    flags: int = 0,
    moments: tuple[int, int] = (0, 0),
) -> list[Any]:
    """The buffers of a frame, to be sent one after the other.

    `tensors` are flat byte buffers in the order of their records in `meta`. They are not copied, except where the whole
    frame is so small that many buffers cost more than one copy.
    """
    records = b"".join(meta)
    size = HEADER.size + len(records)
    buffers = [records]
    for tensor in tensors or ():
        gap = -size % ALIGNMENT
        length = len(tensor)
        if gap:
            buffers.append(_PADDING[gap])
        if length:
            buffers.append(tensor)
        size += gap + length
    buffers.insert(0, HEADER.pack(_MAGIC, kind, flags, count, len(records), size, batch, *moments))
    return buffers if size > _JOINED else [b"".join(buffers)]


# ---- parsing


@lru_cache(maxsize=4096)
def _tensor_fields(record: bytes) -> tuple[str, int, tuple[int, ...], int]:
    _, number, rank, length, size = _TENSOR.unpack_from(record)
    shape = struct.unpack_from(f"<{rank}q", record, _TENSOR.size)
    raw = record[_TENSOR.size + 8 * rank :]
    if len(raw) != length:
        raise FrameError("a tensor's record does not fill its length")
    return raw.decode(), number, shape, size


@lru_cache(maxsize=1024)
def _names(record: bytes) -> tuple[str, ...]:
    (count,) = _SHORT.unpack_from(record, 2)
    at, names = 4, []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(record, at)
        names.append(record[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return tuple(names)


@lru_cache(maxsize=4096)
def _all_tensor_fields(records: bytes) -> tuple[tuple[str, int, tuple[int, ...], int], ...]:
    at, found = 0, []
    while at < len(records):
        (length,) = _SHORT.unpack_from(records, at)
        if not length:
            raise FrameError("a tensor's record without an end")
        found.append(_tensor_fields(records[at : at + length]))
        at += length
    return tuple(found)


@lru_cache(maxsize=4096)
def _form(records: bytes) -> tuple[tuple[str, ...], tuple[tuple[str, int, tuple[int, ...], int], ...]]:
    (length,) = _SHORT.unpack_from(records)
    read = _names if length <= _REMEMBERED else _names.__wrapped__
    return read(records[:length]), _all_tensor_fields.__wrapped__(records[length:])


_VALUE_OF: dict[bytes, Callable[[str], Any]] = {b"b": lambda text: text == "True", b"i": int, b"f": float, b"s": str}


class Frame:
    """A frame that arrived whole, and a cursor through its records.

    The reading methods raise FrameError, struct.error, KeyError, ValueError or UnicodeDecodeError on nonsense: see
    `MALFORMED`. Tensors are views of the frame's own memory, which nobody writes again.
    """

    __slots__ = ("_at", "_meta", "_tensor", "batch", "count", "data", "first_moment", "flags", "kind", "second_moment")

    def __init__(self, header: tuple[Any, ...], data: memoryview) -> None:
        _, self.kind, self.flags, self.count, meta, _, self.batch, self.first_moment, self.second_moment = header
        self.data = data
        self._at = 0
        self._tensor = end = HEADER.size + meta
        self._meta = data[HEADER.size : end].tobytes()

    def unpack(self, record: struct.Struct) -> tuple[Any, ...]:
        """The fields of a fixed record."""
        start = self._at
        self._at = start + record.size
        return record.unpack_from(self._meta, start)

    def raw(self, length: int) -> bytes:
        start = self._at
        self._at = end = start + length
        if end > len(self._meta):
            raise FrameError("a record reaches over the end of the records")
        return self._meta[start:end]

    def text(self) -> str:
        return self.raw(*self.unpack(_LENGTH)).decode()

    def rest(self) -> bytes:
        """All records not yet read, as they are."""
        return self.raw(len(self._meta) - self._at)

    def ahead(self) -> bytes:
        """The same, without reading them."""
        return self._meta[self._at :]

    def names(self) -> tuple[str, ...]:
        (length,) = _SHORT.unpack_from(self._meta, self._at)
        return _names(self.raw(length))

    def parameters(self) -> dict[str, Any]:
        (count,) = self.unpack(_LENGTH)
        found = {}
        for _ in range(count):
            value_of = _VALUE_OF[self.raw(1)]
            name = self.text()
            found[name] = value_of(self.text())
        return found

    def tensor(self) -> tuple[str, int, tuple[int, ...], memoryview]:
        """Name, datatype number, shape and bytes of the next tensor."""
        (length,) = _SHORT.unpack_from(self._meta, self._at)
        name, number, shape, size = _tensor_fields(self.raw(length))
        start = self._tensor + (-self._tensor % ALIGNMENT)
        self._tensor = end = start + size
        if end > len(self.data):
            raise FrameError("a tensor reaches over the end of its frame")
        return name, number, shape, self.data[start:end]

    def tensors(self, length: int) -> list[tuple[str, int, tuple[int, ...], memoryview]]:
        """The same of all tensors whose records, one after the other, have this length. What repeats is read once."""
        read = _all_tensor_fields if length <= _REMEMBERED else _all_tensor_fields.__wrapped__
        return self._all(read(self.raw(length)))

    def form(self, length: int) -> tuple[tuple[str, ...], list[tuple[str, int, tuple[int, ...], memoryview]]]:
        """A few names and the tensors after them, as what a request asks for and its inputs."""
        read = _form if length <= _REMEMBERED else _form.__wrapped__
        names, fields = read(self.raw(length))
        return names, self._all(fields)

    def _all(
        self, fields: tuple[tuple[str, int, tuple[int, ...], int], ...]
    ) -> list[tuple[str, int, tuple[int, ...], memoryview]]:
        found, end, data = [], self._tensor, self.data
        for name, number, shape, size in fields:
            start = end + (-end % ALIGNMENT)
            end = start + size
            found.append((name, number, shape, data[start:end]))
        self._tensor = end
        if end > len(data):
            raise FrameError("a tensor reaches over the end of its frame")
        return found


MALFORMED = (FrameError, struct.error, KeyError, ValueError, OverflowError, MemoryError)
"""What reading a frame raises when its bytes are nonsense (UnicodeDecodeError is a ValueError)."""


class Assembler:
    """Puts frames together: receive into `space()`, tell `received(n)`, get the frames that are whole.

    Small frames are received together and copied out; a large one is received into its own memory. Raises FrameError
    where no frame begins.
    """

    def __init__(self) -> None:
        self._arena = Arena()
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._filled = 0
        self._large: memoryview | None = None
        self._header: tuple[Any, ...] = ()

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        target = self._scratch if self._large is None else self._large
        return target[self._filled :]

    def received(self, count: int) -> list[Frame]:
        self._filled = filled = self._filled + count
        if self._large is not None:
            return self._whole_large()
        found: list[Frame] = []
        start = 0
        while filled - start >= HEADER.size:
            header = self._header_at(start)
            size = header[_SIZE]
            end = start + size
            if size > _SCRATCH:
                self._begin_large(start, header)
                return found
            if end > filled:
                break
            data = self._arena.take(size)
            data[:] = self._scratch[start:end]
            found.append(Frame(header, data))
            start = end
        self._keep_from(start)
        return found

    def _header_at(self, start: int) -> tuple[Any, ...]:
        header = HEADER.unpack_from(self._scratch, start)
        if header[0] != _MAGIC or header[1] not in _KINDS or header[_SIZE] < HEADER.size + header[_META]:
            raise FrameError("no frame begins here")
        return header

    def _keep_from(self, start: int) -> None:
        left = self._filled - start
        if left and start:
            self._scratch[:left] = bytes(self._scratch[start : self._filled])
        self._filled = left

    def _begin_large(self, start: int, header: tuple[Any, ...]) -> None:
        self._keep_from(start)
        self._header = header
        self._large = blank(header[_SIZE])
        self._large[: self._filled] = self._scratch[: self._filled]

    def _whole_large(self) -> list[Frame]:
        data = self._large
        if data is None or self._filled < len(data):
            return []
        self._large, self._filled = None, 0
        return [Frame(self._header, data)]
