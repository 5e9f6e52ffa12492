"""What is noted of a traced inference, and the reply slot that notes it (contract T3 to T5, T7).

A `Group` is one request from outside and the requests that models make for its sake; it goes to its stream as a whole,
once the last of them is answered. Values are plain: who writes them reads them on another thread, when nobody changes
them any more. Event-loop thread only.
"""

from collections.abc import Callable
from itertools import count
from json import dumps
from random import getrandbits
from time import monotonic_ns
from typing import Final, NamedTuple, Protocol

from halimede.errors import Error
from halimede.requests import Answer, InferRequest, InferResponse, Reply, Resume
from halimede.tensors import DataType, Shape, Tensor

TIMESTAMPS: Final = 1
TENSORS: Final = 2
"""The levels, as bits."""

GROUP_COST: Final = 2048
"""Bytes that a request takes until it is written, about, besides the data of its tensors."""
MOMENT_COST: Final = 128
MAX_COST: Final = 1 << 24
"""Bytes of a group beyond which nothing more is noted of it: a model may answer, and call others, without end."""


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
    """Where groups go."""

    def take(self, group: "Group") -> None: ...

    def dropped(self) -> None:
        """There is nothing to tell of a group: its request was refused."""
        ...


class Group:
    """`received` is when the request began to arrive and when it was there; `moments` are the front end's others, in
    their order. `context` is what the client sent, `trace_id` is 0 where nobody asks for contexts; `level` has the bits
    of what is wanted. `open` counts the requests without their last answer; `cost` are bytes, about."""

    __slots__ = ("context", "cost", "front", "level", "members", "moments", "open", "received", "root_span", "trace_id")

    def __init__(
        self, level: int, front: Front, received: tuple[int, int], context: Context | None, spans: bool
    ) -> None:
        self.level = level
        self.front = front
        self.received = received
        self.moments: list[tuple[str, int]] = []
        self.members: list[Trace] = []
        self.open = 0
        self.cost = GROUP_COST
        self.context = context
        self.trace_id = (context.trace_id if context else getrandbits(128) or 1) if spans else 0
        self.root_span = getrandbits(64) or 1 if spans else 0

    def note(self, name: str, now: int) -> None:
        if self.cost < MAX_COST:
            self.cost += MOMENT_COST
            self.moments.append((name, now))


class Seen(NamedTuple):
    """A tensor at one of the activities of contract T5, and its bytes as they were then."""

    activity: str
    name: str
    datatype: DataType
    shape: Shape
    data: bytes


class Trace:
    """One inference of a group. `times` is indexed by `requests.Moment` and None until the inference has begun; `end`
    is 0 for one that was refused. `span` is 0 where nobody asks for spans."""

    __slots__ = (
        "computes",
        "end",
        "group",
        "id",
        "ids",
        "model",
        "parent",
        "request_id",
        "span",
        "stream",
        "tensors",
        "times",
        "version",
    )

    def __init__(self, group: Group, stream: TraceStream, ids: "count[int]", parent: "Trace | None" = None) -> None:
        self.id = next(ids)
        self.ids = ids
        self.group = group
        self.stream = stream
        self.parent = parent
        self.model = ""
        self.version = 0
        self.request_id = ""
        self.times: list[int] | None = None
        self.end = 0
        self.computes = True
        self.tensors: list[Seen] = []
        self.span = getrandbits(64) or 1 if group.trace_id else 0
        group.members.append(self)
        group.open += 1

    @property
    def context(self) -> str:
        """What a model passes on to whom it calls (contract T9, P55); empty where nobody asks for contexts."""
        group = self.group
        if not group.trace_id:
            return ""
        state = group.context.state if group.context else ""
        parent = f'{{"traceparent":"00-{group.trace_id:032x}-{self.span:016x}-01"'
        return f'{parent},"tracestate":{dumps(state)}}}' if state else f"{parent}}}"

    def begun(self, request: InferRequest, version: int, times: list[int], computes: bool = True) -> None:
        self.model = request.model_name
        self.version = version
        self.request_id = request.id
        self.times = times
        self.computes = computes
        if self.group.level & TENSORS:
            for tensor in request.inputs.values():
                self._see("TENSOR_QUEUE_INPUT", tensor)

    def child(self, request: InferRequest, reply: Reply) -> Reply:
        """A model may call others after the last answer of its own; the group may have gone already then, and the call
        is not traced."""
        group = self.group
        if not group.open or group.cost > MAX_COST:
            return reply
        group.cost += GROUP_COST
        trace = request.trace = Trace(self.group, self.stream, self.ids, self)
        return TracedReply(reply, trace)

    def answered(self, answer: Answer, final: bool) -> int:
        """Just before an answer is passed on; the time."""
        now = monotonic_ns()
        if isinstance(answer, InferResponse) and self.group.level & TENSORS:
            for tensor in answer.outputs:
                self._see("TENSOR_BACKEND_OUTPUT", tensor)
        if final and not (isinstance(answer, Error) and answer.refused):
            self.end = now
        return now

    def over(self) -> None:
        """Its last answer is on its way. What never began is not told; the root stands for the whole."""
        group = self.group
        if self.times is not None:
            self.times = self.times[:]  # the batch of a decoupled model may not be over: what it adds is after the end
        group.open -= 1
        if group.open:
            return
        if group.members[0].times is not None:
            self.stream.take(group)
        else:
            self.stream.dropped()

    def _see(self, activity: str, tensor: Tensor) -> None:
        """A copy, since a model may work in its inputs, and a client in what it shares."""
        if self.group.cost > MAX_COST:
            return
        try:
            data = bytes(tensor.memory.host())
        except Error:  # it lies where the host cannot read
            data = b""
        self.tensors.append(Seen(activity, tensor.name, tensor.datatype, tensor.shape, data))
        self.group.cost += len(data) + MOMENT_COST


class TracedReply:
    """Passes answers on to the slot of a request that was made by a model."""

    __slots__ = ("_reply", "_trace")

    def __init__(self, reply: Reply, trace: Trace) -> None:
        self._reply = reply
        self._trace = trace

    def send(self, answer: Answer, final: bool) -> bool:
        self._trace.answered(answer, final)
        writable = self._reply.send(answer, final)
        if final:
            self._trace.over()
        return writable

    def on_writable(self, resume: Resume) -> None:
        self._reply.on_writable(resume)


class FrontReply(TracedReply):
    """The same for the slot of a front end, whose own moments are noted. `tells_end`: it writes something also for an
    end without a response; `gone` says whether there is nobody left to write to."""

    __slots__ = ("_completed", "_gone", "_tells_end")

    def __init__(self, reply: Reply, trace: Trace, tells_end: bool, gone: Callable[[], bool]) -> None:
        super().__init__(reply, trace)
        self._tells_end = tells_end
        self._gone = gone
        self._completed = False

    def send(self, answer: Answer, final: bool) -> bool:
        trace = self._trace
        group = trace.group
        now = trace.answered(answer, final)
        noted = not self._gone() and not (isinstance(answer, Error) and answer.refused)
        if noted and (group.front.completes_each or not self._completed):
            self._completed = True
            group.note("INFER_RESPONSE_COMPLETE", now)
        writes = (answer is not None or self._tells_end) if group.front.writes_each else final
        if noted and writes:
            group.note(group.front.send_start, now)
            writable = self._reply.send(answer, final)
            group.note(group.front.send_end, monotonic_ns())
        else:
            writable = self._reply.send(answer, final)
        if final:
            trace.over()
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
        gone: Callable[[], bool] = lambda: False,
    ) -> Reply:
        """The slot to give to the engine: the same one, unless the request is the next to be traced."""
        return reply

    def undecoded(self, model: str, front: Front, received: tuple[int, int], context: Context | None = None) -> None:
        """A request over HTTP that could not be read counts as one that came (contract H30)."""


UNTRACED: Final = Sampler()
