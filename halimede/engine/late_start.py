"""Inferences that begin late, because another thread first reads their strings in a client's shared memory.

To check the lengths of strings, the server must read them. Many or long ones would hold the event loop.
"""

from collections.abc import Sequence

from halimede.engine.classification import is_far
from halimede.engine.shared_memory import Lease
from halimede.models.version import ModelVersion
from halimede.requests import InferRequest, Reply
from halimede.tensors import BYTES, MemoryKind, Tensor, are_many, frame_strings


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


def answers_may_lie_afar(request: InferRequest) -> bool:
    """Whether outputs may be inputs in shared memory, which must be read to be sent: the client has not given a
    destination for each."""
    destinations = request.destinations
    return not destinations or len(destinations) < len(request.outputs)


def far_strings(request: InferRequest) -> Sequence[Tensor]:
    """The inputs of a request that it takes long to read and check: many or long strings in shared memory."""
    return [
        tensor
        for tensor in request.inputs.values()
        if tensor.datatype is BYTES
        and tensor.memory.kind is not MemoryKind.HOST
        and (are_many(tensor.shape) or is_far(tensor))
    ]


def frame_all(tensors: Sequence[Tensor]) -> None:
    """Reads the strings and checks their lengths. Raises Error if they cannot be read. Any thread."""
    for tensor in tensors:
        frame_strings(tensor)
