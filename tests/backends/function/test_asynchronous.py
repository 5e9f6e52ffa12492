"""An async generator waits for its reader, and not for the readers of other requests."""

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from halimede.backends.function.asynchronous import AsyncInstance, LoopThread
from halimede.backends.function.backend import BoundFunction
from halimede.backends.function.functions import Functions
from halimede.binding.models import bound_model
from halimede.binding.tensors import Tensor
from halimede.config import ModelConfig, read_override
from halimede.errors import Internal

SECONDS = 20.0


async def endless(x: Any) -> AsyncIterator[Any]:
    while True:
        yield x


async def exits(x: Any) -> AsyncIterator[Any]:
    raise SystemExit(3)
    yield x


class Batch:
    """A batch of one request."""

    def __init__(self) -> None:
        self.requests = [SimpleNamespace(batch_size=0, outputs=("y",), cancelled=False)]

    def arrays(self) -> Mapping[str, Any]:
        return {"x": np.zeros(1, np.float32)}


class Responses:
    """Reports what is said. The reader takes more when the test calls `resumes`."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.resumes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def send(self, i: int, outputs: Any, final: bool = True) -> None:
        self.said.put("end" if final else "response")

    def on_writable(self, i: int, resume: Callable[[], None]) -> None:
        self.resumes.put(resume)

    def fail_all(self, error: Exception) -> None:
        self.said.put(error)

    def finished(self) -> None:
        self.said.put("finished")


def config() -> ModelConfig:
    spec = Tensor("y", np.float32, [-1])
    found = bound_model("m", Functions((endless,)), [Tensor("x", np.float32, [-1])], [spec], 0, True, None, {}, 1)
    assert found.config is not None
    return read_override(found.config, found.folder).finish()


@pytest.fixture
def server() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop of the server."""
    thread = LoopThread("server")
    yield thread.loop
    thread.stop()


def started(function: Any, server: asyncio.AbstractEventLoop, *batches: tuple[Batch, Responses]) -> AsyncInstance:
    instance = AsyncInstance("m_0", BoundFunction(function, False, config()), server)
    for batch, responses in batches:
        instance.thread.submit(lambda batch=batch, responses=responses: instance.execute(batch, responses))  # type: ignore[misc]
    return instance


def test_generator_waits_until_its_client_takes_more(server: asyncio.AbstractEventLoop) -> None:
    slow, quick = (Batch(), Responses()), (Batch(), Responses())
    instance = started(endless, server, slow, quick)
    assert slow[1].said.get(timeout=SECONDS) == "response"
    resume_slow = slow[1].resumes.get(timeout=SECONDS)
    for _ in range(100):
        assert quick[1].said.get(timeout=SECONDS) == "response"
        quick[1].resumes.get(timeout=SECONDS)()
    assert slow[1].said.empty(), "it went on although its client had not taken the first response"
    slow[0].requests[0].cancelled = True
    resume_slow()
    assert [slow[1].said.get(timeout=SECONDS) for _ in range(2)] == ["end", "finished"]
    instance.close()


def test_generator_that_exits_fails_its_requests_only(server: asyncio.AbstractEventLoop) -> None:
    first, second = (Batch(), Responses()), (Batch(), Responses())
    instance = started(exits, server, first, second)
    for _, responses in (first, second):
        error = responses.said.get(timeout=SECONDS)
        assert isinstance(error, Internal)
        assert "SystemExit: 3" in str(error)
        assert responses.said.get(timeout=SECONDS) == "finished"
    instance.close()


def test_closed_instance_ends_what_it_still_runs(server: asyncio.AbstractEventLoop) -> None:
    batch, responses = Batch(), Responses()
    instance = started(endless, server, (batch, responses))
    assert responses.said.get(timeout=SECONDS) == "response"
    instance.close()
    assert "CancelledError" in str(responses.said.get(timeout=SECONDS))
    assert responses.said.get(timeout=SECONDS) == "finished"
