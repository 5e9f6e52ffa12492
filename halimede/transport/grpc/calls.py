"""What every gRPC transport offers to a service, and what it takes from one: calls, streams and the table of RPCs.

Protocols and plain values only, no inference words; stated here because transports cannot import a front end. All
callbacks run on the event-loop thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from halimede.tensors import Buffer

Message = Sequence[Buffer]
"""A message to send: buffers that follow each other on the wire."""
Metadata = Sequence[tuple[str, str | bytes]]

OK = 0


class GrpcCall(Protocol):
    """One call, as the transport shows it. Nothing here raises, also after the client has gone."""

    @property
    def metadata(self) -> Metadata: ...

    def send(self, message: Message) -> bool:
        """Takes a message to be written; False asks the sender to wait for `on_writable`."""
        ...

    def on_writable(self, resume: Callable[[], None]) -> None:
        """Calls `resume` once when the call takes messages again; any number of callbacks may wait."""
        ...

    def finish(self, code: int = OK, text: str = "") -> None:
        """Ends the call with a status, after the messages sent so far."""
        ...


class GrpcStreamCall(GrpcCall, Protocol):
    """A call with many messages."""

    def on_sent(self, done: Callable[[], None]) -> None:
        """Calls `done` once when all that was sent so far is on its way: the client's window had room for it. Calls
        come in the order in which they were asked for."""
        ...

    def hold_back(self) -> None:
        """From now on no message is delivered, until `go_on`; the client can send no more than its window."""
        ...

    def go_on(self) -> None:
        """Messages are delivered again, though not before this returns."""
        ...


class StreamObserver(Protocol):
    """What the service makes of a call with many messages. Nothing more is called after `cancelled`."""

    def message(self, message: Buffer) -> None: ...

    def half_closed(self) -> None:
        """The client sends no more."""
        ...

    def cancelled(self) -> None:
        """The client has gone, or its deadline has passed."""
        ...


Cancel = Callable[[], object]
"""What the transport calls when the client goes before the call is finished."""


@dataclass(frozen=True, slots=True)
class Unary:
    """One message in, one out. The answer may come before the handler returns.

    `compressed`: answers may be, as the server's options say. `first_tensor` tells from the first bytes of a large
    message which of its bytes shall lie on a 64-byte boundary.
    """

    handler: Callable[[Buffer, GrpcCall], Cancel | None]
    compressed: bool = False
    first_tensor: Callable[[Buffer], int] | None = None


@dataclass(frozen=True, slots=True)
class Bidirectional:
    """Any number of messages both ways. The other fields as for `Unary`."""

    open: Callable[[GrpcStreamCall], StreamObserver]
    compressed: bool = False
    first_tensor: Callable[[Buffer], int] | None = None


Rpcs = Mapping[str, Unary | Bidirectional]
"""By path. A path that is not here is answered UNIMPLEMENTED, without a text."""
