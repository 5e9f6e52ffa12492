"""The end of all models by one deadline, on a loop whose clock moves only when nothing else can happen."""

import asyncio
import selectors
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from halimede.engine_port import LoadModel
from halimede.loading.repository_control import KILL_SECONDS, RepositoryControl
from tests.engine.engines import IDENTITY, options_for
from tests.loading.control_histories import Control, HandThreads


class JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: the clock moves to the next timer instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events:
            assert timeout is not None, "nothing is left to wait for"
            self.now += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


class Reluctant(HandThreads):
    """Models close `seconds` after they are asked to, and backends never."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        super().__init__(loop)
        self._seconds = seconds
        self.killed_at: float | None = None

    async def close(self, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(self._seconds)
        return work()

    def kill(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        self.killed_at = loop.time()
        return loop.create_future()


def stopped(root: Path, closing_seconds: float) -> tuple[float | None, float, bool]:
    """When the backends were closed, when `stop(30)` returned, and what, for a model that closes in this time."""

    async def played() -> tuple[float | None, float, bool]:
        loop = asyncio.get_running_loop()
        assert loop.time() == 0
        options = options_for(root, {"m": IDENTITY}, model_control_mode="explicit")
        played = Control(Random(0), root, loop)
        threads = played.threads = Reluctant(loop, closing_seconds)
        control = RepositoryControl(options, loop, played.models, played.loads(options))
        loaded = loop.create_future()
        control.begin(LoadModel("m"), loaded.set_result)
        await played.settle()
        threads.run(0)
        assert await loaded is None
        finished = await control.stop(30)
        return threads.killed_at, loop.time(), finished

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(played())


def test_stop_kills_at_the_deadline_and_ends_shortly_after(tmp_path: Path) -> None:
    assert stopped(tmp_path, closing_seconds=1000) == (30, 30 + KILL_SECONDS, False)


def test_stop_does_not_begin_the_deadline_anew_for_the_backends(tmp_path: Path) -> None:
    assert stopped(tmp_path, closing_seconds=29) == (29, 30 + KILL_SECONDS, False)
