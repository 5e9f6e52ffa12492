from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

import pytest

from halimede.backends.api import Backend
from halimede.errors import Unavailable
from halimede.models.backend_pool import BackendPool
from tests.fakes import PATIENCE
from tests.models.fakes import FakeBackend


def test_pool_creates_each_backend_once() -> None:
    made: list[str] = []

    def create(name: str) -> Backend:
        made.append(name)
        return FakeBackend()

    pool = BackendPool(create)
    assert pool.get("a") is pool.get("a")
    assert pool.get("a") is not pool.get("b")
    assert made == ["a", "b"]


def test_pool_lets_threads_that_come_meanwhile_wait_for_the_same_backend() -> None:
    made: list[str] = []
    begun, release, together = Event(), Event(), Barrier(4)

    def create(name: str) -> Backend:
        made.append(name)
        begun.set()
        assert release.wait(PATIENCE)
        return FakeBackend()

    pool = BackendPool(create)

    def ask() -> Backend:
        together.wait(PATIENCE)
        return pool.get("a")

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask) for _ in range(4)]
        assert begun.wait(PATIENCE)
        release.set()
        assert len({id(future.result(PATIENCE)) for future in asked}) == 1
    assert made == ["a"]


def test_pool_does_not_keep_a_failure() -> None:
    errors = [Unavailable("not installed")]

    def create(name: str) -> Backend:
        if errors:
            raise errors.pop()
        return FakeBackend()

    pool = BackendPool(create)
    with pytest.raises(Unavailable, match="not installed"):
        pool.get("a")
    assert isinstance(pool.get("a"), FakeBackend)


def test_pool_gives_a_failure_to_all_that_wait() -> None:
    begun, release = Event(), Event()

    def create(name: str) -> Backend:
        begun.set()
        assert release.wait(PATIENCE)
        raise Unavailable("not installed")

    pool = BackendPool(create)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(pool.get, "a")
        assert begun.wait(PATIENCE)
        second = threads.submit(pool.get, "a")
        release.set()
        for future in (first, second):
            assert isinstance(future.exception(PATIENCE), Unavailable)


def test_pool_closes_all_backends_once() -> None:
    backends = {name: FakeBackend() for name in "ab"}
    pool = BackendPool(backends.__getitem__)
    pool.get("a")
    pool.get("b")
    pool.close()
    pool.close()
    assert [backend.log for backend in backends.values()] == [["close backend"]] * 2


def test_pool_closes_all_backends_if_one_fails_to_close() -> None:
    class Stuck(FakeBackend):
        def close(self) -> None:
            raise RuntimeError("stuck")

    good = FakeBackend()
    pool = BackendPool({"bad": Stuck(), "good": good}.__getitem__)
    pool.get("bad")
    pool.get("good")
    pool.close()
    assert good.log == ["close backend"]


class Interrupting(str):
    """A name whose first look-up lets another thread run."""

    def __new__(cls, name: str, other: Thread) -> "Interrupting":
        made = super().__new__(cls, name)
        made.other = other
        return made

    other: Thread

    def __hash__(self) -> int:
        if self.other.ident is None:
            self.other.start()
            self.other.join(TURN_SECONDS)
        return super().__hash__()


TURN_SECONDS = 0.1
"""How long the other thread has for its work. It does not end in this time if it must wait for this one."""


def test_pool_closes_a_backend_that_is_asked_for_while_it_closes() -> None:
    backend = FakeBackend()
    pool = BackendPool(lambda name: backend)
    closing = Thread(target=pool.close)
    pool.get(Interrupting("a", closing))
    closing.join(PATIENCE)
    assert backend.log == ["close backend"]
    with pytest.raises(Unavailable, match="the server is exiting"):
        pool.get("a")
