"""One inference on its way through the server: its request, its reply slot, its time stamps and its state.

Owned by the event-loop thread; an instance reads it while it runs (it is a backend's `BatchedRequest`).
"""

from collections.abc import Sequence
from enum import Enum

from halimede.requests import MOMENTS, InferRequest, Reply


class State(Enum):
    """Each state has one owner: the policy, the runner, the instance, nobody."""

    QUEUED = "queued"
    RUNNING = "running"
    SETTLED = "settled"


class Inference:
    """`batch_size` is the rows of the request, 0 for a model without batching. `times` is indexed by `Moment`.

    `batch_key` tells which requests may share a batch: those with an equal key (contract S4, S5); None where the model
    does not care. `outputs` are the names to answer with, never empty.
    """

    __slots__ = ("batch_key", "batch_size", "cancelled", "key", "outputs", "reply", "request", "state", "times")

    def __init__(
        self,
        key: int,
        request: InferRequest,
        reply: Reply,
        batch_size: int,
        outputs: Sequence[str],
        batch_key: object = None,
    ) -> None:
        self.key = key
        self.request = request
        self.reply = reply
        self.batch_size = batch_size
        self.outputs = outputs
        self.batch_key = batch_key
        self.times = [0] * MOMENTS
        self.cancelled = False
        self.state = State.QUEUED

    @property
    def rows(self) -> int:
        """What it counts in a batch (contract S6)."""
        return self.batch_size or 1
