"""The backends of one engine: each created when the first model needs it, and shared by all models after that.

Called on several load threads at once. The first that asks creates the backend, the others wait for its future. The
lock is held only to look at the table, never while a backend is created or closed.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock

from halimede.backends.api import Backend, BackendContext, ProcessThreads
from halimede.backends.creation import create_backend
from halimede.backends.registry import served
from halimede.backends.runtimes import unknown_backend
from halimede.errors import Unavailable

log = logging.getLogger(__name__)


class BackendPool:
    """`create` makes a backend by name and may block or raise Error. Failures are not kept. `known` are the names that
    it can be asked for, those of the registry if None."""

    def __init__(self, create: Callable[[str], Backend], known: Container[str] | None = None) -> None:
        self._create = create
        self._known = served() if known is None else known
        self._made: dict[str, Future[Backend]] = {}
        self._closed = False
        self._lock = Lock()

    def __contains__(self, name: object) -> bool:
        """Whether it is a backend of this server."""
        return name in self._known

    def get(self, name: str) -> Backend:
        """The backend of this name. Blocks while it is created. Raises Unavailable once the pool is closed, and what
        the creation raises."""
        with self._lock:
            if self._closed:
                raise Unavailable("the server is exiting")
            future = self._made.get(name)
            is_first = future is None
            if future is None:
                future = self._made[name] = Future()
        if is_first:
            try:
                future.set_result(self._create(name))
            except BaseException as error:
                with self._lock:
                    self._made.pop(name, None)  # the next one tries again
                future.set_exception(error)
        return future.result()

    def close(self) -> None:
        """Closes the backends and makes no more. For the end of the server: loads under way fail soon. May block."""
        with self._lock:
            self._closed = True
            made, self._made = self._made, {}
        for name, future in made.items():
            try:
                future.result().close()  # waits for one that is being created
            except Exception:
                log.exception("unexpected error while the backend '%s' was closed; what it held may stay in use", name)


def backends_in(context: Callable[[str], BackendContext]) -> BackendPool:
    """The backends of the registry, each with the `context` for its name."""

    def create(name: str) -> Backend:
        traits = served().get(name)
        if traits is None:
            raise unknown_backend(name)
        return create_backend(traits, context(name))

    return BackendPool(create)


@contextmanager
def pool_to_look(settings: Callable[[str], Mapping[str, str]]) -> Iterator[BackendPool]:
    """A pool for commands that look at models and run none. Closed at the end. `settings` maps the name of a backend to
    its settings."""
    loop = asyncio.new_event_loop()  # a backend may want one when it is created; it is never given a batch
    backends = backends_in(lambda name: BackendContext(loop, settings(name), process_threads=ProcessThreads(name)))
    try:
        yield backends
    finally:
        backends.close()
        loop.close()
