"""What the gRPC transport offers to a service, and what it needs from one: calls, streams, and the table of RPCs.

Protocols and plain values only, without inference words. They are here because the transport must not import a front
end. All callbacks run on the event-loop thread.

| name | is | made by |
| --- | --- | --- |
| `GrpcCall` | a call as the service sees it | the transport |
| `GrpcStreamCall` | a call with many messages | the transport |
| `StreamObserver` | what handles the messages of such a call | the service |
| `Unary`, `Bidirectional` | an entry of the table of RPCs | the service |

`CallStream` in `streams` is the HTTP/2 stream that implements `GrpcCall`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from halimede.tensors import Buffer

Message = Sequence[Buffer]
"""A message to send: buffers that follow each other on the wire."""
Metadata = Sequence[tuple[str, str | bytes]]
"""Metadata of a call in order. Values of keys that end with `-bin` are bytes."""

MAX_SMALL_MESSAGE_BYTES = 1 << 16
"""Bytes of a gRPC message other than those of inferences and loads. Beyond: RESOURCE_EXHAUSTED, before it is
received."""
OK = 0
"""The status of a call that succeeded."""


class GrpcCall(Protocol):
    """A call, as the service sees it. No method raises, even after the client has gone. `peer` is the address of the
    client, without its port."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def peer(self) -> str: ...

    def peer_names(self) -> Sequence[str]:
        """Returns the names in the certificate that the client has shown (`transport.peers`)."""
        ...

    def send(self, message: Message) -> bool:
        """Sends a message. Returns False if the sender should wait for `on_writable`."""
        ...

    def on_writable(self, resume: Callable[[], None]) -> None:
        """Calls `resume` once, when the call takes messages again. Any number of callbacks may wait."""
        ...

    def finish(self, code: int = OK, text: str = "") -> None:
        """Ends the call with a status, after the messages sent so far."""
        ...


class GrpcStreamCall(GrpcCall, Protocol):
    """A call with many messages."""

    def on_sent(self, done: Callable[[], None]) -> None:
        """Calls `done` once, when the client's window had room for all that was sent so far. Callbacks run in the order
        in which they were registered."""
        ...

    def hold_back(self) -> None:
        """Delivers no more messages until `go_on`. The client can then send no more than its window."""
        ...

    def go_on(self) -> None:
        """Delivers messages again, though not before this returns."""
        ...


class StreamObserver(Protocol):
    """What the service makes for a call with many messages. The transport calls nothing more after `cancelled`."""

    def message(self, message: Buffer) -> None:
        """Handles a message."""

    def half_closed(self) -> None:
        """The client sends no more messages."""
        ...

    def cancelled(self) -> None:
        """The client has gone, or its deadline has passed."""
        ...

    def held_bytes(self) -> int:
        """Returns about how much memory the messages take that are not answered, without large tensors."""
        ...


Cancel = Callable[[], object]
"""The transport calls this if the client goes before the call is finished."""


@dataclass(frozen=True, slots=True)
class Unary:
    """An RPC with one message in and one out. The answer may come before the handler returns.

    `compressed`: answers may be compressed, if the server's options say so. `first_tensor` tells from the first bytes
    of a large message which of its bytes should lie on a 64-byte boundary. `small`: a message has at most
    `MAX_SMALL_MESSAGE_BYTES`, and is handled even if the server holds too many bytes, such as a health check. `admit`
    is asked before a message is decompressed; if it returns False, it has ended the call.
    """

    handler: Callable[[Buffer, GrpcCall], Cancel | None]
    compressed: bool = False
    first_tensor: Callable[[Buffer], int] | None = None
    small: bool = False
    admit: Callable[[GrpcCall], bool] | None = None


@dataclass(frozen=True, slots=True)
class Bidirectional:
    """An RPC with any number of messages both ways. The other attributes mean what they mean for `Unary`."""

    open: Callable[[GrpcStreamCall], StreamObserver]
    compressed: bool = False
    first_tensor: Callable[[Buffer], int] | None = None
    small: bool = False


Rpcs = Mapping[str, Unary | Bidirectional]
"""RPCs by path. A call with another path is answered UNIMPLEMENTED, without a text."""
