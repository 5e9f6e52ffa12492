"""`halimede serve`: one engine and its front ends on one event loop, from the first log line to the exit status.

The only place that installs signal handlers and logging and changes settings of the process. Runs on the main thread.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from itertools import islice

from halimede import FORM, __version__
from halimede.cli.hints import hints
from halimede.cli.logging import Log, install, log_table
from halimede.cli.tables import agent_table, backend_table, model_table, options_table
from halimede.engine.answers import EXTENSIONS
from halimede.engine.engine import Engine
from halimede.engine_port import EnginePort
from halimede.errors import Error
from halimede.front.access import access_of
from halimede.front.delaying_port import DelayingPort
from halimede.front.http.service import HttpService
from halimede.front.metrics import MetricsScrapes, MetricsService
from halimede.models.lifecycle import ModelTable
from halimede.options import Endpoint, ServerOptions
from halimede.platform.limits import allow_many_files
from halimede.platform.loops import new_event_loop
from halimede.platform.memory import share_memory
from halimede.platform.offload import Offload
from halimede.traces import Sampler
from halimede.transport.http1.connection import Http1Connection
from halimede.transport.http1.listener import Handler, Http1Listener
from halimede.transport.sockets import place, serve_at

log = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.0005
"""Seconds that a busy Python thread may keep the event loop waiting: a tenth of the default, at little cost."""


LOADING_INTERVAL = 0.005
"""Seconds, Python's own choice."""
LOADING_THRESHOLD = 20_000
"""New objects between two looks of the garbage collector while models are loaded: nearly all of them stay."""

MOST_COMPARED = 100
"""Models from which the one that newcomers are told to try is chosen."""

LAST_SECONDS = 2.0
"""What is left to libraries for what they do at the end of a process."""

PortOf = Callable[[Engine, asyncio.AbstractEventLoop], EnginePort]
"""Makes the port that the front ends hold."""


def serve(options: ServerOptions, port_of: PortOf = lambda engine, loop: engine) -> int:
    """Serves until SIGINT or SIGTERM. 0 after a clean end, 1 when start-up failed or requests were left behind.

    In one process the front ends hold the engine itself. The process is to end after this, and does: within
    LAST_SECONDS, whatever still runs in it."""
    share_memory()  # before the log has its thread
    try:
        logs = install(options.log, sys.stdout, sys.stderr)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sys.setswitchinterval(SWITCH_INTERVAL)
    allow_many_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        server = Server(options, port_of, logs)
        status = runner.run(server.run())
    if server.left_behind:
        # Threads that run on, in a model or a runtime, would hold the interpreter's own end for ever.
        _end(status)
    threading.Thread(target=_end, args=(status, LAST_SECONDS), daemon=True).start()
    return status


def _end(status: int, after: float = 0.0) -> None:
    """Ends the process, whatever still runs in it: an executor that a model started, say, waits for its work."""
    time.sleep(after)
    logging.shutdown()
    with suppress(OSError, ValueError):  # nobody reads it any more
        sys.stdout.flush()
    os._exit(status)


class Server:
    """One run of the server: `run` is the whole of it."""

    def __init__(self, options: ServerOptions, port_of: PortOf, logs: Log) -> None:
        self._options = options
        self._logs = logs
        self._port_of = port_of
        self._closers: list[Callable[[float], Awaitable[None]]] = []
        self._http = ""
        self.left_behind = False
        """Whether something of the models was still running when `run` ended."""

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        try:
            engine = Engine(self._options, loop, self._logs.configure)
        except Error as error:
            self._logs.say(f"error: creating server: {error.word} - {error}")
            return 1
        offload = Offload(loop)
        try:
            if not await self._load(engine, ended):
                self.left_behind |= not await engine.stop(self._options.exit_timeout_secs)
                return 0 if ended.is_set() and not self.left_behind else 1
            if not await self._open(engine, offload, loop):
                await self._stop(engine)
                return 1
            await ended.wait()
            return 0 if await self._stop(engine) else 1
        finally:
            offload.close(wait=not self.left_behind)

    async def _load(self, engine: Engine, ended: asyncio.Event) -> bool:
        """Loads the models; whether the server shall run. A signal meanwhile ends it."""
        options = self._options
        try:
            engine.open_cache()
        except Error as error:
            log.error("%s", error)
            if options.exit_on_error:
                self._logs.say(f"error: creating server: {error.word} - {error}")
            return not options.exit_on_error
        gc.freeze()  # a thousand models are many objects: the collector need not look at the program's own with theirs
        with _for_loads():
            return await self._loaded(engine, ended)

    async def _loaded(self, engine: Engine, ended: asyncio.Event) -> bool:
        options = self._options
        loading, interrupted = asyncio.ensure_future(engine.start()), asyncio.ensure_future(ended.wait())
        await asyncio.wait({loading, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if not loading.done():
            log.info("Asked to end while models are loading.")
            await engine.give_up()
            _, loading_on = await asyncio.wait({loading}, timeout=options.exit_timeout_secs)
            self.left_behind = bool(loading_on)
            return False
        try:
            loaded = loading.result()
        except Error as error:
            log.error("%s", error)
            if options.exit_on_error:
                self._logs.say(f"error: creating server: Internal - {error}")
                return False
            loaded = True
        log_table(log, agent_table(_agents(engine.models)))
        log_table(log, backend_table(engine.backends, options))
        log_table(log, model_table(_rows(engine.models)))
        if not loaded and options.exit_on_error:
            self._logs.say("error: creating server: Internal - failed to load all models")
            return False
        return True

    async def _open(self, engine: Engine, offload: Offload, loop: asyncio.AbstractEventLoop) -> bool:
        """Opens the ports, after the models are loaded (contract C61); whether all of them could be."""
        log_table(log, options_table(self._options, __version__, EXTENSIONS))
        log.info("The modules that every request passes are %s", FORM)
        gc.collect()
        gc.freeze()  # what was loaded stays; the collector need not look at it again and again
        try:
            await self._open_ports(engine, offload, loop)
        except Error as error:
            self._logs.say(f"error: {error}")
            return False
        self._say_hints(engine)
        return True

    async def _open_ports(self, engine: Engine, offload: Offload, loop: asyncio.AbstractEventLoop) -> None:
        """Opens what is allowed, and says where (contract L6)."""
        options, port = self._options, self._port_of(engine, loop)
        scrapes = MetricsScrapes(port)
        if is_exposed(options):
            log.warning("Listening on all addresses of this machine, open to whoever can reach it (--http-address=...)")
        if options.grpc.allowed:
            await self._open_grpc(port, engine.tracing)
        if options.http.allowed:
            access = access_of(options.http_restricted, options.http_forward_pattern)
            front = HttpService(
                port,
                offload,
                options.http_max_input_size,
                access,
                options.allow_client_shm,
                engine.tracing,
                options.metrics.allowed or options.measuring.on_http,
                scrapes if options.measuring.on_http else None,
            )
            self._http = await self._listen(options.http, front.handle, _say_waiting)
            log.info("Started HTTPService at %s", self._http)
        if options.metrics.allowed:
            metrics = await self._listen(options.metrics, MetricsService(scrapes).handle, lambda left, count: None)
            log.info("Started Metrics Service at %s", metrics)

    async def _open_grpc(self, port: EnginePort, traces: Sampler) -> None:
        # Imported here: a server without gRPC does without its library.
        from halimede.cli.grpc_options import transport_options
        from halimede.front.grpc.service import GrpcService
        from halimede.transport.grpc.server import GrpcServer

        endpoint = self._options.grpc
        access = access_of(self._options.grpc_restricted, self._options.grpc_forward_pattern)
        if self._options.grpc_response_delay_secs:
            port = DelayingPort(port, self._options.grpc_response_delay_secs, asyncio.get_running_loop().call_later)
        service = GrpcService(port, self._options.grpc_options.max_response_pool_size, access, traces)
        server = GrpcServer(service.rpcs, transport_options(self._options))
        bound = await server.start(endpoint.address, endpoint.port)
        log.info("Started GRPCInferenceService at %s", place(endpoint.address, bound))

        async def close(timeout: float) -> None:
            service.drain()
            await server.stop(timeout)

        self._closers.append(close)

    async def _listen(self, endpoint: Endpoint, handler: Handler, waiting: Callable[[float, int], None]) -> str:
        """Serves HTTP there; the address and the port that it came to be. `waiting` as in `Http1Listener.closed`."""
        listener = Http1Listener(handler)
        server = await serve_at(
            endpoint.address, endpoint.port, partial(Http1Connection, listener), endpoint.reuse_port
        )

        async def close(timeout: float) -> None:
            server.close()
            listener.drain()
            await listener.closed(timeout, waiting)
            listener.abort()

        self._closers.append(close)
        return place(endpoint.address, server.port)

    def _say_hints(self, engine: Engine) -> None:
        """Lines for curl, and for Python if it has tritonclient, that get an answer from one of the models."""
        if not self._http:
            return
        configs = [
            version.config
            for record in islice(engine.models, MOST_COMPARED)
            for version in engine.models.ready_versions(record.name)[-1:]
        ]
        lines = hints(configs, self._http, _interpreter())
        if lines:
            log_table(log, "\n".join(["", *lines, ""]), "Try it:")

    async def _stop(self, engine: Engine) -> bool:
        """No new connections; what was accepted is answered within the timeout; then the models go (contract C61)."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.exit_timeout_secs
        log.info("Waiting for in-flight requests to complete.")
        closing = (close(self._options.exit_timeout_secs) for close in self._closers)
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.error("closing a port broke", exc_info=outcome)
        finished = await engine.stop(max(0.0, until - loop.time()))
        self.left_behind = not finished
        if not finished:
            log.error("Exit timeout expired. Exiting immediately.")
        return finished


@contextmanager
def _for_loads() -> Iterator[None]:
    """While nobody is served, threads take longer turns, and the garbage collector looks less often."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(LOADING_THRESHOLD, *threshold[1:])
    sys.setswitchinterval(LOADING_INTERVAL)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def _say_waiting(left: float, connections: int) -> None:
    """Contract H21."""
    log.info("Timeout %d: Found %d HTTP service connections", round(left), connections)


def is_exposed(options: ServerOptions) -> bool:
    """Whether a port is open on every address of the machine, as the original's are by default."""
    endpoints = (options.grpc, options.http, options.metrics)
    return any(endpoint.allowed and endpoint.address in ("0.0.0.0", "::") for endpoint in endpoints)


def _interpreter() -> str:
    """How to call this Python from the present folder; empty if it does not have tritonclient's HTTP client."""
    # A plain install has no client. `tritonclient` without its extra `http` lacks geventhttpclient.
    if find_spec("tritonclient") is None or find_spec("geventhttpclient") is None:
        return ""
    path = os.path.relpath(sys.executable)
    return sys.executable if path.startswith("..") else path


def _agents(models: ModelTable) -> list[str]:
    """The repository agents of the models in service, by name."""
    return sorted(
        {name for record in models for version in models.ready_versions(record.key) for name in version.config.agents}
    )


def _rows(models: ModelTable) -> list[tuple[str, str, str]]:
    """The model table's rows: each version with its state, a model without any with the reason (contract L6)."""
    rows: list[tuple[str, str, str]] = []
    for record in models:
        for number, version in sorted(record.versions.items()):
            status = f"{version.state.value}: {version.reason}" if version.reason else version.state.value
            rows.append((record.name, str(number), status))
        if not record.versions:
            rows.append((record.name, "-", f"UNAVAILABLE: {record.reason}" if record.reason else "Not loaded"))
    return rows
