"""One run of a server in a program: an engine and its ports on a thread with an event loop.

The program calls the methods of `Run` on any thread but this one; everything else is on the event loop.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from halimede.engine.engine import Engine
from halimede.errors import Error, Internal, Unavailable
from halimede.models.lifecycle import ModelTable
from halimede.models.repository import FoundModel
from halimede.options import LogOptions, ServerOptions
from halimede.platform.loops import new_event_loop
from halimede.platform.offload import OffloadPool
from halimede.serving.identity_file import open_guard
from halimede.serving.ports import Ports

log = logging.getLogger(__name__)

A = TypeVar("A")


class Stopped(Unavailable):
    """The server did not start, because it was asked to stop."""


class Run:
    """`bound` lists the models of the program; it is called on the event loop."""

    def __init__(self, options: ServerOptions, bound: Callable[[], Iterable[FoundModel]]) -> None:
        self.ready: Future[Ports] = Future()
        """Has the open ports once the models are loaded, or why the server could not start."""
        self.over = threading.Event()
        """Set when everything has ended."""
        self.failure: BaseException | None = None
        """Why a server that had started ended by itself."""
        self._options = options
        self._bound = bound
        self._loop = new_event_loop()
        self._ended = asyncio.Event()
        self._engine: Engine | None = None
        threading.Thread(target=self._main, name="halimede-server", daemon=True).start()

    def end(self) -> None:
        """Asks the server to stop. Does not wait for it."""
        with suppress(RuntimeError):  # the loop is closed: it has stopped
            self._loop.call_soon_threadsafe(self._ended.set)

    def on_loop(self, work: Callable[[Engine], Coroutine[Any, Any, A]]) -> A:
        """Does work on the event loop once the server has started, and waits for it. Returns or raises what it does.
        Raises Unavailable if the server has stopped."""
        self.ready.result()
        assert self._engine is not None
        begun = work(self._engine)
        try:
            return asyncio.run_coroutine_threadsafe(begun, self._loop).result()
        except (RuntimeError, CancelledError):  # the loop is closed, or was closed meanwhile
            begun.close()
            raise Unavailable("the server has stopped") from None

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._run())
        except BaseException as error:
            if self.ready.done():
                log.exception("the server ended by an unexpected error")
                self.failure = error
            else:
                self.ready.set_exception(error)
        finally:
            self.over.set()

    async def _run(self) -> None:
        """Raises Error if the server cannot start."""
        loop, timeout = asyncio.get_running_loop(), self._options.exit_timeout_secs
        guard = open_guard(self._options)
        engine = self._engine = Engine(self._options, loop, apply_log, bound=self._bound)
        offload = OffloadPool(loop)
        ports = Ports(self._options, engine, engine.tracing, offload, guard)
        try:
            await self._load(engine)
            await ports.open()
            self.ready.set_result(ports)
            await self._ended.wait()
        finally:
            until = loop.time() + timeout
            engine.announce_exit()
            await ports.close(timeout)
            clean = await engine.stop(max(0.0, until - loop.time()))
            if not clean:
                log.error("the exit timeout of %d s expired; what still runs is left behind", timeout)
            offload.close(wait=clean)

    async def _load(self, engine: Engine) -> None:
        loading, ended = asyncio.ensure_future(engine.start()), asyncio.ensure_future(self._ended.wait())
        await asyncio.wait({loading, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not loading.done():
            await engine.give_up()
            await asyncio.wait({loading}, timeout=self._options.exit_timeout_secs)
            raise Stopped("the server was stopped while it started")
        try:
            loaded = loading.result()
        except Error as error:
            # As the command: a repository that cannot be read does not end such a server.
            if self._options.exit_on_error:
                raise
            log.error("%s", error)
            loaded = True
        if not loaded and self._options.exit_on_error:
            raise Internal("failed to load all models: " + "; ".join(reasons(engine.models)))


def reasons(models: ModelTable) -> list[str]:
    """Why models are not in service."""
    found = [(record.name, record.reason) for record in models if record.reason]
    for record in models:
        found += [(f"{record.name}:{number}", each.reason) for number, each in record.versions.items() if each.reason]
    return [f"{name}: {reason}" for name, reason in found] or ["a model is missing; the log says which"]


def apply_log(options: LogOptions) -> None:
    """Applies the levels that a client has set to the loggers of the package. The rest is the program's."""
    level = logging.CRITICAL
    for is_on, each in (
        (options.error, logging.ERROR),
        (options.warning, logging.WARNING),
        (options.info, logging.INFO),
    ):
        level = each if is_on else level
    logging.getLogger("halimede").setLevel(level - max(0, options.verbose) if options.info else level)
    # A client that may change levels must not hide what it does.
    logging.getLogger("halimede.audit").setLevel(logging.INFO)
