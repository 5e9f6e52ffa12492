"""The HTTP routes of clients' shared memory: register, unregister, status (H90 to H96).

Holds an engine port and no state. Event-loop thread only; a large body is parsed on another thread, and a long
status is written there.
"""

from collections.abc import Callable, Container
from functools import partial
from typing import TypeVar

from halimede.engine_port import (
    MEMORY_DISABLED,
    CudaMemoryStatus,
    EnginePort,
    Query,
    RegionKind,
    SystemMemoryStatus,
    UnregisterMemory,
)
from halimede.errors import Error, Unsupported
from halimede.front.access import Category
from halimede.front.http.handling import (
    GET,
    JSON,
    MAX_WRITTEN_ON_LOOP,
    POST,
    HttpExchange,
    Route,
    RouteHandler,
    ask,
    refuse,
    run_offloaded,
    with_body_read,
)
from halimede.front.offload import Offload
from halimede.identities.roles import Right
from halimede.tensors import Buffer
from halimede.wire.http import shared_memory as wire
from halimede.wire.http.admin import check_size

A = TypeVar("A")

_REGION = r"(?:/region/([^/]+))?"


class HttpSharedMemory:
    """The rows of the route table. `max_input_size` is the limit of JSON (H17). `allowed`: clients may register
    memory."""

    def __init__(self, port: EnginePort, offload: Offload, max_input_size: int, allowed: bool) -> None:
        self._port = port
        self._offload = offload
        self._limit = max_input_size
        self._allowed = allowed

    def routes(self) -> tuple[Route, ...]:
        system, cuda = r"/v2/systemsharedmemory" + _REGION, r"/v2/cudasharedmemory" + _REGION
        return (
            _route(system + "/status()", GET, self._reporting(SystemMemoryStatus, wire.encode_system_status)),
            _route(system + "/register()", POST, self._commanding(self._limited(wire.read_system_registration))),
            _route(system + "/unregister()", POST, self._commanding(partial(_unregister, RegionKind.SYSTEM))),
            _route(cuda + "/status()", GET, self._reporting(CudaMemoryStatus, wire.encode_cuda_status)),
            _route(cuda + "/register()", POST, self._commanding(self._limited(wire.read_cuda_registration))),
            _route(cuda + "/unregister()", POST, self._commanding(partial(_unregister, RegionKind.CUDA))),
        )

    def _commanding(self, read: Callable[[str, Buffer], Query[None]]) -> RouteHandler:
        """Returns a handler for a command. `read` gets the name of the region (empty if the path has none) and the
        body. If nothing may be registered, the body is not read (H90)."""

        def asked(exchange: HttpExchange, query: Query[None] | Error) -> None:
            if isinstance(query, Error):
                refuse(exchange, query)
            else:
                ask(self._port, exchange, query, lambda done: exchange.respond(200, JSON, ()))

        def handle(exchange: HttpExchange, region: str, _: str) -> None:
            work = partial(self._read, read, region, exchange.body)
            with_body_read(self._offload, exchange, work, partial(asked, exchange))

        return handle

    def _read(self, read: Callable[[str, Buffer], Query[None]], region: str, body: Buffer) -> Query[None]:
        # Triton refuses with one text whatever the body says.
        if not self._allowed:
            raise Unsupported(MEMORY_DISABLED)
        return read(region, body)

    def _limited(self, read: Callable[[str, Buffer], Query[None]]) -> Callable[[str, Buffer], Query[None]]:
        def limited(region: str, body: Buffer) -> Query[None]:
            check_size(body, self._limit)
            return read(region, body)

        return limited

    def _reporting(self, query: Callable[[str], Query[list[A]]], encode: Callable[[list[A]], bytes]) -> RouteHandler:
        def wrote(exchange: HttpExchange, text: bytes | Error) -> None:
            if isinstance(text, Error):
                refuse(exchange, text)
            else:
                exchange.respond(200, JSON, (text,))

        def answered(exchange: HttpExchange, facts: list[A]) -> None:
            if len(facts) > MAX_WRITTEN_ON_LOOP:
                run_offloaded(self._offload, exchange, partial(encode, facts), partial(wrote, exchange))
            else:
                wrote(exchange, encode(facts))

        def handle(exchange: HttpExchange, region: str, _: str) -> None:
            ask(self._port, exchange, query(region), partial(answered, exchange))

        return handle


def _route(pattern: str, methods: Container[bytes], handle: RouteHandler) -> Route:
    right = Right.REGIONS if methods is GET else Right.MEMORY
    return Route(pattern, methods, Category.SHARED_MEMORY, handle, right=right)


def _unregister(kind: RegionKind, region: str, body: Buffer) -> UnregisterMemory:
    """Returns the query to unregister. The body is ignored."""
    return UnregisterMemory(kind, region)
