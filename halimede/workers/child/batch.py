"""One batch in a worker: its requests are read from a frame, its answers are written back.

| state | fields | ends with |
|---|---|---|
| running | `_returned` False | `execute` returns or fails |
| returned | `_returned` True, `_finished` True | a frame with FINISHED: the server may send the next batch |
| over | `_owed` is empty | the last answer of the last request; it may come before or after FINISHED |

Any thread may answer. A sender that is too far ahead of its reader waits. If the model drops a sender, the server is
told that no more answers come.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from . import frames
from .channel import Channel
from .requests import InferenceRequest
from .values import InferenceResponse, InferenceTrace, Tensor, TritonModelException

REQUEST_RECORD = struct.Struct("<QQBII")
"""Correlation id, timeout (us), flags, length of the request id, length of its form. The form is the names of the
outputs that it asks for and the records of its inputs."""
SEQUENCE_FLAGS, TEXT_CORRELATION, ASKED_WITH, LIMITED, TRACED, HAS_ROWS = 3, 4, 8, 16, 32, 64
"""Flags of a request: sequence start and end as in the interface; its correlation id is a text of its own; it has
parameters; it says how many answers may be ahead of its reader; it says which trace it belongs to; it says how many
rows it has, for a child that hosts a backend."""

ANSWER_RECORD = struct.Struct("<IBBHI")
"""Index in the batch, flags, error code (P46), count of outputs, length of their records or of the error text."""
FINAL, IS_ERROR, ANSWERED_WITH, NOTHING, AGAIN = 1, 2, 4, 8, 16
"""Flags of an answer: it is the last one; it is an error; it has parameters; there is no response (only with FINAL);
the request must run once more (with FINAL and NOTHING)."""

_ASKED_AGAIN = 0.005
"""Seconds for which "not cancelled" is cached: a model may ask in a tight loop, and each question costs the server's
loop a few microseconds."""


def read_requests(message: frames.Frame, batch: WorkerBatch) -> list[InferenceRequest]:
    """The requests of a frame, in its order. Raises what `frames.MALFORMED` lists."""
    return [_read_request(message, InferenceRequest.received(batch, i), batch) for i in range(message.count)]


def _read_request(message: frames.Frame, request: InferenceRequest, batch: WorkerBatch) -> InferenceRequest:
    correlation, request._timeout, flags, length, form = message.unpack(REQUEST_RECORD)
    request._id = message.raw(length).decode()
    request._flags = flags & SEQUENCE_FLAGS
    request._correlation_id = message.text() if flags & TEXT_CORRELATION else correlation
    request._parameters = message.parameters() if flags & ASKED_WITH else None
    if flags & LIMITED:
        (batch.most_ahead[request._index],) = message.unpack(frames.NUMBER)
    if flags & TRACED:
        (number,) = message.unpack(frames.NUMBER)
        request._trace = InferenceTrace.received(number, message.text())
    request._outputs, inputs = message.form(form)
    request._inputs = [Tensor.received(*tensor) for tensor in inputs]
    return request


def write_answer(
    index: int,
    response: InferenceResponse | None,
    final: int,
    outputs: tuple[str, ...],
    meta: list[bytes],
    tensors: list[Any],
) -> None:
    """Adds an answer to the parts of a frame. `final` is FINAL or 0, or AGAIN without a response. Outputs that the
    request did not ask for are left out (P75)."""
    if response is None:
        meta.append(ANSWER_RECORD.pack(index, final | FINAL | NOTHING, 0, 0, 0))
        return
    error = response._error
    if error is not None:
        text = frames.cut(error.message()).encode("utf-8", "replace")
        meta += [ANSWER_RECORD.pack(index, final | IS_ERROR, error.code(), 0, len(text)), text]
        return
    count, records = 0, b""
    for tensor in response._tensors:
        name = tensor._name
        if name in outputs:
            payload = tensor.payload()
            records += frames.tensor_record(name, tensor._number, tensor._shape, len(payload))
            tensors.append(payload)
            count += 1
    if response._parameters:
        meta.append(ANSWER_RECORD.pack(index, final | ANSWERED_WITH, 0, count, len(records)))
        meta.append(frames.parameters_record(response._parameters))
    else:
        meta.append(ANSWER_RECORD.pack(index, final, 0, count, len(records)))
    meta.append(records)


def answered_too_soon(response: object) -> str:
    """The error text for a request that has an answer although it must run once more (P49)."""
    return (
        "Expected a None object in the execute function return list for reschduled request, found type "
        f"'{type(response)}'."
    )


class WorkerBatch:
    """A batch and the requests that still owe their last answer.

    A request of a decoupled model owes until its sender closes or is dropped. In other models a request owes after
    `execute` returned only if the model took its sender (`promised`).
    """

    # Defaults of the class: most batches never change them.
    _outputs: Sequence[tuple[str, ...]] = ()
    _returned = False
    _finished = False
    _begin = 0
    _again: frozenset[int] = frozenset()

    def __init__(self, channel: Channel, number: int, size: int, decoupled: bool = False) -> None:
        self.decoupled = decoupled
        self._channel = channel
        self._number = number
        self._owed = set(range(size))
        self._lock = threading.Lock()
        self._dropped: deque[int] = deque()
        self._cancelled: set[int] = set()
        self._ask_after: dict[int, float] = {}
        self.most_ahead: dict[int, int] = {}
        """By request, if fewer answers than fit the window may be ahead of its reader."""
        if decoupled:
            self._sent = [0] * size
            self._taken = [0] * size
            channel.take_credit(number, self._credited)

    def opened(self, requests: list[InferenceRequest], now: int) -> None:
        """The inputs are ready. `now` is in monotonic nanoseconds, like all times here."""
        self._outputs = [request._outputs for request in requests]
        self._begin = now

    def answer(self, index: int, response: InferenceResponse | None, final: bool) -> None:
        """Sends an answer. Blocks while the client does not read the answers before it. Raises TritonModelException if
        the request has its last answer already."""
        if not final and self._sent[index] - self._taken[index] >= frames.WINDOW:
            self._channel.wait_until(lambda: self._has_room(index))
        meta: list[bytes] = []
        tensors: list[Any] = []
        write_answer(index, response, FINAL if final else 0, self._outputs[index], meta, tensors)
        with self._lock:
            if index not in self._owed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            buffers = self._frame(meta, tensors, 1, self._flags(), time.monotonic_ns())
            if final:
                self._settled(index)
            else:
                self._sent[index] += frames.cost(sum(map(len, buffers)), self.most_ahead.get(index, 0))
            self._channel.send(buffers)
        self._give_up()

    def _has_room(self, index: int) -> bool:
        """True as well if the request is over, so that nobody waits for ever."""
        return self._sent[index] - self._taken[index] < frames.WINDOW or index not in self._owed

    def _credited(self, index: int, taken: int) -> None:
        self._taken[index] = taken

    def _settled(self, index: int) -> None:
        self._owed.discard(index)
        if self.decoupled and not self._owed:
            self._channel.forget_credit(self._number)

    def given_up(self, index: int) -> None:
        """The model dropped the sender of this request. Called by a finalizer, which may have interrupted this very
        thread anywhere: if the lock is held, its holder sends the message.

        The server is told as if the model had sent FINAL, since nothing else could end the request. In a model that is
        not decoupled, `execute` may still return the answer.
        """
        self._dropped.append(index)
        self._give_up()

    def _give_up(self) -> None:
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                self._drop(self._dropped.popleft())
            finally:
                self._lock.release()

    def _drop(self, index: int) -> None:
        if index not in self._owed or not (self.decoupled or self._returned):
            return
        meta: list[bytes] = []
        self._settled(index)
        write_answer(index, None, FINAL, (), meta, [])
        self._channel.send_from_finaliser(self._frame(meta, [], 1, self._flags(), time.monotonic_ns()))

    def returned(self, responses: list[InferenceResponse | None], promised: set[int], now: int) -> None:
        """Sends what `execute` returned, one response or None per request. `promised` are the requests whose senders
        may still answer. The server is told of the others without a response that they have none."""
        meta: list[bytes] = []
        tensors: list[Any] = []
        with self._lock:
            self._returned = True
            count = 0
            for index in sorted(self._again & self._owed) if self._again else ():
                write_answer(index, None, AGAIN, (), meta, tensors)
                self._settled(index)
                count += 1
            for index, response in enumerate(responses):
                if index in self._owed and (response is not None or index not in promised):
                    write_answer(index, response, FINAL, self._outputs[index], meta, tensors)
                    self._settled(index)
                    count += 1
            self._send(meta, tensors, count, now)
        self._give_up()

    def handed_over(self, now: int) -> None:
        """`execute` of a decoupled model returned; its senders may go on."""
        meta: list[bytes] = []
        with self._lock:
            self._returned = True
            again = sorted(self._again & self._owed)
            for index in again:
                write_answer(index, None, AGAIN, (), meta, [])
                self._settled(index)
            self._send(meta, [], len(again), now)
        self._give_up()

    def run_again(self, index: int, wanted: bool) -> None:
        """Says whether the request must run once more (P49). The server is told when `execute` returns, or now if it
        has returned."""
        self._again = self._again | {index} if wanted else self._again - {index}
        if not (wanted and self.decoupled and self._returned):
            return
        meta: list[bytes] = []
        with self._lock:
            if index in self._owed:
                write_answer(index, None, AGAIN, (), meta, [])
                self._settled(index)
                self._channel.send(self._frame(meta, [], 1, self._flags(), time.monotonic_ns()))

    def check_again(self, responses: Sequence[InferenceResponse | None]) -> None:
        """Raises TritonModelException if a request that must run once more has a response."""
        for index in sorted(self._again) if self._again else ():
            if responses[index] is not None:
                raise TritonModelException(answered_too_soon(responses[index]))

    def failed(self, text: str) -> None:
        """Fails every request without its last answer."""
        with self._lock:
            flags = 0 if self._finished else frames.FINISHED
            self._returned = self._finished = True
            for index in tuple(self._owed):
                self._settled(index)
            meta = [text.encode("utf-8", "replace")]
            moments = (self._begin, time.monotonic_ns())
            self._channel.send(frames.frame(frames.FAILED, meta, None, self._number, 0, flags, moments))

    def is_cancelled(self, index: int) -> bool:
        """Whether the client has gone (P82). Asks the server, but not again within _ASKED_AGAIN seconds. Any thread.
        Raises OSError if the server is gone."""
        if index in self._cancelled:
            return True
        now = time.monotonic()
        if now < self._ask_after.get(index, 0.0):
            return False
        if self._channel.ask(frames.IS_CANCELLED, self._number, index):
            self._cancelled.add(index)
            return True
        self._ask_after[index] = now + _ASKED_AGAIN
        return False

    def _send(self, meta: list[bytes], tensors: list[Any], count: int, now: int) -> None:
        flags = self._flags()
        if count or flags:
            moments = (self._begin, now)
            segments = self._channel.segments
            self._channel.send(
                frames.frame(frames.ANSWERS, meta, tensors, self._number, count, flags, moments, segments)
            )

    def _flags(self) -> int:
        """FINISHED if `execute` has returned and no frame had the flag yet."""
        if self._finished or not self._returned:
            return 0
        self._finished = True
        return frames.FINISHED

    def _frame(self, meta: list[bytes], tensors: list[Any], count: int, flags: int, now: int) -> list[Any]:
        return frames.frame(frames.ANSWERS, meta, tensors, self._number, count, flags, (self._begin, now))
