"""Async functions: each instance has a thread with an event loop, on which several batches run at a time.

The server calls `execute` on that thread. Responses that are not the last one are sent on the server's event loop,
which never blocks, and the function goes on when the client takes more.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from halimede.backends.api import Batch, Placement, Responses
from halimede.backends.function.backend import BoundFunction, FunctionModel
from halimede.backends.function.functions import Functions
from halimede.backends.function.results import Part
from halimede.config.model_config import ModelConfig
from halimede.errors import Internal


class LoopThread:
    """A daemon thread that runs an event loop until `stop`. `submit` and `stop` may be called on any thread."""

    def __init__(self, name: str) -> None:
        """Raises OSError or RuntimeError if the system has no thread or descriptor left."""
        self.loop = asyncio.new_event_loop()
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError:
            self.loop.close()
            raise

    def submit(self, work: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        """Ends the thread soon. Tasks that the functions have left are cancelled."""
        with suppress(RuntimeError):  # it was stopped before
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


class AsyncInstance:
    """A function on the event loop of a thread of its own. `execute` is called on that thread."""

    healthy = True

    def __init__(self, name: str, function: BoundFunction, server: asyncio.AbstractEventLoop) -> None:
        self.thread = LoopThread(name)
        self._function = function
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()

    def execute(self, batch: Batch, responses: Responses) -> None:
        task = self.thread.loop.create_task(self._run(batch, responses))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, batch: Batch, responses: Responses) -> None:
        try:
            if self._function.decoupled:
                await self._stream(batch, responses)
            else:
                await self._answer(batch, responses)
        except BaseException as error:  # the thread outlives whatever a function does, SystemExit included
            responses.fail_all(self._function.error_of(error))
        finally:
            responses.finished()

    async def _answer(self, batch: Batch, responses: Responses) -> None:
        results = [await self._function.call(batch)]
        self._function.answer(batch, responses, results.pop)

    async def _stream(self, batch: Batch, responses: Responses) -> None:
        stream = self._function.call(batch)
        if not hasattr(stream, "__aiter__"):  # an async function that returns a generator
            stream = await stream
        if not hasattr(stream, "__aiter__"):
            raise Internal(
                "a decoupled async function must yield, or return an asynchronous iterator; it returned a "
                f"{type(stream).__name__}"
            )
        try:
            async for result in stream:
                for i, part in enumerate(self._function.parts(batch, result)):
                    await self._send(responses, i, part)
                if all(one.cancelled for one in batch.requests):
                    break
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        for i in range(len(batch.requests)):
            responses.send(i, None)

    async def _send(self, responses: Responses, i: int, part: Part) -> None:
        """Sends a response that is not the last one, and waits until the client takes more."""
        if part is None:
            return
        if isinstance(part, Exception):
            responses.fail(i, self._function.error_of(part))
            return
        room = self.thread.loop.create_future()

        def send() -> None:
            responses.send(i, part, final=False)
            responses.on_writable(i, lambda: self._resume(room))

        self._server.call_soon_threadsafe(send)
        await room

    def _resume(self, room: "asyncio.Future[None]") -> None:
        with suppress(RuntimeError):  # the instance was closed
            self.thread.submit(partial(_fulfil, room))

    def close(self) -> None:
        self.thread.stop()


def _fulfil(room: "asyncio.Future[None]") -> None:
    if not room.done():
        room.set_result(None)


class AsyncModel(FunctionModel):
    """A model of async functions or asynchronous generator functions."""

    placement = Placement.ASYNC

    def __init__(self, functions: Functions, config: ModelConfig, server: asyncio.AbstractEventLoop) -> None:
        super().__init__(functions, config)
        self.in_flight = functions.concurrency
        self._server = server

    def new_instance(self, name: str, function: BoundFunction) -> AsyncInstance:
        return AsyncInstance(name, function, self._server)
