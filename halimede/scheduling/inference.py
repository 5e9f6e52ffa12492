"""One inference on its way through the server: its request, its reply slot, its time stamps and its state.

The event-loop thread owns it. An instance's thread reads it while it runs, as a backend's `BatchedRequest`.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from halimede.requests import InferRequest, Reply
from halimede.scheduling.flow import Flow
from halimede.scheduling.states import SequenceStates
from halimede.tensors import Destination, Tensor


class State(Enum):
    """Who has the inference: the policy, or a cache before that (QUEUED), an instance (RUNNING), or no one, because it
    is answered (SETTLED).

    QUEUED -> RUNNING when its batch starts, RUNNING -> QUEUED if it runs again, both -> SETTLED with its final answer.
    """

    QUEUED = "queued"
    RUNNING = "running"
    SETTLED = "settled"


QUEUED, RUNNING, SETTLED = State
"""A module's name is found faster than a member of an Enum; every request looks these up several times."""


class Inference:
    """One request and what the scheduler knows of it.

    key -- chosen by the engine, which finds the inference by it
    batch_size -- rows of the request, 0 for a model without batching
    outputs -- names of the outputs to answer with, never empty
    batch_key -- requests with an equal key may share a batch (S4, S5); None if the model takes any
    input_bytes -- bytes of its inputs, 0 if nobody has counted them
    times -- monotonic nanoseconds, indexed by `Stamp`
    """

    # Class attributes instead of slots: most are never set, so an instance is made faster.
    cancelled: bool = False
    _on_cancel: Callable[[], None] | None = None
    destinations: Mapping[str, Destination] | None = None
    """Where outputs are written instead of sent, by name."""
    flow: Flow | None = None
    """Back-pressure of a decoupled request, from its first run on."""
    responses: int = 0
    """How many responses a decoupled request had."""
    responded_at: int = 0
    """When the last response of a decoupled request was sent, or its run started."""
    states: SequenceStates | None = None
    """The states of its live sequence; None if the server keeps none for the model."""
    next_states: Mapping[str, Tensor] | None = None
    """The next states that its responses have held so far."""
    waits: bool = False
    """Set by its policy while it is in the policy's queue."""
    sequence: Any = None
    """Set by the policy of a model with sequences: its `SequenceRun`. Other rooms do not look into it."""

    def __init__(
        self,
        key: int,
        request: InferRequest,
        reply: Reply,
        batch_size: int,
        outputs: Sequence[str],
        batch_key: object = None,
        input_bytes: int = 0,
    ) -> None:
        self.key = key
        self.request = request
        self.reply = reply
        self.batch_size = batch_size
        self.outputs = outputs
        self.batch_key = batch_key
        self.input_bytes = input_bytes
        self.state: State = QUEUED
        self.times = [0, 0, 0, 0, 0, 0]  # `[0] * 6` takes twice as long

    def mark_cancelled(self) -> None:
        """The client has gone. Sets `cancelled` and calls the callback of `when_cancelled`. The state stays."""
        self.cancelled = True
        if self._on_cancel is not None:
            self._on_cancel()

    def when_cancelled(self, callback: Callable[[], None]) -> None:
        """Sets the one callback for a cancel. The backend that runs the inference sets it, on the loop."""
        self._on_cancel = callback

    @property
    def rows(self) -> int:
        """How many rows of a batch it takes (S6)."""
        return self.batch_size or 1
