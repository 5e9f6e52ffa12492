"""A batch in a child that hosts a backend: the protocols `Batch` and `Responses` over frames.

`scheduling.execution.Execution` gathers and splits here as it does in the server, with ragged inputs, batch outputs and
single answers. The thread that runs the batch reads it; any thread may answer. An answer of a model with many answers
waits here while its reader is too far behind.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Any

import numpy.typing as npt

from halimede.backends.api import Arrays, Batch, BatchedRequest, Responses
from halimede.config.model_config import ModelConfig
from halimede.devices import Device, DeviceArray, HostArray
from halimede.errors import Error
from halimede.models.policies import ragged_of
from halimede.requests import NULL_REPLY, InferRequest, Parameters
from halimede.scheduling.execution import Execution, Outcome
from halimede.scheduling.inference import Inference
from halimede.scheduling.ragged import Ragged
from halimede.tensors import BY_NUMBER, Buffer, DataType, HostMemory, Shape, Tensor
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
from halimede.workers.child.channel import BaseChannel
from halimede.workers.child.requests import SEQUENCE_END, SEQUENCE_START
from halimede.workers.messages import code_of

ASK_AGAIN_SECONDS = 0.005
"""Seconds for which "not cancelled" is believed: a model may ask in a tight loop."""
CANCELLATION_POLL_SECONDS = 0.05
"""Seconds between two questions on behalf of `when_cancelled`."""

Execute = Callable[[Batch, Responses], None]


@dataclass(frozen=True, slots=True)
class HostedModel:
    """What reading and answering a batch needs of the model."""

    name: str
    datatypes: Mapping[str, DataType]
    decoupled: bool
    ragged: Ragged | None

    @classmethod
    def of(cls, config: ModelConfig) -> "HostedModel":
        types = {spec.name: spec.datatype for spec in config.model_outputs}
        return cls(config.name, types, config.decoupled, ragged_of(config))


class AnswerSender:
    """Sends the answers of one batch, and counts how far they are ahead of their readers.

    The batch refers to it and not the reverse. So a batch ends with its last reference, and its memory can be used
    again at once, without the garbage collector. Any thread.
    """

    def __init__(self, channel: BaseChannel, loop: asyncio.AbstractEventLoop, number: int, size: int) -> None:
        self.open = set(range(size))
        """The requests without their last answer."""
        self._channel = channel
        self._loop = loop
        self._number = number
        self._sending = Lock()
        self._finished = False
        self._sent = [0] * size
        self._taken = [0] * size
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    # ---- back-pressure

    def wait_for_room(self, i: int) -> None:
        """Blocks a thread that answers faster than the reader reads (G32). On the event loop nothing may block: a
        backend there asks by `on_writable`."""
        if not self.has_room(i) and not self._is_loop_thread():
            self._channel.wait_until(lambda: self.has_room(i))

    def _is_loop_thread(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def has_room(self, i: int) -> bool:
        return self._sent[i] - self._taken[i] < frames.WINDOW or i not in self.open

    def on_writable(self, i: int, resume: Callable[[], None]) -> None:
        if self.has_room(i):
            resume()
        else:
            self._waiting.setdefault(i, []).append(resume)

    def credited(self, i: int, taken: int) -> None:
        """On the thread that reads."""
        self._taken[i] = taken
        for resume in self._waiting.pop(i, ()) if self.has_room(i) else ():
            self._loop.call_soon_threadsafe(resume)

    # ---- cancellation

    def asks_cancelled(self, i: int) -> bool:
        """Asks the server whether the client of a request has gone. Blocks."""
        return i in self.open and bool(self._channel.ask(frames.IS_CANCELLED, self._number, i))

    def poll(self, request: "HostedRequest", tell: Callable[[], None]) -> None:
        """Calls `tell` on the event loop once the client has gone, unless all requests are answered before."""
        self._loop.call_soon_threadsafe(self._poll, request, tell)

    def _poll(self, request: "HostedRequest", tell: Callable[[], None]) -> None:
        # The loop waits for a round trip. It does nothing else, unless the backend is placed on it: then such a backend
        # is late by one round trip for each of these requests in each interval.
        if request.cancelled:
            tell()
        elif self.open:
            self._loop.call_later(CANCELLATION_POLL_SECONDS, self._poll, request, tell)

    # ---- answers

    def drain_single(self, execution: Execution) -> None:
        """Sends the one answer of each request when the batch has finished, and those that come later."""
        with self._sending:
            if execution.done:
                finished, self._finished = not self._finished, True
                self._send(execution, execution.single_answers(), finished)

    def drain_stream(self, execution: Execution) -> None:
        """Sends what was answered since, each answer in a frame of its own."""
        with self._sending:
            for outcome in execution.take():
                self._send(execution, [outcome], False)
            if execution.done and not self._finished:
                self._finished = True
                self._send(execution, [], True)
            if not self.open:
                self._channel.forget_credit(self._number)

    def _send(self, execution: Execution, outcomes: Sequence[Outcome], finished: bool) -> None:
        if not outcomes and not finished:
            return
        meta: list[bytes] = []
        tensors: list[Buffer] = []
        for outcome in outcomes:
            _write(outcome, meta, tensors)
            if outcome.final:
                self.open.discard(outcome.i)
        _, input_end, output_start, _ = execution.times()
        # An answer that is not the last counts by the bytes of its frame, on both sides: it must carry its tensors.
        segments = self._channel.segments if all(outcome.final for outcome in outcomes) else None
        buffers = frames.frame(
            *(frames.ANSWERS, meta, tensors, self._number, len(outcomes), frames.FINISHED if finished else 0),
            *((input_end, output_start), segments),
        )
        for outcome in outcomes:
            if not outcome.final:
                most_ahead = execution.requests[outcome.i].request.most_ahead
                self._sent[outcome.i] += frames.cost(sum(map(len, buffers)), most_ahead)
        self._channel.send(buffers)


class HostedRequest:
    """A `BatchedRequest`. Whether its client has gone is a question to the server."""

    __slots__ = ("_answers", "_ask_after", "_cancelled", "_index", "batch_size", "outputs", "request")

    def __init__(self, answers: AnswerSender, index: int, inference: Inference) -> None:
        self.request = inference.request
        self.batch_size = inference.batch_size
        self.outputs = inference.outputs
        self._answers = answers
        self._index = index
        self._cancelled = False
        self._ask_after = 0.0

    @property
    def cancelled(self) -> bool:
        """Any thread. Blocks for a round trip to the server, but not again at once."""
        now = monotonic()
        if not self._cancelled and now >= self._ask_after:
            self._cancelled = self._answers.asks_cancelled(self._index)
            self._ask_after = now + ASK_AGAIN_SECONDS
        return self._cancelled

    def when_cancelled(self, tell: Callable[[], None]) -> None:
        self._answers.poll(self, tell)


class HostedBatch:
    """The batch of a REQUESTS frame: a `Batch` and a `Responses` in one. Calls `ended` after the last answer of the
    batch has gone to the server."""

    def __init__(
        self,
        channel: BaseChannel,
        loop: asyncio.AbstractEventLoop,
        model: HostedModel,
        message: frames.Frame,
        ended: Callable[[], None],
    ) -> None:
        inferences = [_inference(message, model.name) for _ in range(message.count)]
        answers = self._answers = AnswerSender(channel, loop, message.batch, len(inferences))
        self.requests: Sequence[BatchedRequest] = [HostedRequest(answers, i, each) for i, each in enumerate(inferences)]
        rows = sum(each.batch_size for each in inferences)
        drain = answers.drain_stream if model.decoupled else answers.drain_single

        def notify(execution: Execution) -> None:
            drain(execution)
            if execution.done:
                ended()

        self._execution = Execution(inferences, rows, 0, model.datatypes, model.decoupled, notify)
        if model.ragged is not None:
            self._execution.ragged = model.ragged
        if model.decoupled:
            channel.take_credit(message.batch, answers.credited)

    def run(self, execute: Execute, finishes: bool) -> None:
        """Calls the backend. `finishes`: the batch has finished when the call returns."""
        self._execution.run(lambda _batch, _responses: execute(self, self), finishes)

    # ---- Batch

    def arrays(self) -> Arrays:
        return self._execution.arrays()

    def parts(self, name: str) -> Sequence[Tensor]:
        return self._execution.parts(name)

    def shape(self, name: str) -> Shape:
        return self._execution.shape(name)

    def gather(self, name: str, into: HostArray | DeviceArray, device: Device | None = None) -> None:
        self._execution.gather(name, into, device)

    def arrays_of(self, i: int) -> Arrays:
        return self._execution.arrays_of(i)

    # ---- Responses

    def send(
        self, i: int, outputs: Sequence[Tensor] | None, final: bool = True, parameters: Parameters | None = None
    ) -> None:
        if not final:
            self._answers.wait_for_room(i)
        self._execution.send(i, outputs, final, parameters)

    def fail(self, i: int, error: Error, final: bool = True) -> None:
        if not final:
            self._answers.wait_for_room(i)
        self._execution.fail(i, error, final)

    def fail_all(self, error: Exception) -> None:
        self._execution.fail_all(error)

    def again(self, i: int) -> None:
        self._execution.again(i)

    def scatter(self, outputs: Mapping[str, Any], device: Device | None = None) -> None:
        self._execution.scatter(outputs, device)

    def scatter_to(self, i: int, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        self._execution.scatter_to(i, outputs)

    def compute_times(self, input_end: int, output_start: int) -> None:
        self._execution.compute_times(input_end, output_start)

    def promise(self, later: Collection[int]) -> None:
        self._execution.promise(later)

    def finished(self, later: Collection[int] = ()) -> None:
        self._execution.finished(later)

    def on_writable(self, i: int, resume: Callable[[], None]) -> None:
        self._answers.on_writable(i, resume)


def _inference(message: frames.Frame, model: str) -> Inference:
    """The next request of a frame. Raises what `frames.MALFORMED` lists."""
    # A frame has no priority, which only orders the server's queue.
    correlation, timeout, flags, length, form = message.unpack(REQUEST_RECORD)
    request = InferRequest(model)
    request.id = message.raw(length).decode()
    request.timeout_us = timeout
    request.sequence_start = flags & SEQUENCE_START != 0
    request.sequence_end = flags & SEQUENCE_END != 0
    request.correlation_id = message.text() if flags & TEXT_CORRELATION else correlation
    request.parameters = message.parameters() if flags & ASKED_WITH else None
    if flags & LIMITED:
        (request.most_ahead,) = message.unpack(frames.NUMBER)
    if flags & TRACED:  # the server writes the trace; a backend that calls no models has no use for it
        message.unpack(frames.NUMBER)
        message.text()
    rows = message.unpack(frames.NUMBER)[0] if flags & HAS_ROWS else 0
    outputs, inputs = message.form(form)
    request.inputs = {
        name: Tensor(name, BY_NUMBER[number], shape, HostMemory(view)) for name, number, shape, view in inputs
    }
    return Inference(0, request, NULL_REPLY, rows, outputs)


def _write(outcome: Outcome, meta: list[bytes], tensors: list[Buffer]) -> None:
    """Adds an answer to the parts of a frame."""
    final, answer = FINAL if outcome.final else 0, outcome.answer
    if isinstance(answer, Error):
        text = frames.cut(answer.message).encode("utf-8", "replace")
        meta += [ANSWER_RECORD.pack(outcome.i, final | IS_ERROR, code_of(answer), 0, len(text)), text]
        return
    if answer is None:
        again = AGAIN if outcome.again else 0
        meta.append(ANSWER_RECORD.pack(outcome.i, FINAL | NOTHING | again, 0, 0, 0))
        return
    records = b""
    for tensor in answer:
        view = tensor.memory.host()
        records += frames.tensor_record(tensor.name, tensor.datatype.number, tensor.shape, len(view))
        tensors.append(view)
    flags = final | (ANSWERED_WITH if outcome.parameters else 0)
    meta.append(ANSWER_RECORD.pack(outcome.i, flags, 0, len(answer), len(records)))
    if outcome.parameters:
        meta.append(frames.parameters_record(outcome.parameters))
    meta.append(records)
