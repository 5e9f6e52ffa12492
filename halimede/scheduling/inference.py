"""One inference on its way through the server: its request, its reply slot, its time stamps and its state.

Owned by the event-loop thread; an instance reads it while it runs (it is a backend's `BatchedRequest`).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from halimede.requests import InferRequest, Reply
from halimede.scheduling.flow import Flow
from halimede.tensors import Destination, Tensor

if TYPE_CHECKING:
    from halimede.scheduling.sequence_state import SequenceStates


class State(Enum):
    """Each state has one owner: the policy, the runner, the instance, nobody."""

    QUEUED = "queued"
    RUNNING = "running"
    SETTLED = "settled"


QUEUED, RUNNING, SETTLED = State
"""For the way of every request: a name is found faster than a member of an Enum."""


class Inference:
    """`batch_size` is the rows of the request, 0 for a model without batching. `times` is indexed by `Stamp`.

    `batch_key` tells which requests may share a batch: those with an equal key (contract S4, S5); None where the model
    does not care. `outputs` are the names to answer with, never empty; those in `destinations` are written there.
    `flow` is there from the first run of a request that may have many responses; `responses` is how many it had, and
    `responded_at` when the last came, or the run began.
    """

    # Defaults of the class and no slots, for the same reason as in a request.
    cancelled: bool = False
    _on_cancel: Callable[[], None] | None = None
    destinations: Mapping[str, Destination] | None = None
    flow: Flow | None = None
    responses: int = 0
    responded_at: int = 0
    states: "SequenceStates | None" = None
    """Those of its live sequence, where the server keeps any for the model."""
    next_states: Mapping[str, Tensor] | None = None
    """What its responses held of the next ones so far."""
    waits: bool = False
    """Whether it is in a policy's queue; the policy's own mark."""
    sequence: Any = None
    """What its policy knows of its sequence; the policy's own, too."""

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
        self.state: State = QUEUED
        self.times = [0, 0, 0, 0, 0, 0]  # by `Stamp`; twice as quick as a product

    def cancel(self) -> None:
        """The client has gone; who wants to know is told."""
        self.cancelled = True
        if self._on_cancel is not None:
            self._on_cancel()

    def when_cancelled(self, tell: Callable[[], None]) -> None:
        """Has whoever runs it now told, once, when the client goes. On the loop."""
        self._on_cancel = tell

    @property
    def rows(self) -> int:
        """What it counts in a batch (contract S6)."""
        return self.batch_size or 1
