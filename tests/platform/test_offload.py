import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from halimede.errors import Error, Internal, NotFound
from halimede.platform.offload import OffloadPool

PATIENCE = 20.0


def offloaded(work: Callable[[], object]) -> tuple[object, list[str]]:
    """What came of the work, and the names of the threads that ran it and that got the result."""
    threads: list[str] = []

    def recorded() -> object:
        threads.append(threading.current_thread().name)
        return work()

    async def scenario() -> object:
        loop = asyncio.get_running_loop()
        offload, future = OffloadPool(loop), loop.create_future()

        def done(result: object) -> None:
            threads.append(threading.current_thread().name)
            future.set_result(result)

        try:
            offload(recorded, done)
            return await asyncio.wait_for(future, PATIENCE)
        finally:
            offload.close()

    return asyncio.run(scenario()), threads


def failing(error: BaseException) -> Callable[[], object]:
    def work() -> object:
        raise error

    return work


def test_work_runs_on_a_thread_and_its_result_comes_back_to_the_loop() -> None:
    result, [worker, receiver] = offloaded(lambda: 42)
    assert result == 42
    assert worker.startswith("offload")
    assert receiver == threading.current_thread().name


def test_small_work_does_not_wait_for_large_work() -> None:
    async def scenario() -> list[str]:
        ended: list[str] = []
        go, all_ended = threading.Event(), asyncio.Event()
        offload = OffloadPool(asyncio.get_running_loop())

        def done(name: str, result: object) -> None:
            ended.append(name)
            if name == "small":
                go.set()
            if len(ended) == 11:
                all_ended.set()

        try:
            for _ in range(10):
                offload(lambda: go.wait(PATIENCE), partial(done, "large"), large=True)
            offload(lambda: None, partial(done, "small"))
            await asyncio.wait_for(all_ended.wait(), PATIENCE)
        finally:
            offload.close()
        return ended

    assert asyncio.run(scenario()) == ["small"] + ["large"] * 10


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [(NotFound("gone"), NotFound, "gone"), (ValueError("bad"), Internal, "ValueError: bad")],
)
def test_work_that_raises_comes_back_as_an_error(raised: Exception, kind: type[Error], text: str) -> None:
    result, _ = offloaded(failing(raised))
    assert type(result) is kind
    assert str(result) == text


def test_closing_drops_what_has_not_begun() -> None:
    begun, release = threading.Event(), threading.Event()
    ran: list[int] = []

    def first() -> None:
        begun.set()
        release.wait(PATIENCE)

    async def scenario() -> None:
        offload = OffloadPool(asyncio.get_running_loop(), threads=1)
        offload(first, lambda result: None)
        for number in range(10):
            offload(partial(ran.append, number), lambda result: None)
        assert begun.wait(PATIENCE)
        offload.close(wait=False)
        assert not release.is_set(), "it did not wait either"
        release.set()
        offload.close()

    asyncio.run(scenario())
    assert ran == []


def test_work_runs_while_the_loop_goes_on() -> None:
    release = threading.Event()

    async def scenario() -> bool:
        loop = asyncio.get_running_loop()
        offload, future = OffloadPool(loop), loop.create_future()
        try:
            offload(lambda: release.wait(PATIENCE), future.set_result)
            loop.call_soon(release.set)
            return bool(await asyncio.wait_for(future, PATIENCE))
        finally:
            offload.close()

    assert asyncio.run(scenario())
