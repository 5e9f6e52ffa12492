"""One inference of an ensemble: runs each step as an inference of the step's model, as soon as its tensors are there.

Event-loop thread only. Tensors go from step to step uncopied, under another name and possibly in another shape. A step
whose tensors are there starts in the same turn of the loop. `step_graph` knows which steps can run.

    a step's request   event                                  then
    ----------------   ------------------------------------   ---------------------------------------------------
    ready              begin: its limit is reached            waits at the owner (`_waiting`)
    ready              begin: otherwise                       under way (`_calls`): submitted to its member
    waiting            admitted                               under way
    waiting            the run failed or was cancelled        forgotten
    under way          an answer                              queued in `arrived`; `work` takes it
    under way          the final answer is taken              over: may make other steps ready

The run answers when nothing is under way and nothing waits, or earlier after a failure. After the first failure no step
starts any more.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic_ns
from typing import Protocol

from halimede.errors import Error, Invalid
from halimede.requests import NO_SEQUENCE, Answer, InferRequest, InferResponse, Parameters, Resume, Stamp
from halimede.scheduling.assembly import place
from halimede.scheduling.inference import SETTLED, Inference
from halimede.scheduling.refusals import cancelled
from halimede.scheduling.runner_config import Reason
from halimede.scheduling.step_binding import Binding, BoundStep, EnsembleRunnerConfig, Member
from halimede.scheduling.step_graph import Course, Frame, Marks
from halimede.tensors import Destination, MemoryKind, Tensor

_COMPUTE_START = int(Stamp.COMPUTE_START)
MAX_RESPONSES_AHEAD = 32
"""Responses of decoupled steps whose following steps are not over. At this number the decoupled steps must wait."""


class Owner(Protocol):
    """The runner of the ensemble."""

    @property
    def config(self) -> EnsembleRunnerConfig: ...
    @property
    def prefix(self) -> str:
        """What errors of steps begin with (S88)."""
        ...

    def admits(self, step: int, run: "Run", frame: Frame) -> bool:
        """Whether one more request of this step may start; if not, `Run.admitted` is called when it may."""
        ...

    def step_over(self, step: int) -> None:
        """A request of this step is over."""
        ...

    def forget(self, run: "Run") -> int:
        """Takes out all waiting requests of a run. Returns how many there were."""
        ...

    def internal_error(self, error: Exception) -> Error: ...
    def end(self, inference: Inference, answer: Answer, reason: Reason) -> None:
        """Answers the inference. If the answer is no error, the inference's time stamps are complete."""
        ...


class StepCall:
    """A step under way, as the reply slot of its inference. `marks` are those of its request if they differ from the
    ensemble's."""

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
        if run.at_rest:  # else `work` is active further up the stack and takes the answer
            run.work()
        return final or run.has_room

    def on_writable(self, resume: Resume) -> None:
        self.run.on_writable(resume)


class Run:
    """One inference of an ensemble. Never re-entered: an answer that arrives while it works waits in `arrived`."""

    # Class attributes instead of slots: most are never set, so an instance is made faster.
    at_rest: bool = False
    """Whether no call of `work` is active, so that an answer must call it."""
    _answered: bool = False
    _writable: bool = True
    _ahead: int = 0
    _waiting: int = 0
    """Requests that wait because their step has reached its limit."""
    _held: InferResponse | None = None
    """A response that is kept until it is known whether it is the final one."""
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
        self._calls: dict[StepCall, None] = {}
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
            if not frame.outputs_left:  # all requested outputs are inputs of the ensemble
                self._complete(frame)
        except Exception as error:
            self._fail(self._owner.internal_error(error))
        self.work()

    # ---- called from outside

    def admitted(self, frame: Frame, step: int) -> None:
        """A request that waited for its step's limit may start."""
        self._waiting -= 1
        # A step may answer from within `_run`. Its answer waits until this is done.
        rested, self.at_rest = self.at_rest, False
        try:
            frame.busy -= 1  # it counted while it waited; `_run` counts it again
            self._run(frame, step)
        except Exception as error:
            self._fail(self._owner.internal_error(error))
        if rested:
            self.work()

    def cancel(self) -> None:
        """Its client has gone: no step starts any more, and those under way are cancelled."""
        rested, self.at_rest = self.at_rest, False
        self._give_up_waiting()
        for call in list(self._calls):
            self._cancel(call)
        self._resume()
        if rested:
            self.work()

    @staticmethod
    def _cancel(call: StepCall) -> None:
        if call.inference is not None and call.inference.state is not SETTLED:
            call.bound.member.cancel(call.inference)

    def on_writable(self, resume: Resume) -> None:
        """Calls `resume` once when decoupled steps may send more; before this returns if they may now."""
        if self.has_room:
            resume()
        else:
            self._resumes = [*self._resumes, resume]

    def under_way(self) -> list[tuple[Member, Inference]]:
        """The steps that started and are not over, each with the version that runs it."""
        calls = [(call.bound.member, call.inference) for call in self._calls]
        return [(member, step) for member, step in calls if step is not None and step.state is not SETTLED]

    @property
    def has_room(self) -> bool:
        """Whether decoupled steps may send more responses now."""
        return (self._writable and self._ahead < MAX_RESPONSES_AHEAD) or self._stopped

    @property
    def _stopped(self) -> bool:
        """Whether no further step starts."""
        return self._failure is not None or self._inference.cancelled

    @property
    def _borrows(self) -> bool:
        """Whether steps use memory that the client gets back with the answer."""
        tensors = self._inference.request.inputs.values()
        return self._inference.destinations is not None or any(t.memory.kind is not MemoryKind.HOST for t in tensors)

    # ---- running steps

    def work(self) -> None:
        """Takes the answers that have arrived, until no more can be done at once."""
        self.at_rest = False
        arrived = self.arrived
        while arrived:
            call, answer, final = arrived.popleft()
            try:
                self._take(call, answer, final)
            except Exception as error:
                self._fail(self._owner.internal_error(error))
        self.at_rest = True
        over = not self._calls and not self._waiting  # waiting requests are not among the calls
        # A failure is answered at once, unless steps still use the client's memory.
        if over or (self._failure is not None and not self._borrows):
            self._answer()
        if over:
            self._release()
            return
        # Steps are still under way, so it is not the final one, and its reader must not wait for these.
        if self._held is not None and self._owner.config.decoupled:
            held, self._held = self._held, None
            self._send(held)
        if self._resumes and self.has_room:
            self._resume()

    def _take(self, call: StepCall, answer: Answer, final: bool) -> None:
        inference = call.inference
        if final:
            del self._calls[call]
            call.inference = None  # ends a reference cycle, so that their memory is released now and not at a GC
            if self._limited:
                self._owner.step_over(call.step)
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
                self._step_over_in(call.frame)

    def _flow(self, call: StepCall, answer: InferResponse) -> None:
        """Hands the tensors of a response to the steps and to the response that wait for them."""
        course, frame = self._course, call.frame
        decoupled = call.bound.decoupled
        if decoupled:
            # Each response is a run of its own through the steps behind. 1 until the end of this method, so that the
            # frame is not over before its steps have started.
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
            self._step_over_in(frame)

    def _step_over_in(self, frame: Frame) -> None:
        """A step in the frame of a decoupled step's response is over."""
        frame.busy -= 1
        if not frame.busy:
            self._ahead -= 1

    def _begin(self, frame: Frame, step: int) -> None:
        """Runs the step, or makes it wait if it has reached its limit."""
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
            if tensor is None:  # an optional input whose writer gave none, or that the client left out
                form += (None,)
                continue
            if fitting is not None:
                tensor = Tensor(name, tensor.datatype, fitting.shape(tensor.shape), tensor.memory)
            elif tensor.name != name:
                tensor = Tensor(name, tensor.datatype, tensor.shape, tensor.memory)
            inputs[name] = tensor
            form += (tensor.datatype, tensor.shape)
        request.form = form  # lets the member check each form of request once
        marks = None if frame.marks is None else frame.marks_of(bound.inputs)
        if marks is not None:
            request.correlation_id, request.sequence_start, request.sequence_end = marks
        call = StepCall(self, frame, step, bound, marks)
        reply = call if self._trace is None else self._trace.child(request, call)
        self._calls[call] = None
        try:
            inference = bound.member.infer(0, request, reply, monotonic_ns())
        except Error as error:
            reply.send(error, True)  # arrives like any other answer
            return
        except Exception as error:
            reply.send(self._owner.internal_error(error), True)
            return
        call.inference = inference
        if self._inference.destinations is not None:
            inference.destinations = self._destinations(step)
        bound.member.submit(inference)

    def _destinations(self, step: int) -> Mapping[str, Destination] | None:
        """The destinations of the step's outputs that only the client reads; the step's model writes them there."""
        wanted = self._inference.destinations or {}
        found = {name: wanted[result] for name, result in self._course.direct[step] if result in wanted}
        return found or None

    def _marks(self) -> Marks:
        """The marks of the ensemble's request."""
        request = self._inference.request
        return request.correlation_id, request.sequence_start, request.sequence_end

    def _mark(self, call: StepCall, frame: Frame, said: Parameters) -> None:
        """Attaches the sequence that a response, or else its request, names to the response's tensors (S84)."""
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
        """All tensors of the frame's response are there: it becomes the held response."""
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
            if 0 in tensor.shape:  # the real server ignores the sequence of a tensor without elements
                continue
            marked = True
            if frame.marks is not None:
                marks = frame.marks.get(number, marks)
        frame.outputs_left = -1  # a step without requested outputs may still answer, and must not complete it again
        if inference.destinations is not None:
            try:
                outputs = self._placed(outputs, inference.destinations)
            except Error as error:
                self._fail(error)
                return
        parameters = _parameters(marks) if marked else None
        # The last response must be sent as the final one, and whether this is the last one shows only at the end.
        if self._held is not None:
            self._send(self._held)
        self._held = InferResponse(inference.request.id, config.name, config.version, outputs, parameters)

    def _placed(self, outputs: list[Tensor], destinations: Mapping[str, Destination]) -> list[Tensor]:
        """Writes the outputs to their destinations that no step has written there."""
        direct = {result for results in self._course.direct for _, result in results}
        rest = {name: to for name, to in destinations.items() if name not in direct}
        return place(outputs, rest) if rest else outputs

    # ---- answering

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
        """The first error is the answer. Steps under way run on, no other starts."""
        if self._failure is None:
            self._failure = error
            self._give_up_waiting()
            for call in [call for call in self._calls if call.bound.decoupled]:  # it may respond for ever
                self._cancel(call)
            self._resume()

    def _give_up_waiting(self) -> None:
        if self._waiting:
            self._waiting -= self._owner.forget(self)

    def _answer(self) -> None:
        if self._answered:
            return
        self._answered = True  # after a failure steps may be under way, which come back here at their end
        owner, inference, decoupled = self._owner, self._inference, self._owner.config.decoupled
        answer: Answer = self._held
        reason = Reason.OTHER
        if self._failure is not None and self._held is not None and decoupled:
            self._send(self._held)  # this response was complete before the failure
        if inference.cancelled:
            answer, reason = cancelled(inference), Reason.CANCELED
        elif self._failure is not None:
            answer = self._failure
        elif answer is None and not decoupled:  # a step left out an output that others, or the client, need (S86)
            answer = Invalid(owner.prefix + inference.request.log_prefix + _DEADLOCK)
        if not isinstance(answer, Error):  # the durations of an ensemble are the sums of its steps' (S91)
            input_end = self._began + self._input_ns
            output_start = input_end + self._infer_ns
            inference.times[_COMPUTE_START:] = (self._began, input_end, output_start, output_start + self._output_ns)
        self._held = None
        if self._resumes:
            self._resume()
        owner.end(inference, answer, reason)

    def _release(self) -> None:
        """Nothing is under way any more: the versions of the steps may be closed."""
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
    """The fields of a request that every step's request gets besides the id (S84, S74); None if none is set."""
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
