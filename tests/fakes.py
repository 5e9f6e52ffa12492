"""Stand-ins for the ports of the server: an event loop that is turned by hand, reply slots, observers, instances,
memory that the host cannot reach, and an engine port whose messages cross as bytes.
"""

import asyncio
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from halimede.engine_port import EnginePort, Query
from halimede.errors import Error, Unsupported
from halimede.requests import Answer, InferRequest, InferResponse, Reply, Resume
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.inline import TurnBudget
from halimede.scheduling.runner_config import Reason
from halimede.tensors import MemoryKind, Tensor

A = TypeVar("A")

PATIENCE = 20.0
"""Seconds after which a wait for another thread has failed."""


class ManualLoop:
    """What a runner needs of the event loop, turned by hand. Timers ring by `ring`, never by the clock."""

    def __init__(self) -> None:
        self.budget = TurnBudget(self.call_soon)
        self.ready: deque[Callable[[], object]] = deque()
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self.closed = False
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._order = count()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def call_soon_threadsafe(self, callback: Callable[..., None], /, *args: object) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self._inbox.put(lambda: callback(*args))

    def call_at(self, when: int, callback: Callable[[], None]) -> None:
        heappush(self.timers, (when, next(self._order), callback))

    def ring(self) -> int:
        """The earliest timer rings; the time it was set for."""
        when, _, callback = heappop(self.timers)
        callback()
        return when

    def turn(self) -> None:
        """Runs what is ready now, and nothing that becomes ready meanwhile."""
        while not self._inbox.empty():
            self.ready.append(self._inbox.get())
        for _ in range(len(self.ready)):
            self.ready.popleft()()

    def run_until(self, done: Callable[[], bool]) -> None:
        """Turns until `done`, waiting for other threads where nothing is ready."""
        deadline = monotonic() + PATIENCE
        while not done():
            if not self.ready and self._inbox.empty():
                try:
                    self.ready.append(self._inbox.get(timeout=max(0.0, deadline - monotonic())))
                except Empty:
                    raise AssertionError("nothing came from the other threads") from None
            self.turn()


class RecordingReply:
    """A reply slot that keeps what it is sent. `on_send` is called after each answer was kept (to submit again, to
    break); `writable` is what `send` answers."""

    def __init__(self, on_send: Callable[[Answer, bool], None] | None = None, writable: bool = True) -> None:
        self.answers: list[tuple[Answer, bool]] = []
        self.resumes: list[Resume] = []
        self.writable = writable
        self._on_send = on_send

    def send(self, answer: Answer, final: bool) -> bool:
        self.answers.append((answer, final))
        if self._on_send is not None:
            self._on_send(answer, final)
        return self.writable

    def on_writable(self, resume: Resume) -> None:
        self.resumes.append(resume)

    @property
    def finals(self) -> int:
        return sum(final for _, final in self.answers)

    @property
    def only(self) -> Answer:
        """The one answer there is, which is final."""
        assert [final for _, final in self.answers] == [True], self.answers
        return self.answers[0][0]

    @property
    def response(self) -> InferResponse:
        answer = self.only
        assert isinstance(answer, InferResponse), answer
        return answer

    @property
    def error(self) -> Error:
        answer = self.only
        assert isinstance(answer, Error), answer
        return answer


class RecordingObserver:
    """A runner's observer that keeps what it is told. `times` are those of the successes, as they were then."""

    def __init__(self) -> None:
        self.executions: list[int] = []
        self.phases: list[tuple[int, int, int]] = []
        self.successes: list[Inference] = []
        self.runs: list[list[int]] = []
        self.times: list[list[int]] = []
        self.failures: list[tuple[Inference, Reason]] = []
        self.responses: list[tuple[int, Answer]] = []

    def executed(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        self.executions.append(rows)
        self.phases.append((input_ns, infer_ns, output_ns))

    def succeeded(self, inference: Inference, now: int) -> None:
        self.successes.append(inference)
        self.times.append(list(inference.times))

    def served(self, inference: Inference, rows: int, now: int) -> None:
        _, _, began, input_end, output_start, end = inference.times
        self.executed(rows, input_end - began, output_start - input_end, end - output_start)
        self.succeeded(inference, now)

    def ran(self, inference: Inference) -> None:
        self.runs.append(list(inference.times))

    def responded(self, index: int, answer: Answer, ns: int, age: int = 0) -> None:
        self.responses.append((index, answer))

    def failed(self, inference: Inference, now: int, reason: Reason) -> None:
        self.failures.append((inference, reason))


class FakeInstance:
    """A backend's instance that does what `behave` says. `batches` are the request ids of what it was given."""

    def __init__(self, behave: Callable[[Execution], None]) -> None:
        self.batches: list[list[str]] = []
        self._behave = behave

    def execute(self, batch: Execution, responses: Execution, /) -> None:
        self.batches.append([one.request.id for one in batch.requests])
        self._behave(responses)


def echo(execution: Execution) -> None:
    """Answers each request with its own inputs, under their own names, as far as it asks for outputs of these names."""
    for i, one in enumerate(execution.requests):
        execution.send(i, [tensor for name, tensor in one.request.inputs.items() if name in one.outputs])


class Watched(bytearray):
    """Bytes of which one can tell whether anybody holds them still."""


class FakeMemory:
    """Bytes in memory of any kind; whoever wants to read them gets `error` instead, where there is one."""

    device_id = 0
    owner: object = None

    def __init__(
        self, data: bytes | bytearray | memoryview, kind: MemoryKind = MemoryKind.HOST, error: Exception | None = None
    ) -> None:
        self.view = memoryview(data)
        self.byte_size = self.view.nbytes
        self.kind = kind
        self._error = error

    def host(self) -> memoryview:
        if self._error is not None:
            raise self._error
        return self.view


class UnreachableMemory:
    """Memory on a device: whoever looks at its bytes made a hidden copy."""

    kind = MemoryKind.DEVICE
    device_id = 0
    owner: object = None

    def __init__(self, byte_size: int) -> None:
        self.byte_size = byte_size

    def host(self) -> memoryview:
        raise Unsupported("the host cannot reach this memory")


def inference(
    id: str = "",
    reply: Reply | None = None,
    batch_size: int = 0,
    inputs: Sequence[Tensor] = (),
    outputs: Sequence[str] = ("OUTPUT0",),
    batch_key: object = None,
) -> Inference:
    """An inference of model `m` that has passed its checks."""
    request = InferRequest("m")
    request.id = id
    request.inputs = {tensor.name: tensor for tensor in inputs}
    return Inference(0, request, reply or RecordingReply(), batch_size, outputs, batch_key)


class SerializingPort:
    """An engine port that hands every message over as bytes, a turn of the loop later: what several front-end processes
    would do. Event-loop thread only."""

    def __init__(self, engine: EnginePort, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._keys = count(1)
        self._theirs: dict[int, int] = {}

    def infer(self, request: InferRequest, reply: Reply) -> int:
        key = next(self._keys)
        self._loop.call_soon(self._infer, key, pickle.dumps(request), reply)
        return key

    def cancel(self, key: int) -> None:
        self._loop.call_soon(lambda: self._engine.cancel(self._theirs.get(key, 0)))

    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        self._loop.call_soon(self._ask, pickle.dumps(query), done)

    def _infer(self, key: int, message: bytes, reply: Reply) -> None:
        self._theirs[key] = self._engine.infer(pickle.loads(message), _SerializingReply(reply, self._loop))

    def _ask(self, message: bytes, done: Callable[[Any], None]) -> None:
        def answered(answer: object) -> None:
            returned = pickle.dumps(answer)
            self._loop.call_soon(lambda: done(pickle.loads(returned)))

        self._engine.ask(pickle.loads(message), answered)


class _SerializingReply:
    """The engine's side of a reply slot that is somewhere else. Passes on what the far side last said about room."""

    def __init__(self, far: Reply, loop: asyncio.AbstractEventLoop) -> None:
        self._far = far
        self._loop = loop
        self._writable = True

    def send(self, answer: Answer, final: bool) -> bool:
        try:
            message = pickle.dumps((answer, final))
        except Error as error:  # a tensor whose memory is gone; the front ends answer with its error too
            message = pickle.dumps((error, final))
        self._loop.call_soon(self._deliver, message)
        return self._writable

    def on_writable(self, resume: Resume) -> None:
        def resumed() -> None:
            self._writable = True
            self._loop.call_soon(resume)

        self._far.on_writable(resumed)

    def _deliver(self, message: bytes) -> None:
        self._writable = self._far.send(*pickle.loads(message))
