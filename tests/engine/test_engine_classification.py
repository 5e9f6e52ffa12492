"""Classification through the engine's port: labels from files, large outputs, statistics (contract H80 to H83)."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from halimede.engine.engine import Engine
from halimede.engine_port import (
    ModelStatistics,
    RegionKind,
    RegisterSystemMemory,
    SystemMemoryStatus,
    UnregisterMemory,
)
from halimede.errors import Cancelled, Error, Invalid
from halimede.requests import InferRequest
from halimede.tensors import BOOL, INT32, RegionReference, Tensor, array_of, tensor_of
from tests.engine.engines import (
    IDENTITY,
    PATIENCE,
    STOP_SECONDS,
    Awaited,
    ask,
    infer,
    options_for,
    request_of,
    run,
    running,
)
from tests.fakes import FakeMemory, SerializingPort
from tests.segments import segment

LABELLED = IDENTITY.replace("dims: [ -1 ] }\ninstance", 'dims: [ -1 ] label_filename: "labels.txt" }\ninstance')
FLAGS = IDENTITY.replace("INT32", "BOOL")


def wanting(request: InferRequest, classes: int) -> InferRequest:
    request.classes = {"OUTPUT0": classes}
    return request


def texts(tensor: Tensor) -> list[list[bytes]]:
    listed: list[list[bytes]] = array_of(tensor).tolist()
    return listed


@pytest.mark.parametrize("far", [False, True])
def test_outputs_are_classified_with_the_labels_of_the_model(tmp_path: Path, far: bool) -> None:
    async def scenario() -> list[list[bytes]]:
        options = options_for(tmp_path, {"m": LABELLED})
        (tmp_path / "m" / "labels.txt").write_bytes(b"cat\n\xff\n")
        async with running(options) as engine:
            port = SerializingPort(engine, asyncio.get_running_loop()) if far else engine
            reply = await infer(port, wanting(request_of(1, 9, 5, rows=2), 2))
            return texts(reply.response.outputs[0])

    assert run(scenario) == [[b"9:1:\xff", b"5:2"]] * 2


def test_large_output_is_classified(tmp_path: Path) -> None:
    async def scenario() -> list[list[bytes]]:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            request = wanting(request_of(0), 1)
            request.inputs = {"INPUT0": tensor_of("INPUT0", INT32, np.arange(200_000, dtype=np.int32)[None])}
            return texts((await infer(engine, request)).response.outputs[0])

    assert run(scenario) == [[b"199999:199999"]]


def test_model_has_succeeded_where_its_output_cannot_be_classified(tmp_path: Path) -> None:
    """As in the real server, which classifies what the model has answered already (observed)."""

    async def scenario() -> tuple[object, int, int]:
        async with running(options_for(tmp_path, {"m": FLAGS})) as engine:
            request = wanting(request_of(0), 1)
            request.inputs = {"INPUT0": tensor_of("INPUT0", BOOL, np.ones((1, 1), np.bool_))}
            answer = (await infer(engine, request)).only
            found = await ask(engine, ModelStatistics("m"))
            assert not isinstance(found, Error)
            return answer, found[0].inference["success"].count, found[0].inference["fail"].count

    answer, successes, failures = run(scenario)
    assert isinstance(answer, Invalid)
    assert not answer.refused
    assert (successes, failures) == (1, 0)


LARGE = 60_000
"""Elements that are too many for the event loop."""


class BlockedMemory(FakeMemory):
    """Zeros, for whoever waits until they may be read."""

    def __init__(self, free: threading.Event) -> None:
        super().__init__(bytes(4 * LARGE))
        self._free = free
        self.reads = 0

    def host(self) -> memoryview:
        self.reads += 1
        assert self._free.wait(PATIENCE)
        return super().host()


class Blockade:
    """Large outputs to classify that are not to be had until it is lifted."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self.lift = self._free.set

    def begin(self, engine: Engine) -> tuple[int, BlockedMemory, Awaited]:
        request, memory, reply = wanting(request_of(0), 1), BlockedMemory(self._free), Awaited()
        request.inputs = {"INPUT0": Tensor("INPUT0", INT32, (1, LARGE), memory)}
        return engine.infer(request, reply), memory, reply


@contextmanager
def blockade() -> Iterator[Blockade]:
    made = Blockade()
    try:
        yield made
    finally:
        made.lift()


async def successes(engine: Engine, number: int) -> None:
    """Once the model is done with so many inferences; `run` bounds the wait."""
    while True:
        found = await ask(engine, ModelStatistics("m"))
        assert not isinstance(found, Error)
        if found[0].inference["success"].count == number:
            return
        await asyncio.sleep(0)


def test_output_of_one_client_does_not_wait_for_that_of_another(tmp_path: Path) -> None:
    async def scenario() -> list[list[bytes]]:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            with blockade() as held:
                _, _, reply = held.begin(engine)
                request = wanting(request_of(0), 1)
                request.inputs = {"INPUT0": tensor_of("INPUT0", INT32, np.arange(LARGE, dtype=np.int32)[None])}
                other = await infer(engine, request)
                assert reply.answers == []
            await reply.answered()
            return texts(other.response.outputs[0])

    assert run(scenario) == [[b"59999:59999"]]


def test_cancelled_request_is_not_classified(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            with blockade() as held:
                before = [held.begin(engine) for _ in range(2)]
                key, memory, reply = held.begin(engine)
                await successes(engine, 3)
                engine.cancel(key)
            await reply.answered()
            assert isinstance(reply.error, Cancelled)
            assert memory.reads == 0
            assert texts((await before[0][2].answered()).response.outputs[0]) == [[b"0:0"]]

    run(scenario)


def test_engine_stops_when_the_last_output_is_classified(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            with blockade() as held:
                _, _, reply = held.begin(engine)
                await successes(engine, 1)
                stopping = asyncio.ensure_future(engine.stop(STOP_SECONDS))
                for _ in range(20):
                    await asyncio.sleep(0)
                assert (stopping.done(), reply.answers) == (False, [])
            assert await stopping
            assert reply.finals == 1

    run(scenario)


def test_region_stays_until_what_lies_in_it_is_classified(tmp_path: Path) -> None:
    async def scenario() -> list[list[bytes]]:
        with segment(4 * LARGE) as (key, _):
            async with running(options_for(tmp_path, {"m": IDENTITY}, allow_client_shm=True)) as engine:
                await ask(engine, RegisterSystemMemory("r", key, 0, 4 * LARGE))
                with blockade() as held:
                    before = [held.begin(engine)[2] for _ in range(2)]
                    request, reply = wanting(request_of(0), 1), Awaited()
                    reference = RegionReference("r", 0, 4 * LARGE)
                    request.inputs = {"INPUT0": Tensor("INPUT0", INT32, (1, LARGE), reference)}
                    request.in_regions = True
                    engine.infer(request, reply)
                    await successes(engine, 3)
                    await ask(engine, UnregisterMemory(RegionKind.SYSTEM, "r"))
                    assert await names(engine) == ["r"]
                await reply.answered()
                assert await names(engine) == []
                for one in before:
                    await one.answered()
                return texts(reply.response.outputs[0])

    assert run(scenario) == [[b"0:0"]]


async def names(engine: Engine) -> list[str]:
    regions = await ask(engine, SystemMemoryStatus())
    assert not isinstance(regions, Error)
    return [region.name for region in regions]
