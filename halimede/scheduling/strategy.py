"""Batches whose end a model's own strategy decides (contract S40): it may refuse what would still fit. Loop thread.

The strategy is code of the model's owner. What it raises ends the batch and is told once, so that requests run anyway.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from halimede.requests import Parameters
from halimede.scheduling.dynamic import Forming
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Wake
from halimede.tensors import Shape

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CandidateInput:
    """An input of a request that may join: `shape` with the batch dimension, `byte_size` as it came."""

    datatype: str
    shape: Shape
    byte_size: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that may join a batch."""

    id: str
    batch_size: int
    inputs: Mapping[str, CandidateInput]
    parameters: Parameters

    @property
    def byte_size(self) -> int:
        return sum(each.byte_size for each in self.inputs.values())


class BatchStrategy(Protocol):
    """What a model's own class must offer. Called on the event loop: each call must be quick."""

    def start(self) -> None:
        """A batch begins to be formed."""
        ...

    def include(self, request: Candidate, /) -> bool:
        """Whether the request may be in the batch; asked in order, until it says no. The first is in it in any case."""
        ...

    def finish(self) -> None:
        """No more requests are looked at: the batch runs, or waits for more and is begun anew then."""
        ...


class ChosenForming(Forming):
    """As its base, of those requests from the front that the strategy includes."""

    __slots__ = ("_model", "_most", "_strategy", "_told")

    def __init__(
        self, max_batch_size: int, preferred: Sequence[int], delay_ns: int, strategy: BatchStrategy, model: str
    ) -> None:
        super().__init__(max_batch_size, preferred, delay_ns)
        self._most = max(1, max_batch_size)
        self._strategy = strategy
        self._model = model
        self._told = False

    def due(self, queue: Iterable[Inference], now: int) -> int | Wake:
        chosen, refused = self._chosen(queue)
        taken = super().due(chosen, now)
        return len(chosen) if refused and isinstance(taken, Wake) else taken  # to wait would bring nothing

    def _chosen(self, queue: Iterable[Inference]) -> tuple[list[Inference], bool]:
        """The requests from the front that the strategy includes, and whether it refused the next one.

        One that does not fit for another reason is the last, so that the base sees that the batch is full."""
        chosen: list[Inference] = []
        first: list[Inference] = []
        rows = 0
        try:
            self._strategy.start()
            for inference in queue:
                first = first or [inference]
                rows += inference.rows
                fits = rows <= self._most and (not chosen or inference.batch_key == chosen[0].batch_key)
                if fits and not self._strategy.include(candidate(inference)) and chosen:
                    return chosen, True
                chosen.append(inference)
                if not fits:
                    break
            return chosen, False
        except BaseException:  # code of the model's owner: SystemExit too, which would end the loop
            if not self._told:
                self._told = True
                log.exception("the batch strategy of model '%s' broke; requests run one by one", self._model)
            return first or list(islice(queue, 1)), True
        finally:
            self._finish()

    def _finish(self) -> None:
        try:
            self._strategy.finish()
        except BaseException:
            if not self._told:
                self._told = True
                log.exception("the batch strategy of model '%s' broke at the end of a batch", self._model)


def candidate(inference: Inference) -> Candidate:
    request = inference.request
    inputs = {
        name: CandidateInput(tensor.datatype.name, tensor.shape, tensor.memory.byte_size)
        for name, tensor in request.inputs.items()
    }
    return Candidate(request.id, inference.batch_size, inputs, request.parameters or {})
