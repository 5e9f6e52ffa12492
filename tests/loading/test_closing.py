"""When versions are closed, and when free memory is returned to the system."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any, cast
from weakref import ref

from halimede.backends.api import Batch, Responses
from halimede.engine.engine import EngineLoop
from halimede.loading.closing import MEMORY_RETURN_SECONDS, Closing, MemoryReturn
from halimede.loading.concurrency import LoadThreads
from halimede.loading.uploads import Uploads
from halimede.models.loader import LoadedVersion
from halimede.models.version import ModelVersion
from tests.fakes import PATIENCE, RecordingObserver, RecordingReply
from tests.models.configs import asking, config_of, given, spec
from tests.models.fakes import loaded


class HandMovedLoop:
    """Time stands still until `advance`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> "HandMovedLoop":
        self.due.append((when, callback))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def advance(self, seconds: float = 0.0) -> None:
        self.now += seconds
        ready = [callback for when, callback in self.due if when <= self.now]
        self.due = [each for each in self.due if each[0] > self.now]
        for callback in ready:
            callback()


def test_memory_is_returned_at_once_and_then_together_for_many_models() -> None:
    loop, given = HandMovedLoop(), list[float]()
    memory = MemoryReturn(cast(asyncio.AbstractEventLoop, cast(Any, loop)), lambda: given.append(loop.now))
    memory.request()
    loop.advance()
    assert given == [0.0]
    for _ in range(1000):
        memory.request()
        loop.advance(0.0001)
    assert given == [0.0]
    loop.advance(MEMORY_RETURN_SECONDS)
    assert len(given) == 2  # the last that went is not forgotten
    loop.advance(10 * MEMORY_RETURN_SECONDS)
    assert len(given) == 2


def test_memory_is_not_returned_after_the_end() -> None:
    loop, given = HandMovedLoop(), list[float]()
    memory = MemoryReturn(cast(asyncio.AbstractEventLoop, cast(Any, loop)), lambda: given.append(loop.now))
    memory.request()
    memory.end()
    memory.request()
    loop.advance(10 * MEMORY_RETURN_SECONDS)
    assert not given


class LingeringInstance:
    """Sends its last answer at once. `execute` returns when `release` is set."""

    healthy = True

    def __init__(self) -> None:
        self.release = Event()
        self.order: list[str] = []

    def execute(self, batch: Batch, responses: Responses) -> None:
        self.order.append("called")
        for i, request in enumerate(batch.requests):
            responses.send(i, list(request.request.inputs.values()))
        assert self.release.wait(PATIENCE)
        self.order.append("returned")

    def close(self) -> None:
        self.order.append("closed")


class InlineThreads(LoadThreads):
    """Closes at once, on the event loop."""

    def __init__(self) -> None:
        """There are no threads."""

    async def close(self, work: Callable[[], Any]) -> Any:
        return work()

    async def read_repository(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    async def write(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)


def test_version_is_closed_when_its_last_batch_has_ended() -> None:
    """A batch of a model with many responses may run on after the last one."""
    instance, tensor = LingeringInstance(), spec("x", "INT32", [1])
    config = replace(config_of(tensor, outputs=[spec("x", "INT32", [1])]), decoupled=True)
    opened = replace(loaded(config), instances=[instance])

    async def scenario() -> None:
        loop, threads = asyncio.get_running_loop(), InlineThreads()
        idle, gone = loop.create_future(), loop.create_future()
        version = ModelVersion(opened, EngineLoop(loop), RecordingObserver(), lambda inference: None)
        closing = Closing(loop, threads, Uploads(threads), gone.set_result)
        request, reply = asking(given("x", "INT32", [1])), RecordingReply()
        request.decoupled_ok = True
        version.submit(version.infer(1, request, reply, 0))
        version.retire(lambda: idle.set_result(None))
        await asyncio.wait_for(idle, PATIENCE)
        assert reply.finals == 1
        closing.close_served(version)
        for _ in range(3):
            await asyncio.sleep(0)
        assert instance.order == ["called"], "closed while a batch runs"
        assert closing.under_way, "the server does not wait for it when it ends"
        instance.release.set()
        assert await asyncio.wait_for(gone, PATIENCE) is version
        assert instance.order == ["called", "returned", "closed"]
        closing.end()

    asyncio.run(scenario())


def test_closed_model_is_free_without_the_collector() -> None:
    """The collector is off: a model of the start belongs to objects that it never looks at."""
    tensor = spec("x", "INT32", [1])
    opened = replace(loaded(config_of(tensor, outputs=[tensor])), instances=[LingeringInstance()])
    parts: list[ref[Any]] = [ref(part) for part in (opened.model, *opened.instances)]

    async def scenario(opened: LoadedVersion) -> None:
        loop, threads = asyncio.get_running_loop(), InlineThreads()
        gone = loop.create_future()
        version = ModelVersion(opened, EngineLoop(loop), RecordingObserver(), lambda inference: None)
        closing = Closing(loop, threads, Uploads(threads), gone.set_result)
        version.retire(partial(closing.close_served, version))
        del opened, version
        await asyncio.wait_for(gone, PATIENCE)
        closing.end()

    gc.disable()
    try:
        running = scenario(opened)
        del opened
        asyncio.run(running)
        del running
        assert [part() for part in parts] == [None, None]
    finally:
        gc.enable()
