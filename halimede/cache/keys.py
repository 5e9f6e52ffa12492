"""When two requests are equal: the key under which a response is kept (contract K2, and stricter). Pure, any thread.

A key is a SHA-256 of everything that the answer can depend on, so a client cannot make two requests that share one. The
digest is the fastest of the standard library for large inputs; for those it lets other threads run meanwhile.
"""

import hashlib
import struct
from collections.abc import Iterable

from halimede.requests import InferRequest
from halimede.tensors import HostMemory, MemoryKind, Tensor

_COUNTS = struct.Struct("<IIIQ")


def key_of(identity: bytes, request: InferRequest, outputs: Iterable[str], seen: bool) -> bytes:
    """`identity` stands for the model version and is the same for no other one; `outputs` are the names to answer with.
    `seen`: the model can look at the request's parameters, so they count too.

    Of the inputs their names, datatypes, shapes and bytes count, not their order. What never counts is what the answer
    carries back (the id) and what says only when to answer (priority, time limit). Raises Error where the host cannot
    read an input.
    """
    digest = hashlib.sha256(identity)
    for name in sorted(request.inputs):
        tensor = request.inputs[name]
        digest.update(_head(name, tensor))
        digest.update(tensor.memory.host())
    # No two lists of names look alike so, whatever is in them.
    digest.update(repr(sorted(set(outputs))).encode("utf-8", "surrogatepass"))
    if seen:
        asked = sorted((request.parameters or {}).items())
        rest = (asked, request.correlation_id, request.sequence_start, request.sequence_end)
        digest.update(repr(rest).encode("utf-8", "surrogatepass"))
    return digest.digest()


def _head(name: str, tensor: Tensor) -> bytes:
    """Every length is in front of what it counts: nothing else has the same bytes."""
    raw, shape = name.encode("utf-8", "surrogatepass"), tensor.shape
    counts = _COUNTS.pack(len(raw), len(shape), tensor.datatype.number, tensor.memory.byte_size)
    return counts + raw + struct.pack(f"<{len(shape)}q", *shape)


def on_host(tensors: Iterable[Tensor]) -> bool:
    """Whether the host reads them where they are (contract K6)."""
    return all(tensor.memory.kind is not MemoryKind.DEVICE for tensor in tensors)


def make_private(request: InferRequest) -> None:
    """Copies inputs in memory that the client may write to at any time: what was looked at is what the model will see,
    or an answer would be kept for another question. Raises Error where the client took the memory away."""
    for name, tensor in request.inputs.items():
        if tensor.memory.kind is MemoryKind.SHARED:
            request.inputs[name] = Tensor(name, tensor.datatype, tensor.shape, HostMemory(bytes(tensor.memory.host())))
