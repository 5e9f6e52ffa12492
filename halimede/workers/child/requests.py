"""The requests of a batch as a model sees them, and the senders that answer them (P43, P44, P48).

They know their batch as a `RequestBatch` and other models as `Calls`. Senders may be used on any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Union

from .signatures import (
    INT64,
    MISSING,
    MODULE,
    NO_CAST,
    UINT32,
    UINT64,
    Refused,
    constructor,
    flag,
    integer,
    items,
    native,
    refusal,
    text,
)
from .values import (
    InferenceResponse,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    Tensor,
    TritonModelException,
    checked_parameters,
)

if TYPE_CHECKING:
    import asyncio  # at run time, most models never need it


class RequestBatch(Protocol):
    """What a request knows of its batch. `index` is its place there."""

    @property
    def decoupled(self) -> bool: ...
    def answer(self, index: int, response: InferenceResponse | None, final: bool) -> None:
        """Sends a response; with None (only if `final`) no more come."""

    def given_up(self, index: int) -> None:
        """The model dropped the sender. Called by a finalizer."""

    def is_cancelled(self, index: int) -> bool: ...
    def run_again(self, index: int, wanted: bool) -> None: ...


class Calls(Protocol):
    """What carries a request to another model: `calls.ModelCaller`."""

    def execute(self, request: InferenceRequest, streamed: bool, /) -> Answered: ...
    def execute_async(self, request: InferenceRequest, streamed: bool, /) -> asyncio.Future[Any]: ...


Answered = Union[InferenceResponse, Iterator[InferenceResponse]]
"""One response of another model, or all of them one after the other."""

SEQUENCE_START, SEQUENCE_END = 1, 2
FINAL = 1
RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2


_SEND = f"(self: {MODULE}.InferenceResponseSender, response: {MODULE}.InferenceResponse = None, flags: int = 0) -> None"


class InferenceResponseSender:
    """Answers one request, during `execute` or after it, on any thread (P48).

    If the model drops it before the last answer, the request ends without one.
    """

    __slots__ = ("__weakref__", "_answered", "_batch", "_closed", "_index")

    def __init__(self, batch: RequestBatch, index: int) -> None:
        self._batch = batch
        self._index = index
        self._answered = False
        self._closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Sends the response; the flag FINAL may come with it or alone after it. Raises TritonModelException."""
        known = response is None or isinstance(response, InferenceResponse)
        if not known or type(flags) is not int or not 0 <= flags <= FINAL:
            flags = self._number(response, flags, known)
        self._check(response, flags)
        decoupled = self._batch.decoupled
        if not decoupled:
            self._check_single(response)
        if decoupled or response is not None:
            self._batch.answer(self._index, response, flags == FINAL or not decoupled)
        self._answered = True
        self._closed = flags == FINAL

    def _number(self, response: Any, flags: Any, known: bool) -> int:
        """The flags as a number. Raises TypeError if they are none, or the response is none."""
        if known:
            with suppress(Refused):
                return integer(flags, UINT32)
        named = {} if type(flags) is int and not flags else {"flags": flags}
        raise refusal("send", _SEND, (self, response), named)

    def _check(self, response: InferenceResponse | None, flags: int) -> None:
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if flags not in (0, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )

    def _check_single(self, response: InferenceResponse | None) -> None:
        if response is None and not self._answered:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )
        if response is not None and self._answered:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )

    def is_cancelled(self) -> bool:
        """Whether the client has gone; the request must be answered all the same (P82)."""
        return self._batch.is_cancelled(self._index)

    def __del__(self) -> None:
        if not self._closed:
            self._batch.given_up(self._index)


def _tensor_or_none(tensor: Any) -> Any:
    if tensor is None or isinstance(tensor, Tensor):
        return tensor
    raise Refused


def _correlation_id(value: Any) -> int | str:
    try:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, int):
            return integer(value, UINT64)
    except Refused:
        raise RuntimeError(NO_CAST) from None
    raise TritonModelException("Correlation ID must be integer or string")


_PREFERRED, _NO_TRACE = PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU), InferenceTrace()
_SET = f"(self: {MODULE}.InferenceRequest, arg0: int) -> None"
_CALL = f"(self: {MODULE}.InferenceRequest, decoupled: bool = False) -> object"


class InferenceRequest:
    """A request of a client, or one that a model makes to call another model (P43, P44)."""

    __slots__ = (
        "__weakref__",
        "_batch",
        "_correlation_id",
        "_flags",
        "_id",
        "_index",
        "_inputs",
        "_outputs",
        "_parameters",
        "_sender",
        "_timeout",
        "_trace",
        "model_name",
        "model_version",
        "preferred_memory",
    )

    _caller: ClassVar[Calls | None] = None
    """What carries calls to other models; none while a configuration is completed."""

    _batch: RequestBatch | None
    _inputs: list[Tensor]
    _outputs: tuple[str, ...]
    _parameters: dict[str, Any] | None
    _sender: InferenceResponseSender | None
    _trace: InferenceTrace | None

    @constructor(
        "InferenceRequest(request_id: str = '', correlation_id: object = 0, inputs: "
        "List[triton::backend::python::PbTensor], requested_output_names: List[str], model_name: str, "
        "model_version: int = -1, flags: int = 0, timeout: int = 0, "
        f"preferred_memory: {MODULE}.PreferredMemory = <{MODULE}.PreferredMemory object at {id(_PREFERRED):#x}>, "
        f"trace: {MODULE}.InferenceTrace = <{MODULE}.InferenceTrace object at {id(_NO_TRACE):#x}>, "
        "parameters: object = None)"
    )
    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = MISSING,
        requested_output_names: Sequence[str] = MISSING,
        model_name: str = MISSING,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _PREFERRED,
        trace: InferenceTrace = _NO_TRACE,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        tensors = [_tensor_or_none(tensor) for tensor in items(inputs)]
        outputs = tuple(text(name) for name in items(requested_output_names))
        if not isinstance(preferred_memory, PreferredMemory) or not isinstance(trace, InferenceTrace):
            raise Refused
        self._id = request_id = text(request_id)
        self.model_name = model_name = text(model_name)
        self.model_version = integer(model_version, INT64)
        self._flags = integer(flags, UINT32)
        self._timeout = integer(timeout, UINT64)
        if correlation_id is None:
            raise Refused
        self._parameters = checked_parameters(parameters)
        self._correlation_id = _correlation_id(correlation_id)
        if None in tensors:
            raise TritonModelException(
                f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be empty."
            )
        if "" in outputs:
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model name '{model_name}' should not be "
                "empty."
            )
        self._inputs = tensors
        self._outputs = outputs
        self.preferred_memory = preferred_memory
        self._trace = trace
        self._sender = None
        self._batch = None
        self._index = 0

    @classmethod
    def received(cls, batch: RequestBatch, index: int) -> InferenceRequest:
        """The request `index` of a batch. The caller fills its fields from the frame."""
        request = cls.__new__(cls)
        request._batch = batch
        request._index = index
        request._trace = None
        # Made at once: if the model drops a decoupled request, its sender goes too, and the request ends.
        request._sender = InferenceResponseSender(batch, index) if batch.decoupled else None
        return request

    def inputs(self) -> list[Tensor]:
        return list(self._inputs)

    def find_input(self, name: str) -> Tensor | None:
        for tensor in self._inputs:
            if tensor._name == name:
                return tensor
        return None

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    @native(_SET)
    def set_flags(self, flags: int, /) -> None:
        self._flags = integer(flags, UINT32)

    def timeout(self) -> int:
        """Microseconds; 0 if the client gave none."""
        return self._timeout

    def parameters(self) -> str:
        """The request's own parameters as a JSON object (P80); of a request that a model makes in Python's
        own form."""
        if self._batch is None:
            return json.dumps(self._parameters or {})
        return json.dumps(self._parameters or {}, separators=(",", ":"), ensure_ascii=False)

    def requested_output_names(self) -> set[str]:
        return set(self._outputs)

    def trace(self) -> InferenceTrace:
        return self._trace or InferenceTrace()

    def get_response_sender(self) -> InferenceResponseSender:
        if self._sender is None:
            if self._batch is None:
                raise TritonModelException("Only a request that execute was called with has a response sender.")
            self._sender = InferenceResponseSender(self._batch, self._index)
        return self._sender

    def is_cancelled(self) -> bool:
        """Whether the client has gone; the request must be answered all the same (P82)."""
        if self._batch is None:
            raise TritonModelException("Only a request that execute was called with can be cancelled.")
        return self._batch.is_cancelled(self._index)

    @native(_SET)
    def set_release_flags(self, flags: int, /) -> None:
        """With RELEASE_RESCHEDULE the request runs once more after this `execute` (P49)."""
        flags = integer(flags, UINT32)
        if self._batch is not None:
            self._batch.run_again(self._index, flags & RELEASE_RESCHEDULE != 0)

    @native(_CALL)
    def exec(self, decoupled: bool = False) -> Answered:
        """The response of another model, which may be an error; with `decoupled`, an iterator over its responses (P50,
        P51). Blocks. Any thread."""
        return self._carrier().execute(self, flag(decoupled))

    @native(_CALL)
    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Answered]:
        """A future, on the running loop, of the response of another model (P52)."""
        return self._carrier().execute_async(self, flag(decoupled))

    def _carrier(self) -> Calls:
        if self._caller is None:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        return self._caller
