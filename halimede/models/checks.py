"""Checks requests against a model's configuration: names, datatypes, shapes, sizes (H60 to H74).

There are two checks. The quick one is compiled once per load and only says yes or no. If it says no, the explanation
applies the rules one by one, in Triton's order, and raises the error with Triton's text. Pure; any thread.
"""

import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from halimede.config.model_config import ModelConfig, TensorSpec
from halimede.errors import Error, Internal, Invalid
from halimede.requests import InferRequest
from halimede.tensors import (
    BYTES,
    FramedMemory,
    Framing,
    HostMemory,
    Shape,
    Tensor,
    are_short_strings,
    framing_of,
    shape_text,
)

_BATCHING_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a check. Equal for all requests of one form."""

    batch_size: int
    """Rows; 0 if the model does not batch."""
    outputs: Sequence[str]
    """The outputs to respond with."""
    batch_key: Hashable
    """Equal for requests that may share a batch."""
    byte_sizes: list[int]
    """Of the inputs, in the request's order."""
    input_bytes: int
    """Their sum."""


class RequestCheck:
    """The checks of one model version. `fit` and `check` also complete the request: they deduce a raw input and reshape
    inputs for the model."""

    FITS_LIMIT: ClassVar[int] = 256
    """The most forms of requests whose results are remembered."""
    FITTED_TENSORS_LIMIT: ClassVar[int] = 4096
    """The most tensors in all remembered forms: 256 forms with a thousand tensors each would take 40 MB."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._inputs = {spec.name: spec for spec in config.inputs}
        self._output_names = frozenset(spec.name for spec in config.outputs)
        self.all_outputs = tuple(spec.name for spec in config.outputs)
        self._required = frozenset(spec.name for spec in config.inputs if not spec.optional)
        self._reshapes = any(spec.reshape is not None for spec in config.inputs)
        self._wildcards = tuple(spec.name for spec in config.inputs if -1 in spec.dims and not spec.allow_ragged_batch)
        self._has_optional = len(self._required) < len(config.inputs)
        lead = (-1,) if config.max_batch_size else ()
        self._quick = tuple(
            (spec.name, spec.datatype, lead + spec.dims, spec.datatype.size, spec.optional) for spec in config.inputs
        )
        # Not with BYTES, whose contents must be checked each time, and not if the request is changed by a reshape.
        self._remembers = not self._reshapes and all(spec.datatype is not BYTES for spec in config.inputs)
        self._fits: dict[Hashable, Fit] = {}
        tensors = max(len(config.inputs) + len(config.outputs), 1)
        self._most_fits = max(min(self.FITS_LIMIT, self.FITTED_TENSORS_LIMIT // tensors), 1)

    def fit(self, request: InferRequest) -> Fit:
        """Checks a request. Raises Error for the first rule that it breaks.

        If a request of the same form passed before, only the sizes of the inputs are checked.
        """
        form = request.form
        if form is not None and (known := self._fits.get(form)) is not None:
            sizes = known.byte_sizes
            for i, tensor in enumerate(request.inputs.values()):  # the form says how many there are
                if tensor.memory.byte_size != sizes[i]:
                    break
            else:
                return known
        sizes = [tensor.memory.byte_size for tensor in request.inputs.values()]
        batch_size = self.check(request)
        batch_key = self.batch_key(request) if self._config.max_batch_size else None
        fit = Fit(batch_size, self.outputs(request), batch_key, sizes, sum(sizes))
        if form is not None and self._remembers:
            # A client that sends ever new shapes must not fill the memory. To find the oldest would cost each request.
            if len(self._fits) >= self._most_fits:
                self._fits.clear()
            self._fits[form] = fit
        return fit

    def check(self, request: InferRequest) -> int:
        """The batch size, 0 if the model does not batch. Raises Error for the first rule that the request breaks."""
        raw = request.raw is not None
        if raw:
            self._deduce_raw(request)
        batch = self._pass(request)
        # The quick check only says no. The walk through the rules finds the text that Triton would send.
        if batch < 0:
            self._explain(request, raw)
            # Not reached unless the two checks disagree.
            raise Internal(f"request to model '{self._config.name}' failed a check that has no explanation")
        if self._reshapes:
            self._reshape(request)
        return batch

    def outputs(self, request: InferRequest) -> Sequence[str]:
        """The outputs to respond with: those that the request names, or all (H74)."""
        return request.outputs or self.all_outputs

    def batch_key(self, request: InferRequest) -> Hashable:
        """Equal for requests that may share a batch (S4, S5). None if all requests may."""
        # Requests with different optional inputs cannot be one batch, so the names belong to the key.
        if self._has_optional:
            return tuple((name, self._shape_of_key(request.inputs[name])) for name in sorted(request.inputs))
        if not self._wildcards:
            return None
        if len(self._wildcards) == 1:
            return request.inputs[self._wildcards[0]].shape[1:]
        return tuple(request.inputs[name].shape[1:] for name in self._wildcards)

    def _shape_of_key(self, tensor: Tensor) -> Shape:
        """The part of the shape that must be equal within a batch: nothing if the input is ragged."""
        return () if self._inputs[tensor.name].allow_ragged_batch else tensor.shape[1:]

    # The quick check.

    def _pass(self, request: InferRequest) -> int:
        """The batch size if every rule holds, else -1."""
        if request.outputs and not self._output_names.issuperset(request.outputs):
            return -1
        inputs = request.inputs
        seen, batch, batching = 0, -1, self._config.max_batch_size > 0
        for name, datatype, dims, size, optional in self._quick:
            tensor = inputs.get(name)
            if tensor is None:
                if optional:
                    continue
                return -1
            seen += 1
            shape = tensor.shape
            if tensor.datatype is not datatype or len(shape) != len(dims):
                return -1
            elements = 1
            for want, got in zip(dims, shape, strict=True):
                if got < 0 or (got != want and want != -1):
                    return -1
                elements *= got
            if not elements and batching and not shape[0] and prod(shape[1:]) > 0:
                return -1  # a batch of zero rows
            if size:
                if tensor.memory.byte_size != elements * size:
                    return -1
            elif bytes_problem(tensor, elements, "") is not None:
                return -1
            if batching:
                if batch not in (-1, shape[0]):
                    return -1
                batch = shape[0]
        if seen != len(inputs) or batch > self._config.max_batch_size:
            return -1
        return max(batch, 0)

    def _reshape(self, request: InferRequest) -> None:
        """Gives the inputs the shapes that the model sees (H71)."""
        lead = 1 if self._config.max_batch_size else 0
        for name, tensor in request.inputs.items():
            spec = self._inputs[name]
            if spec.reshape is not None:
                shape = tensor.shape[:lead] + reshaped(spec.dims, spec.reshape, tensor.shape[lead:])
                request.inputs[name] = Tensor(name, tensor.datatype, shape, tensor.memory)

    # Raw requests.

    def _deduce_raw(self, request: InferRequest) -> None:
        """Makes the body of a raw request the model's only input (H34)."""
        raw, config = request.raw, self._config
        assert raw is not None
        if len(config.inputs) != 1:
            raise Invalid(
                "Raw request must only have 1 input (found 1) to be deduced but got "
                f"{len(config.inputs)} inputs in '{config.name}' model configuration"
            ).prefixed(request.log_prefix)
        spec = config.inputs[0]
        lead = (1,) if config.max_batch_size else ()
        if spec.datatype is BYTES:
            # The body is one element, without the length that BYTES have in tensors.
            if prod(lead + spec.dims) != 1:
                raise Invalid(
                    f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
                ).prefixed(request.log_prefix)
            view = raw.host()
            raw = HostMemory(view.nbytes.to_bytes(4, "little") + view)
        shape = lead + self._raw_dims(spec, raw.byte_size, request.log_prefix)
        request.raw = None
        request.inputs = {spec.name: Tensor(spec.name, spec.datatype, shape, raw)}

    @staticmethod
    def _raw_dims(spec: TensorSpec, byte_size: int, prefix: str) -> Shape:
        if spec.dims.count(-1) > 1:
            raise Invalid(
                f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
                "variable-sized dimension"
            ).prefixed(prefix)
        fixed = prod(d for d in spec.dims if d != -1) * max(spec.datatype.size, 1)
        return tuple(byte_size // fixed if d == -1 else d for d in spec.dims)

    # The explanation.

    def _explain(self, request: InferRequest, raw: bool) -> None:
        """Raises the error of the first rule that is broken, in Triton's order. Triton calls the input of a raw request
        `raw_input`."""
        for name in request.outputs:
            if name not in self._output_names:
                raise Invalid(f"unexpected inference output '{name}' for model '{self._config.name}'")
        try:
            self._explain_count(request)
            self._explain_names(request)
            self._explain_batch(request)
            for tensor in request.inputs.values():
                self._explain_input(tensor, "raw_input" if raw else tensor.name)
        except _Unprefixed as whole:
            raise Invalid(whole.message) from None
        except Error as error:
            raise error.prefixed(request.log_prefix) from None

    def _explain_count(self, request: InferRequest) -> None:
        """The number of inputs (H60, H61). A required input that is missing is found by its name (D44)."""
        given, most, least = len(request.inputs), len(self._inputs), len(self._required)
        missing = sorted(self._required.difference(request.inputs))
        if given > most or given < least or (self._has_optional and missing):
            expected = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
            raise Invalid(
                f"expected {expected} but got {given} inputs for model '{self._config.name}'. "
                f"Got input(s) {_names(sorted(request.inputs))}, but missing required input(s) {_names(missing, ']')}. "
                "Please provide all required input(s)."
            )

    def _explain_names(self, request: InferRequest) -> None:
        for name in request.inputs:
            if name not in self._inputs:
                raise _Unprefixed(f"unexpected inference input '{name}' for model '{self._config.name}'")

    def _explain_batch(self, request: InferRequest) -> None:
        model, limit = self._config.name, self._config.max_batch_size
        if not limit:
            return
        batch: int | None = None
        for tensor in request.inputs.values():
            if not tensor.shape:
                raise Invalid(f"input '{tensor.name}' has no shape but model requires batch dimension for '{model}'")
            if batch is None:
                batch = tensor.shape[0]
            elif batch != tensor.shape[0]:
                raise Invalid(f"input '{tensor.name}' batch size does not match other inputs for '{model}'")
        if batch is not None and batch > limit:
            raise Invalid(f"inference request batch-size must be <= {limit} for '{model}'")

    def _explain_input(self, tensor: Tensor, name: str) -> None:
        model = self._config.name
        spec = self._inputs[tensor.name]
        if tensor.datatype is not spec.datatype:
            raise Invalid(
                f"inference input '{name}' data-type is '{tensor.datatype}', but model '{model}' expects "
                f"'{spec.datatype}'"
            )
        self._explain_shape(tensor, spec)
        elements, given = prod(tensor.shape), tensor.memory.byte_size
        none = self._config.max_batch_size > 0 and not tensor.shape[0] and prod(tensor.shape[1:]) > 0
        if none and not given:
            elements = prod(tensor.shape[1:])  # Triton expects the bytes of one row
        if spec.datatype is BYTES and not (none and given):
            problem = bytes_problem(tensor, elements, model)
            if problem is not None:
                raise problem
        elif given != elements * spec.datatype.size:
            raise Invalid(
                f"input byte size mismatch for input '{name}' for model '{model}'. "
                f"Expected {elements * spec.datatype.size}, got {given}"
            )

    def _explain_shape(self, tensor: Tensor, spec: TensorSpec) -> None:
        name, model, batching = tensor.name, self._config.name, bool(self._config.max_batch_size)
        dims = tensor.shape[1:] if batching else tensor.shape
        if len(dims) == len(spec.dims):
            if any(d < 0 for d in tensor.shape):
                raise Invalid(
                    f"All input dimensions should be specified for input '{name}' for model '{model}', "
                    f"got {shape_text(tensor.shape)}"
                )
            if all(want in (-1, got) for want, got in zip(spec.dims, dims, strict=True)):
                return
        expected = ((-1,) if batching else ()) + spec.dims
        raise Invalid(
            f"unexpected shape for input '{name}' for model '{model}'. Expected {shape_text(expected)}, "
            f"got {shape_text(tensor.shape)}. {_BATCHING_NOTE if batching else ''}"
        )


class OutputShapes:
    """Gives outputs the shapes that clients see, if the model's own shapes are others (R47)."""

    def __init__(self, config: ModelConfig) -> None:
        self._lead = 1 if config.max_batch_size else 0
        self._specs = {spec.name: spec for spec in config.outputs if spec.reshape is not None}

    def __bool__(self) -> bool:
        return bool(self._specs)

    def restore(self, tensor: Tensor) -> Tensor:
        """The tensor with the shape that clients see. Unchanged if the model has not used its own shape."""
        spec = self._specs.get(tensor.name)
        if spec is None or spec.reshape is None or len(tensor.shape) != self._lead + len(spec.reshape):
            return tensor
        shape = tensor.shape[: self._lead] + reshaped(spec.reshape, spec.dims, tensor.shape[self._lead :])
        return (
            tensor if prod(shape) != prod(tensor.shape) else Tensor(tensor.name, tensor.datatype, shape, tensor.memory)
        )


_LENGTH = struct.Struct("<I")
"""The length prefix of a BYTES element."""
_FEW_STRINGS = 1000
"""Up to this many strings are checked one by one, which takes less than 0.1 ms of the event loop."""


class _Unprefixed(Invalid):
    """An error whose text does not begin with the request's id (H62)."""


def _names(names: Sequence[str], none: str = "[]") -> str:
    """Names as Triton lists them. It writes an empty list of missing inputs as `]` (H60)."""
    return none if not names else "[" + ",".join(f"'{name}'" for name in names) + "]"


def reshaped(dims: Shape, reshape: Shape, actual: Shape) -> Shape:
    """`reshape` with its -1s replaced, in order, by the sizes that `actual` has at the -1s of `dims` (H71)."""
    variable = iter([got for want, got in zip(dims, actual, strict=True) if want == -1])
    return tuple(next(variable) if d == -1 else d for d in reshape)


def bytes_problem(tensor: Tensor, expected: int, model: str) -> Error | None:
    """What is wrong with the length prefixes of a BYTES input of `expected` elements (H70), or None."""
    memory = tensor.memory
    if isinstance(memory, FramedMemory):
        framing = memory.framing
        if framing.whole == expected and not framing.left:
            return None
        return _bytes_complaint(tensor, framing, expected, model)
    view = memory.host()
    # Many strings are checked at once with numpy. If they are not all short, the loop below decides.
    if expected > _FEW_STRINGS and are_short_strings(view, expected):
        return None
    at, end, found = 0, view.nbytes, 0
    try:
        while at < end and found < expected:
            at += 4 + _LENGTH.unpack_from(view, at)[0]
            found += 1
        if at == end and found == expected:
            return None
    except struct.error:
        pass
    return _bytes_complaint(tensor, framing_of(view, expected + 1), expected, model)


def _bytes_complaint(tensor: Tensor, framing: Framing, expected: int, model: str) -> Error:
    """The error for the first wrong length prefix, or a wrong number of strings."""
    count, left, length = framing
    where = f"inference input '{tensor.name}' for model '{model}'"
    if count > expected or (count == expected and left):
        return Invalid(f"unexpected number of string elements {expected + 1} for {where}, expecting {expected}")
    if 0 < left < 4:
        return Invalid(
            f"incomplete string length indicator for {where}, expecting 4 bytes but only {left} bytes "
            "available. Please make sure the string length indicator is in one buffer."
        )
    if left:
        return Invalid(
            f"incomplete string data for {where}, expecting string of length {length} but only "
            f"{left - 4} bytes available"
        )
    return Invalid(f"expected {expected} string elements for {where}, got {count}")
