"""One batch in the worker: its requests read from a frame, and its answers written back.

The frame of answers that says FINISHED is the last of a batch: it goes when every request is answered or given up.
Answers may come from any thread, also after `execute` returned.
"""

from __future__ import annotations

import struct
import threading
import time
from typing import Any

from . import frames
from .channel import Channel
from .requests import InferenceRequest
from .values import InferenceResponse, Tensor, TritonModelException

REQUEST = struct.Struct("<QQBHI")
"""Correlation id, timeout (us), flags, count of inputs, length of the request id."""
SEQUENCE_FLAGS, TEXT_CORRELATION, ASKED_WITH = 3, 4, 8
"""Flags of a request: sequence start and end as in the interface; its correlation id is a text of its own; it has
parameters."""

ANSWER = struct.Struct("<IBBHI")
"""Index in the batch, flags, error code, count of outputs, length of the error text."""
FINAL, IS_ERROR, ANSWERED_WITH = 1, 2, 4
"""Flags of an answer: the last one; an error; it has parameters."""


def read_requests(message: frames.Frame, exchange: Exchange) -> list[InferenceRequest]:
    """The requests of a frame, in its order. Raises what `frames.MALFORMED` lists."""
    return [_read_request(message, InferenceRequest.received(exchange, i)) for i in range(message.count)]


def _read_request(message: frames.Frame, request: InferenceRequest) -> InferenceRequest:
    correlation, request._timeout, flags, inputs, length = message.unpack(REQUEST)
    request._id = message.raw(length).decode()
    request._flags = flags & SEQUENCE_FLAGS
    request._correlation_id = message.text() if flags & TEXT_CORRELATION else correlation
    request._outputs = message.names()
    request._parameters = message.parameters() if flags & ASKED_WITH else None
    request._inputs = [Tensor.received(*message.tensor()) for _ in range(inputs)]
    return request


def write_answer(
    index: int, response: InferenceResponse, outputs: tuple[str, ...], meta: list[bytes], tensors: list[Any]
) -> None:
    """Adds a final answer to the parts of a frame. Outputs that nobody asked for are left out (contract P75)."""
    error = response._error
    if error is not None:
        text = error.message().encode("utf-8", "replace")
        meta += [ANSWER.pack(index, FINAL | IS_ERROR, error.code(), 0, len(text)), text]
        return
    wanted = [tensor for tensor in response._tensors if tensor._name in outputs]
    if response._parameters:
        meta.append(ANSWER.pack(index, FINAL | ANSWERED_WITH, 0, len(wanted), 0))
        meta.append(frames.parameters_record(response._parameters))
    else:
        meta.append(ANSWER.pack(index, FINAL, 0, len(wanted), 0))
    for tensor in wanted:
        payload = tensor.payload()
        meta.append(frames.tensor_record(tensor._name, tensor._number, tensor._shape, len(payload)))
        tensors.append(payload)


class Exchange:
    """What a batch still owes to the server."""

    def __init__(self, channel: Channel, batch: int, size: int) -> None:
        self._channel = channel
        self._batch = batch
        self._owed = set(range(size))
        self._lock = threading.RLock()
        self._outputs: list[tuple[str, ...]] = []
        self._returned = False
        self._finished = False
        self._begin = 0

    def opened(self, requests: list[InferenceRequest], now: int) -> None:
        """The inputs are ready. `now` is monotonic nanoseconds, as all moments here."""
        self._outputs = [request._outputs for request in requests]
        self._begin = now

    def answer(self, index: int, response: InferenceResponse) -> None:
        """The response of a sender. Raises TritonModelException where the request has its answer already."""
        meta: list[bytes] = []
        tensors: list[Any] = []
        write_answer(index, response, self._outputs[index], meta, tensors)
        with self._lock:
            if index not in self._owed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            self._owed.discard(index)
            self._send(meta, tensors, 1, time.monotonic_ns())

    def given_up(self, index: int) -> None:
        """Nobody will answer this request any more; the server knows what to say. Called by a finaliser."""
        with self._lock:
            if self._returned and index in self._owed:
                self._owed.discard(index)
                if not self._owed:
                    self._finished = True
                    self._channel.send_from_finaliser(self._frame([], [], 0, time.monotonic_ns()))

    def returned(self, responses: list[InferenceResponse | None], promised: set[int], now: int) -> None:
        """What `execute` returned, one for each request; `promised` are those whose senders may still answer."""
        meta: list[bytes] = []
        tensors: list[Any] = []
        with self._lock:
            self._returned = True
            count = 0
            for index, response in enumerate(responses):
                if response is not None and index in self._owed:
                    write_answer(index, response, self._outputs[index], meta, tensors)
                    self._owed.discard(index)
                    count += 1
            self._owed &= promised
            self._send(meta, tensors, count, now)

    def failed(self, text: str) -> None:
        """Every request without an answer fails."""
        with self._lock:
            self._returned = self._finished = True
            self._owed.clear()
            meta = [text.encode("utf-8", "replace")]
            moments = (self._begin, time.monotonic_ns())
            self._channel.send(frames.frame(frames.FAILED, meta, None, self._batch, 0, frames.FINISHED, moments))

    def is_cancelled(self, index: int) -> bool:
        raise TritonModelException("This server does not tell a Python model about cancelled requests.")

    def _send(self, meta: list[bytes], tensors: list[Any], count: int, now: int) -> None:
        if self._finished or (not count and self._owed):
            return
        self._finished = self._returned and not self._owed
        self._channel.send(self._frame(meta, tensors, count, now))

    def _frame(self, meta: list[bytes], tensors: list[Any], count: int, now: int) -> list[Any]:
        flags = frames.FINISHED if self._finished else 0
        return frames.frame(frames.ANSWERS, meta, tensors, self._batch, count, flags, (self._begin, now))
