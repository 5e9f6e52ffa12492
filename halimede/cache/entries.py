"""An entry of the cache: the outputs and parameters of a response as one run of bytes. Pure, any thread.

Other programs can write to a shared cache. So every field of an entry is checked, and none is ever run as code.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from halimede.errors import Invalid
from halimede.requests import Parameters
from halimede.tensors import BY_NUMBER, BYTES, HostMemory, Tensor

_MAGIC = b"hlm1"
_HEAD = struct.Struct("<4sHI")
"""The magic, the number of outputs, the byte size of the parameters as JSON, which follow."""
_OUTPUT = struct.Struct("<BBHQ")
"""Per output: datatype, number of dimensions, byte size of the name, byte size of the data. Dimensions and name follow.
The data of all outputs comes last."""
_MAX_DIMENSIONS = 32
"""Every version of NumPy supports arrays with 32 dimensions."""
MAX_OUTPUTS = 4096
"""Outputs of an entry: the event loop reads them, in some milliseconds."""
MAX_PARAMETER_BYTES = 1 << 18
"""Bytes of the parameters of an entry as JSON, for the same reason."""
_LENGTH_BYTES = 4
"""The smallest BYTES element: its length, and no bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The outputs before classification, and the parameters of the response."""

    outputs: Sequence[Tensor]
    parameters: Parameters | None


def encoded(outputs: Sequence[Tensor], parameters: Parameters | None) -> bytes:
    """The bytes of an entry: a copy. Raises Error if the host cannot read an output, OverflowError or struct.error for
    a field that does not fit, such as a name of 64 KiB."""
    words = json.dumps(parameters).encode() if parameters else b""
    if len(outputs) > MAX_OUTPUTS or len(words) > MAX_PARAMETER_BYTES:
        raise OverflowError("the response has too many outputs or parameters")
    parts: list[bytes | memoryview] = [_HEAD.pack(_MAGIC, len(outputs), len(words)), words]
    for tensor in outputs:
        name, shape = tensor.name.encode(), tensor.shape
        parts.append(_OUTPUT.pack(tensor.datatype.number, len(shape), len(name), tensor.memory.byte_size))
        parts.append(struct.pack(f"<{len(shape)}q", *shape))
        parts.append(name)
    parts += [tensor.memory.host() for tensor in outputs]
    return b"".join(parts)


def size_of(outputs: Sequence[Tensor]) -> int:
    """The approximate byte size of the entry for these outputs."""
    return sum(tensor.memory.byte_size + len(tensor.name) + 8 * len(tensor.shape) + _OUTPUT.size for tensor in outputs)


def decoded(entry: bytes) -> Entry:
    """The outputs, as views of `entry`, and the parameters. Raises Invalid for bytes that are no entry, and for values
    that a front end could not write to its client."""
    try:
        return _decoded(entry)
    except (struct.error, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise Invalid(f"not an entry of a response cache: {error}") from error


def _decoded(entry: bytes) -> Entry:
    magic, count, words = _HEAD.unpack_from(entry)
    if magic != _MAGIC:
        raise ValueError("another kind of bytes")
    if count > MAX_OUTPUTS or words > MAX_PARAMETER_BYTES:
        raise ValueError("too many outputs or parameters")
    at = _HEAD.size + words
    parameters = _parameters(entry[_HEAD.size : at]) if words else None
    heads = []
    for _ in range(count):
        datatype, rank, length, size = _OUTPUT.unpack_from(entry, at)
        at += _OUTPUT.size
        shape = struct.unpack_from(f"<{rank}q", entry, at)
        at += 8 * rank
        if rank > _MAX_DIMENSIONS or min(shape, default=0) < 0:
            raise ValueError("no shape")
        heads.append((entry[at : at + length].decode(), BY_NUMBER[datatype], shape, size))
        at += length
    if at + sum(size for *_, size in heads) != len(entry):
        raise ValueError("of another length")
    view, outputs = memoryview(entry), []
    for name, datatype, shape, size in heads:
        elements = prod(shape)
        if size < elements * _LENGTH_BYTES if datatype is BYTES else size != elements * datatype.size:
            raise ValueError("of another size than its shape")
        outputs.append(Tensor(name, datatype, shape, HostMemory(view[at : at + size])))
        at += size
    return Entry(outputs, parameters)


def _parameters(words: bytes) -> Parameters:
    parameters: Parameters = json.loads(words)
    if not isinstance(parameters, dict):
        raise ValueError("no parameters")
    for name, value in parameters.items():
        name.encode()  # raises for a lone surrogate, which JSON can hold
        if type(value) is str:
            value.encode()
        elif type(value) is int:
            value.to_bytes(8, "little", signed=True)
        elif type(value) not in (bool, float):
            raise ValueError("no parameter")
    return parameters
