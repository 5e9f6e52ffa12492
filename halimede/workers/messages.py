"""The server's translation between requests and frames: batches and answers, calls of models and their responses.

It knows requests, tensors and frames; no process, no socket, no scheduling. The event loop calls it for every batch, so
it caches what it can.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from halimede.errors import (
    AlreadyExists,
    Cancelled,
    Error,
    Internal,
    Invalid,
    NotFound,
    Unavailable,
    Unknown,
    Unsupported,
)
from halimede.requests import Answer as CallAnswer
from halimede.requests import InferRequest, Parameters, check_correlation_id
from halimede.tensors import BY_NUMBER, Buffer, HostMemory, Tensor
from halimede.workers.child import frames
from halimede.workers.child.batch import (
    AGAIN,
    ANSWER_RECORD,
    ANSWERED_WITH,
    ASKED_WITH,
    FINAL,
    HAS_ROWS,
    IS_ERROR,
    LIMITED,
    NOTHING,
    REQUEST_RECORD,
    TEXT_CORRELATION,
    TRACED,
)
from halimede.workers.child.calls import CALL_RECORD
from halimede.workers.child.requests import SEQUENCE_END, SEQUENCE_START
from halimede.workers.child.segments import SegmentWriter

ERRORS: tuple[type[Error], ...] = (
    Unknown,
    Internal,
    NotFound,
    Invalid,
    Unavailable,
    Unsupported,
    AlreadyExists,
    Cancelled,
)
"""By the code of a `TritonError` (P46)."""


def code_of(error: Error) -> int:
    """The code of the error's kind (P46)."""
    return next((code for code, kind in enumerate(ERRORS) if isinstance(error, kind)), 0)


class Asked(Protocol):
    """One request of a batch, and the names of the outputs to answer with."""

    @property
    def request(self) -> InferRequest: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def outputs(self) -> Sequence[str]: ...


class Answer(NamedTuple):
    """An answer to request `i` of a batch: outputs, or an error. `final`: it is the last one. Without outputs and error
    (only with `final`) no more answers come."""

    i: int
    final: bool
    outputs: list[Tensor] | None
    error: Error | None = None
    parameters: Parameters | None = None
    again: bool = False
    """The request must run once more (S72); there is no answer."""


def requests_frame(
    number: int, batch: Sequence[Asked], segments: SegmentWriter | None = None, rows: bool = False
) -> list[Buffer]:
    """The buffers of batch `number`; tensors are views of request memory. Raises Error if the host cannot
    read a tensor, or a request has a value that no frame can carry."""
    meta: list[bytes] = []
    tensors: list[Buffer] = []
    try:
        for asked in batch:
            _add_request(asked, meta, tensors, asked.batch_size if rows else 0)
    except (struct.error, KeyError) as error:
        raise Invalid(f"a request cannot be passed on to a Python model: {error}") from error
    return frames.frame(frames.REQUESTS, meta, tensors, number, len(batch), segments=segments)


def _add_request(asked: Asked, meta: list[bytes], tensors: list[Buffer], rows: int) -> None:
    request = asked.request
    flags = (SEQUENCE_START if request.sequence_start else 0) | (SEQUENCE_END if request.sequence_end else 0)
    number, texts = request.correlation_id, [request.id.encode("utf-8", "replace")]
    if isinstance(number, str):
        flags |= TEXT_CORRELATION
        texts.append(frames.text_record(number))
        number = 0
    if request.parameters:
        flags |= ASKED_WITH
        texts.append(frames.parameters_record(request.parameters))
    if request.most_ahead:
        flags |= LIMITED
        texts.append(frames.NUMBER.pack(request.most_ahead))
    if request.trace is not None:
        flags |= TRACED
        texts += (frames.NUMBER.pack(request.trace.id), frames.text_record(request.trace.context))
    if rows:
        flags |= HAS_ROWS
        texts.append(frames.NUMBER.pack(rows))
    form = frames.names_record(tuple(asked.outputs))
    for tensor in request.inputs.values():
        view = tensor.memory.host()
        form += frames.tensor_record(tensor.name, tensor.datatype.number, tensor.shape, len(view))
        tensors.append(view)
    meta.append(REQUEST_RECORD.pack(number, request.timeout_us, flags, len(texts[0]), len(form)))
    meta += texts
    meta.append(form)


def read_answers(message: frames.Frame, size: int) -> list[Answer]:
    """The answers of a frame to a batch of `size` requests; tensors are views of the frame. Raises what
    `frames.MALFORMED` lists."""
    return [_read_answer(message, size) for _ in range(message.count)]


def _read_answer(message: frames.Frame, size: int) -> Answer:
    index, flags, code, _, length = message.unpack(ANSWER_RECORD)
    if index >= size:
        raise frames.FrameError(f"an answer to request {index} of {size}")
    final = flags & FINAL != 0
    if flags & IS_ERROR:
        error = ERRORS[code if code < len(ERRORS) else 0](message.message(length))
        return Answer(index, final, None, error)
    if flags & NOTHING:
        return Answer(index, True, None, again=flags & AGAIN != 0)
    parameters = message.parameters(frames.MAX_PARAMETERS) if flags & ANSWERED_WITH else None
    tensors = message.tensors(length)
    found = [Tensor(name, BY_NUMBER[number], shape, HostMemory(view)) for name, number, shape, view in tensors]
    return Answer(index, final, found, None, parameters)


# ---- calls to other models

_FORM = b"call"
"""Prefix of the forms of requests that models make: no form of a front end begins so."""


def read_call(message: frames.Frame) -> tuple[int, int, InferRequest]:
    """The number of the batch for which the call is made (0: none), the number of its trace (0: none), and the request,
    whose tensors are views of the frame. Raises what `frames.MALFORMED` lists; Internal for an input given twice, or a
    correlation id that is too long."""
    batch, number, timeout, version, flags, inputs, length = message.unpack(CALL_RECORD)
    request_id = message.raw(length).decode()
    request = InferRequest(message.text(), version)
    request.id = request_id
    request.inner = True
    request.correlation_id = number
    if flags & TEXT_CORRELATION:
        try:
            request.correlation_id = check_correlation_id(message.text())
        except Unsupported as error:
            raise refused(request.model_name, str(error)) from None
    request.sequence_start = flags & SEQUENCE_START != 0
    request.sequence_end = flags & SEQUENCE_END != 0
    request.timeout_us = timeout
    request.parameters = message.parameters(frames.MAX_PARAMETERS) if flags & ASKED_WITH else None
    request.decoupled_ok = message.flags & frames.STREAMED != 0
    trace = message.unpack(frames.NUMBER)[0] if flags & TRACED else 0
    request.form = _FORM + message.ahead()
    request.outputs = message.names()
    for _ in range(inputs):
        name, kind, shape, view = message.tensor()
        if name in request.inputs:
            raise refused(request.model_name, f"{request.log_prefix}input '{name}' already exists in request")
        request.inputs[name] = Tensor(name, BY_NUMBER[kind], shape, HostMemory(view))
    return batch, trace, request


def refused(model: str, text: str) -> Internal:
    """The error of a call that did not reach the model (P51)."""
    return Internal(f"Model {model} - Error when running inference: {text}")


def call_answer_frame(number: int, answer: CallAnswer, final: bool) -> list[Buffer]:
    """The buffers of an answer to call `number`; tensors are views of response memory. An answer that cannot be passed
    on becomes an error."""
    meta: list[bytes] = []
    tensors: list[Buffer] = []
    try:
        _add_call_answer(answer, meta, tensors)
    except (struct.error, KeyError, Error) as error:
        tensors.clear()
        meta[:] = _error_records(Internal(f"a response cannot be passed on to a Python model: {error}"))
    return frames.frame(frames.CALL_ANSWER, meta, tensors, number, 1, frames.FINISHED if final else 0)


def _add_call_answer(answer: CallAnswer, meta: list[bytes], tensors: list[Buffer]) -> None:
    if isinstance(answer, Error):
        meta += _error_records(answer)
        return
    if answer is None:
        meta.append(ANSWER_RECORD.pack(0, NOTHING, 0, 0, 0))
        return
    if answer.parameters:
        meta.append(ANSWER_RECORD.pack(0, ANSWERED_WITH, 0, len(answer.outputs), 0))
        meta.append(frames.parameters_record(answer.parameters))
    else:
        meta.append(ANSWER_RECORD.pack(0, 0, 0, len(answer.outputs), 0))
    for tensor in answer.outputs:
        view = tensor.memory.host()
        meta.append(frames.tensor_record(tensor.name, tensor.datatype.number, tensor.shape, len(view)))
        tensors.append(view)


def _error_records(error: Error) -> list[bytes]:
    text = error.message.encode("utf-8", "replace")
    return [ANSWER_RECORD.pack(0, IS_ERROR, code_of(error), 0, len(text)), text]
