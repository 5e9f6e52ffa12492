"""Engines on a loop of their own, over repositories of identity models."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from halimede.engine.engine import Engine
from halimede.engine_port import EnginePort, Query
from halimede.errors import Error
from halimede.options import ServerOptions
from halimede.platform.loops import new_event_loop
from halimede.requests import Answer, InferRequest
from halimede.tensors import INT32, tensor_of
from tests.fakes import RecordingReply

A = TypeVar("A")

PATIENCE = 20.0
STOP_SECONDS = 30.0

IDENTITY = """
backend: "identity"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
instance_group { kind: KIND_CPU }
"""
HELD = IDENTITY + "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100000 }"
"""Waits a tenth of a second for company."""


def options_for(root: Path, models: Mapping[str, str], **others: Any) -> ServerOptions:
    for name, text in models.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    return ServerOptions(model_repositories=(str(root),), **others)


@asynccontextmanager
async def running(options: ServerOptions) -> AsyncIterator[Engine]:
    """An engine that has started, and is stopped afterwards unless the test did so."""
    engine = Engine(options, asyncio.get_running_loop())
    await engine.start()
    try:
        yield engine
    finally:
        if not engine.stopping:
            assert await engine.stop(STOP_SECONDS)


def run(scenario: Callable[[], Coroutine[Any, Any, A]]) -> A:
    """Runs it on a fresh loop, bounded."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(asyncio.wait_for(scenario(), PATIENCE))


def request_of(*values: int, model: str = "m", version: int = -1, rows: int = 1) -> InferRequest:
    request = InferRequest(model, version)
    request.id = "q"
    request.inputs = {"INPUT0": tensor_of("INPUT0", INT32, np.array([values] * rows, np.int32))}
    return request


class Awaited(RecordingReply):
    """A reply slot to wait for."""

    def __init__(self) -> None:
        super().__init__(self._sent)
        self._over = asyncio.Event()

    def _sent(self, answer: Answer, final: bool) -> None:
        if final:
            self._over.set()

    async def answered(self) -> "Awaited":
        await asyncio.wait_for(self._over.wait(), PATIENCE)
        return self


async def infer(port: EnginePort, request: InferRequest) -> Awaited:
    """The slot with its final answer."""
    reply = Awaited()
    port.infer(request, reply)
    return await reply.answered()


async def ask(port: EnginePort, query: Query[A]) -> A | Error:
    future: asyncio.Future[A | Error] = asyncio.get_running_loop().create_future()
    port.ask(query, future.set_result)
    return await asyncio.wait_for(future, PATIENCE)
