"""The ports of one server: HTTP, gRPC and metrics, with their access rules, TLS and limits.

Knows the engine by its port only. Used on the event loop; the functions are pure.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from halimede.engine_port import EnginePort
from halimede.front.access import Access, Category, hiding_keys
from halimede.front.caller_port import CallerPort, StreamPort
from halimede.front.delaying_port import DelayingPort
from halimede.front.grpc.callers import GrpcOfCallers
from halimede.front.grpc.service import GrpcService
from halimede.front.http.callers import FrontEnd, HttpOfCallers
from halimede.front.http.service import HttpService
from halimede.front.metrics import MetricsOfCaller, MetricsScrapes, MetricsService
from halimede.identities.guard import Caller, Guard, everyone
from halimede.options import Endpoint, ServerOptions, search_of
from halimede.platform.limits import usable_memory
from halimede.platform.memory import give_memory_back
from halimede.platform.offload import OffloadPool
from halimede.serving.identity_file import IdentityWatch
from halimede.traces import Sampler
from halimede.transport.buffered_bytes import UNLIMITED, BufferedBytes, FreedBytes
from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from halimede.transport.http1.connection import Http1Connection
from halimede.transport.http1.listener import Handler, Http1Limits, Http1Listener
from halimede.transport.http2.limits import Keepalive
from halimede.transport.sockets import place, serve_at
from halimede.transport.stalls import LookRounds, TimeLimits
from halimede.transport.tls import server_context

if TYPE_CHECKING:
    from halimede.console.logs import LogRing

log = logging.getLogger(__name__)

_MILLISECOND = 1e-3


class Ports:
    """The ports that the options allow. `guard` decides who may use them, None: everybody may. `logs` are what the
    console shows of the log. `http`, `grpc` and `metrics` are the addresses of those that are open, with their real
    port numbers, and `console` is the link that opens the console; empty for the others."""

    def __init__(
        self,
        options: ServerOptions,
        port: EnginePort,
        traces: Sampler,
        offload: OffloadPool,
        guard: Guard | None = None,
        logs: "LogRing | None" = None,
    ) -> None:
        self.http = self.grpc = self.metrics = self.console = ""
        self._logs = logs
        self._options = options
        self._port = port
        self._guard = guard
        self._watch: IdentityWatch | None = None
        self._traces = traces
        self._offload = offload
        self._buffered = buffered_bytes(options)
        self._rounds: LookRounds | None = None
        self._closers: list[Callable[[float], Awaitable[None]]] = []
        self._askers: list[Callable[[], None]] = []

    async def open(self) -> None:
        """Opens the allowed ports and logs their addresses (L6). Raises Error if one cannot be opened; `close` then
        closes those that are open."""
        options, loop = self._options, asyncio.get_running_loop()
        freed = FreedBytes(self._buffered, lambda: loop.run_in_executor(None, give_memory_back))
        self._rounds = LookRounds((freed,), loop.time, loop.call_later)
        self._rounds.begin()
        scrapes = MetricsScrapes(self._port, loop.call_later, self._offload)
        if is_exposed(options):
            log.warning(
                "The ports are open on all addresses of this machine; --http-address and --grpc-address restrict them"
            )
        if self._guard is not None:
            self._watch = IdentityWatch(Path(options.auth), self._guard, self._offload, loop.call_later)
            self._watch.begin()
            if options.http.allowed and is_exposed(options):
                log.warning("Keys travel unencrypted over HTTP; let a proxy that speaks TLS stand before the server")
        if options.grpc.allowed:
            await self._open_grpc()
        if options.http.allowed:
            await self._open_http(scrapes)
        if options.metrics.allowed:
            service = MetricsService(scrapes)
            handle = self._for_callers(lambda caller: MetricsOfCaller(service, caller), service)
            self.metrics = await self._listen(options.metrics, handle, lambda left, count: None)
            log.info("Started Metrics Service at %s", self.metrics)
        if options.console.allowed:
            await self._open_console(scrapes)

    def open_for_inference(self) -> tuple[str, str]:
        """The addresses of HTTP and gRPC for inferences without a key or TLS; empty if there is none."""
        options, category = self._options, Category.INFERENCE.value
        if self._guard is not None:
            return "", ""
        http = "" if category in options.http_restricted else self.http
        return http, "" if category in options.grpc_restricted or options.grpc_options.tls else self.grpc

    def ask_to_leave(self) -> None:
        """Asks the clients of open connections to go elsewhere. Requests and new connections are served as before."""
        for ask in self._askers:
            ask()

    async def close(self, timeout: float) -> None:
        """Refuses new connections, and answers the requests of those that are open for up to `timeout` seconds."""
        if self._rounds is not None:
            self._rounds.end()
        if self._watch is not None:
            self._watch.end()
        closing = (close(timeout) for close in self._closers)
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.error("closing a port failed; the server stops all the same", exc_info=outcome)

    async def _open_http(self, scrapes: MetricsScrapes) -> None:
        options = self._options

        def front_of(port: EnginePort, caller: Caller | None) -> HttpService:
            return HttpService(
                port,
                self._offload,
                options.http_max_input_size,
                _access(options.http_restricted, options.http_forward_pattern, caller),
                options.allow_client_shm,
                self._traces,
                options.metrics.allowed or options.measuring.on_http,
                scrapes if options.measuring.on_http else None,
                lambda: self.metrics,
            )

        handle = self._for_callers(
            lambda caller: front_of(CallerPort(self._port, caller), caller),
            front_of(self._audited(self._port), None),
        )
        # The rest of the time is for the models.
        drain_secs = min(options.http_drain_secs, options.exit_timeout_secs / 2)
        self.http = await self._listen(options.http, handle, _say_waiting, drain_secs)
        log.info("Started HTTPService at %s", self.http)

    async def _open_grpc(self) -> None:
        endpoint, port = self._options.grpc, self._port
        if self._options.grpc_response_delay_secs:
            port = DelayingPort(port, self._options.grpc_response_delay_secs, asyncio.get_running_loop().call_later)

        def service_of(port: EnginePort, caller: Caller | None) -> GrpcService:
            access = _access(self._options.grpc_restricted, self._options.grpc_forward_pattern, caller)
            pool, later = self._options.grpc_options.max_response_pool_size, asyncio.get_running_loop().call_soon
            return GrpcService(port, pool, access, self._traces, self._offload, later)

        service: GrpcService | GrpcOfCallers = service_of(self._audited(port), None)
        if (guard := self._guard) is not None:
            service = GrpcOfCallers(
                guard,
                service.rpcs,
                lambda caller, streams: service_of(
                    StreamPort(port, caller, guard.count) if streams else CallerPort(port, caller), caller
                ),
            )
        server = GrpcServer(service.rpcs, transport_options(self._options, self._buffered))
        bound = await server.start(endpoint.address, endpoint.port)
        self.grpc = place(endpoint.address, bound)
        log.info("Started GRPCInferenceService at %s", self.grpc)

        self._askers.append(server.ask_to_leave)

        async def close(timeout: float) -> None:
            # `stop` waits for streams, and an idle one would stay open until the deadline.
            service.drain()
            await server.stop(timeout)

        self._closers.append(close)

    async def _open_console(self, scrapes: MetricsScrapes) -> None:
        # Most servers have none, and start sooner without it.
        from halimede.serving.console import console_of, gate_of, link

        options = self._options
        gate, token = gate_of(options, self._guard)

        def front_of(port: EnginePort, caller: Caller | None) -> HttpService:
            # Keys of --http-restricted-api are for the other ports. Here the token is needed.
            access = _access({}, "", caller)
            return HttpService(
                port, self._offload, options.http_max_input_size, access, options.allow_client_shm, self._traces
            )

        front = front_of(self._audited(self._port), None)
        measures = options.metrics.allowed or options.measuring.on_http
        service = console_of(
            options,
            gate,
            self._for_callers(lambda caller: front_of(CallerPort(self._port, caller), caller), front),
            front_of(self._port, None).handle,
            scrapes if measures else None,
            lambda: (self.http, self.grpc, self.metrics),
            self._traces,
            self._logs,
        )

        async def close(timeout: float) -> None:
            service.close()

        # Its streams of events would otherwise last until the deadline.
        self._closers.append(close)
        place = await self._listen(options.console, service.handle, lambda left, count: None)
        self.console = link(place, token)
        log.info("Started Console at %s", place)

    async def _listen(
        self, endpoint: Endpoint, handler: Handler, waiting: Callable[[float, int], None], drain_secs: float = 0.0
    ) -> str:
        """Serves HTTP at the endpoint. Returns its address with the real port. `waiting` goes to its `closed`. Idle
        connections are kept for `drain_secs` at the end."""
        limits = Http1Limits(self._options.http_max_header_bytes, time_limits(self._options))
        listener = Http1Listener(handler, limits=limits, buffered=self._buffered)
        server = await serve_at(
            endpoint.address, endpoint.port, partial(Http1Connection, listener), endpoint.reuse_port
        )
        listener.rounds.begin()
        self._askers.append(listener.announce_end)

        async def close(timeout: float) -> None:
            server.close()
            listener.drain(drain_secs)
            await listener.wait_closed(timeout, waiting)
            listener.abort()
            listener.rounds.end()

        self._closers.append(close)
        return place(endpoint.address, server.port)

    def _for_callers(self, make: Callable[[Caller], FrontEnd], front: FrontEnd) -> Handler:
        """Returns the handler of a port: of one front end for each caller that `make` makes, or of `front`."""
        return front.handle if self._guard is None else HttpOfCallers(self._guard, make).handle

    def _audited(self, port: EnginePort) -> EnginePort:
        """Returns the port, with an audit of changes if there is one without identities."""
        return CallerPort(port, everyone()) if self._options.audit_file else port


def _say_waiting(left: float, connections: int) -> None:
    """Logs how many connections still wait at the end (H21)."""
    log.info("Timeout %d: Found %d HTTP service connections", round(left), connections)


def is_exposed(options: ServerOptions) -> bool:
    """Whether a port is open on every address of the machine, which is Triton's default."""
    endpoints = (options.grpc, options.http, options.metrics)
    return any(endpoint.allowed and endpoint.address in ("0.0.0.0", "::") for endpoint in endpoints)


def _access(keys: Mapping[str, tuple[str, str]], forward_pattern: str, caller: Caller | None) -> Access:
    """The access rules of a front end. Without a pattern no header is forwarded."""
    forward = search_of(forward_pattern) if forward_pattern else None
    return Access(keys, forward if forward is None or caller is None else hiding_keys(forward), caller)


def buffered_bytes(options: ServerOptions) -> BufferedBytes:
    """Counts what the server holds for all clients of all ports (`--max-buffered-bytes`)."""
    limit, share = options.client_limits.buffered_bytes, options.client_limits.connection_bytes
    if limit is None:
        memory = usable_memory()
        limit = 0 if memory is None else memory // 2
    if limit <= 0:
        limit = UNLIMITED
    if share is None:
        share = limit // 2
    return BufferedBytes(limit, share if share > 0 else None)


def time_limits(options: ServerOptions) -> TimeLimits:
    limits = options.client_limits
    return TimeLimits(limits.head_secs, limits.body_secs, limits.idle_secs, limits.unread_secs)


def transport_options(options: ServerOptions, buffered: BufferedBytes | None = None) -> GrpcServerOptions:
    """The options of the gRPC transport, times in seconds. Raises Invalid if the TLS files cannot be used."""
    grpc = options.grpc_options
    tls = server_context(grpc.server_cert, grpc.server_key, grpc.root_cert, grpc.mutual_tls) if grpc.tls else None
    return GrpcServerOptions(
        reuse_port=options.grpc.reuse_port,
        response_compression=grpc.compression_level,
        tls=tls,
        times=time_limits(options),
        buffered=buffered or BufferedBytes(),
        keepalive=Keepalive(
            # Values below the least sensible one are raised to it, as gRPC does. A timer of 0 would run all the time.
            time=max(1, grpc.keepalive_time) * _MILLISECOND,
            timeout=max(0, grpc.keepalive_timeout) * _MILLISECOND,
            permit_without_calls=grpc.keepalive_permit_without_calls,
            max_pings_without_data=max(0, grpc.max_pings_without_data),
            min_ping_interval=max(0, grpc.min_ping_interval) * _MILLISECOND,
            max_ping_strikes=max(0, grpc.max_ping_strikes),
            max_age=_limit(grpc.max_connection_age),
            max_age_grace=_limit(grpc.max_connection_age_grace),
        ),
    )


def _limit(milliseconds: int) -> float | None:
    return milliseconds * _MILLISECOND if milliseconds > 0 else None
