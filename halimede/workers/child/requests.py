"""The requests of a batch as a model sees them, and the senders that answer them (P43, P44, P48).

They know their batch as a `RequestBatch` and other models as `Calls`. Senders may be used on any thread.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Union

from .values import InferenceResponse, InferenceTrace, PreferredMemory, Tensor, TritonModelException, checked_parameters

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
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send(response: InferenceResponse = None, flags: int = 0), not {type(response)}")
        self._check(response, flags)
        decoupled = self._batch.decoupled
        if not decoupled:
            self._check_single(response)
        if decoupled or response is not None:
            self._batch.answer(self._index, response, flags == FINAL or not decoupled)
        self._answered = True
        self._closed = flags == FINAL

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

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Iterable[Tensor] | None = None,
        requested_output_names: Iterable[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError("InferenceRequest needs inputs, requested_output_names and model_name")
        if not isinstance(preferred_memory, (PreferredMemory, type(None))):
            raise TypeError(f"InferenceRequest takes a PreferredMemory here, not {preferred_memory!r}")
        if not isinstance(trace, (InferenceTrace, type(None))):
            raise TypeError(f"InferenceRequest takes an InferenceTrace here, not {trace!r}")
        for text in (request_id, model_name):
            if not isinstance(text, str):
                raise TypeError(f"InferenceRequest takes a str here, not {text!r}")
        model_version, flags, timeout = map(operator.index, (model_version, flags, timeout))  # numpy's too
        if flags < 0 or timeout < 0:
            raise TypeError(f"InferenceRequest takes no negative flags or timeout: {flags}, {timeout}")
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        tensors = list(inputs)
        for tensor in tensors:
            if tensor is None:
                raise TritonModelException(
                    f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be "
                    "empty."
                )
            if not isinstance(tensor, Tensor):
                raise TypeError(f"inputs must be Tensor objects, not {type(tensor)}")
        outputs = () if isinstance(requested_output_names, str) else tuple(requested_output_names)
        if isinstance(requested_output_names, str) or not all(isinstance(name, str) for name in outputs):
            raise TypeError(f"requested_output_names must be a list of names, not {requested_output_names!r}")
        if "" in outputs:
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model name '{model_name}' should not be "
                "empty."
            )
        self._id = request_id
        self._correlation_id = correlation_id
        self._inputs = tensors
        self._outputs = outputs
        self.model_name = model_name
        self.model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self.preferred_memory = preferred_memory
        self._trace = trace
        self._parameters = checked_parameters(parameters)
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

    def set_flags(self, flags: int) -> None:
        flags = operator.index(flags)
        if flags < 0:
            raise TypeError(f"set_flags(flags: int), not {flags!r}")
        self._flags = flags

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

    def set_release_flags(self, flags: int) -> None:
        """With RELEASE_RESCHEDULE the request runs once more after this `execute` (P49)."""
        flags = operator.index(flags)
        if self._batch is not None:
            self._batch.run_again(self._index, flags & RELEASE_RESCHEDULE != 0)

    def exec(self, decoupled: bool = False) -> Answered:
        """The response of another model, which may be an error; with `decoupled`, an iterator over its responses (P50,
        P51). Blocks. Any thread."""
        return self._carrier().execute(self, bool(decoupled))

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Answered]:
        """A future, on the running loop, of the response of another model (P52)."""
        return self._carrier().execute_async(self, bool(decoupled))

    def _carrier(self) -> Calls:
        if self._caller is None:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        return self._caller
