"""The backends of one engine: each created when the first model needs it, and shared by all models after that.

Called from several load threads at once. Who asks first creates, the others wait for the same future; no lock.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager

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

    def __contains__(self, name: object) -> bool:
        """Whether it is a backend of this server."""
        return name in self._known

    def get(self, name: str) -> Backend:
        if self._closed:
            raise Unavailable("the server is exiting")
        known = self._made.get(name)
        if known is not None:
            return known.result()
        mine: Future[Backend] = Future()
        future = self._made.setdefault(name, mine)
        if future is mine:
            try:
                mine.set_result(self._create(name))
            except BaseException as error:
                self._made.pop(name)
                mine.set_exception(error)
        return future.result()

    def close(self) -> None:
        """Closes the backends and makes no more; for when no model is left, or those that still load shall give up.
        May block."""
        self._closed = True
        for name, future in list(self._made.items()):
            try:
                future.result().close()
            except Exception:
                log.exception("closing the backend '%s' broke", name)
        self._made.clear()


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
    """For those who only look at models, and run none; closed at the end. `settings` by the name of a backend."""
    loop = asyncio.new_event_loop()  # for backends that want one, and are never given a batch
    backends = backends_in(lambda name: BackendContext(loop, settings(name), process_threads=ProcessThreads(name)))
    try:
        yield backends
    finally:
        backends.close()
        loop.close()
