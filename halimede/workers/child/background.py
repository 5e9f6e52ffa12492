"""The event loop of a model whose `execute` is `async def` (P7), in a thread that starts at first need.

Any thread.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

Ended = Callable[[Any, "BaseException | None"], None]
"""Gets the result of a coroutine, or its exception."""


class Background:
    """Runs coroutines on one event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._closing = threading.Event()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of the coroutine; raises what it raises. Blocks."""
        over = threading.Event()
        result: list[Any] = []

        def ended(returned: Any, error: BaseException | None) -> None:
            result.extend((returned, error))
            over.set()

        self.start(coroutine, ended)
        over.wait()
        returned, error = result
        if error is not None:
            raise error
        return returned

    def start(self, coroutine: Coroutine[Any, Any, Any], ended: Ended) -> None:
        """Starts the coroutine. Calls back on the loop's thread when it has ended."""
        import asyncio  # most models are not asynchronous, and this import takes as long as all others here

        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                turned = (self._loop, self._closing)
                threading.Thread(target=_turn, args=turned, name="background loop", daemon=True).start()
        asyncio.run_coroutine_threadsafe(_guarded(coroutine, ended), self._loop)

    def close(self) -> None:
        """Ends the thread; coroutines that still run are abandoned. For a model in the server's process."""
        self._closing.set()
        if self._loop is not None:
            with suppress(RuntimeError):  # its thread has closed the loop already
                self._loop.call_soon_threadsafe(self._loop.stop)


async def _guarded(coroutine: Coroutine[Any, Any, Any], ended: Ended) -> None:
    """Passes every exception to `ended`: a SystemExit would end the loop for all coroutines."""
    try:
        returned = await coroutine
    except BaseException as error:
        ended(None, error)
    else:
        ended(returned, None)


def _turn(loop: asyncio.AbstractEventLoop, closing: threading.Event) -> None:
    while not closing.is_set():
        try:
            loop.run_forever()
        except BaseException:  # SystemExit in a task that the model started
            traceback.print_exc()
    loop.close()
