"""The event loop of asynchronous models: results, errors, and what must not end it."""

import asyncio
import threading
from typing import Any

import pytest

from halimede.workers.child.background import Background
from tests.workers.fakes import PATIENCE


async def thread_name() -> str:
    return threading.current_thread().name


async def failing(error: BaseException) -> None:
    raise error


def test_run_gives_the_result_of_a_coroutine_from_another_thread() -> None:
    assert Background().run(thread_name()) == "background loop"


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_run_raises_what_the_coroutine_raises_and_goes_on(error: BaseException) -> None:
    background = Background()
    with pytest.raises(type(error)):
        background.run(failing(error))
    assert background.run(thread_name()) == "background loop"


def test_exit_in_a_task_is_reported_and_ends_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    async def leave_a_task() -> str:
        task = asyncio.create_task(failing(SystemExit(3)))
        await asyncio.wait([task])
        return type(task.exception()).__name__

    background = Background()
    assert background.run(leave_a_task()) == "SystemExit"
    assert "SystemExit: 3" in capfd.readouterr().err


def test_started_coroutines_overlap() -> None:
    background, over = Background(), threading.Event()
    ended: list[Any] = []
    gate = asyncio.Event()

    async def wait() -> str:
        await gate.wait()
        return "waited"

    def finished(returned: Any, error: BaseException | None) -> None:
        ended.append((returned, error))
        over.set()

    async def open_gate() -> None:
        gate.set()

    background.start(wait(), finished)
    assert not over.is_set()
    background.run(open_gate())
    assert over.wait(PATIENCE)
    assert ended == [("waited", None)]
