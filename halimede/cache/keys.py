"""The key of a request in the cache: equal requests have equal keys (K2, and stricter). Pure, any thread.

A key is the SHA-256 of everything that the response can depend on, so a client cannot craft two requests that share
one. SHA-256 is the fastest such digest of the standard library for large inputs, and releases the interpreter lock for
them.
"""

import hashlib
import struct
from collections.abc import Iterable

from halimede.requests import InferRequest
from halimede.tensors import HostMemory, MemoryKind, Tensor

_COUNTS = struct.Struct("<IIIQ")


def key_of(identity: bytes, request: InferRequest, outputs: Iterable[str], seen: bool) -> bytes:
    """The key of a request.

    `identity` is unique to the model version. `outputs` are the names of the requested outputs. `seen`: the model can
    read the request's parameters, so they are part of the key. Names, datatypes, shapes and bytes of the inputs are
    part of it; their order is not. The id, priority and timeout never are: the response does not depend on them. Raises
    Error if the host cannot read an input.
    """
    digest = hashlib.sha256(identity)
    for name in sorted(request.inputs):
        tensor = request.inputs[name]
        digest.update(_head(name, tensor))
        digest.update(tensor.memory.host())
    # The `repr` of a list is unambiguous, whatever characters the names have.
    digest.update(repr(sorted(set(outputs))).encode("utf-8", "surrogatepass"))
    if seen:
        asked = sorted((request.parameters or {}).items())
        rest = (asked, request.correlation_id, request.sequence_start, request.sequence_end)
        digest.update(repr(rest).encode("utf-8", "surrogatepass"))
    return digest.digest()


def _head(name: str, tensor: Tensor) -> bytes:
    """The description of an input. Each length comes before what it counts, so no other input has the same bytes."""
    raw, shape = name.encode("utf-8", "surrogatepass"), tensor.shape
    counts = _COUNTS.pack(len(raw), len(shape), tensor.datatype.number, tensor.memory.byte_size)
    return counts + raw + struct.pack(f"<{len(shape)}q", *shape)


def on_host(tensors: Iterable[Tensor]) -> bool:
    """Whether the host can read all tensors without a copy from a device (K6)."""
    return all(tensor.memory.kind is not MemoryKind.DEVICE for tensor in tensors)


def make_private(request: InferRequest) -> None:
    """Copies inputs in shared memory. The client may write there at any time, and the model must see the bytes that the
    key was made of. Raises Error if the client took the memory away."""
    for name, tensor in request.inputs.items():
        if tensor.memory.kind is MemoryKind.SHARED:
            request.inputs[name] = Tensor(name, tensor.datatype, tensor.shape, HostMemory(bytes(tensor.memory.host())))
