"""What Python models ask of the server: inferences of other models (P28 to P30, P50 to P53), loads, and metrics.

It knows the server as a `CallPort`. Event-loop thread only; a call needs no task and no thread.

| event | what happens to a call |
|---|---|
| CALL arrives | it becomes an inference; if it was made in a batch, it is bound to the batch |
| the inference answers | CALL_ANSWER; the last one ends the call |
| the model cancels it, or every client of its batch has gone | the inference is cancelled |
| the model drops it (LET_RUN) | the inference goes on, and its answers are dropped |
| it can never be answered (`deadlocks`) | the worker gets an error, and the inference is cancelled |
| the worker ends | the inference is cancelled |
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import ref

from halimede.custom_metrics import CustomMetrics
from halimede.errors import DecoupledModel, Error, Internal, Invalid, Unavailable
from halimede.requests import Answer, InferRequest, Reply, Resume, Traced
from halimede.tensors import Buffer
from halimede.workers.child import frames
from halimede.workers.deadlocks import HeldBatch, is_deadlocked
from halimede.workers.messages import call_answer_frame, read_call, refused
from halimede.workers.metrics import QUESTIONS as METRIC_QUESTIONS
from halimede.workers.metrics import WorkerMetrics

GUESS_GRACE_SECONDS = 1.0
"""Seconds after which a batch counts as waiting for a call that a thread of its model made. Which batch the thread
works for is a guess, and the call may be answered meanwhile."""
QUEUED_CHECK_SECONDS = 0.1
"""Seconds between two checks whether queued calls can still be answered."""
CANCELLED_PER_TURN = 64
"""Inferences that are cancelled in a turn of the loop, which takes 0.6 ms."""
MAX_MISSPELT = 16
"""Names of models that do not exist for which a worker's log lines propose another."""

log = logging.getLogger(__name__)


class CallLoop(Protocol):
    """The part of an event loop that calls need."""

    def call_soon(self, callback: Callable[..., object], /, *args: object) -> object: ...
    def call_soon_threadsafe(self, callback: Callable[..., object], /, *args: object) -> object: ...
    def call_later(self, delay: float, callback: Callable[..., object], /, *args: object) -> object: ...


class CallingWorker(Protocol):
    """A worker, hashed by identity."""

    def send(self, buffers: list[Buffer], /) -> None: ...


class CallPort(Protocol):
    """What calls need of the server. `load` and `unload` answer by callback, with the error or None."""

    def infer(self, request: InferRequest, reply: Reply) -> int: ...
    def cancel(self, key: int) -> None: ...
    def is_queued(self, key: int) -> bool: ...
    def preempt_turn(self, key: int) -> bool:
        """Lets a queued inference bypass those that the rate limiter merely prefers. Returns whether it waited for
        nothing else."""
        ...

    def instances_of(self, key: int) -> Sequence[object]:
        """The instances of the model version that runs an inference; none when it is over. Instances of Python models
        have an attribute `in_flight_batches`."""
        ...

    @property
    def metrics(self) -> CustomMetrics:
        """The metrics that models make for themselves."""
        ...

    def serves(self, model: str, version: int) -> bool:
        """Whether the model takes requests."""
        ...

    def similar_to(self, model: str) -> str:
        """A sentence with the name that was meant, to append, if there is no such model and one is called nearly so;
        otherwise empty."""
        ...

    def is_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        """Calls `done` with whether the model takes requests and says itself that it is ready (P9)."""
        ...

    def load(
        self,
        model: str,
        config: str | None,
        files: Sequence[tuple[str, bytes]],
        asker: str,
        done: Callable[[Error | None], None],
    ) -> None:
        """`asker` is the model that asks if it is being loaded itself and waits for this; else it is empty."""
        ...

    def unload(self, model: str, dependents: bool, asker: str, done: Callable[[Error | None], None]) -> None: ...


class OuterRequest(Protocol):
    """A request of a batch that a worker has. It may itself be a call."""

    @property
    def request(self) -> InferRequest: ...
    @property
    def cancelled(self) -> bool: ...
    def when_cancelled(self, tell: Callable[[], None]) -> None: ...


class InFlightBatch(HeldBatch, Protocol):
    """A batch that a worker has, with the calls that were made in it; None before the first."""

    calls: "dict[int, ModelCall] | None"

    @property
    def requests(self) -> Sequence[OuterRequest]: ...


class ModelCall:
    """A call: the reply slot of an inference, whose `key` the server gave. `batch` is the batch in which it was made;
    `guessed` is True if that is only likely, as a thread of the model made it."""

    __slots__ = ("_owner", "_resume", "_sent", "_taken", "batch", "guessed", "key", "number", "over", "request")

    def __init__(self, owner: "WorkerCalls", number: int, request: InferRequest) -> None:
        self._owner: WorkerCalls | None = owner
        self.number = number
        self.request = request
        self.key = 0
        self.over = False
        self.batch: InFlightBatch | None = None
        self.guessed = False
        self._sent = 0
        self._taken = 0
        self._resume: Resume | None = None

    def send(self, answer: Answer, final: bool) -> bool:
        owner = self._owner
        if final:
            self.over = True
        if owner is None:
            return True
        if isinstance(answer, Error):
            answer = owner.error_for_caller(self.request, answer)
        buffers = call_answer_frame(self.number, answer, final)
        owner.send(buffers)
        if final:
            owner.ended(self)
            return True
        self._sent += frames.cost(sum(map(len, buffers)), 0)
        return self._has_room

    @property
    def _has_room(self) -> bool:
        return self._owner is None or self._sent - self._taken < frames.WINDOW

    def on_writable(self, resume: Resume) -> None:
        if self._has_room:
            resume()
        else:
            self._resume = resume

    def credited(self, taken: int) -> None:
        """The worker has read `taken` bytes of the answers in all."""
        self._taken = taken
        self._go_on()

    def leave(self) -> None:
        """The answers are dropped from now on."""
        self._owner = None
        self._go_on()

    def _go_on(self) -> None:
        if self._resume is not None and self._has_room:
            resume, self._resume = self._resume, None
            resume()

    def blockers(self) -> Collection[InFlightBatch] | None:
        """The batches of which one must end for this call to go on, None if it can go on by itself (`deadlocks`).
        While the inference is queued, these are all batches on the instances of its model."""
        batches: list[InFlightBatch] = []
        for instance in self._owner.port.instances_of(self.key) if self._owner is not None else ():
            # `isinstance` with a protocol takes 20 us and more.
            held: Collection[InFlightBatch] = getattr(instance, "in_flight_batches", ())
            running = [batch for batch in held if batch.running]
            if not running:  # a free instance: the call will be served
                return None
            batches += running
        for batch in batches:
            if any(outer.request is self.request for outer in batch.requests):
                return [batch]
        return batches or None


class NoServer:
    """The port of models that run without a server, as in `halimede check`."""

    def __init__(self) -> None:
        self.metrics = CustomMetrics()

    def infer(self, request: InferRequest, reply: Reply) -> int:
        error = Unavailable("there is no server")
        error.refused = True
        reply.send(error, True)
        return 0

    def cancel(self, key: int) -> None:
        """There is nothing that runs."""

    def is_queued(self, key: int) -> bool:
        return False

    def preempt_turn(self, key: int) -> bool:
        return False

    def instances_of(self, key: int) -> Sequence[object]:
        return ()

    def serves(self, model: str, version: int) -> bool:
        return False

    def similar_to(self, model: str) -> str:
        return ""

    def is_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        done(False)

    def load(
        self,
        model: str,
        config: str | None,
        files: Sequence[tuple[str, bytes]],
        asker: str,
        done: Callable[[Error | None], None],
    ) -> None:
        done(Unavailable("there is no server"))

    def unload(self, model: str, dependents: bool, asker: str, done: Callable[[Error | None], None]) -> None:
        done(Unavailable("there is no server"))


class WorkerCalls:
    """The calls of one worker. `send` writes frames to it, `name` is its instance and `model` its model. `loading` is
    True until the worker is ready."""

    def __init__(
        self, port: CallPort, loop: CallLoop, name: str, model: str, send: Callable[[list[Buffer]], None]
    ) -> None:
        self.port = port
        self.send = send
        self.loading = True
        self._loop = loop
        self._name = name
        self._model = model
        self._metrics = WorkerMetrics(port.metrics)
        self._open: dict[int, ModelCall] = {}
        self._closed = False
        self._looking = False
        self._looks_later = False
        self._misspelt: set[str] = set()

    @property
    def count(self) -> int:
        """The number of calls without their last answer."""
        return len(self._open)

    def arrived(self, message: frames.Frame, batches: Mapping[int, InFlightBatch]) -> None:
        """Handles a frame about calls, models or metrics. `batches` are the batches that the worker has, by number.
        Raises what `frames.MALFORMED` lists."""
        if message.kind == frames.CALL:
            if not self._closed:
                self._begin(message, batches)
        elif message.kind == frames.METRIC:
            if not self._closed:
                self._metrics.changed(message)
        elif message.kind == frames.QUESTION:
            self._ask(message)
        elif (call := self._open.get(message.batch)) is not None:  # else it was answered meanwhile
            if message.kind == frames.CREDIT:
                call.credited(*message.unpack(frames.NUMBER))
            elif message.kind == frames.CANCEL_CALL and message.flags & frames.LET_RUN:
                self._forget(call)
                call.leave()
            elif message.kind == frames.CANCEL_CALL:
                self.port.cancel(call.key)

    # ---- inference

    def _begin(self, message: frames.Frame, batches: Mapping[int, InFlightBatch]) -> None:
        try:
            number, trace, request = read_call(message)
        except Error as error:
            self.send(call_answer_frame(message.batch, error, True))
            return
        call = ModelCall(self, message.batch, request)
        batch = batches.get(number)
        if not number:  # made by a thread of the model: it is likely to work for the batch that runs
            call.guessed = True
            batch = next((batch for batch in batches.values() if batch.running), None)
        self._open[call.number] = call
        outer = _traced(trace, batches) if trace else None
        call.key = self.port.infer(request, call if outer is None else outer.child(request, call))
        if call.over or batch is None:
            return
        call.batch = batch
        self._bind(call, batch)
        if self.port.is_queued(call.key):  # a running inference cannot wait for this batch
            self._look(batch)
            self._look_later()

    def _bind(self, call: ModelCall, batch: InFlightBatch) -> None:
        if batch.calls is None:
            batch.calls = {}
            # Requests that referred to their batch would stay in memory until the garbage collector runs.
            gone = partial(self._one_cancelled, ref(batch))
            for outer in batch.requests:
                outer.when_cancelled(gone)
        batch.calls[call.number] = call
        if not call.guessed and all(outer.cancelled for outer in batch.requests):
            self.port.cancel(call.key)

    def _one_cancelled(self, batch: ref[InFlightBatch]) -> None:
        """The client of a request of the batch has gone. The batch may be over."""
        held = batch()
        if held is not None:
            self._cancelled(held)

    def _cancelled(self, batch: InFlightBatch) -> None:
        """Cancels the calls of a batch if all its clients have gone. Calls of the model's threads go on: they may
        belong to another batch."""
        if batch.calls and all(outer.cancelled for outer in batch.requests):
            self._cancel(iter([call.key for call in batch.calls.values() if not call.guessed]))

    def _cancel(self, keys: Iterator[int]) -> None:
        """Cancels inferences, not all in one turn of the loop: a model may have begun tens of thousands."""
        for number, key in enumerate(keys, 1):
            self.port.cancel(key)
            if number == CANCELLED_PER_TURN:
                self._loop.call_soon(self._cancel, keys)
                return

    def error_for_caller(self, request: InferRequest, error: Error) -> Error:
        """The error with the text that the caller gets (P51)."""
        if not error.refused:
            return error
        model = request.model_name
        if isinstance(error, DecoupledModel):
            return refused(model, _DECOUPLED.format(model))
        if not self.port.serves(model, request.version):
            self._log_misspelt(model)
            return refused(model, f"Failed for execute the inference request. Model '{model}' is not ready.")
        return refused(model, error.message)

    def _log_misspelt(self, model: str) -> None:
        """The caller gets Triton's text, which does not say that there is no such model. Each name is looked at once,
        because a client may choose it."""
        if model in self._misspelt or len(self._misspelt) == MAX_MISSPELT:
            return
        self._misspelt.add(model)
        meant = self.port.similar_to(model)
        if meant:
            log.warning("model '%s' calls model '%s', which does not exist%s", self._model, model, meant)

    def ended(self, call: ModelCall) -> None:
        self._forget(call)
        batch = call.batch
        if batch is not None and batch.running and batch.calls and not self._looking:
            self._looking = True  # in the next turn of the loop: a runner must not be called from its own answer
            self._loop.call_soon(self._look_again, batch)

    def _forget(self, call: ModelCall) -> None:
        self._open.pop(call.number, None)
        if call.batch is not None and call.batch.calls is not None:
            call.batch.calls.pop(call.number, None)

    def close(self) -> None:
        """The worker is gone, or was asked to finish: its inferences are cancelled, and its frames are ignored."""
        self._closed = True
        self._metrics.close()
        calls, self._open = list(self._open.values()), {}
        for call in calls:
            call.leave()
        self._cancel(iter([call.key for call in calls]))

    # ---- deadlocks

    def _look_again(self, batch: InFlightBatch) -> None:
        self._looking = False
        self._look(batch)

    def _look(self, batch: InFlightBatch) -> None:
        """Refuses calls of this batch until it can go on. If only guessed calls make it seem deadlocked, it is
        looked at again later."""
        while is_deadlocked(batch, guesses=False):
            self._refuse(batch, guesses=False)
        if is_deadlocked(batch, guesses=True):
            self._loop.call_later(GUESS_GRACE_SECONDS, self._still, batch)

    def _still(self, batch: InFlightBatch) -> None:
        while is_deadlocked(batch, guesses=True):
            self._refuse(batch, guesses=True)

    def _look_later(self) -> None:
        """A deadlock can also arise without another call: with a rate limiter, if a request for a model that needs many
        resources comes first."""
        if not self._looks_later:
            self._looks_later = True
            self._loop.call_later(QUEUED_CHECK_SECONDS, self._look_at_queued)

    def _look_at_queued(self) -> None:
        self._looks_later = False
        queued = [call for call in self._open.values() if self.port.is_queued(call.key)]
        batches = {call.batch: None for call in queued}
        for batch in batches:
            if batch is not None:
                self._look(batch)
        if queued:
            self._look_later()

    def _refuse(self, batch: InFlightBatch, guesses: bool) -> None:
        """Refuses the last call that was made, since the others waited before it. Refuses none if one of them only
        waits for inferences that the rate limiter prefers and that wait for this batch: then that one goes first."""
        if any(self.port.preempt_turn(call.key) for call in (batch.calls or {}).values()):
            return
        call = next(call for call in reversed((batch.calls or {}).values()) if guesses or not call.guessed)
        model = call.request.model_name
        self._forget(call)
        call.leave()
        self.port.cancel(call.key)
        self.send(call_answer_frame(call.number, refused(model, _CIRCLE.format(model)), True))

    # ---- models

    def _ask(self, message: frames.Frame) -> None:
        (number,) = message.unpack(frames.NUMBER)
        if message.flags in METRIC_QUESTIONS:
            self._ask_metrics(message, number)
            return
        name, done = message.text(), partial(self._reply, number, 1)
        asker = self._model if self.loading else ""
        if message.flags == frames.IS_READY:
            self._tell_ready(name, message.text(), number)
        elif message.flags == frames.LOAD:
            config = message.text()
            files = [(path, bytes(view)) for path, _, _, view in (message.tensor() for _ in range(message.count))]
            self.port.load(name, config or None, files, asker, done)
        elif message.flags == frames.UNLOAD:
            self.port.unload(name, bool(message.count), asker, done)
        else:
            raise frames.FrameError(f"{message.flags} is no question")

    def _tell_ready(self, name: str, version: str, number: int) -> None:
        try:
            asked = _version(version)
        except ValueError as error:
            self._reply(number, 0, Internal(str(error)))
        else:
            self.port.is_ready(name, asked, lambda ready: self._reply(number, int(ready), None))

    def _ask_metrics(self, message: frames.Frame, number: int) -> None:
        if self._closed:
            return
        try:
            record = self._metrics.asked(message)
        except Invalid as error:
            self._reply(number, 0, error)
        else:
            self._reply(number, 1, None, record)

    def _reply(self, number: int, answer: int, error: Error | None, record: bytes = b"") -> None:
        if self._closed:
            return
        if error is None:
            self.send(frames.frame(frames.REPLY, [record], None, number, answer))
            return
        text = f"Failed to process the request for model '{self._name}', message: {error}"
        self.send(frames.frame(frames.REPLY, [text.encode("utf-8", "replace")], None, number, 0, frames.REFUSAL))


def _traced(number: int, batches: Mapping[int, InFlightBatch]) -> Traced | None:
    """The trace with that number, if a request that belongs to it is in one of these batches."""
    traces = (outer.request.trace for batch in batches.values() for outer in batch.requests)
    return next((trace for trace in traces if trace is not None and trace.id == number), None)


class CallRouter:
    """The calls of each worker of a backend."""

    def __init__(self, loop: CallLoop, port: CallPort) -> None:
        self._loop = loop
        self._port = port
        self._calls: dict[CallingWorker, WorkerCalls] = {}

    def open(self, worker: CallingWorker, name: str, model: str) -> WorkerCalls:
        """Must be called before the worker gets its order. Load thread."""
        calls = self._calls[worker] = WorkerCalls(self._port, self._loop, name, model, worker.send)
        return calls

    def of(self, worker: CallingWorker) -> WorkerCalls:
        return self._calls[worker]

    def close(self, worker: CallingWorker) -> None:
        """The worker is gone, or was asked to finish. Any thread."""
        calls = self._calls.pop(worker, None)
        if calls is not None:
            with suppress(RuntimeError):  # the loop was closed, and all inferences with it
                self._loop.call_soon_threadsafe(calls.close)


_DECOUPLED = (
    "Model {} is using the decoupled. The current BLS request call doesn't support models using the decoupled "
    "transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
    "models.'"
)
_CIRCLE = (
    "The call would wait for ever: every instance of model '{}' waits itself for a call that this one must be answered "
    "for. More instances of it may help."
)


def _version(text: str) -> int:
    """The version, -1 for an empty text. Raises ValueError with the text for the model (P30)."""
    if not text:
        return -1
    wrong = f"failed to get model version from specified version string '{text}'"
    try:
        version = int(text)
    except ValueError:
        raise ValueError(f"{wrong} (details: stol), version should be an integral value > 0") from None
    if version < 0:
        raise ValueError(f"{wrong}, version should be an integral value > 0")
    return version
