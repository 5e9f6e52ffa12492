"""The trace of an inference, recorded by the reply slot for its answers (T3 to T5, T7).

A `RootTrace` belongs to a request of a client, a `CallTrace` to a request that a model makes for the sake of another. A
root goes to its stream together with all its calls, once the last of them is answered. Until then traces are used on
the event-loop thread only. Afterwards nothing changes them, and another thread may write them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from json import dumps
from random import getrandbits
from time import monotonic_ns
from typing import Final, NamedTuple, Protocol

from halimede.errors import Error
from halimede.requests import NULL_REPLY, Answer, InferRequest, InferResponse, Reply, Resume
from halimede.tensors import DataType, Shape, Tensor

TIMESTAMPS: Final = 1
"""Bit of a trace level: time stamps are recorded."""
TENSORS: Final = 2
"""Bit of a trace level: the data of tensors is recorded."""

TRACE_COST: Final = 2048
"""Approximate bytes of a trace in memory, without stamps and tensors."""
STAMP_COST: Final = 128
"""Approximate bytes of a stamp, and of a tensor without its data."""
MAX_COST = 1 << 24
"""Bytes at which a root records no more stamps, tensors and calls: a model may answer and call without end. A tensor
that would exceed them is recorded without its data."""


class StampNames(NamedTuple):
    """The names of a front end's time stamps (T4).

    `completes_each`: INFER_RESPONSE_COMPLETE is recorded for each response, otherwise for the first only.
    `writes_each`: the front end writes each response when it comes, otherwise all at the end.
    """

    receive_start: str
    receive_end: str
    send_start: str
    send_end: str
    completes_each: bool
    writes_each: bool


HTTP: Final = StampNames("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END", True, False)
HTTP_EVENTS: Final = HTTP._replace(writes_each=True)
GRPC: Final = StampNames("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END", False, True)


class Context(NamedTuple):
    """A W3C trace context (T9). `state` is the client's `tracestate` header, unchanged."""

    trace_id: int
    span_id: int
    state: str = ""


class TraceStream(Protocol):
    """Takes finished roots."""

    def take(self, root: "RootTrace") -> None: ...

    def dropped(self) -> None:
        """Called instead of `take` for a root whose request was refused before it began."""
        ...


class WatchedReply(Reply, TraceStream, Protocol):
    """The reply slot of a request that a `Watcher` records, and the stream that takes its trace."""


class Watcher(Protocol):
    """Looks at requests beside the trace settings: the console."""

    def watch(self, reply: Reply) -> WatchedReply | None:
        """Returns what takes the answers and the trace of a request, None for a request that is of no interest."""
        ...


class TensorRecord(NamedTuple):
    """A tensor at one of the activities of T5, with a copy of its bytes."""

    activity: str
    name: str
    datatype: DataType
    shape: Shape
    data: bytes


def _is_never_gone() -> bool:
    return False


class Trace(ABC):
    """The trace of one inference. It is also the inference's reply slot, and passes the answers on to `reply`.

    `times` is indexed by `requests.Stamp`, and None until the inference begins. `end` is 0 for a refused request.
    `span` is the span id, 0 if no spans are exported.
    """

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
        self.tensors: list[TensorRecord] = []
        self.span = getrandbits(64) or 1 if spans else 0

    @property
    @abstractmethod
    def root(self) -> "RootTrace": ...

    @property
    @abstractmethod
    def parent_id(self) -> int:
        """The id of the trace for whose sake the request was made; 0 for a root (T7)."""
        ...

    @property
    def context(self) -> str:
        """The trace context as JSON, for the model to pass on (T9, P55); empty if no spans are exported."""
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
                self._record_tensor("TENSOR_QUEUE_INPUT", tensor)

    def child(self, request: InferRequest, reply: Reply) -> Reply:
        root = self.root
        # A model may make calls after its last answer, when the root is already written: they are not traced.
        if not root.open or root.cost > MAX_COST:
            return reply
        call = request.trace = CallTrace(reply, root, self)
        return call

    @abstractmethod
    def send(self, answer: Answer, final: bool) -> bool: ...

    def on_writable(self, resume: Resume) -> None:
        self._reply.on_writable(resume)

    def _before_send(self, answer: Answer, final: bool) -> int:
        """Records an answer before it is passed on. Returns the time, in monotonic ns."""
        now = monotonic_ns()
        if self.root.level & TENSORS and isinstance(answer, InferResponse):
            for tensor in answer.outputs:
                self._record_tensor("TENSOR_BACKEND_OUTPUT", tensor)
        if final and not (isinstance(answer, Error) and answer.refused):
            self.end = now
        return now

    def _end(self) -> None:
        """Ends this trace, after its last answer."""
        # The trace may wait long for the writer. The reply slot would keep the client's connection in memory.
        self._reply = NULL_REPLY
        if self.times is not None:
            # A copy: the batch of a decoupled model may still run, and sets stamps that lie after the end.
            self.times = self.times[:]
        self.root.trace_ended()

    def _record_tensor(self, activity: str, tensor: Tensor) -> None:
        root = self.root
        if root.cost > MAX_COST:
            return
        try:
            # A copy: a model may change its inputs in place, and a client its shared memory.
            fits = root.cost + tensor.memory.byte_size <= MAX_COST
            data = bytes(tensor.memory.host()) if fits else b""
        except Error:  # the host cannot read this memory
            data = b""
        self.tensors.append(TensorRecord(activity, tensor.name, tensor.datatype, tensor.shape, data))
        root.cost += len(data) + STAMP_COST


class RootTrace(Trace):
    """The trace of a client's request.

    - `received`: when its first and its last byte arrived
    - `stamps`, `stamp_times`: the names and times of the front end's other stamps, in their order
    - `client`: the trace context that the client sent
    - `trace_id`: 0 if no spans are exported
    - `level`: the bits of what is recorded
    - `open`: this trace and its calls that have not ended
    - `cost`: approximate bytes in memory
    - `tells_end`: the front end also writes something for an end without a response
    - `gone`: whether the client has gone, so that nothing is written any more

    All times are monotonic nanoseconds.
    """

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
        "open",
        "received",
        "stamp_times",
        "stamps",
        "trace_id",
    )

    def __init__(
        self,
        reply: Reply,
        stream: TraceStream,
        ids: "count[int]",
        level: int,
        front: StampNames,
        received: tuple[int, int],
        client: Context | None,
        spans: bool,
        tells_end: bool = True,
        gone: Callable[[], bool] = _is_never_gone,
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
        self.stamps: list[str] = []
        self.stamp_times: list[int] = []
        self.calls: list[CallTrace] = []
        self.open = 1
        self.cost = TRACE_COST
        self.trace_id = (client.trace_id if client else getrandbits(128) or 1) if spans else 0
        self.front_span = getrandbits(64) or 1 if spans else 0

    @property
    def root(self) -> "RootTrace":
        return self

    @property
    def parent_id(self) -> int:
        return 0

    def send(self, answer: Answer, final: bool) -> bool:
        front = self.front
        now = self._before_send(answer, final)
        # Triton records no front end's stamps for a refused request.
        is_recorded = not self._gone() and not (isinstance(answer, Error) and answer.refused)
        if is_recorded and (front.completes_each or not self._completed):
            self._completed = True
            self._stamp("INFER_RESPONSE_COMPLETE", now)
        writes = (answer is not None or self._tells_end) if front.writes_each else final
        if is_recorded and writes:
            self._stamp(front.send_start, now)
            writable = self._reply.send(answer, final)
            self._stamp(front.send_end, monotonic_ns())
        else:
            writable = self._reply.send(answer, final)
        if final:
            self._end()
        return writable

    def add_call(self, call: "CallTrace") -> int:
        """Adds a call. Returns its id."""
        self.calls.append(call)
        self.open += 1
        self.cost += TRACE_COST
        return next(self._ids)

    def trace_ended(self) -> None:
        """Counts a trace that has ended. After the last one, the root goes to its stream."""
        self.open -= 1
        if self.open:
            return
        self._gone = _is_never_gone  # the front end's function would keep the client's connection in memory
        if self.times is not None:
            self._stream.take(self)
        else:
            self._stream.dropped()  # the request never began

    def _stamp(self, name: str, now: int) -> None:
        if self.cost < MAX_COST:
            self.cost += STAMP_COST
            self.stamps.append(name)
            self.stamp_times.append(now)


class CallTrace(Trace):
    """The trace of a request that a model made for the sake of `parent` (T7)."""

    __slots__ = ("_root", "parent")

    def __init__(self, reply: Reply, root: RootTrace, parent: Trace) -> None:
        super().__init__(reply, root.add_call(self), root.trace_id != 0)
        self._root = root
        self.parent = parent

    @property
    def root(self) -> RootTrace:
        return self._root

    @property
    def parent_id(self) -> int:
        return self.parent.id

    def send(self, answer: Answer, final: bool) -> bool:
        self._before_send(answer, final)
        writable = self._reply.send(answer, final)
        if final:
            self._end()
        return writable


class Sampler:
    """The interface of tracing for front ends. This class traces nothing.

    `on`: some requests may be traced; otherwise front ends need not call `traced`. `takes_context`: the trace contexts
    of clients are used, so front ends must read them.
    """

    on = False
    takes_context = False

    def passes(self, request: InferRequest) -> bool:
        """Whether this request is certainly not traced. If so, it is counted, and the front end must not call `traced`.

        So front ends need not collect the arguments of `traced` for most requests.
        """
        return False

    def traced(
        self,
        request: InferRequest,
        reply: Reply,
        front: StampNames,
        received: tuple[int, int],
        context: Context | None = None,
        tells_end: bool = True,
        gone: Callable[[], bool] = _is_never_gone,
    ) -> Reply:
        """The reply slot to give to the engine: `reply`, or the trace of the request if it is traced."""
        return reply

    def undecoded(
        self, model: str, front: StampNames, received: tuple[int, int], context: Context | None = None
    ) -> None:
        """Counts an HTTP request that could not be decoded (H30)."""

    def watched_by(self, watcher: Watcher | None) -> None:
        """From now on `watcher` is asked for each request whether it records it; None: nobody is."""


UNTRACED: Final = Sampler()
