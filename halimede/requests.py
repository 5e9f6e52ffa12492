"""An inference request, its responses and the slot for its reply: the plain data that crosses the engine's port.

No protocol words and no scheduling here. Values are built on the event-loop thread (or on a decoding thread and handed
over); nothing in them refers to a transport.
"""

from enum import IntEnum
from typing import Protocol

from halimede.errors import Error
from halimede.tensors import Memory, Tensor

Parameter = bool | int | str | float
Parameters = dict[str, Parameter]


class Moment(IntEnum):
    """Index into the fixed array of time stamps that every inference carries (monotonic nanoseconds, 0 = not reached).

    Statistics, metrics and traces all read this array (contract S7).
    """

    REQUEST_START = 0
    QUEUE_START = 1
    COMPUTE_START = 2
    INPUT_END = 3
    OUTPUT_START = 4
    COMPUTE_END = 5


MOMENTS = len(Moment)


class InferRequest:
    """What a client asks of one model.

    `version` is the number asked for, or -1 for the latest. `inputs` by name in the order of the request; an input's
    shape is as the client wrote it (with the batch dimension). `raw` instead of inputs is a body whose single input the
    model must deduce (contract H34). `outputs` are the names asked for; empty means all. `destinations` says where a
    result must be written. `timeout_us` and `priority` are 0 when not given. `decoupled_ok`: the caller can take any
    number of responses.
    """

    __slots__ = (
        "correlation_id",
        "decoupled_ok",
        "destinations",
        "id",
        "inputs",
        "model_name",
        "outputs",
        "parameters",
        "priority",
        "raw",
        "sequence_end",
        "sequence_start",
        "timeout_us",
        "version",
    )

    def __init__(self, model_name: str, version: int = -1) -> None:
        self.model_name = model_name
        self.version = version
        self.id = ""
        self.inputs: dict[str, Tensor] = {}
        self.raw: Memory | None = None
        self.outputs: tuple[str, ...] = ()
        self.destinations: dict[str, Memory] | None = None
        self.parameters: Parameters | None = None
        self.correlation_id: int | str = 0
        self.sequence_start = False
        self.sequence_end = False
        self.priority = 0
        self.timeout_us = 0
        self.decoupled_ok = False

    @property
    def log_prefix(self) -> str:
        """What the core's own errors begin with (contract H49)."""
        return f"[request id: {self.id or '<id_unknown>'}] "


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


class Resume(Protocol):
    """Called once when a reply slot takes answers again."""

    def __call__(self) -> None: ...
