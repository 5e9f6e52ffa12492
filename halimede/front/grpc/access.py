"""Restricted RPCs, RPCs that a caller may not use, and metadata that become request parameters (G13, G14).

The RPCs are wrapped once, and only if the server's options ask for it, so that other servers pay nothing. Event-loop
thread only.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from halimede.errors import Error, Unavailable
from halimede.front.access import Access, Category, Search, forward_headers
from halimede.front.caller_port import CHANGES, note_refusal
from halimede.front.grpc.admin import ADMIN_RPCS, SERVICE
from halimede.front.grpc.status import finish_with
from halimede.identities.guard import Caller
from halimede.requests import InferRequest
from halimede.tensors import Buffer
from halimede.transport.grpc.calls import (
    Bidirectional,
    Cancel,
    GrpcCall,
    GrpcStreamCall,
    Metadata,
    Rpcs,
    StreamObserver,
    Unary,
)
from halimede.wire.grpc.infer import InferDecoder, InferMessage

_UnaryHandler = Callable[[Buffer, GrpcCall], Cancel | None]
_StreamOpener = Callable[[GrpcStreamCall], StreamObserver]

_PREFIX = "triton-grpc-protocol-"

_CATEGORIES: Mapping[str, Category] = {
    SERVICE + "ModelInfer": Category.INFERENCE,
    SERVICE + "ModelStreamInfer": Category.INFERENCE,
    **{path: rpc.category for path, rpc in ADMIN_RPCS.items()},
}
"""The category of each RPC, by path."""


def restricted(rpcs: Rpcs, access: Access) -> Rpcs:
    """Returns the RPCs, with a check of the key around those of restricted categories, and with a refusal instead of
    those that the caller may not use."""
    guarded: dict[str, Unary | Bidirectional] = {}
    for path, rpc in rpcs.items():
        key = access.keys.get(_CATEGORIES[path].value)
        row = ADMIN_RPCS.get(path)
        error = access.refusal(_CATEGORIES[path], None if row is None else row.right)
        if error is not None and access.caller is not None:
            is_change = row is not None and row.right in CHANGES
            guarded[path] = _refused(rpc, access.caller, error, path if is_change else "")
        else:
            guarded[path] = rpc if key is None else _KeyCheck(*key).wrap(rpc)
    return guarded


def _refused(rpc: Unary | Bidirectional, caller: Caller, error: Error, action: str) -> Unary | Bidirectional:
    """Returns an RPC that ends each call with an error, and notes it as an action if that is not empty."""

    def refuse(message: Buffer, call: GrpcCall) -> None:
        if action:
            note_refusal(caller, call.peer, action, error)
        finish_with(call, error)

    if isinstance(rpc, Unary):
        return replace(rpc, handler=refuse)
    return replace(rpc, open=lambda call: refused_stream(call, error))


def refused_stream(call: GrpcStreamCall, error: Error) -> StreamObserver:
    """Ends the call of a stream with an error, and returns its observer."""
    finish_with(call, error)
    return _RefusedStream()


class _KeyCheck:
    """Checks the key of each call before its handler is called."""

    def __init__(self, name: str, value: str) -> None:
        # gRPC sends metadata keys in lower case.
        self._name = (_PREFIX + name).lower()
        self._value = value

    def wrap(self, rpc: Unary | Bidirectional) -> Unary | Bidirectional:
        if isinstance(rpc, Unary):
            return replace(rpc, handler=self._unary(rpc.handler))
        return replace(rpc, open=self._stream(rpc.open))

    def _unary(
        self, handler: Callable[[Buffer, GrpcCall], Cancel | None]
    ) -> Callable[[Buffer, GrpcCall], Cancel | None]:
        return lambda message, call: handler(message, call) if self._admits(call) else None

    def _stream(
        self, open_stream: Callable[[GrpcStreamCall], StreamObserver]
    ) -> Callable[[GrpcStreamCall], StreamObserver]:
        return lambda call: open_stream(call) if self._admits(call) else _RefusedStream()

    def _admits(self, call: GrpcCall) -> bool:
        """Whether the call has the key. Finishes a call that has not."""
        if any(key == self._name and value == self._value for key, value in call.metadata):
            return True
        finish_with(call, Unavailable(f"This protocol is restricted, expecting header '{self._name}'"))
        return False


class _RefusedStream:
    """The observer of a stream that was refused."""

    def message(self, message: Buffer) -> None: ...
    def half_closed(self) -> None: ...
    def held_bytes(self) -> int:
        return 0

    def cancelled(self) -> None: ...


class ForwardingDecoder(InferDecoder):
    """Adds the metadata with matching keys to the parameters of each request. The caller sets `metadata`, that of the
    call, just before it decodes a request."""

    def __init__(self, search: Search) -> None:
        super().__init__()
        self._search = search
        self.metadata: Metadata = ()

    def request(self, incoming: InferMessage, version: int) -> InferRequest:
        request = super().request(incoming, version)
        forward_headers(self._search, _texts(self.metadata), request)
        return request


def _texts(metadata: Metadata) -> Iterator[tuple[str, str]]:
    for key, value in metadata:
        # A parameter is text. Binary metadata keep their bytes as surrogate escapes.
        yield key, value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
