"""One batch of a Python model that runs in this process.

Requests are views of what the clients sent. Answers are the model's own arrays, unless the model can still change them.
`workers.calls` knows this batch too: the inferences in it, and the calls made for it. Senders may use it on any thread,
also after `execute` returned.

| state | fields | ends with |
|---|---|---|
| running | `running` True | `ended`: `execute` has returned |
| returned | `running` False, `_owed` not empty | the last answer of the last request |
| over | `_owed` empty | `over` was called, and the requests were released |
"""

from collections.abc import Callable, Collection, Sequence
from sys import getrefcount
from time import monotonic_ns
from typing import Any

import numpy as np

from halimede.backends.api import BatchedRequest, Responses
from halimede.errors import Error
from halimede.requests import Parameters
from halimede.tensors import BF16, BY_NUMBER, BYTES, HostMemory, MemoryKind, Tensor
from halimede.workers.calls import ModelCall
from halimede.workers.child.batch import answered_too_soon
from halimede.workers.child.requests import SEQUENCE_END, SEQUENCE_START, InferenceRequest
from halimede.workers.child.values import InferenceResponse, InferenceTrace, TritonModelException
from halimede.workers.child.values import Tensor as ModelTensor
from halimede.workers.messages import ERRORS

SHARED = MemoryKind.SHARED

__tracebackhide__ = True
"""Frames of this module are left out of the exceptions of models."""


class InProcessBatch:
    """See the table above. `over` is called once or more often at the end. `decoupled`: each request may have any
    number of answers."""

    __slots__ = (
        "__weakref__",
        "_again",
        "_begin",
        "_over",
        "_owed",
        "_responses",
        "calls",
        "decoupled",
        "requests",
        "running",
    )

    def __init__(
        self,
        requests: Sequence[BatchedRequest],
        responses: Responses,
        decoupled: bool,
        over: Callable[[], object],
    ) -> None:
        self._again: frozenset[int] = frozenset()
        self.decoupled = decoupled
        self.requests = requests
        self.running = True
        self.calls: dict[int, ModelCall] | None = None
        self._begin = 0
        self._responses = responses
        self._over = over
        self._owed = set(range(len(requests)))

    @property
    def waits_for(self) -> Collection[ModelCall]:
        return self.calls.values() if self.calls else ()

    # ---- in

    def opened(self, kind: type[InferenceRequest]) -> list[InferenceRequest]:
        """The requests for the model. A request with a tensor that the host cannot read fails alone."""
        found = []
        for i, one in enumerate(self.requests):
            try:
                found.append(_received(kind, self, i, one))
            except Error as error:
                self._owed.discard(i)
                self._responses.fail(i, error)
        self._begin = monotonic_ns()
        return found

    # ---- out: called by requests and senders (`RequestBatch`)

    def answer(self, index: int, response: InferenceResponse | None, final: bool) -> None:
        """Sends an answer. Blocks while the client does not read the answers before it. Raises TritonModelException if
        the request has its last answer already."""
        requests = self.requests  # first: another thread may answer the last request and release them
        if index not in self._owed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        outputs = _written(requests[index], response)
        if final:
            self._owed.discard(index)
        self._send(index, response, outputs, final)
        if final:
            self._settle()

    def given_up(self, index: int) -> None:
        """The model dropped the sender of this request: it ends as if the model had sent FINAL. In a model that is not
        decoupled, `execute` may still return the answer. Called by a finalizer, on any thread."""
        if index in self._owed and (self.decoupled or not self.running):
            self._owed.discard(index)
            self._responses.send(index, None)
            self._settle()

    def run_again(self, index: int, wanted: bool) -> None:
        """Says whether the request must run once more (P49). The server learns it when `execute` returns, or now if it
        has returned."""
        self._again = self._again | {index} if wanted else self._again - {index}
        if wanted and self.decoupled and not self.running:
            self._tell_again()

    def _tell_again(self) -> None:
        for index in sorted(self._again & self._owed):
            self._owed.discard(index)
            self._responses.again(index)
            self._settle()

    def is_cancelled(self, index: int) -> bool:
        """Whether the client has gone; False for a request that is over."""
        requests = self.requests
        return index < len(requests) and requests[index].cancelled

    # ---- out: how `execute` ended

    def returned(self, requests: Sequence[InferenceRequest], responses: Sequence[InferenceResponse | None]) -> None:
        """Sends what `execute` returned, one response or None per request. Requests whose senders the model took may be
        answered later; the others without a response end without one. Raises what an output raises that cannot be
        written."""
        self._responses.compute_times(self._begin, monotonic_ns())
        for request, response in zip(requests, responses, strict=True):
            if request._index in self._again and response is not None:
                raise TritonModelException(answered_too_soon(response))
        self._tell_again()
        later = []
        for request, response in zip(requests, responses, strict=True):
            index = request._index
            if index not in self._owed:
                continue
            if response is None and request._sender is not None:
                later.append(index)
                continue
            outputs = _written(self.requests[index], response)
            self._owed.discard(index)
            self._send(index, response, outputs, True)
        if later:
            self._responses.promise(later)

    def handed_over(self) -> None:
        """`execute` of a decoupled model returned; its senders may go on."""
        self._responses.compute_times(self._begin, monotonic_ns())
        self._tell_again()

    def failed(self, error: Error) -> None:
        """Fails every request without its last answer."""
        for index in sorted(self._owed):
            self._owed.discard(index)
            self._responses.fail(index, error)
        self._settle()

    def ended(self) -> None:
        """`execute` is over, and so are the requests that it did not promise to answer later."""
        self.running = False
        self._settle()

    def _settle(self) -> None:
        """Releases the requests of the server at the end: the model may keep its own as long as it likes."""
        if not self.running and not self._owed:
            self.requests = ()
            self._over()

    def _send(self, index: int, response: InferenceResponse | None, outputs: list[Tensor] | None, final: bool) -> None:
        if response is None:
            self._responses.send(index, None)
        elif response._error is not None:
            error = response._error
            self._responses.fail(index, ERRORS[error.code()](encodable(error.message())), final)
        else:
            parameters = response._parameters
            self._responses.send(index, outputs, final, _encodable(parameters) if parameters else None)


def _received(kind: type[InferenceRequest], batch: InProcessBatch, i: int, one: BatchedRequest) -> InferenceRequest:
    asked = one.request
    request = kind.received(batch, i)
    request._id = asked.id
    request._flags = (SEQUENCE_START if asked.sequence_start else 0) | (SEQUENCE_END if asked.sequence_end else 0)
    request._correlation_id = asked.correlation_id
    request._timeout = asked.timeout_us
    request._parameters = asked.parameters
    if asked.trace is not None:
        request._trace = InferenceTrace.received(asked.trace.id, asked.trace.context)
    request._outputs = tuple(one.outputs)
    request._inputs = [_input(tensor) for tensor in asked.inputs.values()]
    return request


def _input(tensor: Tensor) -> ModelTensor:
    """A view of request memory. A model may write into its inputs, so unaligned tensors and read-only memory are
    copied. Transports align large tensors, so these copies are small. Shared memory of a client may be large: its views
    stay read-only and are not copied."""
    memory, datatype, shape = tensor.memory, tensor.datatype, tensor.shape
    view = memory.host()
    found = ModelTensor.received(tensor.name, datatype.number, shape, view)
    if datatype is not BYTES and datatype is not BF16:
        array: np.ndarray[Any, Any] = np.ndarray(shape, datatype.numpy, view)
        if not array.flags.aligned or (view.readonly and memory.kind is not SHARED):
            array = array.copy()
        found._array, found._view = array, None
    return found


def _written(request: BatchedRequest, response: InferenceResponse | None) -> list[Tensor] | None:
    """The outputs that the request asked for (P75). They belong to the server from now on."""
    if response is None or response._error is not None:
        return None
    wanted = request.outputs
    return [
        Tensor(tensor._name, BY_NUMBER[tensor._number], tensor._shape, HostMemory(_bytes_to_keep(tensor)))
        for tensor in response._tensors
        if tensor._name in wanted
    ]


def _bytes_to_keep(tensor: ModelTensor) -> Any:
    """The bytes of an output as they are now. The server writes them later, when the model may have filled its array
    again: an array that the model can still reach is copied."""
    if tensor._view is not None:
        return tensor._view
    if not tensor.is_cpu():  # its payload is a copy already
        return tensor.payload()
    shared = _is_shared(tensor)
    payload = tensor.payload()
    return payload.copy() if shared and isinstance(payload, np.ndarray) else payload


def _is_shared(tensor: ModelTensor) -> bool:
    """Whether anything besides the tensor refers to its array, or to the memory that the array views."""
    array_references, base_references = _references(tensor)
    if array_references > _ALONE[0]:
        return True
    base = tensor.as_numpy().base
    if base is None:
        return not tensor.as_numpy().flags.owndata
    return type(base) is not np.ndarray or not base.flags.owndata or base_references > _ALONE[1]


def _references(tensor: ModelTensor) -> tuple[int, int]:
    """The numbers of references to the array and to its base."""
    base = tensor.as_numpy().base
    return getrefcount(tensor.as_numpy()), getrefcount(base)


_ALONE = _references(ModelTensor("alone", np.zeros(2)[1:]))
"""The numbers, in this Python, for an array to which nothing but its tensor refers."""


def encodable(text: str) -> str:
    """The text with question marks instead of lone surrogates, which a model can make."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _encodable(parameters: Parameters) -> Parameters:
    return {
        encodable(name): encodable(value) if isinstance(value, str) else value for name, value in parameters.items()
    }
