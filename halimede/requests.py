"""An inference request, its responses and its reply slot: the plain data that crosses the engine's port.

Knows no protocol, no transport and no scheduling. Values are made on the event-loop thread, or on a decoding thread
that hands them over.
"""

from collections.abc import Hashable
from typing import Any, Final, Protocol

from halimede.errors import Error, Invalid, Unsupported
from halimede.tensors import Memory, RegionReference, Tensor

Parameter = bool | int | str | float
Parameters = dict[str, Parameter]

NO_SEQUENCE: Final[Parameters] = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
"""The parameters of each response of an ensemble if its request has no sequence (S84). All responses share this object,
so that front ends can encode it once. It is never changed."""


class Stamp:
    """Indexes into the array of time stamps of an inference, in monotonic nanoseconds; 0 stands for not reached.

    Statistics, metrics and traces read this array (S7).
    """

    # Plain integers: the lookup of an enum's member takes five times as long.

    REQUEST_START: Final = 0
    QUEUE_START: Final = 1
    COMPUTE_START: Final = 2
    INPUT_END: Final = 3
    OUTPUT_START: Final = 4
    COMPUTE_END: Final = 5


STAMP_COUNT: Final = 6


class InferRequest:
    """An inference request to one model.

    - `version`: the requested version, -1 for the latest
    - `inputs`: by name, in the order of the request; shapes are the client's, with the batch dimension
    - `raw`: a body instead of inputs; the model's only input is deduced from it (H34)
    - `outputs`: the names of the requested outputs, empty for all
    - `destinations`: shared memory of the client for outputs, by name
    - `in_regions`: whether there are destinations, or inputs that refer to shared memory; the engine looks both up
    - `classes`: outputs of which the client wants only the given number of largest values (H80)
    - `priority`, `timeout_us`: 0 if not given
    - `decoupled_ok`: the caller accepts any number of responses
    - `inner`: a model makes the request, for the sake of a request that was accepted before
    - `on_device`: the caller accepts outputs in the memory of the model's device; it may still read them on the host,
      at the price of a copy
    - `form`: equal for requests with equal names, datatypes and shapes of inputs in the same order, and equal
      requested outputs, so that checks of one hold for all; None if unknown
    - `most_ahead`: how many responses the model may be ahead of the reader, if the limit by bytes would allow more;
      0 if not given
    - `trace`: the trace, if the request is traced
    """

    # Class attributes as defaults, and no slots: most fields are never set, so a request is made faster.
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
        # Not class attributes: mypyc does not set defaults whose type is a Protocol.
        self.raw: Memory | None = None
        self.trace: Traced | None = None

    @property
    def log_prefix(self) -> str:
        """The beginning of the core's own error texts about this request (H49)."""
        return f"[request id: {self.id or '<id_unknown>'}] "

    def __reduce__(self) -> tuple[Any, ...]:
        return _request_of, ({name: getattr(self, name) for name in _FIELDS},)


# Without `on_device`: a request that was serialized comes from another process, which reads outputs on the host.
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
    """One response of a model. `model_version` is the version that answered. `outputs` are in the order of writing."""

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
"""What can be sent to a reply slot. None stands for no more responses, and comes with the final flag only."""


class Reply(Protocol):
    """The reply slot of a request, which takes its answers. Event-loop thread only; no method raises.

    Any number of answers may be sent. Exactly one of them, the last, is final. An Error for a model that is not
    decoupled is always final.
    """

    def send(self, answer: Answer, final: bool) -> bool:
        """Returns whether the slot takes more now. After False the sender waits for `on_writable`, so that a slow
        reader slows its model down instead of filling the server's memory."""
        ...

    def on_writable(self, resume: "Resume") -> None:
        """Calls `resume` once when the slot takes more."""
        ...


class _NullReply:
    """A reply slot that drops its answers."""

    def send(self, answer: Answer, final: bool) -> bool:
        return True

    def on_writable(self, resume: "Resume") -> None:
        resume()


NULL_REPLY: Final = _NullReply()
"""The slot for requests whose answers are not read, and for slots that have ended."""

MAX_CORRELATION_ID_BYTES = 128
"""The limit of a correlation id that is a string (S50). Beyond: 501 or UNIMPLEMENTED."""
MAX_REQUEST_ID_BYTES = 1 << 16
"""Bytes of the id of an inference. Every response repeats it. Beyond: 400 or INVALID_ARGUMENT."""
MAX_PARAMETERS: Final = 512
"""Parameters of an inference. The event loop passes those of a whole batch on to a Python model. Beyond: 400 or
INVALID_ARGUMENT."""
MAX_PARAMETER_CHARACTERS: Final = 1 << 17
"""Characters of the names and texts of these parameters. Beyond: 400 or INVALID_ARGUMENT."""


def check_correlation_id(text: str) -> str:
    """Returns a correlation id that is a string, unchanged. Raises Unsupported if it is too long (S50)."""
    if len(text) > MAX_CORRELATION_ID_BYTES or len(text.encode(errors="replace")) > MAX_CORRELATION_ID_BYTES:
        raise Unsupported("string correlation ID cannot be longer than 128 characters")
    return text


def refuse_long_id(size: int) -> None:
    """Raises Invalid for a request id of more than `MAX_REQUEST_ID_BYTES`."""
    if size > MAX_REQUEST_ID_BYTES:
        raise Invalid(f"the request id has {size} bytes; the largest has {MAX_REQUEST_ID_BYTES}")


def refuse_large_parameters(parameters: Parameters) -> None:
    """Raises Invalid for more than `MAX_PARAMETERS`, or more than `MAX_PARAMETER_CHARACTERS` in them."""
    if len(parameters) > MAX_PARAMETERS:
        raise Invalid(f"the request has {len(parameters)} parameters; it may have {MAX_PARAMETERS}")
    size = sum([len(name) + (len(value) if isinstance(value, str) else 0) for name, value in parameters.items()])
    if size > MAX_PARAMETER_CHARACTERS:
        raise Invalid(f"the parameters have {size} characters; they may have {MAX_PARAMETER_CHARACTERS}")


class Resume(Protocol):
    """The callback of `Reply.on_writable`."""

    def __call__(self) -> None: ...


class Traced(Protocol):
    """The trace of a request, as the core uses it."""

    @property
    def id(self) -> int: ...

    @property
    def context(self) -> str:
        """The trace context as JSON, which the model may pass on to servers that it calls (T9); empty if there is
        none."""
        ...

    def begun(self, request: InferRequest, version: int, times: list[int], computes: bool = True) -> None:
        """Called when the model takes the request. The inference fills in `times`, indexed by `Stamp`.

        `computes` is False for an ensemble, which computes nothing itself.
        """
        ...

    def child(self, request: InferRequest, reply: Reply) -> Reply:
        """Traces a request that is made for the sake of this one. Returns the reply slot to give to the engine."""
        ...
