"""`halimede serve`: one engine and its front ends on one event loop, from the first log line to the exit status.

Changes settings of the process: signal handlers, logging, garbage collection, the turns of threads. Main thread.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from halimede import FORM, __version__
from halimede.backends.registry import packages
from halimede.cli.hints import Clients, hints
from halimede.cli.log_lines import ROWS
from halimede.cli.logging import ROOT, Log, console_of_process, install, log_table
from halimede.cli.progress import progress_text
from halimede.cli.tables import agent_table, backend_table, model_table, options_table
from halimede.cli.terminal import say_error
from halimede.engine.answers import EXTENSIONS
from halimede.engine.engine import Engine
from halimede.engine_port import EnginePort
from halimede.errors import Error, Unavailable
from halimede.identities.guard import Guard
from halimede.models.lifecycle import ModelTable
from halimede.options import ServerOptions
from halimede.platform.garbage import FullCollections
from halimede.platform.limits import allow_many_files
from halimede.platform.loop_watch import LoopWatch
from halimede.platform.loops import new_event_loop
from halimede.platform.memory import share_memory
from halimede.platform.offload import OffloadPool
from halimede.platform.service_manager import notify
from halimede.serving.identity_file import open_guard
from halimede.serving.ports import Ports

if TYPE_CHECKING:
    from halimede.console.logs import LogRing

log = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.0005
"""Seconds that a busy Python thread may keep the event loop waiting: a tenth of Python's default."""

LOADING_INTERVAL = 0.005
"""Seconds, as `SWITCH_INTERVAL`, while models load: Python's default."""
LOADING_THRESHOLD = 20_000
"""New objects that start a garbage collection while models load. Nearly all of them stay, so it frees little."""

MAX_HINT_MODELS = 100
"""Models among which the one for the hints of the start is chosen."""

PROGRESS_DELAY = 1.0
"""Seconds of loading after which its progress is shown."""
PROGRESS_SECONDS = 0.5
"""Seconds between two looks at the progress."""

LAST_SECONDS = 2.0
"""Seconds that libraries have to clean up at the end of the process."""

PortOf = Callable[[Engine, asyncio.AbstractEventLoop], EnginePort]
"""Makes the port that the front ends hold."""


def serve(options: ServerOptions, port_of: PortOf = lambda engine, loop: engine) -> int:
    """Serves until SIGINT or SIGTERM. Returns 0 after a clean end, 1 if the start failed or requests were left behind.

    `port_of` makes the port of the engine that the front ends use. The process ends within LAST_SECONDS after this
    returns, whatever still runs in it.
    """
    share_memory()  # a setting of the process that must precede its second thread, which is the log's
    try:
        logs = install(options.log, console_of_process(), audit_file=options.audit_file)
        logs.attach(*packages())
    except Error as error:
        say_error(str(error))
        return 1
    sys.setswitchinterval(SWITCH_INTERVAL)
    allow_many_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        server = Server(options, port_of, logs)
        status = runner.run(server.run())
    if server.left_behind:
        # At its normal end the interpreter waits for threads, and one of a model or a runtime may never end.
        _end(status)
    threading.Thread(target=_end, args=(status, LAST_SECONDS), daemon=True).start()
    return status


def _end(status: int, after: float = 0.0) -> None:
    """Ends the process, whatever still runs in it, such as an executor that a model started."""
    time.sleep(after)
    logging.shutdown()
    with suppress(OSError, ValueError):  # its reader is gone
        sys.stdout.flush()
    os._exit(status)


class Server:
    """One run of the server, which is `run`."""

    def __init__(self, options: ServerOptions, port_of: PortOf, logs: Log) -> None:
        self._options = options
        self._logs = logs
        self._port_of = port_of
        self._ports: Ports | None = None
        self._ring: LogRing | None = None
        if options.console.allowed:
            from halimede.console import logs as console_logs  # most servers have no console, and start without it

            # From the start on: the lines about models that could not be loaded come before the ports are open.
            self._ring = console_logs.LogRing()
            logging.getLogger(ROOT).addHandler(self._ring)
        self._failure = ""
        """Why the start fails: the last line, as in Triton, after those of the unloads."""
        self.left_behind = False
        """Whether threads of models or loads still ran when `run` returned."""

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        try:
            # First, because a mistake there must not cost the loading of the models.
            guard = open_guard(self._options)
            engine = Engine(self._options, loop, self._logs.configure)
        except Error as error:
            self._logs.say_error(f"creating server: {error.word} - {error}")
            return 1
        offload = OffloadPool(loop)
        watch = LoopWatch(loop.call_soon_threadsafe)
        collections = FullCollections(lambda: engine.under_way, loop.call_later)
        try:
            if not await self._load(engine, ended):
                self.left_behind |= not await engine.stop(self._options.exit_timeout_secs)
                if self._failure:
                    self._logs.say_error(self._failure)
                return 0 if ended.is_set() and not self.left_behind else 1
            failure = await self._open(engine, offload, loop, guard)
            if failure is not None:
                await self._stop(engine)
                self._logs.say_error(str(failure))  # the last line, and not far above those of the unloads
                return 1
            watch.start()
            notify("READY=1")
            collections.begin()
            await ended.wait()
            notify("STOPPING=1")
            await self._leave(engine, ended)
            return 0 if await self._stop(engine) else 1
        finally:
            collections.end()
            watch.stop()
            offload.close(wait=not self.left_behind)

    async def _load(self, engine: Engine, ended: asyncio.Event) -> bool:
        """Loads the models. Returns whether to serve: False after an error that ends the start, or a signal."""
        options = self._options
        try:
            engine.open_cache()
        except Error as error:
            log.error("%s", f"{error}; {error.advice}" if error.advice else error)
            if options.exit_on_error:
                self._failure = f"creating server: {error.word} - {error}"
            else:
                log.error("no model is loaded, and the server never becomes ready; correct --cache-config and restart")
            # As Triton: the ports open all the same, without any model (CS5).
            return not options.exit_on_error
        # Loading makes many objects and so many collections. They need not look at the program's own objects.
        gc.freeze()
        with _for_loads():
            return await self._loaded(engine, ended)

    async def _loaded(self, engine: Engine, ended: asyncio.Event) -> bool:
        options, timeout = self._options, self._options.exit_timeout_secs
        loading, interrupted = asyncio.ensure_future(engine.start()), asyncio.ensure_future(ended.wait())
        showing = asyncio.ensure_future(self._show_progress(engine.models))
        await asyncio.wait({loading, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        showing.cancel()
        self._logs.show("")
        # The signal came first.
        if not loading.done():
            log.info("A signal ended the start while models were loading; waiting up to %d s for them.", timeout)
            await engine.give_up()
            _, loading_on = await asyncio.wait({loading}, timeout=timeout)
            self.left_behind = bool(loading_on)
            return False
        try:
            loaded = loading.result()
        except Error as error:
            log.error("%s", error)
            if options.exit_on_error:
                self._failure = f"creating server: Internal - {error}"
                return False
            loaded = True
        log_table(log, agent_table(_agents(engine.models)))
        log_table(log, backend_table(engine.backends, options))
        log_table(log, model_table(_rows(engine.models)))
        if not loaded and options.exit_on_error:
            self._failure = "creating server: Internal - failed to load all models"
            return False
        if not engine.models.keys() and options.model_control_mode != "explicit":
            log.warning(
                "there is no model in %s; `halimede check DIR` says what a directory lacks",
                ", ".join(f"'{repository}'" for repository in options.model_repositories),
            )
        return True

    async def _show_progress(self, models: ModelTable) -> None:
        """Shows on a terminal how many models are loaded, once that takes longer than a reader waits without a sign."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(PROGRESS_DELAY)
        while self._logs.status.exists:
            self._logs.show(progress_text(models, loop.time() - began))
            await asyncio.sleep(PROGRESS_SECONDS)

    async def _open(
        self, engine: Engine, offload: OffloadPool, loop: asyncio.AbstractEventLoop, guard: Guard | None
    ) -> Error | None:
        """Opens the ports after the models are loaded (C61). Returns the error if one of them does not open."""
        log_table(log, options_table(self._options, __version__, EXTENSIONS))
        log.info("The modules that every request passes are %s", FORM)
        # The loaded models stay. Later collections need not look at their objects.
        gc.collect()
        gc.freeze()
        ports = self._ports = Ports(
            self._options, self._port_of(engine, loop), engine.tracing, offload, guard, self._ring
        )
        try:
            await ports.open()
        except Error as error:
            if isinstance(error, Unavailable):
                log.error("%s; --http-port, --grpc-port and --metrics-port choose other ports", str(error).rstrip())
            return error
        self._say_hints(engine, ports)
        return None

    def _say_hints(self, engine: Engine, ports: Ports) -> None:
        """Lines for curl, and for Python if it has tritonclient, that get an answer from one of the models."""
        configs = [
            version.config
            for record in islice(engine.models, MAX_HINT_MODELS)
            for version in engine.models.ready_versions(record.name)[-1:]
        ]
        http, grpc = ports.open_for_inference()
        clients = Clients(http, grpc, python=_interpreter(), libraries=_client_libraries())
        lines = hints(configs, clients, partial(_calls_others, self._options.model_repositories))
        if lines:
            log_table(log, "\n".join(["", *lines, ""]), "Try it:")
        if ports.console:
            # Whoever reads the log in the console must not find the token there.
            log.info("Console, for a browser:", extra={ROWS: f"\n  {ports.console}\n", "secret": True})

    async def _leave(self, engine: Engine, ended: asyncio.Event) -> None:
        """Serves everybody for `shutdown_delay_secs` more, without being ready. A second signal ends this time."""
        delay = self._options.shutdown_delay_secs
        if not delay:
            return
        log.info("The server is no longer ready. It serves for %g s more, or until the next signal.", delay)
        engine.announce_leave()
        if self._ports is not None:
            self._ports.ask_to_leave()
        ended.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), delay)

    async def _stop(self, engine: Engine) -> bool:
        """Refuses new connections, answers the requests of those that are open, then unloads the models (C61).

        All of it shares the exit timeout. Returns whether everything ended in time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.exit_timeout_secs
        engine.announce_exit()
        if self._ports is not None:
            await self._ports.close(self._options.exit_timeout_secs)
        finished = await engine.stop(max(0.0, until - loop.time()))
        self.left_behind = not finished
        if not finished:
            log.error("Exit timeout expired. Exiting immediately.")
        return finished


@contextmanager
def _for_loads() -> Iterator[None]:
    """Longer turns of threads and fewer garbage collections: nothing waits for the event loop while models load."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(LOADING_THRESHOLD, *threshold[1:])
    sys.setswitchinterval(LOADING_INTERVAL)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def _calls_others(repositories: Sequence[str], model: str) -> bool:
    """Whether the code of a model calls other models, as far as it can be seen in files on this machine."""
    for path in (path for each in repositories for path in Path(each, model).glob("*/*.py")):
        with suppress(OSError):  # then nothing is known, and the line is only a proposal
            if _CALL in path.read_bytes():
                return True
    return False


_CALL = b"InferenceRequest("
"""In code that calls a model."""


def _interpreter() -> str:
    """How to call this Python from the present folder."""
    path = os.path.relpath(sys.executable)
    return sys.executable if path.startswith("..") else path


def _client_libraries() -> frozenset[str]:
    """The parts of tritonclient that this Python has. A plain install has none, and each part needs a library."""
    needs = {"http": "geventhttpclient", "grpc": "grpc"} if find_spec("tritonclient") is not None else {}
    return frozenset(part for part, library in needs.items() if find_spec(library) is not None)


def _agents(models: ModelTable) -> list[str]:
    """The repository agents of the models in service, by name."""
    return sorted(
        {name for record in models for version in models.ready_versions(record.key) for name in version.config.agents}
    )


def _rows(models: ModelTable) -> list[tuple[str, str, str]]:
    """The rows of the model table: each version with its state; the reason for a model without versions (L6)."""
    rows: list[tuple[str, str, str]] = []
    for record in models:
        for number, version in sorted(record.versions.items()):
            status = f"{version.state.value}: {version.reason}" if version.reason else version.state.value
            rows.append((record.name, str(number), status))
        if not record.versions:
            rows.append((record.name, "-", f"UNAVAILABLE: {record.reason}" if record.reason else "Not loaded"))
    return rows
