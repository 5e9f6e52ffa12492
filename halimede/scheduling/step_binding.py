"""The steps of an ensemble, bound to the model versions that serve them now, and how their tensors are reshaped.

Immutable values. Made at load and whenever a version comes or goes; read on the event loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from halimede.requests import InferRequest, Reply
from halimede.scheduling.inference import Inference
from halimede.scheduling.step_graph import StepGraph
from halimede.tensors import Shape, Tensor


class Member(Protocol):
    """A model version that steps run on."""

    @property
    def decoupled(self) -> bool: ...
    def infer(self, key: int, request: InferRequest, reply: Reply, start: int) -> Inference: ...
    def submit(self, inference: Inference) -> None: ...
    def cancel(self, inference: Inference) -> None: ...
    def is_queued(self, inference: Inference) -> bool: ...
    def blockers_of(self, inference: Inference) -> Sequence[object]: ...
    def hold(self) -> None:
        """Keeps the version from being closed until `let_go`; it takes inferences until then."""
        ...

    def let_go(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Fitting:
    """Adds or removes the batch dimension of a tensor for its reader (S87). `dims` are the reader's, without the batch
    dimension. `strips`: the tensor has this dimension and the reader does not; else the reader has it."""

    dims: Shape
    strips: bool

    def shape(self, shape: Shape) -> Shape:
        if _agree(self.dims, shape):
            return shape if self.strips else (1, *shape)
        return shape[1:] if self.strips and shape[:1] == (1,) else shape


def _agree(dims: Shape, shape: Shape) -> bool:
    return len(dims) == len(shape) and all(want in (-1, got) for want, got in zip(dims, shape, strict=True))


@dataclass(frozen=True, slots=True)
class BoundStep:
    """A step and the version that runs it. `inputs`: the model's name for an input, the number of the tensor, and its
    `Fitting`, None if the shape fits."""

    member: Member
    model: str
    version: int
    inputs: tuple[tuple[str, int, Fitting | None], ...]
    decoupled: bool
    on_device: bool = False
    """Whether all its outputs are read on a device."""


@dataclass(frozen=True, slots=True)
class Binding:
    """All steps of an ensemble with the versions that serve them now. `results` has the fitting of each output."""

    steps: tuple[BoundStep, ...]
    results: Mapping[str, Fitting | None]
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class EnsembleRunnerConfig:
    """What an ensemble's runner knows of its ensemble.

    name, version -- for responses and log lines
    graph -- the steps and their tensors
    decoupled -- a request may have any number of responses
    most_in_flight -- requests of each step at a time, 0 for no limit
    bind -- finds the versions that serve the steps now; raises Error if they cannot serve the ensemble
    changes -- a number that changes whenever `bind` may return something else
    restore -- gives an output the shape that clients see; None if that is the model's shape
    """

    name: str
    version: int
    graph: StepGraph
    decoupled: bool
    most_in_flight: int
    bind: Callable[[], Binding]
    changes: Callable[[], int]
    restore: Callable[[Tensor], Tensor] | None = None
