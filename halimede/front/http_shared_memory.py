"""The HTTP routes of clients' shared memory: register, unregister, status (contract H90 to H96).

Holds an engine port and no state. Event-loop thread only.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from halimede.errors import Error
from halimede.front.access import Category
from halimede.front.http_handling import GET, JSON, POST, Exchange, Handler, Route, ask, refuse
from halimede.service.port import (
    CudaMemoryStatus,
    EnginePort,
    Query,
    RegionKind,
    SystemMemoryStatus,
    UnregisterMemory,
)
from halimede.tensors import Buffer
from halimede.wire import http_shared_memory as wire

A = TypeVar("A")

_REGION = r"(?:/region/([^/]+))?"


class HttpSharedMemory:
    """`routes` are the rows."""

    def __init__(self, port: EnginePort) -> None:
        self._port = port

    def routes(self) -> tuple[Route, ...]:
        system, cuda = r"/v2/systemsharedmemory" + _REGION, r"/v2/cudasharedmemory" + _REGION
        return (
            _route(system + "/status()", GET, self._telling(SystemMemoryStatus, wire.encode_system_status)),
            _route(system + "/register()", POST, self._doing(wire.read_system_registration)),
            _route(system + "/unregister()", POST, self._doing(partial(_unregister, RegionKind.SYSTEM))),
            _route(cuda + "/status()", GET, self._telling(CudaMemoryStatus, wire.encode_cuda_status)),
            _route(cuda + "/register()", POST, self._doing(wire.read_cuda_registration)),
            _route(cuda + "/unregister()", POST, self._doing(partial(_unregister, RegionKind.CUDA))),
        )

    def _doing(self, read: Callable[[str, Buffer], Query[None]]) -> Handler:
        """A handler that says what shall be done, read from the region's name (empty where the path has none) and the
        body."""

        def handle(exchange: Exchange, region: str, _: str) -> None:
            try:
                query = read(region, exchange.body)
            except Error as error:
                refuse(exchange, error)
            else:
                ask(self._port, exchange, query, lambda done: exchange.respond(200, JSON, ()))

        return handle

    def _telling(self, query: Callable[[str], Query[A]], encode: Callable[[A], bytes]) -> Handler:
        def handle(exchange: Exchange, region: str, _: str) -> None:
            ask(self._port, exchange, query(region), lambda facts: exchange.respond(200, JSON, (encode(facts),)))

        return handle


def _route(pattern: str, methods: frozenset[bytes], handle: Handler) -> Route:
    return Route(pattern, methods, Category.SHARED_MEMORY, handle)


def _unregister(kind: RegionKind, region: str, body: Buffer) -> UnregisterMemory:
    """Whatever the body says."""
    return UnregisterMemory(kind, region)
