"""gRPC with `--auth`: finds the caller of each call, and hands the call to the service of that caller.

Event-loop thread only.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from halimede.errors import Error
from halimede.front.grpc.access import refused_stream
from halimede.front.grpc.service import GrpcService
from halimede.front.grpc.status import finish_with
from halimede.identities.guard import Caller, Guard
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

AUTHORIZATION = "authorization"


class GrpcOfCallers:
    """The RPCs of a port that serves each caller by services of its own: one for its calls, and one for its streams,
    whose inferences are counted one by one. `make` makes a service for a caller, for streams if the flag is set. `rpcs`
    are those of any service, whose limits and kinds the RPCs here have."""

    def __init__(self, guard: Guard, rpcs: Rpcs, make: Callable[[Caller, bool], GrpcService]) -> None:
        self._guard = guard
        self._make = make
        self._services: dict[tuple[Caller, bool], GrpcService] = {}
        self._draining = False
        self.rpcs: Rpcs = {path: self._of_callers(path, rpc) for path, rpc in rpcs.items()}

    def drain(self) -> None:
        """Refuses inferences from now on, as `GrpcService.drain`."""
        self._draining = True
        for service in self._services.values():
            service.drain()

    def _of_callers(self, path: str, rpc: Unary | Bidirectional) -> Unary | Bidirectional:
        if isinstance(rpc, Unary):
            return replace(rpc, handler=partial(self._call, path), admit=self._admit)
        return replace(rpc, open=partial(self._open, path))

    def _call(self, path: str, message: Buffer, call: GrpcCall) -> Cancel | None:
        service = self._service_of(call, streams=False)
        if isinstance(service, Error):
            finish_with(call, service)
            return None
        rpc = service.rpcs[path]
        assert isinstance(rpc, Unary)
        return rpc.handler(message, call)

    def _admit(self, call: GrpcCall) -> bool:
        """Whether the caller is known. If not, the call is refused before its message is decompressed."""
        service = self._service_of(call, streams=False)
        if isinstance(service, Error):
            finish_with(call, service)
        return not isinstance(service, Error)

    def _open(self, path: str, call: GrpcStreamCall) -> StreamObserver:
        service = self._service_of(call, streams=True)
        if isinstance(service, Error):
            return refused_stream(call, service)
        rpc = service.rpcs[path]
        assert isinstance(rpc, Bidirectional)
        return rpc.open(call)

    def _service_of(self, call: GrpcCall, streams: bool) -> GrpcService | Error:
        """Returns the service of the caller, or why there is none."""
        guard = self._guard
        try:
            caller = guard.admit(_given(call.metadata), call.peer_names() if guard.wants_certificates else ())
        except Error as error:
            guard.note_refusal(error, call.peer)
            return error
        return self._services.get((caller, streams)) or self._new_service(caller, streams)

    def _new_service(self, caller: Caller, streams: bool) -> GrpcService:
        # A service with streams is still drained at the end.
        self._services = {
            key: service for key, service in self._services.items() if service.streams or not key[0].revoked
        }
        service = self._services[caller, streams] = self._make(caller, streams)
        if self._draining:
            service.drain()
        return service


def _given(metadata: Metadata) -> str | None:
    """Returns the value of `authorization`. Of several the first counts, as over HTTP."""
    for key, value in metadata:
        if key == AUTHORIZATION and isinstance(value, str):
            return value
    return None
