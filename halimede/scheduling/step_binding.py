"""The steps of an ensemble bound to the versions that serve them at a moment, and how tensors are made to fit.

Values; made at load and whenever a version comes or goes, read on the event loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from halimede.requests import InferRequest, Reply
from halimede.scheduling.inference import Inference
from halimede.scheduling.step_graph import StepGraph
from halimede.tensors import Shape, Tensor


class Member(Protocol):
    """A version of a model that steps run on."""

    @property
    def decoupled(self) -> bool: ...
    def infer(self, key: int, request: InferRequest, reply: Reply, start: int) -> Inference: ...
    def submit(self, inference: Inference) -> None: ...
    def cancel(self, inference: Inference) -> None: ...
    def is_queued(self, inference: Inference) -> bool: ...
    def blockers_of(self, inference: Inference) -> Sequence[object]: ...
    def hold(self) -> None:
        """It is not closed, and takes inferences of whoever holds it, until `let_go`."""
        ...

    def let_go(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Fitting:
    """How a tensor comes to the shape that its reader wants (contract S87). `dims` are the reader's, without the batch
    dimension. `strips`: the tensor has that dimension and the reader has none; else it is the other way round."""

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
    """A step and who runs it: pairs of an input of its model, the number of the tensor, and how it is made to fit."""

    member: Member
    model: str
    version: int
    inputs: tuple[tuple[str, int, Fitting | None], ...]
    decoupled: bool
    on_device: bool = False
    """Whether all its outputs are read on a device."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The steps of an ensemble with the models of the moment. `results` says how outputs are made to fit, by name."""

    steps: tuple[BoundStep, ...]
    results: Mapping[str, Fitting | None]
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class EnsembleRunnerConfig:
    """`restore` gives an output the shape that clients see. `bind` finds the models of the steps as they are now;
    raises Error where they cannot serve the ensemble. `changes` is a number that changes when that may be others."""

    name: str
    version: int
    graph: StepGraph
    decoupled: bool
    most_in_flight: int
    bind: Callable[[], Binding]
    changes: Callable[[], int]
    restore: Callable[[Tensor], Tensor] | None = None
