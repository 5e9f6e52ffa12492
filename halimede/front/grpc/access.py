"""Restricted RPCs, and metadata that become parameters (contract G13, G14).

Put around the RPCs once, where the server's options ask for them, so that others pay nothing. Event-loop thread only.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from halimede.errors import Unavailable
from halimede.front.access import Category, forward_headers
from halimede.front.grpc.admin import ADMIN_RPCS, SERVICE
from halimede.front.grpc.status import finish_with
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
"""By the path of the RPC."""


def restricted(rpcs: Rpcs, keys: Mapping[str, tuple[str, str]]) -> Rpcs:
    """The RPCs, those of restricted categories behind a gate. `keys` as in `Access`, by category."""
    guarded: dict[str, Unary | Bidirectional] = {}
    for path, rpc in rpcs.items():
        key = keys.get(_CATEGORIES[path].value)
        guarded[path] = rpc if key is None else _KeyCheck(*key).around(rpc)
    return guarded


class _KeyCheck:
    def __init__(self, name: str, value: str) -> None:
        self._name = (_PREFIX + name).lower()
        self._value = value

    def around(self, rpc: Unary | Bidirectional) -> Unary | Bidirectional:
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
        """Whether the call has the key; one that has not is finished."""
        if any(key == self._name and value == self._value for key, value in call.metadata):
            return True
        finish_with(call, Unavailable(f"This protocol is restricted, expecting header '{self._name}'"))
        return False


class _RefusedStream:
    """A stream that is over before it began."""

    def message(self, message: Buffer) -> None: ...
    def half_closed(self) -> None: ...
    def cancelled(self) -> None: ...


class ForwardingDecoder(InferDecoder):
    """Puts those of `metadata` whose keys match among the parameters of each request. The one who decodes sets
    `metadata`, that of the call, just before."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        super().__init__()
        self._pattern = pattern
        self.metadata: Metadata = ()

    def request(self, incoming: InferMessage, version: int) -> InferRequest:
        request = super().request(incoming, version)
        forward_headers(self._pattern, _texts(self.metadata), request)
        return request


def _texts(metadata: Metadata) -> Iterator[tuple[str, str]]:
    for key, value in metadata:
        yield key, value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
