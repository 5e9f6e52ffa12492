"""What is noted of a traced inference, by the slot for its answers (contract T3 to T5, T7).

A `Root` is a request from outside, a `Call` one that a model makes for the sake of another. A root goes to its stream
with all its calls, once the last of them is answered. Event-loop thread only, until then; who writes them may do so on
another thread, when nobody changes them any more.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from json import dumps
from random import getrandbits
from time import monotonic_ns
from typing import Final, NamedTuple, Protocol

from halimede.errors import Error
from halimede.requests import NOBODY, Answer, InferRequest, InferResponse, Reply, Resume
from halimede.tensors import DataType, Shape, Tensor

TIMESTAMPS: Final = 1
TENSORS: Final = 2
"""The levels, as bits."""

TRACE_COST: Final = 2048
"""Bytes that a request takes until it is written, about, besides the data of its tensors."""
MOMENT_COST: Final = 128
MAX_COST = 1 << 24
"""Bytes of a root beyond which nothing more is noted of it: a model may answer, and call others, without end."""


class Front(NamedTuple):
    """The names of a front end's time stamps (contract T4). `completes_each`: each response is noted, not the first.
    `writes_each`: responses are written as they come, not all at the end."""

    receive_start: str
    receive_end: str
    send_start: str
    send_end: str
    completes_each: bool
    writes_each: bool


HTTP: Final = Front("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END", True, False)
HTTP_EVENTS: Final = HTTP._replace(writes_each=True)
GRPC: Final = Front("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END", False, True)


class Context(NamedTuple):
    """A W3C trace context (contract T9): ids as numbers, `state` as it was sent."""

    trace_id: int
    span_id: int
    state: str = ""


class TraceStream(Protocol):
    """Where roots go."""

    def take(self, root: "Root") -> None: ...

    def dropped(self) -> None:
        """There is nothing to tell of one: its request was refused."""
        ...


class Seen(NamedTuple):
    """A tensor at one of the activities of contract T5, and its bytes as they were then."""

    activity: str
    name: str
    datatype: DataType
    shape: Shape
    data: bytes


def _stays() -> bool:
    return False


class Trace(ABC):
    """One inference, and the slot for its answers, which passes them on to `reply`. `times` is indexed by
    `requests.Moment` and None until the inference has begun; `end` is 0 for one that was refused. `span` is 0 where
    nobody asks for spans."""

    __slots__ = (
        "_reply",
        "computes",
        "end",
        "id",
        "model",
        "request_id",
        "span",
        "tensors",
        "times",
        "version",
    )

    def __init__(self, reply: Reply, number: int, spans: bool) -> None:
        self._reply = reply
        self.id = number
        self.model = ""
        self.version = 0
        self.request_id = ""
        self.times: list[int] | None = None
        self.end = 0
        self.computes = True
        self.tensors: list[Seen] = []
        self.span = getrandbits(64) or 1 if spans else 0

    @property
    @abstractmethod
    def root(self) -> "Root": ...

    @property
    @abstractmethod
    def parent_id(self) -> int:
        """That of the trace that it was called for, 0 of a root."""
        ...

    @property
    def context(self) -> str:
        """What a model passes on to whom it calls (contract T9, P55); empty where nobody asks for contexts."""
        root = self.root
        if not root.trace_id:
            return ""
        state = root.client.state if root.client else ""
        parent = f'{{"traceparent":"00-{root.trace_id:032x}-{self.span:016x}-01"'
        return f'{parent},"tracestate":{dumps(state)}}}' if state else f"{parent}}}"

    def begun(self, request: InferRequest, version: int, times: list[int], computes: bool = True) -> None:
        self.model = request.model_name
        self.version = version
        self.request_id = request.id
        self.times = times
        self.computes = computes
        if self.root.level & TENSORS:
            for tensor in request.inputs.values():
                self._see("TENSOR_QUEUE_INPUT", tensor)

    def child(self, request: InferRequest, reply: Reply) -> Reply:
        """A model may call others after the last answer of its own; the root may have gone already then, and the call
        is not traced."""
        root = self.root
        if not root.open or root.cost > MAX_COST:
            return reply
        call = request.trace = Call(reply, root, self)
        return call

    @abstractmethod
    def send(self, answer: Answer, final: bool) -> bool: ...

    def on_writable(self, resume: Resume) -> None:
        self._reply.on_writable(resume)

    def _answered(self, answer: Answer, final: bool) -> int:
        """Just before an answer is passed on; the time."""
        now = monotonic_ns()
        if self.root.level & TENSORS and isinstance(answer, InferResponse):
            for tensor in answer.outputs:
                self._see("TENSOR_BACKEND_OUTPUT", tensor)
        if final and not (isinstance(answer, Error) and answer.refused):
            self.end = now
        return now

    def _over(self) -> None:
        """Its last answer is on its way. It may be kept for a while; who sent the request shall not."""
        self._reply = NOBODY
        if self.times is not None:
            self.times = self.times[:]  # the batch of a decoupled model may not be over: what it adds is after the end
        self.root.one_over()

    def _see(self, activity: str, tensor: Tensor) -> None:
        """A copy, since a model may work in its inputs, and a client in what it shares."""
        root = self.root
        if root.cost > MAX_COST:
            return
        try:
            data = bytes(tensor.memory.host())
        except Error:  # it lies where the host cannot read
            data = b""
        self.tensors.append(Seen(activity, tensor.name, tensor.datatype, tensor.shape, data))
        root.cost += len(data) + MOMENT_COST


class Root(Trace):
    """A request that came over a front end. `received` is when it began to arrive and when it was there; `moments` are
    the names of the front end's others, in their order, and `moments_at` when they were. `client` is the context that
    the client sent, `trace_id` is 0 where nobody asks for contexts; `level` has the bits of what is wanted. `open`
    counts the traces without their last answer; `cost` are bytes, about. `tells_end`: the front end writes something
    also for an end without a response; `gone` says whether there is nobody left to write to."""

    __slots__ = (
        "_completed",
        "_gone",
        "_ids",
        "_stream",
        "_tells_end",
        "calls",
        "client",
        "cost",
        "front",
        "front_span",
        "level",
        "moments",
        "moments_at",
        "open",
        "received",
        "trace_id",
    )

    def __init__(
        self,
        reply: Reply,
        stream: TraceStream,
        ids: "count[int]",
        level: int,
        front: Front,
        received: tuple[int, int],
        client: Context | None,
        spans: bool,
        tells_end: bool = True,
        gone: Callable[[], bool] = _stays,
    ) -> None:
        super().__init__(reply, next(ids), spans)
        self._stream = stream
        self._ids = ids
        self.level = level
        self.front = front
        self.received = received
        self.client = client
        self._tells_end = tells_end
        self._gone = gone
        self._completed = False
        self.moments: list[str] = []
        self.moments_at: list[int] = []
        self.calls: list[Call] = []
        self.open = 1
        self.cost = TRACE_COST
        self.trace_id = (client.trace_id if client else getrandbits(128) or 1) if spans else 0
        self.front_span = getrandbits(64) or 1 if spans else 0

    @property
    def root(self) -> "Root":
        return self

    @property
    def parent_id(self) -> int:
        return 0

    def send(self, answer: Answer, final: bool) -> bool:
        front = self.front
        now = self._answered(answer, final)
        noted = not self._gone() and not (isinstance(answer, Error) and answer.refused)
        if noted and (front.completes_each or not self._completed):
            self._completed = True
            self._note("INFER_RESPONSE_COMPLETE", now)
        writes = (answer is not None or self._tells_end) if front.writes_each else final
        if noted and writes:
            self._note(front.send_start, now)
            writable = self._reply.send(answer, final)
            self._note(front.send_end, monotonic_ns())
        else:
            writable = self._reply.send(answer, final)
        if final:
            self._over()
        return writable

    def called(self, call: "Call") -> int:
        """Its number."""
        self.calls.append(call)
        self.open += 1
        self.cost += TRACE_COST
        return next(self._ids)

    def one_over(self) -> None:
        """What never began is not told; the root stands for the whole."""
        self.open -= 1
        if self.open:
            return
        self._gone = _stays
        if self.times is not None:
            self._stream.take(self)
        else:
            self._stream.dropped()

    def _note(self, name: str, now: int) -> None:
        if self.cost < MAX_COST:
            self.cost += MOMENT_COST
            self.moments.append(name)
            self.moments_at.append(now)


class Call(Trace):
    """A request that a model made for the sake of `parent`."""

    __slots__ = ("_root", "parent")

    def __init__(self, reply: Reply, root: Root, parent: Trace) -> None:
        super().__init__(reply, root.called(self), root.trace_id != 0)
        self._root = root
        self.parent = parent

    @property
    def root(self) -> Root:
        return self._root

    @property
    def parent_id(self) -> int:
        return self.parent.id

    def send(self, answer: Answer, final: bool) -> bool:
        self._answered(answer, final)
        writable = self._reply.send(answer, final)
        if final:
            self._over()
        return writable


class Sampler:
    """What front ends know of tracing; this one traces nothing. `on`: some requests may be traced, only then `traced`
    is worth a call. `takes_context`: the context that a client sends matters."""

    on = False
    takes_context = False

    def passes(self, request: InferRequest) -> bool:
        """Whether this request is surely not the next to be traced; it has been counted then. So what `traced` is told
        need not be noted for most requests."""
        return False

    def traced(
        self,
        request: InferRequest,
        reply: Reply,
        front: Front,
        received: tuple[int, int],
        context: Context | None = None,
        tells_end: bool = True,
        gone: Callable[[], bool] = _stays,
    ) -> Reply:
        """The slot to give to the engine: the same one, unless the request is the next to be traced."""
        return reply

    def undecoded(self, model: str, front: Front, received: tuple[int, int], context: Context | None = None) -> None:
        """A request over HTTP that could not be read counts as one that came (contract H30)."""


UNTRACED: Final = Sampler()
