"""What a runner knows of its model, and the ports it calls: the event loop and the observer. Loop thread only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from halimede.requests import Answer
from halimede.scheduling.inference import Inference
from halimede.scheduling.inline import TurnBudget
from halimede.scheduling.ragged import Ragged
from halimede.tensors import DataType, Tensor


class Reason(Enum):
    """Why an inference failed, for the statistics (M2)."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class Observer(Protocol):
    """Counts what a runner does. Called on the loop thread, when `inference.times` is complete."""

    def executed(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """A batch of `rows` rows has finished; the three phases add up to its time on the instance."""
        ...

    def succeeded(self, inference: Inference, now: int) -> None: ...
    def served(self, inference: Inference, rows: int, now: int) -> None:
        """A batch of this one request has finished and succeeded: `executed` and `succeeded` in one call."""
        ...

    def ran(self, inference: Inference) -> None:
        """An inference ran and is queued to run again (S72)."""
        ...

    def failed(self, inference: Inference, now: int, reason: Reason) -> None: ...
    def responded(self, index: int, answer: Answer, ns: int, age: int) -> None:
        """Response `index` of a decoupled request was sent `ns` after the previous one. `age` is the time since the
        request arrived for response 0, and 0 for later ones."""
        ...


class Loop(Protocol):
    """What a runner needs from the event loop and from the engine that owns it."""

    @property
    def budget(self) -> TurnBudget: ...
    def call_soon(self, callback: Callable[[], None]) -> object: ...
    def call_soon_threadsafe(self, callback: Callable[..., None], /, *args: object) -> object: ...
    def call_at(self, when: int, callback: Callable[[], None]) -> None:
        """Calls back at this monotonic nanosecond or soon after, never before."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """What a runner knows of its model version.

    model_name, model_version -- for responses and log lines
    datatypes -- of the model's outputs, by name
    decoupled -- a request may have any number of responses
    inline_safe -- batches may run on the event loop if they are quick
    on_loop -- `execute` is called on the loop, because it only passes batches on (Placement.LOOP)
    restore -- gives an output the shape that clients see; None if that is the model's shape
    gathers -- starting a batch is expensive, so it starts in the next turn of the loop, with all that arrived
    completes_later -- the backend says when the batch has finished; the return of `execute` says nothing
        (Placement.ASYNC)
    ragged -- how requests of different shapes share a batch; None if they do not
    implicit_state -- the server keeps the states of the model's sequences (`scheduling.sequence_state`). A model may
         have sequences, and so a `StatefulPolicy`, without this
    checks_outputs -- responses must have the names and datatypes of the configuration
    """

    model_name: str
    model_version: int
    datatypes: Mapping[str, DataType]
    decoupled: bool
    inline_safe: bool
    on_loop: bool
    restore: Callable[[Tensor], Tensor] | None = None
    gathers: bool = False
    completes_later: bool = False
    ragged: Ragged | None = None
    implicit_state: bool = False
    checks_outputs: bool = True
