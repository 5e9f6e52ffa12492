"""Batches that a model's own strategy may end early (S40): it can refuse a request that would fit. Loop thread.

The strategy is code of the model's owner. An exception ends the batch and is logged once; the requests run anyway.
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
    """An input of a request that may join. `shape` includes the batch dimension; `byte_size` is that of the request."""

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
    """The interface of a model's own class. Called on the event loop, so each call must be quick."""

    def start(self) -> None:
        """A batch is about to be formed."""
        ...

    def include(self, request: Candidate, /) -> bool:
        """Whether the request may join the batch. Asked in order until it returns False. The first request joins in any
        case."""
        ...

    def finish(self) -> None:
        """No more requests are offered. The batch runs, or waits for more and is then formed from the start."""
        ...


class ChosenForming(Forming):
    """Forms batches as its base does, of the requests from the front of the queue that the strategy includes."""

    __slots__ = ("_has_logged", "_model", "_most", "_strategy")

    def __init__(
        self, max_batch_size: int, preferred: Sequence[int], delay_ns: int, strategy: BatchStrategy, model: str
    ) -> None:
        super().__init__(max_batch_size, preferred, delay_ns)
        self._most = max(1, max_batch_size)
        self._strategy = strategy
        self._model = model
        self._has_logged = False

    def due(self, queue: Iterable[Inference], now: int) -> int | Wake:
        chosen, refused = self._chosen(queue)
        taken = super().due(chosen, now)
        # The next request is refused, so waiting would not make the batch larger.
        return len(chosen) if refused and isinstance(taken, Wake) else taken

    def _chosen(self, queue: Iterable[Inference]) -> tuple[list[Inference], bool]:
        """The requests from the front that the strategy includes, and whether it refused the next one.

        A request that does not fit for another reason ends the list, so that the base sees that the batch is full."""
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
        except BaseException:  # code of the model's owner: even SystemExit must not end the loop
            if not self._has_logged:
                self._has_logged = True
                log.exception("model '%s': its batch strategy raised; its requests run one by one", self._model)
            return first or list(islice(queue, 1)), True
        finally:
            self._finish()

    def _finish(self) -> None:
        try:
            self._strategy.finish()
        except BaseException:
            if not self._has_logged:
                self._has_logged = True
                log.exception("model '%s': its batch strategy raised in finish(); the batch runs", self._model)


def candidate(inference: Inference) -> Candidate:
    request = inference.request
    inputs = {
        name: CandidateInput(tensor.datatype.name, tensor.shape, tensor.memory.byte_size)
        for name, tensor in request.inputs.items()
    }
    return Candidate(request.id, inference.batch_size, inputs, request.parameters or {})
