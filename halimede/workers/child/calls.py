"""The child's end of calls to other models (P28 to P30, P50 to P54): a request goes out, its answers come in.

Any thread may call; any number of calls may be open. A thread that waits reads for all (`channel`). A coroutine that
waits has its event loop read when bytes arrive.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

from . import frames
from .batch import ANSWER_RECORD, ANSWERED_WITH, ASKED_WITH, IS_ERROR, NOTHING, SEQUENCE_FLAGS, TEXT_CORRELATION, TRACED
from .channel import BaseChannel
from .metric_frames import ServerMetrics
from .requests import InferenceRequest
from .signatures import NO_CAST, Refused, compiled_name, flag, text
from .values import ErrorCode, InferenceResponse, Tensor, TritonError, TritonModelException

if TYPE_CHECKING:
    import asyncio

CALL_RECORD = struct.Struct("<QQQqBHI")
"""Number of the batch for which the call is made (0: none), correlation id, timeout (us), version, flags, count of
inputs, length of the request id."""

NOT_HERE = "BLS is only supported during the 'execute' function."
_UINT8 = 2


def write_call(request: InferenceRequest, model: str, batch: int, meta: list[bytes], tensors: list[Any]) -> None:
    """Adds a call to the parts of a frame. The records that describe its form come last. Raises struct.error for a
    number that no request can have."""
    name = request._id.encode("utf-8", "replace")
    flags, number, texts = request._flags & SEQUENCE_FLAGS, request._correlation_id, [name, _model_record(model)]
    if isinstance(number, str):
        flags |= TEXT_CORRELATION
        texts.append(frames.text_record(number))
        number = 0
    if request._parameters:
        flags |= ASKED_WITH
        texts.append(frames.parameters_record(request._parameters))
    trace = request._trace
    if trace is not None and trace._id:
        flags |= TRACED
        texts.append(frames.NUMBER.pack(trace._id))
    version = getattr(request, "model_version", -1)
    meta.append(CALL_RECORD.pack(batch, number, request._timeout, version, flags, len(request._inputs), len(name)))
    meta += texts
    meta.append(frames.names_record(request._outputs))
    for tensor in request._inputs:
        payload = tensor.payload()
        meta.append(frames.tensor_record(tensor._name, tensor._number, tensor._shape, len(payload)))
        tensors.append(payload)


_model_record = lru_cache(maxsize=256)(frames.text_record)


def read_answer(message: frames.Frame) -> InferenceResponse:
    """The response of a frame; an empty one if no more come. Raises what `frames.MALFORMED` lists."""
    _, flags, code, outputs, length = message.unpack(ANSWER_RECORD)
    if flags & IS_ERROR:
        return InferenceResponse(error=TritonError(message.raw(length).decode(), ErrorCode(code)))
    if flags & NOTHING:
        return InferenceResponse()
    parameters = message.parameters() if flags & ANSWERED_WITH else None
    return InferenceResponse([Tensor.received(*message.tensor()) for _ in range(outputs)], None, parameters)


class PendingCall:
    """A call without its last answer. `answers` have arrived and were not taken. The thread that reads calls
    `on_answer` at each. `taken` is what the answers taken so far cost; the server gets a CREDIT when it reaches
    `due`."""

    __slots__ = ("answers", "due", "number", "on_answer", "taken")

    def __init__(self, number: int, on_answer: Callable[[], None] | None) -> None:
        self.number = number
        self.on_answer = on_answer
        self.answers: deque[frames.Frame] = deque()
        self.taken = 0
        self.due = frames.CREDIT_STEP

    def arrived(self, answer: frames.Frame) -> None:
        self.answers.append(answer)
        if self.on_answer is not None:
            self.on_answer()


class ResponseIterator:
    """The responses of one call, as they arrive. After the last one, iteration starts again with the first (P50).

    If the iterator is dropped, the inference goes on and its answers are ignored.
    """

    __slots__ = ("_at", "_call", "_caller", "_finished", "_line", "_responses")

    def __init__(self, caller: ModelCaller, call: PendingCall) -> None:
        self._caller = caller
        self._call = call
        self._responses: list[InferenceResponse] = []
        self._at = 0
        self._finished = False
        self._line = Lock()

    def __iter__(self) -> ResponseIterator:
        if self._finished and self._at == len(self._responses):
            self._at = 0
        return self

    def __next__(self) -> InferenceResponse:
        with self._line:
            if self._at == len(self._responses):
                if self._finished:
                    raise StopIteration("Iteration is done for the responses.")
                answer = self._caller.next_answer(self._call)
                self._finished = answer.flags & frames.FINISHED != 0
                self._responses.append(read_answer(answer))
            self._at += 1
            return self._responses[self._at - 1]

    def cancel(self) -> None:
        """Asks the server to cancel the inference, which then ends with an error as its last response."""
        if not self._finished:
            self._caller.cancel(self._call)

    def __del__(self) -> None:
        if not self._finished:
            self._caller.leave(self._call)


class _Listener:
    """Has an asyncio loop read while coroutines of it wait for answers. On that loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: BaseChannel) -> None:
        self.loop = loop
        self.thread = get_ident()
        self._channel = channel
        self._waiting = 0

    def begin(self) -> None:
        """One more coroutine waits. Raises OSError if the system has no descriptor left; then it does not."""
        if not self._waiting:
            self._channel.watched_by(self.loop)
        self._waiting += 1

    def end(self) -> bool:
        """One coroutine fewer waits. Returns whether it was the last."""
        self._waiting -= 1
        if not self._waiting and not self.loop.is_closed():
            self._channel.unwatched_by(self.loop)
        return not self._waiting


def _path(key: Any) -> str:
    try:
        return text(key)
    except Refused:
        raise RuntimeError(NO_CAST) from None


class ModelCaller:
    """The calls and metrics of an instance. `name` is its model, `instance` the instance. After `close`, in `finalize`,
    calls are refused: the models that they name may be unloaded already."""

    def __init__(self, channel: BaseChannel, name: str, instance: str = "") -> None:
        self.metrics = ServerMetrics(channel, instance or name)
        self._channel = channel
        self._name = name
        self._batch: ContextVar[int] = ContextVar("batch", default=0)
        self._listeners: dict[asyncio.AbstractEventLoop, _Listener] = {}
        self._closed = False

    def serves(self, batch: int) -> None:
        """From now on this thread works for this batch, and so do the coroutines that it starts."""
        self._batch.set(batch)

    def close(self) -> None:
        self._closed = True

    # ---- inference

    def execute(self, request: InferenceRequest, streamed: bool) -> InferenceResponse | ResponseIterator:
        """The response, which may be an error. If `streamed`, an iterator over the responses, at once. Raises
        TritonModelException if the request cannot be sent."""
        call = self._begin(request, streamed, None)
        if streamed:
            return ResponseIterator(self, call)
        try:
            self._channel.wait_until(lambda: bool(call.answers))
        except BaseException:
            self._give_up(call)
            raise
        return read_answer(call.answers.popleft())

    def execute_async(
        self, request: InferenceRequest, streamed: bool
    ) -> asyncio.Future[InferenceResponse | ResponseIterator]:
        """A future, on the running loop, of the response; if `streamed`, of an iterator that has its first response. To
        cancel the future cancels the call. Raises RuntimeError if no loop runs."""
        import asyncio  # most models are not asynchronous

        loop = asyncio.get_running_loop()
        listener = self._listeners.get(loop) or _Listener(loop, self._channel)
        future = loop.create_future()

        def settle() -> None:
            call.on_answer = None
            if future.done():
                return
            try:
                future.set_result(ResponseIterator(self, call) if streamed else read_answer(call.answers.popleft()))
            except Exception as error:
                future.set_exception(error)

        def on_answer() -> None:
            if get_ident() == listener.thread:
                settle()
                return
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(settle)

        def over(_: object) -> None:
            call.on_answer = None
            if listener.end():
                self._listeners.pop(loop, None)
            if future.cancelled():
                self._give_up(call)

        call = self._begin(request, streamed, on_answer)
        listener.begin()
        self._listeners[loop] = listener
        future.add_done_callback(over)
        return future

    def _begin(self, request: InferenceRequest, streamed: bool, on_answer: Callable[[], None] | None) -> PendingCall:
        if self._closed:
            raise TritonModelException(NOT_HERE)
        call = PendingCall(self._channel.new_number(), on_answer)
        meta: list[bytes] = []
        tensors: list[Any] = []
        try:
            write_call(request, getattr(request, "model_name", self._name), self._batch.get(), meta, tensors)
        except struct.error as error:
            raise TritonModelException(f"The inference request cannot be sent: {error}") from error
        self._channel.expect(call.number, call.arrived)
        flags = frames.STREAMED if streamed else 0
        self._channel.send(frames.frame(frames.CALL, meta, tensors, call.number, 1, flags))
        return call

    def next_answer(self, call: PendingCall) -> frames.Frame:
        """Blocks until there is an answer. Sends a CREDIT each time that CREDIT_STEP bytes were taken."""
        if not call.answers:
            self._channel.wait_until(lambda: bool(call.answers))
        answer = call.answers.popleft()
        call.taken += frames.cost(len(answer.data), 0)
        if call.taken >= call.due and not answer.flags & frames.FINISHED:
            call.due = call.taken + frames.CREDIT_STEP
            self._channel.send(frames.frame(frames.CREDIT, [frames.NUMBER.pack(call.taken)], None, call.number))
        return answer

    def cancel(self, call: PendingCall) -> None:
        with suppress(OSError):  # the server is gone
            self._channel.send(frames.frame(frames.CANCEL_CALL, [], None, call.number))

    def _give_up(self, call: PendingCall) -> None:
        self._channel.expect_no_more(call.number)
        self.cancel(call)

    def leave(self, call: PendingCall) -> None:
        """The answers are ignored from now on. Called by a finalizer."""
        self._channel.expect_no_more(call.number)
        with suppress(OSError):
            self._channel.send_from_finaliser(
                frames.frame(frames.CANCEL_CALL, [], None, call.number, 0, frames.LET_RUN)
            )

    # ---- models

    def load_model(self, model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
        """Loads a model (P28). Blocks until it serves. Raises TritonModelException."""
        model_name, config = text(model_name), text(config)
        if files is not None and not isinstance(files, dict):
            raise TritonModelException(
                f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
            )
        meta, contents = [frames.text_record(config)], []
        for path, content in (files or {}).items():
            if not isinstance(content, bytes):
                raise TypeError(f"Object of type '{compiled_name(type(content))}' is not an instance of 'bytes'")
            contents.append(content)
            meta.append(frames.tensor_record(_path(path), _UINT8, (len(content),), len(content)))
        self._ask(frames.LOAD, "Failed to load model: ", model_name, meta, contents, len(contents))

    def unload_model(self, model_name: str, unload_dependents: bool = False) -> None:
        """Unloads a model (P29). Returns when it takes no more requests. Raises TritonModelException."""
        dependents = int(flag(unload_dependents))
        self._ask(frames.UNLOAD, "Failed to unload model: ", text(model_name), [], [], dependents)

    def is_model_ready(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model takes requests (P30). Raises TritonModelException for a version that is no number."""
        version = frames.text_record(text(model_version))
        return bool(self._ask(frames.IS_READY, "Failed to check model readiness: ", text(model_name), [version], []))

    def _ask(self, what: int, failed: str, name: str, meta: list[bytes], contents: list[bytes], index: int = 0) -> int:
        if self._closed:
            raise TritonModelException(failed + "the model is being unloaded")
        reply = self._channel.question(what, 0, index, [frames.text_record(name), *meta], contents)
        if reply.flags & frames.REFUSAL:
            raise TritonModelException(failed + reply.rest().decode())
        answer: int = reply.count
        return answer
