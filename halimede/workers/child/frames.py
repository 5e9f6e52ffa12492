"""The frames between the server and a child process: layout, building, and reassembly from a stream socket.

A frame is a fixed header, a part of small records (`meta`) and the bytes of its tensors, each on a 64-byte boundary.
The tensors of a large frame lie in a shared segment instead (`segments`); then the header has its number. Both
processes use this module. It knows no requests and no models. One thread at a time builds or parses a frame.

| kind | from | meaning | `batch`, `count`, `flags` |
|---|---|---|---|
| START | server | an order, as JSON or pickled (`hosted`): a load, or another one, after which more may come | |
| READY | child | the order is carried out; its result | |
| REFUSED | child | it cannot be loaded: a text, or a pickled error (`hosted`). The child ends | |
| REQUESTS | server | a batch | its number, requests |
| ANSWERS | child | responses to requests of a batch | its number, answers, FINISHED |
| FAILED | child | every unanswered request of a batch fails; a text | its number, -, FINISHED |
| CREDIT | both | bytes that the reader of one request (or call) took in all | batch or call, request |
| CLOSE | server | finish and exit | |
| LOG | child | a line for the log | -, level, ROWS |
| QUESTION | child | asks the server something; REPLY answers it | batch, request, IS_CANCELLED ... |
| REPLY | server | the answer to a question | its number, answer, REFUSAL |
| CALL | child | an inference of another model (BLS) | number of the call, 1, STREAMED |
| CALL_ANSWER | server | a response to a call | number of the call, 1, FINISHED |
| CANCEL_CALL | child | nobody wants the call's answers | number of the call, -, LET_RUN |
| METRIC | child | changes a metric; not answered | number of the metric, -, what to do |
| RELEASE | both | segments that the reader no longer uses | -, how many |
| FORGET | both | segments that the writer will not name again | -, how many |

START comes first, then READY or REFUSED; after a load, batches. A QUESTION, a CALL, a METRIC or a LOG may come at any
time, also before READY. Apart from that the kinds have no order among each other.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from .segments import LEAST_BYTES, SegmentError, SegmentReader, SegmentWriter

ALIGNMENT = 64
"""Where tensors begin: some runtimes abort on less, and vector units like it."""

HEADER = struct.Struct("<4sHHIIQQqqQ")
"""Magic, kind, flags, count, bytes of meta, bytes of the whole frame, batch number, two moments (monotonic ns), number
of the segment that holds the tensors (0: the frame does)."""
_META, _SIZE, _SEGMENT = 4, 5, 9
_MAGIC = b"HLM2"

START, READY, REFUSED, REQUESTS, ANSWERS, FAILED, CLOSE, LOG, QUESTION, REPLY, CREDIT = range(1, 12)
CALL, CALL_ANSWER, CANCEL_CALL, METRIC, RELEASE, FORGET = range(12, 18)

FINISHED = 1
"""Flag of ANSWERS and FAILED: the instance can take the next batch. Answers to this one may still follow."""

IS_CANCELLED, IS_READY, LOAD, UNLOAD, MAKE_FAMILY, MAKE_METRIC, METRIC_VALUE = range(1, 8)
"""Flags of a QUESTION: has the client of the request gone; is a model ready; load one; unload one; make a family of
metrics; make a metric; what is the value of a metric."""

REFUSAL = 1
"""Flag of a REPLY: the answer is a text that says why not."""

STREAMED = 1
"""Flag of a CALL: any number of answers may come, as far ahead of their reader as CREDIT allows. Without it: one."""

LET_RUN = 1
"""Flag of CANCEL_CALL: the inference goes on, but nobody reads its answers."""

ROWS = 1
"""Flag of a LOG: the first line of the text is the message; the other lines are shown below it as they are."""

NUMBER = struct.Struct("<Q")
"""The number of a QUESTION, the amount of a CREDIT."""

WINDOW = 1 << 21
"""Bytes by which the answers to one request may be ahead of its reader. The last answer does not count."""
CREDIT_STEP = 1 << 20
"""Bytes that a CREDIT is worth at least. It is less than the window by more than a socket holds: a child whose readers
keep up finds the CREDIT when it looks, and does not wait."""
OVERHEAD = 4 << 10
"""Bytes that an answer counts besides those of its frame: many small ones fill memory too."""

MAX_MESSAGE_CHARACTERS = 64 << 10
"""Characters of the text of an error or a log line from a model. Beyond: the text is cut."""
MAX_PARAMETERS = 10_000
"""Parameters of a response of a Python model, or of its call of another model. Beyond: `pb_utils` raises an error."""
MAX_RECORDS_BYTES = 16 << 20
"""Bytes of what a frame from a child process has besides tensors: errors, parameters, names. Beyond: the process is
ended, and restarted."""

_KINDS = frozenset(range(START, FORGET + 1))
_LENGTH = struct.Struct("<I")
_SHORT = struct.Struct("<H")
_TENSOR = struct.Struct("<HBBHQ")
_PADDING = [bytes(n) for n in range(ALIGNMENT)]
_JOINED = 32 << 10
_SMALL = 4 << 10
_ARENA = 16 << 10
_SCRATCH = 64 << 10
_REMEMBERED = 1 << 10
"""Bytes of records up to which their parsed form is cached. The bound keeps the caches small."""


def cost(size: int, most_ahead: int) -> int:
    """Bytes of the window that an answer with a frame of this size takes. If `most_ahead` is not 0, it takes at least
    the part of which that many answers fill the window."""
    size += OVERHEAD
    return max(size, -(-WINDOW // most_ahead)) if most_ahead else size


class FrameError(Exception):
    """The bytes that arrived are no frame: whatever follows them makes no sense either."""


def blank(size: int) -> memoryview:
    """`size` bytes of new memory, on a 64-byte boundary, not cleared."""
    array = np.empty(size + ALIGNMENT, np.uint8)
    start = -array.ctypes.data % ALIGNMENT
    return array.data[start : start + size]


class Arena:
    """New aligned memory for frames. To ask numpy for an address costs a microsecond, so small frames share a piece. A
    piece lives as long as one of its frames; it is small, so that one tensor that is kept does not keep much."""

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
    """A text after its length. Lone surrogates become question marks."""
    raw = text.encode("utf-8", "replace")
    return _LENGTH.pack(len(raw)) + raw


def cut(text: str) -> str:
    """The text of an error or a log line, no longer than the server takes it. A text that was cut stays as it is."""
    if len(text) <= MAX_MESSAGE_CHARACTERS:
        return text
    note = f"... ({len(text)} characters)"
    return text[: MAX_MESSAGE_CHARACTERS - len(note)] + note


@lru_cache(maxsize=4096)
def tensor_record(name: str, number: int, shape: tuple[int, ...], size: int) -> bytes:
    """Name, datatype number, shape and byte size of a tensor. Cached: a model sees few different records."""
    raw = name.encode()
    head = _TENSOR.pack(_TENSOR.size + 8 * len(shape) + len(raw), number, len(shape), len(raw), size)
    return head + struct.pack(f"<{len(shape)}q", *shape) + raw


@lru_cache(maxsize=1024)
def names_record(names: tuple[str, ...]) -> bytes:
    """A few names, such as the outputs that a request asks for."""
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
    segments: SegmentWriter | None = None,
) -> list[Any]:
    """The buffers of a frame, to be sent one after the other.

    `tensors` are flat byte buffers in the order of their records in `meta`. They are not copied, except into a segment
    of `segments` if they are large, and except if the whole frame is so small that a copy costs less than many buffers.
    """
    records = b"".join(meta)
    size = HEADER.size + len(records)
    if segments is not None and tensors and sum(map(len, tensors)) >= LEAST_BYTES:
        number = _written(segments, tensors)
        if number:
            return [HEADER.pack(_MAGIC, kind, flags, count, len(records), size, batch, *moments, number) + records]
    buffers = [records]
    for tensor in tensors or ():
        gap = -size % ALIGNMENT
        length = len(tensor)
        if gap:
            buffers.append(_PADDING[gap])
        if length:
            buffers.append(tensor)
        size += gap + length
    buffers.insert(0, HEADER.pack(_MAGIC, kind, flags, count, len(records), size, batch, *moments, 0))
    return buffers if size > _JOINED else [b"".join(buffers)]


def _written(segments: SegmentWriter, tensors: list[Any]) -> int:
    """Copies tensors into a segment. The result is its number, 0 if there is no segment."""
    size = 0
    for tensor in tensors:
        size += -size % ALIGNMENT + len(tensor)
    segment = segments.take(size)
    if segment is None:
        return 0
    at, target = 0, np.frombuffer(segment.map, np.uint8)
    for tensor in tensors:
        at += -at % ALIGNMENT
        end = at + len(tensor)
        if end > at:
            target[at:end] = np.frombuffer(tensor, np.uint8)  # numpy lets other threads run while it copies
        at = end
    return segment.number


def numbers_frame(kind: int, numbers: deque[int]) -> bytes:
    """RELEASE or FORGET with these numbers, which are taken out of the deque. Other threads may append meanwhile."""
    found = []
    while numbers:
        found.append(numbers.popleft())
    buffers = frame(kind, [struct.pack(f"<{len(found)}Q", *found)], None, 0, len(found))
    return b"".join(buffers)


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

    The reading methods raise what `MALFORMED` lists if the bytes make no sense. Tensors are views of the frame's
    memory, or of the segment that it names. The other side writes neither again while a view exists.
    """

    __slots__ = (
        *("_at", "_memory", "_meta", "_tensor"),
        *("batch", "count", "data", "first_moment", "flags", "kind", "second_moment"),
    )

    def __init__(self, header: tuple[Any, ...], data: memoryview, segments: SegmentReader | None = None) -> None:
        """Raises FrameError if it names a segment that does not exist."""
        _, self.kind, self.flags, self.count, meta, _, self.batch, self.first_moment, self.second_moment, number = (
            header
        )
        self.data = data
        self._at = 0
        self._tensor = end = HEADER.size + meta
        self._meta = data[HEADER.size : end].tobytes()
        self._memory = data
        if number:
            if segments is None:
                raise FrameError("a frame names a segment, and there are none")
            try:
                self._memory, self._tensor = segments.view(number), 0
            except SegmentError as error:
                raise FrameError(str(error)) from None

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

    def message(self, length: int = -1) -> str:
        """The text of an error, of which a child may send more than it should: of this length, or all that is left."""
        start, self._at = self._at, self._at + length if length >= 0 else len(self._meta)
        return cut(self._meta[start : min(self._at, start + 4 * MAX_MESSAGE_CHARACTERS)].decode("utf-8", "replace"))

    def rest(self) -> bytes:
        """All records not yet read, as they are."""
        return self.raw(len(self._meta) - self._at)

    def ahead(self) -> bytes:
        """All records not yet read; the cursor stays where it is."""
        return self._meta[self._at :]

    def names(self) -> tuple[str, ...]:
        (length,) = _SHORT.unpack_from(self._meta, self._at)
        return _names(self.raw(length))

    def parameters(self, most: int = 0) -> dict[str, Any]:
        """Raises FrameError if there are more than `most` (0: no limit)."""
        (count,) = self.unpack(_LENGTH)
        if 0 < most < count:
            raise FrameError(f"{count} parameters, and {most} are allowed")
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
        if end > len(self._memory):
            raise FrameError("a tensor reaches over the end of its frame")
        return name, number, shape, self._memory[start:end]

    def tensors(self, length: int) -> list[tuple[str, int, tuple[int, ...], memoryview]]:
        """Name, datatype number, shape and bytes of all tensors whose records together have this length. Records that
        repeat are parsed once."""
        read = _all_tensor_fields if length <= _REMEMBERED else _all_tensor_fields.__wrapped__
        return self._all(read(self.raw(length)))

    def form(self, length: int) -> tuple[tuple[str, ...], list[tuple[str, int, tuple[int, ...], memoryview]]]:
        """Names and the tensors after them: the outputs that a request asks for, and its inputs."""
        read = _form if length <= _REMEMBERED else _form.__wrapped__
        names, fields = read(self.raw(length))
        return names, self._all(fields)

    def _all(
        self, fields: tuple[tuple[str, int, tuple[int, ...], int], ...]
    ) -> list[tuple[str, int, tuple[int, ...], memoryview]]:
        found, end, data = [], self._tensor, self._memory
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
    """Puts frames together: receive into `space()`, call `received(n)`, get the frames that are whole.

    Small frames are received together and copied out; a large one is received into memory of its own. Frames about
    segments are handled here. Raises FrameError if the bytes are no frame, or if its records have more than
    `most_records` bytes (0: no limit).
    """

    def __init__(
        self, reader: SegmentReader | None = None, writer: SegmentWriter | None = None, most_records: int = 0
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._most_records = most_records
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
            frame = Frame(header, data, self._reader)
            if frame.kind < RELEASE:
                found.append(frame)
            else:
                self._sort_segments(frame)
            start = end
        self._keep_from(start)
        return found

    def _sort_segments(self, frame: Frame) -> None:
        numbers = struct.unpack(f"<{frame.count}Q", frame.rest())
        for number in numbers:
            if frame.kind == RELEASE and self._writer is not None:
                self._writer.released(number)
            elif frame.kind == FORGET and self._reader is not None:
                self._reader.forget(number)

    def _header_at(self, start: int) -> tuple[Any, ...]:
        header = HEADER.unpack_from(self._scratch, start)
        if header[0] != _MAGIC or header[1] not in _KINDS or header[_SIZE] < HEADER.size + header[_META]:
            raise FrameError("no frame begins here")
        if 0 < self._most_records < header[_META]:
            raise FrameError(f"a frame has records of {header[_META]} bytes, and {self._most_records} are allowed")
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
        return [Frame(self._header, data, self._reader)]
