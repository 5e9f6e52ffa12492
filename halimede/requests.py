"""An inference request, its responses and the slot for its reply: the plain data that crosses the engine's port.

No protocol words and no scheduling here. Values are built on the event-loop thread (or on a decoding thread and handed
over); nothing in them refers to a transport.
"""

from collections.abc import Hashable
from typing import Any, Final, Protocol

from halimede.errors import Error, Unsupported
from halimede.tensors import Memory, RegionReference, Tensor

Parameter = bool | int | str | float
Parameters = dict[str, Parameter]

NO_SEQUENCE: Final[Parameters] = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
"""What each response of an ensemble says of its sequence where there is none (contract S84). Never changed, and always
this very object, so that it is written out once."""


class Moment:
    """Index into the fixed array of time stamps that every inference carries (monotonic nanoseconds, 0 = not reached).

    Statistics, metrics and traces all read this array (contract S7). Plain integers: a member of an enumeration takes
    five times as long to look up.
    """

    REQUEST_START: Final = 0
    QUEUE_START: Final = 1
    COMPUTE_START: Final = 2
    INPUT_END: Final = 3
    OUTPUT_START: Final = 4
    COMPUTE_END: Final = 5


MOMENTS: Final = 6


class InferRequest:
    """What a client asks of one model.

    `version` is the number asked for, or -1 for the latest. `inputs` by name in the order of the request; an input's
    shape is as the client wrote it (with the batch dimension). `raw` instead of inputs is a body whose single input the
    model must deduce (contract H34). `outputs` are the names asked for; empty means all. `destinations` says where a
    result must be written; `in_regions` that it does, or that inputs are references: to shared memory of the client,
    which the engine looks up. `timeout_us` and `priority` are 0 when not given. `decoupled_ok`: the caller can take any
    number of responses. `classes` says of outputs that not they are wanted, but so many of their largest values (H80).
    `inner`: a model asks, for the sake of a request that was accepted before. `on_device`: whoever asks takes outputs
    where the model's device has them, and may read them on the host all the same, at the price of a copy.
    `form`, where it is there, is equal for requests whose inputs have the same names, datatypes
    and shapes in the same order, and which ask for the same outputs: what was found out about one holds for all.
    `most_ahead` is how many responses a model may be ahead of a reader, where that is fewer than it may be by their
    size; 0 when not given. `trace` is there for a request that is traced.
    """

    # Defaults of the class and no slots: a request is made faster so, as most of it is never set.
    id: str = ""
    outputs: tuple[str, ...] = ()
    destinations: dict[str, RegionReference] | None = None
    in_regions: bool = False
    classes: dict[str, int] | None = None
    parameters: Parameters | None = None
    correlation_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    decoupled_ok: bool = False
    inner: bool = False
    on_device: bool = False
    most_ahead: int = 0
    form: Hashable = None

    def __init__(self, model_name: str, version: int = -1) -> None:
        self.model_name = model_name
        self.version = version
        self.inputs: dict[str, Tensor] = {}
        # No defaults of the class: compiled, a request would be without them (docs/decisions/compiled.md).
        self.raw: Memory | None = None
        self.trace: Traced | None = None

    @property
    def log_prefix(self) -> str:
        """What the core's own errors begin with (contract H49)."""
        return f"[request id: {self.id or '<id_unknown>'}] "

    def __reduce__(self) -> tuple[Any, ...]:
        return _request_of, ({name: getattr(self, name) for name in _FIELDS},)


_FIELDS = (
    *("model_name", "version", "inputs", "raw", "trace", "id", "outputs", "destinations", "in_regions", "classes"),
    *("parameters", "correlation_id", "sequence_start", "sequence_end", "priority", "timeout_us", "decoupled_ok"),
    *("inner", "most_ahead", "form"),
)


def _request_of(fields: dict[str, Any]) -> InferRequest:
    request = InferRequest(fields["model_name"])
    for name, value in fields.items():
        setattr(request, name, value)
    return request


class InferResponse:
    """One response of a model: `model_version` is the one that answered; `outputs` in the order to be written."""

    __slots__ = ("id", "model_name", "model_version", "outputs", "parameters")

    def __init__(
        self, id: str, model_name: str, model_version: int, outputs: list[Tensor], parameters: Parameters | None = None
    ) -> None:
        self.id = id
        self.model_name = model_name
        self.model_version = model_version
        self.outputs = outputs
        self.parameters = parameters

    def __reduce__(self) -> tuple[Any, ...]:
        return InferResponse, (self.id, self.model_name, self.model_version, self.outputs, self.parameters)


Answer = InferResponse | Error | None
"""One thing that can be sent to a reply slot; None only with the final flag: "no more responses"."""


class Reply(Protocol):
    """Where the answers to one request go. Called on the event-loop thread only.

    Any number of answers may be sent; exactly one of them, the last, is final (an Error for a model that is not
    decoupled is always final). A slot never raises. `send` returns whether the receiver takes more at once: after
    False the sender waits for the callback given to `on_writable`, so that a slow reader slows its model and not the
    memory of the server.
    """

    def send(self, answer: Answer, final: bool) -> bool: ...

    def on_writable(self, resume: "Resume") -> None: ...


class _Nobody:
    """The slot of a request that nobody waits for."""

    def send(self, answer: Answer, final: bool) -> bool:
        return True

    def on_writable(self, resume: "Resume") -> None:
        resume()


NOBODY: Final = _Nobody()

LONGEST_CORRELATION_ID = 128  # bytes


def check_correlation_id(text: str) -> str:
    """A correlation id that is a text, as it is. Raises Unsupported where it is too long (contract S50)."""
    if len(text) > LONGEST_CORRELATION_ID or len(text.encode(errors="replace")) > LONGEST_CORRELATION_ID:
        raise Unsupported("string correlation ID cannot be longer than 128 characters")
    return text


class Resume(Protocol):
    """Called once when a reply slot takes answers again."""

    def __call__(self) -> None: ...


class Traced(Protocol):
    """The trace of a request, as the core knows it."""

    @property
    def id(self) -> int: ...

    @property
    def context(self) -> str:
        """What the request's model may pass on to whom it calls, as JSON; empty where there is nothing."""
        ...

    def begun(self, request: InferRequest, version: int, times: list[int], computes: bool = True) -> None:
        """The model takes the request; `times` is what the inference will fill, indexed by `Moment`. `computes`: the
        model does something itself; an ensemble does not."""
        ...

    def child(self, request: InferRequest, reply: Reply) -> Reply:
        """Has a request that is made for the sake of this one traced too; the slot to give to the engine with it."""
        ...
