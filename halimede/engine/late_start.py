"""Inferences that begin late, because another thread first reads their strings in a client's shared memory.

To check the lengths of strings, the server must read them. Many or long ones would hold the event loop.
"""

from collections.abc import Sequence
from typing import Final

from halimede.engine.shared_memory import Lease
from halimede.models.version import ModelVersion
from halimede.requests import InferRequest, Reply
from halimede.tensors import BYTES, MemoryKind, Tensor, are_many, frame_strings

MAX_COPIED_ON_LOOP_BYTES: Final = 1 << 20
"""Size of strings in shared memory that the loop reads, which takes 0.1 ms."""

_FAR: Final = (MemoryKind.SHARED, MemoryKind.DEVICE)


class LateStart:
    """An inference that has not begun. It holds its version and its lease."""

    __slots__ = ("cancelled", "key", "lease", "reply", "request", "start", "version")

    def __init__(
        self, version: ModelVersion, key: int, request: InferRequest, reply: Reply, start: int, lease: Lease
    ) -> None:
        self.version = version
        self.key = key
        self.request = request
        self.reply = reply
        self.start = start
        self.lease = lease
        self.cancelled = False


def far_strings(request: InferRequest) -> Sequence[Tensor]:
    """The inputs of a request that it takes long to read and check: many or long strings in shared memory."""
    return [
        tensor
        for tensor in request.inputs.values()
        if tensor.datatype is BYTES
        and tensor.memory.kind in _FAR
        and (are_many(tensor.shape) or tensor.memory.byte_size > MAX_COPIED_ON_LOOP_BYTES)
    ]


def frame_all(tensors: Sequence[Tensor]) -> None:
    """Reads the strings and checks their lengths. Raises Error if they cannot be read. Any thread."""
    for tensor in tensors:
        frame_strings(tensor)
