"""One inference of an ensemble: starts each step as soon as its tensors are there, as an inference of the step's model.

Event-loop thread only. Tensors go from step to step as they are, under another name and maybe with another shape. A
step that waits for nothing starts in the same turn of the loop. Which steps can run, `step_graph` says.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic_ns
from typing import Protocol

from halimede.errors import Cancelled, Error, Invalid
from halimede.requests import NO_SEQUENCE, Answer, InferRequest, InferResponse, Parameters, Resume, Stamp
from halimede.scheduling.assembly import place
from halimede.scheduling.inference import SETTLED, Inference
from halimede.scheduling.runner_config import Reason
from halimede.scheduling.step_binding import Binding, BoundStep, EnsembleRunnerConfig, Member
from halimede.scheduling.step_graph import Course, Frame, Marks
from halimede.tensors import Destination, MemoryKind, Tensor

_COMPUTE_START = int(Stamp.COMPUTE_START)
MOST_AHEAD = 32
"""Responses of decoupled steps whose steps behind them are not over: a step that is so far ahead is held up."""


class Owner(Protocol):
    """The runner of the ensemble."""

    @property
    def config(self) -> EnsembleRunnerConfig: ...
    @property
    def prefix(self) -> str:
        """What errors of steps begin with (contract S88)."""
        ...

    def admits(self, step: int, run: "Run", frame: Frame) -> bool:
        """Whether one more request of this step may begin; if not, its turn comes (`Run.admitted`)."""
        ...

    def leaves(self, step: int) -> None:
        """A request of this step is over."""
        ...

    def forget(self, run: "Run") -> int:
        """Nothing of it waits any more; how many requests did."""
        ...

    def broke(self, error: Exception) -> Error: ...
    def end(self, inference: Inference, answer: Answer, reason: Reason) -> None:
        """The answer; where it is none that failed, the time stamps of the inference are complete."""
        ...


class StepCall:
    """A step that is under way: the reply slot of its inference. `marks` are those of its request, where they are not
    the ensemble's."""

    __slots__ = ("bound", "frame", "inference", "marks", "run", "step")

    def __init__(self, run: "Run", frame: Frame, step: int, bound: BoundStep, marks: Marks | None) -> None:
        self.run = run
        self.frame = frame
        self.step = step
        self.bound = bound
        self.marks = marks
        self.inference: Inference | None = None

    def send(self, answer: Answer, final: bool) -> bool:
        run = self.run
        run.arrived.append((self, answer, final))
        if run.at_rest:
            run.work()
        return final or run.has_room

    def on_writable(self, resume: Resume) -> None:
        self.run.on_writable(resume)


class Run:
    """One inference of an ensemble. Never re-entered: what comes back while it works waits until it has done that."""

    # Defaults of the class and no slots: it is made faster so, as most of it is never set.
    at_rest: bool = False
    """Whether what arrives is to be taken by whoever brings it."""
    _answered: bool = False
    _writable: bool = True
    _ahead: int = 0
    _waiting: int = 0
    """Requests of steps that have as many as they may."""
    _held: InferResponse | None = None
    """A response that is sent when it is known whether it is the last."""
    _resumes: Sequence[Resume] = ()
    _members: Sequence[Member] = ()

    def __init__(self, owner: Owner, inference: Inference, binding: Binding, now: int) -> None:
        config, request = owner.config, inference.request
        self._owner = owner
        self._inference = inference
        self._binding = binding
        self._course: Course = config.graph.course(inference.outputs)
        self._limited = config.most_in_flight > 0
        self._id = request.id
        self._common = _common(request)
        self._trace = request.trace
        self._began = now
        self._input_ns = self._infer_ns = self._output_ns = 0
        self._failure: Error | None = None
        self._flying: dict[StepCall, None] = {}
        self.arrived: deque[tuple[StepCall, Answer, bool]] = deque()

    def begin(self) -> None:
        self._members = self._binding.members
        for member in self._members:
            member.hold()
        try:
            frame = self._course.begin(self._inference.request.inputs)
            begin = self._begin if self._limited else self._run
            for step in self._course.first:
                begin(frame, step)
            if not frame.outputs_left:
                self._complete(frame)
        except Exception as error:
            self._fail(self._owner.broke(error))
        self.work()

    # What comes from outside.

    def admitted(self, frame: Frame, step: int) -> None:
        """It is the turn of a step that waited."""
        self._waiting -= 1
        rested, self.at_rest = self.at_rest, False
        try:
            frame.busy -= 1
            self._run(frame, step)
        except Exception as error:
            self._fail(self._owner.broke(error))
        if rested:
            self.work()

    def cancel(self) -> None:
        """Its client has gone."""
        rested, self.at_rest = self.at_rest, False
        self._give_up_waiting()
        for call in list(self._flying):
            self._cancel(call)
        self._resume()
        if rested:
            self.work()

    @staticmethod
    def _cancel(call: StepCall) -> None:
        if call.inference is not None and call.inference.state is not SETTLED:
            call.bound.member.cancel(call.inference)

    def on_writable(self, resume: Resume) -> None:
        if self.has_room:
            resume()
        else:
            self._resumes = [*self._resumes, resume]

    def under_way(self) -> list[tuple[Member, Inference]]:
        """The steps that were begun and are not over, each with who runs it."""
        calls = [(call.bound.member, call.inference) for call in self._flying]
        return [(member, step) for member, step in calls if step is not None and step.state is not SETTLED]

    @property
    def has_room(self) -> bool:
        return (self._writable and self._ahead < MOST_AHEAD) or self._stopped

    @property
    def _stopped(self) -> bool:
        """Whether no further step shall begin."""
        return self._failure is not None or self._inference.cancelled

    @property
    def _borrows(self) -> bool:
        """Whether steps make use of memory that the client gets back with the answer."""
        tensors = self._inference.request.inputs.values()
        return self._inference.destinations is not None or any(t.memory.kind is not MemoryKind.HOST for t in tensors)

    # The work.

    def work(self) -> None:
        """Takes what has arrived, until nothing is left that could be done at once."""
        self.at_rest = False
        arrived = self.arrived
        while arrived:
            call, answer, final = arrived.popleft()
            try:
                self._take(call, answer, final)
            except Exception as error:
                self._fail(self._owner.broke(error))
        self.at_rest = True
        over = not self._flying and not self._waiting
        if over or (self._failure is not None and not self._borrows):
            self._answer()
        if over:
            self._release()
            return
        if self._held is not None and self._owner.config.decoupled:
            held, self._held = self._held, None
            self._send(held)
        if self._resumes and self.has_room:
            self._resume()

    def _take(self, call: StepCall, answer: Answer, final: bool) -> None:
        inference = call.inference
        if final:
            del self._flying[call]
            call.inference = None  # which has the call: what they hold shall go now, not when circles are looked for
            if self._limited:
                self._owner.leaves(call.step)
        if isinstance(answer, Error):
            self._fail(answer.prefixed(self._owner.prefix))
        elif answer is not None and self._failure is None and not self._inference.cancelled:
            self._flow(call, answer)
        if final:
            if inference is not None:
                _, _, began, input_end, output_start, end = inference.times
                self._input_ns += input_end - began
                self._infer_ns += output_start - input_end
                self._output_ns += end - output_start
            if call.frame.counts:
                self._leave(call.frame)

    def _flow(self, call: StepCall, answer: InferResponse) -> None:
        """The tensors of a response go where they are waited for."""
        course, frame = self._course, call.frame
        decoupled = call.bound.decoupled
        if decoupled:
            frame = course.fresh()
            frame.busy, frame.counts = 1, True
            self._ahead += 1
        if answer.parameters is not None or call.marks is not None:
            self._mark(call, frame, answer.parameters or {})
        begin = self._begin if self._limited else self._run
        for step in course.arrived(frame, call.step, answer.outputs):
            begin(frame, step)
        if not frame.outputs_left:
            self._complete(frame)
        if decoupled:
            self._leave(frame)

    def _leave(self, frame: Frame) -> None:
        """Something that was under way in a frame of a decoupled step is over."""
        frame.busy -= 1
        if not frame.busy:
            self._ahead -= 1

    def _begin(self, frame: Frame, step: int) -> None:
        """Runs it, or has it wait for its turn."""
        if self._owner.admits(step, self, frame):
            self._run(frame, step)
        else:
            frame.busy += 1
            self._waiting += 1

    def _run(self, frame: Frame, step: int) -> None:
        """Hands the step's request to its model."""
        frame.busy += 1
        bound, course, values = self._binding.steps[step], self._course, frame.values
        request = InferRequest(bound.model, bound.version)
        request.id = self._id
        request.outputs = course.asked[step]
        if bound.on_device:
            request.on_device = True
        if self._common is not None:
            for field, value in self._common:
                setattr(request, field, value)
        inputs = request.inputs
        form = course.forms[step]
        for name, number, fitting in bound.inputs:
            tensor = values[number]
            if tensor is None:
                form += (None,)
                continue
            if fitting is not None:
                tensor = Tensor(name, tensor.datatype, fitting.shape(tensor.shape), tensor.memory)
            elif tensor.name != name:
                tensor = Tensor(name, tensor.datatype, tensor.shape, tensor.memory)
            inputs[name] = tensor
            form += (tensor.datatype, tensor.shape)
        request.form = form
        marks = None if frame.marks is None else frame.marks_of(bound.inputs)
        if marks is not None:
            request.correlation_id, request.sequence_start, request.sequence_end = marks
        call = StepCall(self, frame, step, bound, marks)
        reply = call if self._trace is None else self._trace.child(request, call)
        self._flying[call] = None
        try:
            inference = bound.member.infer(0, request, reply, monotonic_ns())
        except Error as error:
            reply.send(error, True)
            return
        except Exception as error:
            reply.send(self._owner.broke(error), True)
            return
        call.inference = inference
        if self._inference.destinations is not None:
            inference.destinations = self._destinations(step)
        bound.member.submit(inference)

    def _destinations(self, step: int) -> Mapping[str, Destination] | None:
        """Where the client wants those outputs of the ensemble that only it reads: the step's model writes them there
        itself."""
        wanted = self._inference.destinations or {}
        found = {name: wanted[result] for name, result in self._course.direct[step] if result in wanted}
        return found or None

    def _marks(self) -> Marks:
        """Those of the ensemble's request."""
        request = self._inference.request
        return request.correlation_id, request.sequence_start, request.sequence_end

    def _mark(self, call: StepCall, frame: Frame, said: Parameters) -> None:
        """What a response says of its sequence, or its request said, goes with its tensors (contract S84)."""
        marks = call.marks or self._marks()
        if not said.keys().isdisjoint(_MARKS):
            correlation_id = said.get("sequence_id", marks[0])
            marks = (
                correlation_id if isinstance(correlation_id, int | str) else marks[0],
                bool(said.get("sequence_start", marks[1])),
                bool(said.get("sequence_end", marks[2])),
            )
        elif call.marks is None:
            return
        if frame.marks is None:
            frame.marks = {}
        frame.marks.update(dict.fromkeys(self._course.numbers_of(call.step), marks))

    def _complete(self, frame: Frame) -> None:
        """The response of this frame."""
        config, inference = self._owner.config, self._inference
        outputs = []
        marks = _NO_MARKS if self._common is None else self._marks()
        marked = False
        for name, number in self._course.results:
            tensor = frame.values[number]
            if tensor is None:
                continue
            fitting = self._binding.results[name]
            if fitting is not None:
                tensor = Tensor(name, tensor.datatype, fitting.shape(tensor.shape), tensor.memory)
            elif tensor.name != name:
                tensor = Tensor(name, tensor.datatype, tensor.shape, tensor.memory)
            outputs.append(tensor if config.restore is None else config.restore(tensor))
            if 0 in tensor.shape:  # one without elements says nothing of its sequence
                continue
            marked = True
            if frame.marks is not None:
                marks = frame.marks.get(number, marks)
        frame.outputs_left = -1
        if inference.destinations is not None:
            try:
                outputs = self._placed(outputs, inference.destinations)
            except Error as error:
                self._fail(error)
                return
        parameters = _parameters(marks) if marked else None
        if self._held is not None:
            self._send(self._held)
        self._held = InferResponse(inference.request.id, config.name, config.version, outputs, parameters)

    def _placed(self, outputs: list[Tensor], destinations: Mapping[str, Destination]) -> list[Tensor]:
        """Those that no step has written where the client wants them."""
        direct = {result for results in self._course.direct for _, result in results}
        rest = {name: to for name, to in destinations.items() if name not in direct}
        return place(outputs, rest) if rest else outputs

    # What goes out.

    def _send(self, response: InferResponse) -> None:
        reply = self._inference.reply
        if not reply.send(response, False) and self._writable:
            self._writable = False
            reply.on_writable(self._writable_again)

    def _writable_again(self) -> None:
        self._writable = True
        if self.has_room:
            self._resume()

    def _resume(self) -> None:
        resumes, self._resumes = self._resumes, ()
        for resume in resumes:
            resume()

    def _fail(self, error: Error) -> None:
        """The first error is the answer, as soon as that can be. Steps under way run on, no other begins."""
        if self._failure is None:
            self._failure = error
            self._give_up_waiting()
            for call in [call for call in self._flying if call.bound.decoupled]:  # it may answer without end
                self._cancel(call)
            self._resume()

    def _give_up_waiting(self) -> None:
        if self._waiting:
            self._waiting -= self._owner.forget(self)

    def _answer(self) -> None:
        if self._answered:
            return
        self._answered = True
        owner, inference, decoupled = self._owner, self._inference, self._owner.config.decoupled
        answer: Answer = self._held
        reason = Reason.OTHER
        if self._failure is not None and self._held is not None and decoupled:
            self._send(self._held)  # it was complete before the failure
        if inference.cancelled:
            answer, reason = Cancelled(inference.request.log_prefix + "Cancelled"), Reason.CANCELED
        elif self._failure is not None:
            answer = self._failure
        elif answer is None and not decoupled:
            answer = Invalid(owner.prefix + inference.request.log_prefix + _DEADLOCK)
        if not isinstance(answer, Error):  # its durations are the sums of its steps' (contract S91)
            input_end = self._began + self._input_ns
            output_start = input_end + self._infer_ns
            inference.times[_COMPUTE_START:] = (self._began, input_end, output_start, output_start + self._output_ns)
        self._held = None
        if self._resumes:
            self._resume()
        owner.end(inference, answer, reason)

    def _release(self) -> None:
        """Nothing of it is under way any more."""
        members, self._members = self._members, ()
        for member in members:
            member.let_go()


_DEADLOCK = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
_NO_MARKS: Marks = (0, False, False)
_MARKS = ("sequence_id", "sequence_start", "sequence_end")
_FORWARDED = ("priority", "timeout_us", "parameters", "correlation_id", "sequence_start", "sequence_end", "inner")


def _parameters(marks: Marks) -> Parameters:
    if marks == _NO_MARKS:
        return NO_SEQUENCE
    correlation_id, start, end = marks
    return {"sequence_id": correlation_id, "sequence_start": start, "sequence_end": end}


def _common(request: InferRequest) -> list[tuple[str, object]] | None:
    """What of a request goes to every step besides its id (contract S84, S74); None where nothing of it is set."""
    if (
        request.parameters is None
        and not request.priority
        and not request.timeout_us
        and request.correlation_id == 0
        and not request.sequence_start
        and not request.sequence_end
        and not request.inner
    ):
        return None
    return [(name, getattr(request, name)) for name in _FORWARDED]
