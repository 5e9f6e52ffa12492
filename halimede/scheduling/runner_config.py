"""What a runner is told of its model and its surroundings, and whom it tells what became of inferences.

Loop thread only.
"""

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
    """Why an inference failed, for the statistics (contract M2)."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class Observer(Protocol):
    """Told of what happened, on the loop thread: `inference.times` is complete then."""

    def executed(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None: ...
    def succeeded(self, inference: Inference, now: int) -> None: ...
    def served(self, inference: Inference, rows: int, now: int) -> None:
        """A batch of this one request was executed, and succeeded: both in one."""
        ...

    def ran(self, inference: Inference) -> None:
        """It ran, and shall run once more (contract S72)."""
        ...

    def failed(self, inference: Inference, now: int, reason: Reason) -> None: ...
    def responded(self, index: int, answer: Answer, ns: int, age: int) -> None:
        """The response of that number, of a request that may have many, came so long after the one before. At the first
        one (0) the request was `age` old."""
        ...


class Loop(Protocol):
    """What a runner needs of the event loop and of the engine that owns it."""

    @property
    def budget(self) -> TurnBudget: ...
    def call_soon(self, callback: Callable[[], None]) -> object: ...
    def call_soon_threadsafe(self, callback: Callable[..., None], /, *args: object) -> object: ...
    def call_at(self, when: int, callback: Callable[[], None]) -> None:
        """Calls back at this monotonic nanosecond or soon after, not before."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """What a runner knows of its model. `on_loop`: the backend's execute only passes batches on (Placement.LOOP).

    `gathers`: a batch is better begun when everything that has arrived is there, since its beginning costs more than
    a turn of the loop. `completes_later`: `execute` returns before the batch is over (Placement.ASYNC). `restore`
    gives an output the shape that clients see, where that is not the model's. `ragged` where requests of different
    shapes share a batch."""

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
    stateful: bool = False


class Bell:
    """What timers hold, as one may ring long after its runner was closed, and shall keep nothing of it in memory."""

    def __init__(self, woken: Callable[[], None]) -> None:
        self.woken: Callable[[], None] | None = woken

    def ring(self) -> None:
        if self.woken is not None:
            self.woken()
