"""Control tensors, which describe a sequence to its model, and null requests, which fill the rows of slots without a
request (S58, S59, S61). Loop thread.
"""

from math import prod
from typing import Protocol

from halimede.errors import Error, Invalid
from halimede.requests import NULL_REPLY, InferRequest
from halimede.scheduling.flow import Flow
from halimede.scheduling.inference import SETTLED, Inference
from halimede.tensors import BYTES, DataType, HostMemory, Shape, Tensor, join_bytes

_UINT64_MAX = 2**64 - 1
_LENGTH_BYTES = 4
"""Size of an empty string, which is only its length."""


def null_inference(request: InferRequest, batch_size: int) -> Inference:
    """A row of a batch that belongs to no sequence, so that the others keep their rows. It is SETTLED from the start,
    so it is neither answered nor counted. Nothing reads its responses, so its flow is open: it blocks no producer."""
    null = Inference(0, request, NULL_REPLY, batch_size, ())
    null.state = SETTLED
    null.flow = Flow(NULL_REPLY)
    null.flow.release()
    return null


class Control(Protocol):
    """An input of the model that the server fills. `when` has its values for false and for true."""

    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> DataType: ...
    @property
    def when(self) -> tuple[float, float]: ...


class Controls:
    """The control tensors that a model has. All requests share the tensor of a kind and a value, which is read-only.

    `batching`: the tensors have a batch dimension, of 1.
    """

    def __init__(
        self,
        batching: bool,
        start: Control | None = None,
        end: Control | None = None,
        ready: Control | None = None,
        correlation_id: Control | None = None,
    ) -> None:
        self._shape: Shape = (1, 1) if batching else (1,)
        self._starts = self._values(start)
        self._ends = self._values(end)
        self._readies = self._values(ready)
        self._id = correlation_id
        self._names = frozenset(each.name for each in (start, end, ready, correlation_id) if each is not None)
        self._nothing = dict(self._null_tensors())
        self._last_null: tuple[list[tuple[str, DataType, Shape]], Inference | None] = [], None

    def _values(self, control: Control | None) -> tuple[Tensor, Tensor] | None:
        if control is None:
            return None
        numpy = control.datatype.numpy
        false, true = (
            Tensor(control.name, control.datatype, self._shape, HostMemory(numpy.type(value).tobytes()))
            for value in control.when
        )
        return false, true

    def problem(self, correlation_id: int | str, model: str) -> Error | None:
        """The error for a correlation id of another type than the model takes; None if it fits (H72)."""
        control = self._id
        if control is None or not correlation_id or isinstance(correlation_id, str) == (control.datatype is BYTES):
            return None
        given = "BYTES" if isinstance(correlation_id, str) else "UINT64"
        return Invalid(
            f"sequence batching control '{control.name}' data-type is '{given}', but model '{model}' expects "
            f"'{control.datatype}'"
        )

    def id_tensor(self, correlation_id: int | str) -> Tensor | None:
        """The tensor with the correlation id, made once for each sequence; None if the model has no such input."""
        control = self._id
        if control is None:
            return None
        if control.datatype is BYTES:
            text = "" if correlation_id == 0 else str(correlation_id)
            # JSON may have brought an id that is not UTF-8.
            raw = join_bytes([text.encode("utf-8", "surrogateescape")])
        else:
            number = correlation_id if isinstance(correlation_id, int) else 0
            raw = (number & _UINT64_MAX).to_bytes(8, "little")[: control.datatype.size]
        return Tensor(control.name, control.datatype, self._shape, HostMemory(raw))

    def add(self, request: InferRequest, id_tensor: Tensor | None) -> None:
        """Adds the control tensors to a request that is about to run."""
        inputs = request.inputs
        if self._starts is not None:
            tensor = self._starts[request.sequence_start]
            inputs[tensor.name] = tensor
        if self._ends is not None:
            tensor = self._ends[request.sequence_end]
            inputs[tensor.name] = tensor
        if self._readies is not None:
            tensor = self._readies[1]
            inputs[tensor.name] = tensor
        if id_tensor is not None:
            inputs[id_tensor.name] = id_tensor

    def null(self, like: Inference) -> Inference:
        """A row of zeros and empty strings in the shapes of the other's inputs."""
        names = self._names
        inputs = [tensor for name, tensor in like.request.inputs.items() if name not in names]
        form = [(tensor.name, tensor.datatype, tensor.shape) for tensor in inputs]
        # The shapes are mostly those of the last one, which is used again. With states it is not: they are added to its
        # inputs.
        known, last = self._last_null
        if last is not None and known == form:
            return last
        request = InferRequest(like.request.model_name, like.request.version)
        request.inputs = {tensor.name: _zeros(tensor) for tensor in inputs} | self._nothing
        null = null_inference(request, like.batch_size)
        if like.states is None:
            self._last_null = form, null
        return null

    def _null_tensors(self) -> list[tuple[str, Tensor]]:
        flags = [pair[0] for pair in (self._starts, self._ends, self._readies) if pair is not None]
        no_id = self.id_tensor(0)
        return [(tensor.name, tensor) for tensor in ([*flags, no_id] if no_id is not None else flags)]


def _zeros(tensor: Tensor) -> Tensor:
    size = prod(tensor.shape) * (tensor.datatype.size or _LENGTH_BYTES)
    return Tensor(tensor.name, tensor.datatype, tensor.shape, HostMemory(bytes(size)))
