"""Inferences whose tensors lie in shared memory, through the engine itself and through a port that serialises."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import get_ident

import numpy as np
import pytest

from halimede.engine.classification import MAX_COPIED_ON_LOOP_BYTES
from halimede.engine.engine import Engine
from halimede.engine.shared_memory import SegmentMemory
from halimede.engine_port import EnginePort, RegionKind, RegisterSystemMemory, SystemMemoryStatus, UnregisterMemory
from halimede.errors import Cancelled, Invalid, NotFound
from halimede.requests import InferRequest, InferResponse
from halimede.tensors import BYTES, INT32, STRINGS_PER_TURN, RegionReference, Tensor
from tests.engine.engines import HELD, IDENTITY, Awaited, ask, infer, options_for, run, running
from tests.fakes import SerializingPort
from tests.segments import segment

PAGE = 4096


def near(engine: Engine) -> EnginePort:
    return engine


def far(engine: Engine) -> EnginePort:
    return SerializingPort(engine, asyncio.get_running_loop())


def request_in(
    region: str, columns: int, output: RegionReference | None, offset: int = 0, byte_size: int | None = None
) -> InferRequest:
    request = InferRequest("m")
    size = 4 * columns if byte_size is None else byte_size
    request.inputs = {"INPUT0": Tensor("INPUT0", INT32, (1, columns), RegionReference(region, offset, size))}
    request.in_regions = True
    if output is not None:
        request.outputs, request.destinations = ("OUTPUT0",), {"OUTPUT0": output}
    return request


@pytest.mark.parametrize("port_of", [near, far])
@pytest.mark.rows("H97")
def test_inference_in_shared_memory(tmp_path: Path, port_of: Callable[[Engine], EnginePort]) -> None:
    async def scenario() -> None:
        with segment(2 * PAGE) as (key, memory):
            assert memory.buf is not None
            memory.buf[:12] = np.array([1, 2, 3], np.int32).tobytes()
            async with running(options_for(tmp_path, {"m": IDENTITY}, allow_client_shm=True)) as engine:
                port = port_of(engine)
                assert await ask(port, RegisterSystemMemory("r", key, 0, 2 * PAGE)) is None
                reply = await infer(port, request_in("r", 2, RegionReference("r", PAGE, 64), 4))
                assert isinstance(reply.only, InferResponse)
                assert [(t.shape, t.memory.byte_size) for t in reply.response.outputs] == [((1, 2), 0)]
                assert np.frombuffer(bytes(memory.buf[PAGE : PAGE + 12]), np.int32).tolist() == [2, 3, 0]
                reply = await infer(port, request_in("r", 3, None))
                assert bytes(reply.response.outputs[0].memory.host()) == bytes(memory.buf[:12])
                del reply

    run(scenario)


@pytest.mark.parametrize("port_of", [near, far])
def test_inference_in_shared_memory_that_is_refused(tmp_path: Path, port_of: Callable[[Engine], EnginePort]) -> None:
    async def scenario() -> None:
        with segment(PAGE) as (key, _):
            async with running(options_for(tmp_path, {"m": IDENTITY}, allow_client_shm=True)) as engine:
                port = port_of(engine)
                await ask(port, RegisterSystemMemory("r", key, 0, PAGE))
                reply = await infer(port, request_in("nope", 2, None))
                assert isinstance(reply.error, NotFound)
                reply = await infer(port, request_in("r", 2, None, byte_size=4))
                assert isinstance(reply.error, Invalid)
                assert "input byte size mismatch" in reply.error.message
                reply = await infer(port, request_in("r", 2, RegionReference("r", 0, 7)))
                assert "shared memory size specified with the request for output 'OUTPUT0' (7 bytes)" in str(
                    reply.error
                )
                await ask(port, UnregisterMemory(RegionKind.SYSTEM))
                assert await ask(port, SystemMemoryStatus()) == [], "a request that was refused holds a region"

    run(scenario)


@pytest.mark.rows("H94")
def test_region_stays_until_the_inference_in_it_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        with segment(PAGE) as (key, memory):
            assert memory.buf is not None
            memory.buf[:4] = b"...."
            async with running(options_for(tmp_path, {"m": HELD}, allow_client_shm=True)) as engine:
                await ask(engine, RegisterSystemMemory("r", key, 0, PAGE))
                reply = Awaited()
                engine.infer(request_in("r", 1, RegionReference("r", 64, 4)), reply)
                memory.buf[:4] = b"abcd"  # it waits for company, and its input is not read yet
                await ask(engine, UnregisterMemory(RegionKind.SYSTEM, "r"))
                status = await ask(engine, SystemMemoryStatus("r"))
                assert isinstance(status, list)
                assert [region.name for region in status] == ["r"]
                await reply.answered()
                assert bytes(memory.buf[64:68]) == b"abcd"
                assert await ask(engine, SystemMemoryStatus()) == []

    run(scenario)


def test_cancelled_inference_lets_go_of_its_region(tmp_path: Path) -> None:
    async def scenario() -> None:
        with segment(PAGE) as (key, _):
            async with running(options_for(tmp_path, {"m": HELD}, allow_client_shm=True)) as engine:
                await ask(engine, RegisterSystemMemory("r", key, 0, PAGE))
                reply = Awaited()
                engine.cancel(engine.infer(request_in("r", 1, None), reply))
                await reply.answered()
                await ask(engine, UnregisterMemory(RegionKind.SYSTEM))
                assert await ask(engine, SystemMemoryStatus()) == []

    run(scenario)


# Many strings: another thread reads them.

STRINGS = IDENTITY.replace("INT32", "STRING").replace("max_batch_size: 4", "max_batch_size: 0")
MANY = STRINGS_PER_TURN + 1


def many_strings(byte_size: int = 5 * MANY) -> InferRequest:
    request = InferRequest("m")
    request.inputs = {"INPUT0": Tensor("INPUT0", BYTES, (MANY,), RegionReference("r", 0, byte_size))}
    request.in_regions = True
    return request


@pytest.mark.parametrize("port_of", [near, far])
def test_many_strings_in_shared_memory(tmp_path: Path, port_of: Callable[[Engine], EnginePort]) -> None:
    async def scenario() -> None:
        framed = b"\1\0\0\0x" * MANY
        with segment(len(framed)) as (key, memory):
            assert memory.buf is not None
            memory.buf[: len(framed)] = framed
            async with running(options_for(tmp_path, {"m": STRINGS}, allow_client_shm=True)) as engine:
                port = port_of(engine)
                await ask(port, RegisterSystemMemory("r", key, 0, len(framed)))
                reply = await infer(port, many_strings())
                assert bytes(reply.response.outputs[0].memory.host()) == framed
                reply = await infer(port, many_strings(5 * MANY - 2))
                assert isinstance(reply.error, Invalid)
                assert "incomplete string length indicator" in reply.error.message
                await ask(port, UnregisterMemory(RegionKind.SYSTEM))
                assert await ask(port, SystemMemoryStatus()) == []

    run(scenario)


def test_inference_whose_many_strings_are_being_read_is_cancelled(tmp_path: Path) -> None:
    async def scenario() -> None:
        with segment(5 * MANY) as (key, _):
            async with running(options_for(tmp_path, {"m": STRINGS}, allow_client_shm=True)) as engine:
                await ask(engine, RegisterSystemMemory("r", key, 0, 5 * MANY))
                reply = Awaited()
                begun = engine.infer(many_strings(), reply)
                # In the same turn of the loop, because the other thread may be quick.
                engine.cancel(begun)
                await ask(engine, UnregisterMemory(RegionKind.SYSTEM))
                await reply.answered()
                assert isinstance(reply.error, Cancelled)
                assert await ask(engine, SystemMemoryStatus()) == []

    run(scenario)


def test_large_input_that_is_the_output_is_read_on_another_thread(tmp_path: Path) -> None:
    async def scenario() -> None:
        columns = MAX_COPIED_ON_LOOP_BYTES // 4 + 1
        with segment(4 * columns) as (key, memory):
            assert memory.buf is not None
            memory.buf[:4] = b"abcd"
            async with running(options_for(tmp_path, {"m": IDENTITY}, allow_client_shm=True)) as engine:
                await ask(engine, RegisterSystemMemory("r", key, 0, 4 * columns))
                threads: list[int] = []
                reply = Awaited()
                read = SegmentMemory.host

                def host(self: SegmentMemory) -> memoryview:
                    threads.append(get_ident())
                    return read(self)

                SegmentMemory.host = host  # type: ignore[method-assign]  # to see where it is called
                try:
                    engine.infer(request_in("r", columns, None), reply)
                    await reply.answered()
                finally:
                    SegmentMemory.host = read  # type: ignore[method-assign]
                assert threads
                assert get_ident() not in threads
                assert bytes(reply.response.outputs[0].memory.host()[:4]) == b"abcd"

    run(scenario)


def test_end_of_the_engine_waits_for_strings_that_are_being_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        framed = b"\0\0\0\0" * MANY
        with segment(len(framed)) as (key, memory):
            assert memory.buf is not None
            async with running(options_for(tmp_path, {"m": STRINGS}, allow_client_shm=True)) as engine:
                await ask(engine, RegisterSystemMemory("r", key, 0, len(framed)))
                reply = Awaited()
                engine.infer(many_strings(len(framed)), reply)
                assert await engine.stop(20.0)
                await reply.answered()
                assert reply.response.outputs[0].shape == (MANY,)

    run(scenario)
