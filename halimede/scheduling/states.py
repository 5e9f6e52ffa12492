"""The states of sequences: what a model declares, and the tensors that one live sequence has (S67 to S70).

Knows no inference and no batch; `sequence_state` moves states into requests and out of responses. Loop thread.
"""

import logging
from collections.abc import Sequence

from halimede.tensors import DataType, Shape, Tensor

log = logging.getLogger(__name__)


class ModelState:
    """One state of a model. `dims` has the shape that the model sees, with a batch dimension of 1 if the model has one,
    and -1 for any size. `initial` is what a sequence starts with. All sequences share its memory, so it is
    read-only."""

    __slots__ = ("datatype", "dims", "initial", "input_name", "output_name")

    def __init__(self, input_name: str, output_name: str, datatype: DataType, dims: Shape, initial: Tensor) -> None:
        self.input_name = input_name
        self.output_name = output_name
        self.datatype = datatype
        self.dims = dims
        self.initial = initial


class ModelStates:
    """The states of a model version. `listed` names the state outputs that clients may request too. `problem` says why
    no sequence of the model has states; empty if they have (S70)."""

    def __init__(
        self, model: str, states: Sequence[ModelState], listed: frozenset[str] = frozenset(), problem: str = ""
    ) -> None:
        self.model = model
        self.listed = listed
        self.initial = {state.input_name: state.initial for state in states}
        self.by_output = {state.output_name: state for state in states}
        self.output_names = tuple(self.by_output)
        self.variable = tuple(state.input_name for state in states if -1 in state.dims)
        self._problem = problem

    def begin(self) -> "SequenceStates | None":
        """The states of a sequence that starts now."""
        if self._problem:
            log.error("%s", self._problem)
            return None
        return SequenceStates(self)


class SequenceStates:
    """The states of one live sequence. `tensors` has what its next request reads, by input name. It is replaced as a
    whole and never changed in place."""

    __slots__ = ("of", "tensors")

    def __init__(self, of: ModelStates) -> None:
        self.of = of
        self.tensors = of.initial

    @property
    def key(self) -> tuple[Shape, ...] | None:
        """Equal for sequences whose states have the same shapes, so that their requests may share a batch. None if the
        shapes are fixed."""
        if not self.of.variable:
            return None
        return tuple(self.tensors[name].shape for name in self.of.variable)
