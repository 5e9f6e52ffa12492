"""The graph of an ensemble's steps, and which steps can run as tensors arrive. Knows no models; any thread.

Tensors are numbered. A `Frame` has the tensors of one request so far. Each response of a decoupled step begins a frame
of its own; no step reads tensors of two frames, which is checked at load (S89).

    a step in a frame is   event                                          then
    --------------------   --------------------------------------------   --------------------------------------
    waiting                another step answers; it still lacks tensors   waiting, `left` counts down
    waiting                the last step that it reads from answers       ready: `Course.arrived` returns it
    not needed             any                                            never runs (`left` is -1 from the start)
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from halimede.tensors import Tensor

MAX_COURSES = 64
"""Sets of requested outputs whose course is cached, for each ensemble."""


@dataclass(frozen=True, slots=True)
class StepLinks:
    """One step. `inputs` are pairs of an input of its model and the ensemble's tensor that it reads; `outputs` are
    pairs of an output and the tensor that it becomes."""

    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


Marks = tuple[int | str, bool, bool]
"""The sequence that a response names for the requests made of its tensors: correlation id, start and end (S84)."""


class Frame:
    """The tensors of one request, or of one response of a decoupled step, as far as they have arrived.

    values -- by number of the tensor; None if it has not arrived or never will
    left -- by step, how many tensors of other steps it still waits for
    outputs_left -- how many tensors of steps the response still waits for
    busy -- steps that started in this frame and are not over
    counts -- whether `busy` counts towards how far a decoupled step is ahead
    marks -- by number of the tensor, if any response named a sequence
    """

    __slots__ = ("busy", "counts", "left", "marks", "outputs_left", "values")

    def __init__(self, values: list[Tensor | None], left: list[int], outputs_left: int) -> None:
        self.values = values
        self.left = left
        self.outputs_left = outputs_left
        self.busy = 0
        self.counts = False
        self.marks: dict[int, Marks] | None = None

    def marks_of(self, reads: Iterable[tuple[str, int, object]]) -> Marks | None:
        """The marks of the last of these tensors that has any. The number of a tensor stands second."""
        marks, said = None, self.marks or {}
        for _, number, _ in reads:
            if self.values[number] is not None:
                marks = said.get(number, marks)
        return marks


class Course:
    """The plan for one set of requested outputs: only the steps that these need (S85).

    steps -- their numbers
    first -- those that can run at once
    asked -- by step, the outputs that it is asked for
    forms -- by step, what the forms of its requests begin with, unlike any other request's
    direct -- by step, its outputs that only the client reads, each with the client's name for it
    results -- the requested outputs with the numbers of their tensors
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
        # By step, the outputs that a step or the client reads: pairs of the model's name and the tensor's number.
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
        readers: dict[int, list[int]] = {number: [] for number in written}
        for step in self.steps:
            for number in {number for _, number in graph.reads[step]} & written:
                readers[number].append(step)
        results = {number for _, number in self.results}
        self._arrivals = tuple(
            tuple((name, number, tuple(readers[number])) for name, number in each) for each in self._produced
        )
        self._results_of = tuple(sum(number in results for _, number in each) for each in self._produced)
        self.direct = tuple(
            tuple((name, result) for name, number, to in each for result, it in self.results if it == number and not to)
            for each in self._arrivals
        )

    def begin(self, inputs: Mapping[str, Tensor]) -> Frame:
        """The frame of a new request. The steps of `first` can run. The response is complete if `outputs_left` is 0."""
        frame = Frame([None] * self._width, self._left.copy(), self._outputs_left)
        for name, number in self._given:
            frame.values[number] = inputs.get(name)
        return frame

    def fresh(self) -> Frame:
        """An empty frame, for a response of a decoupled step."""
        return Frame([None] * self._width, self._left.copy(), self._outputs_left)

    def arrived(self, frame: Frame, step: int, outputs: Sequence[Tensor]) -> list[int]:
        """A step has answered with these outputs. Returns the steps that can run now. An output that is missing never
        comes, so its readers do not wait for it (S86)."""
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
        """The numbers of the tensors that a step writes."""
        return (number for _, number in self._produced[step])


class StepGraph:
    """The steps of an ensemble with numbered tensors.

    number -- of each tensor, by name
    given -- the ensemble's inputs: pairs of name and number
    reads, writes -- by step, pairs of the model's name for a tensor and its number. A step's output that has the name
        of an input of the ensemble is dropped.
    """

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
        """The step that writes a tensor, by the tensor's number."""
        self._courses: dict[tuple[str, ...], Course] = {}

    def needed(self, numbers: Iterable[int]) -> set[int]:
        """The steps that these tensors depend on."""
        needed: set[int] = set()
        waiting = list(numbers)
        while waiting:
            step = self.writer.get(waiting.pop())
            if step is not None and step not in needed:
                needed.add(step)
                waiting += [number for _, number in self.reads[step]]
        return needed

    def course(self, wanted: Sequence[str]) -> Course:
        """The plan for these outputs."""
        key = tuple(wanted)
        course = self._courses.get(key)
        if course is None:
            if len(self._courses) >= MAX_COURSES:  # clients choose the sets, so the cache must not grow without bound
                self._courses.clear()
            course = self._courses[key] = Course(self, tuple(dict.fromkeys(wanted)))
        return course
