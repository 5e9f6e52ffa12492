"""The supervisor of one instance with real processes that load no model: what it tells, and what it leaves."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from halimede.errors import Internal
from halimede.workers.host.pool import WorkerPool
from halimede.workers.host.supervisor import Supervisor
from halimede.workers.host.worker import Worker
from tests.workers.fakes import PATIENCE, on_loop, turning_loop


class Post:
    """A supervisor of an instance that only notes what it is told. `failures` is how many starts fail."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float = PATIENCE, failures: int = 0) -> None:
        self.failures = failures
        self.pool = WorkerPool()
        self.impatient = threading.Event()
        self.back = threading.Event()
        self.returned: list[Worker] = []
        self.expected: list[bool] = []
        self.supervisor = Supervisor("m_0_0", loop, self.pool, self._teach, patience)
        self.supervisor.attach(self._returned, self._tell)
        self._loop = loop

    def _teach(self, worker: Worker) -> None:
        if self.failures:
            self.failures -= 1
            worker.kill()
            raise Internal("not today")

    def _returned(self, worker: Worker) -> None:
        self.returned.append(worker)
        self.supervisor.serves()
        self.back.set()

    def _tell(self) -> None:
        self.expected.append(self.supervisor.expected)
        self.impatient.set()

    def lose(self, worker: Worker) -> bool:
        """The worker is gone; whether another one is expected soon."""

        def lost() -> bool:
            self.supervisor.lost(worker)
            return self.supervisor.expected

        worker.kill()
        return on_loop(self._loop, lost)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with turning_loop() as turning:
        yield turning


def test_lost_worker_is_followed_by_another(loop: asyncio.AbstractEventLoop) -> None:
    post = Post(loop)
    first = post.supervisor.start()
    assert post.lose(first) is True
    assert post.back.wait(PATIENCE)
    [second] = post.returned
    assert (second.alive, first.alive, post.supervisor.count, post.expected) == (True, False, 1, [])
    assert not post.supervisor.expected
    post.pool.close()


def test_failed_start_is_tried_again_and_told_where_requests_wait_no_longer(loop: asyncio.AbstractEventLoop) -> None:
    post = Post(loop, patience=0.05)
    first = post.supervisor.start()
    post.failures = 1
    assert post.lose(first) is True
    assert post.impatient.wait(PATIENCE)
    assert post.back.wait(PATIENCE)
    assert set(post.expected) == {False}
    post.pool.close()


def test_failed_start_is_logged_with_its_model(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    post = Post(loop)
    first = post.supervisor.start()
    first.about = {"model": "m", "version": 2}
    post.failures = 1
    post.lose(first)
    assert post.back.wait(PATIENCE)
    assert "model 'm' version 2: 'm_0_0' could not be started again: not today" in caplog.text
    post.pool.close()


def test_worker_that_comes_when_all_is_over_is_killed(loop: asyncio.AbstractEventLoop) -> None:
    post = Post(loop)
    first = post.supervisor.start()
    post.lose(first)
    post.supervisor.close()
    on_loop(loop, lambda: None)  # what was handed over has arrived
    handed_over = len(post.returned)
    assert handed_over <= 1
    post.pool.close()
    assert not any(worker.alive for worker in post.returned)
    assert "restart m_0_0" not in [thread.name for thread in threading.enumerate()]


def test_worker_that_comes_when_the_loop_is_closed_is_killed() -> None:
    with turning_loop() as loop:
        post = Post(loop)
        first = post.supervisor.start()
        began, go_on = threading.Event(), threading.Event()
        taught: list[Worker] = []

        def load_model_in(worker: Worker) -> None:
            taught.append(worker)
            began.set()
            assert go_on.wait(PATIENCE)

        slow = Supervisor("m_0_0", loop, post.pool, load_model_in, 1.0)
        slow.attach(post._returned, post._tell)
        first.kill()
        on_loop(loop, lambda: slow.lost(first))
        assert began.wait(PATIENCE)
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "restart m_0_0":
            thread.join(PATIENCE)
    assert not taught[0].alive
    assert post.returned == []


def test_closed_pool_ends_the_tries(loop: asyncio.AbstractEventLoop) -> None:
    post = Post(loop)
    first = post.supervisor.start()
    post.pool.close()
    post.lose(first)
    for thread in threading.enumerate():
        if thread.name == "restart m_0_0":
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert post.returned == []
