"""The graph of an ensemble's steps, compiled to numbers; and how far one request has come in it. Pure; any thread.

Tensors are numbered: each has a place in a `Frame`. A frame is what one set of tensors has come to; a request begins
with one, and each response of a decoupled step begins another, since a step never reads tensors of two frames (that
is checked at load, contract S89). What is told here is only which tensors are there; who runs the steps is told which.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from halimede.tensors import Tensor

MOST_COURSES = 64
"""Sets of outputs whose course is remembered, for each ensemble."""


@dataclass(frozen=True, slots=True)
class StepLinks:
    """One step: pairs of an input of its model and the tensor that goes there, and of an output and the tensor that it
    becomes."""

    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


Marks = tuple[int | str, bool, bool]
"""What a response said of the sequence of the requests behind it: correlation id, start and end (contract S84)."""


class Frame:
    """`values` by number of tensor: None where it is not there, or never will be. `left` is how many tensors of other
    steps each step still waits for; `outputs_left` the same for the response. `busy` counts the steps that were begun
    in it and are not over, `counts` whether that matters: the runner's. `marks` by number of tensor, where there are
    any."""

    __slots__ = ("busy", "counts", "left", "marks", "outputs_left", "values")

    def __init__(self, values: list[Tensor | None], left: list[int], outputs_left: int) -> None:
        self.values = values
        self.left = left
        self.outputs_left = outputs_left
        self.busy = 0
        self.counts = False
        self.marks: dict[int, Marks] | None = None

    def marks_of(self, reads: Iterable[tuple[str, int, object]]) -> Marks | None:
        """Those of the last of these tensors (the number stands second) that has any."""
        marks, said = None, self.marks or {}
        for _, number, _ in reads:
            if self.values[number] is not None:
                marks = said.get(number, marks)
        return marks


class Course:
    """What is to be done for one set of outputs: only the steps that these need (contract S85).

    `steps` are their numbers; `first` are those that can run at once. `asked` are the outputs that each step is asked
    for, by number of step, and `forms` what the forms of its requests begin with, which no other request's does;
    `direct` those that go to the client only, each with its name there; `results` the outputs of the ensemble with the
    numbers of their tensors.
    """

    __slots__ = (
        "_arrivals",
        "_given",
        "_left",
        "_outputs_left",
        "_produced",
        "_results_of",
        "_width",
        "asked",
        "direct",
        "first",
        "forms",
        "results",
        "steps",
    )

    def __init__(self, graph: "StepGraph", wanted: Sequence[str]) -> None:
        self.results = tuple((name, graph.number[name]) for name in wanted)
        needed = graph.needed(number for _, number in self.results)
        self.steps = tuple(sorted(needed))
        self._width = len(graph.number)
        read = {number for _, number in self.results}
        for step in self.steps:
            read.update(number for _, number in graph.reads[step])
        # By step, the tensors that it writes and somebody waits for: pairs of the output's name and the number.
        self._produced = tuple(
            tuple((name, number) for name, number in writes if number in read) if step in needed else ()
            for step, writes in enumerate(graph.writes)
        )
        self.asked = tuple(tuple(name for name, _ in produced) for produced in self._produced)
        self._given = tuple((name, number) for name, number in graph.given if number in read)
        written = {number for produced in self._produced for _, number in produced}
        self._outputs_left = len({number for _, number in self.results} & written)
        self._left = [
            len({number for _, number in reads if number in written}) if step in needed else -1
            for step, reads in enumerate(graph.reads)
        ]
        self.forms: tuple[tuple[Hashable, ...], ...] = tuple((object(),) for _ in graph.reads)
        self.first = tuple(step for step in self.steps if not self._left[step])
        readers = {
            number: tuple(step for step in self.steps if any(number == read for _, read in graph.reads[step]))
            for number in written
        }
        results = {number for _, number in self.results}
        self._arrivals = tuple(
            tuple((name, number, readers[number]) for name, number in each) for each in self._produced
        )
        self._results_of = tuple(sum(number in results for _, number in each) for each in self._produced)
        self.direct = tuple(
            tuple((name, result) for name, number, to in each for result, it in self.results if it == number and not to)
            for each in self._arrivals
        )

    def begin(self, inputs: Mapping[str, Tensor]) -> Frame:
        """The frame of a request; the steps of `first` can run, and the response is complete where `outputs_left`
        is 0."""
        frame = Frame([None] * self._width, self._left.copy(), self._outputs_left)
        for name, number in self._given:
            frame.values[number] = inputs.get(name)
        return frame

    def fresh(self) -> Frame:
        """The frame of a response of a decoupled step."""
        return Frame([None] * self._width, self._left.copy(), self._outputs_left)

    def arrived(self, frame: Frame, step: int, outputs: Sequence[Tensor]) -> list[int]:
        """A step has answered with these outputs; those that were expected and are missing will never come (contract
        S86). Returns the steps that can run now."""
        left, ready = frame.left, []
        frame.outputs_left -= self._results_of[step]
        for name, number, readers in self._arrivals[step]:
            for tensor in outputs:
                if tensor.name == name:
                    frame.values[number] = tensor
            for reader in readers:
                left[reader] = waits = left[reader] - 1
                if not waits:
                    ready.append(reader)
        return ready

    def numbers_of(self, step: int) -> Iterable[int]:
        """The tensors that a step writes."""
        return (number for _, number in self._produced[step])


class StepGraph:
    """`number` of each tensor by name; `given` are the ensemble's inputs, `reads` and `writes` by step: pairs of the
    model's name for a tensor and its number. A step that writes an input of the ensemble writes to nobody."""

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str], steps: Sequence[StepLinks]) -> None:
        names = dict.fromkeys([*inputs, *outputs])
        for step in steps:
            names.update(dict.fromkeys(tensor for _, tensor in (*step.inputs, *step.outputs)))
        self.number = {name: number for number, name in enumerate(names)}
        self.given = tuple((name, self.number[name]) for name in inputs)
        self.reads = tuple(tuple((name, self.number[tensor]) for name, tensor in step.inputs) for step in steps)
        self.writes = tuple(
            tuple((name, self.number[tensor]) for name, tensor in step.outputs if tensor not in inputs)
            for step in steps
        )
        self.writer = {number: step for step, writes in enumerate(self.writes) for _, number in writes}
        """The step that writes a tensor."""
        self._courses: dict[tuple[str, ...], Course] = {}

    def needed(self, numbers: Iterable[int]) -> set[int]:
        """The steps without which these tensors do not come about."""
        needed: set[int] = set()
        waiting = list(numbers)
        while waiting:
            step = self.writer.get(waiting.pop())
            if step is not None and step not in needed:
                needed.add(step)
                waiting += [number for _, number in self.reads[step]]
        return needed

    def course(self, wanted: Sequence[str]) -> Course:
        """For these outputs."""
        key = tuple(wanted)
        course = self._courses.get(key)
        if course is None:
            if len(self._courses) >= MOST_COURSES:
                self._courses.clear()
            course = self._courses[key] = Course(self, tuple(dict.fromkeys(wanted)))
        return course
