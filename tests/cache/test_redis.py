"""The cache in a Redis server, over a fake store: what happens when Redis answers, hangs or is gone (K8)."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from halimede.cache import redis as redis_module
from halimede.cache.redis import MAX_PENDING_BYTES, RETRY_NS, RedisCache, RedisOptions, redis_options, wants_tls
from halimede.cache.store_threads import MAX_TASKS_PER_BATCH, CacheTask, StoreThreads
from tests.cache.fakes import FakeStore
from tests.fakes import PATIENCE, ManualLoop

WAIT_NS = 100_000_000


class Rig:
    """A cache with one store. Tests run its loop and move its clock by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000
        self.loop = ManualLoop()
        self.store = FakeStore()
        monkeypatch.setattr(redis_module, "monotonic_ns", lambda: self.now)
        self.cache = RedisCache(lambda: self.store, self.loop, "h:1", 1, WAIT_NS)

    def ask(self, key: bytes) -> list[bytes | None]:
        """Starts a lookup. The list gets its answer."""
        told: list[bytes | None] = []
        self.cache.lookup(key, told.append)
        return told

    def get(self, key: bytes) -> bytes | None:
        told = self.ask(key)
        self.loop.run_until(lambda: bool(told))
        assert len(told) == 1
        return told[0]

    def hang(self) -> None:
        self.store.gate.clear()

    def go_on(self) -> None:
        self.store.gate.set()

    def pass_time(self, ns: int) -> None:
        """Moves the clock, and runs the timers that fall due."""
        until = self.now + ns
        while self.loop.timers and self.loop.timers[0][0] <= until:
            self.now = self.loop.timers[0][0]
            self.loop.ring()
        self.now = until


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(monkeypatch)
    yield made
    made.go_on()
    made.cache.close()
    assert made.store.closed.wait(PATIENCE)


@contextmanager
def logged(caplog: pytest.LogCaptureFixture, *texts: str) -> Iterator[None]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "halimede.cache.redis"):
        yield
    assert [record.getMessage() for record in caplog.records] == list(texts)


OUT = "response cache: Redis at h:1 is not available; requests run without it until it answers: "
BACK = "response cache: Redis at h:1 is available again"


def test_inserted_entry_is_found(rig: Rig) -> None:
    assert rig.get(b"a") is None
    assert rig.cache.insert(b"a", b"entry")
    assert rig.get(b"a") == b"entry"
    assert rig.cache.shared
    assert rig.cache.counts is None


def test_lookups_expire_and_one_outage_is_logged_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.hang()
    with logged(caplog, OUT + "no answer within 100 ms"):
        first = rig.ask(b"a")
        rig.store.asked.get(timeout=PATIENCE)
        rig.pass_time(WAIT_NS // 2)
        second = rig.ask(b"b")
        rig.pass_time(WAIT_NS // 2 - 1)
        assert (first, second) == ([], [])
        rig.pass_time(1)
        assert (first, second) == ([None], [])
        rig.pass_time(WAIT_NS // 2)
        assert (first, second) == ([None], [None])
        assert [rig.ask(b"c") for _ in range(3)] == [[None]] * 3, "no lookup waits during an outage"
        assert not rig.cache.room_for(1)


def test_only_an_answer_in_time_ends_the_outage(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with logged(caplog, OUT + "no answer within 100 ms", BACK):
        for _ in range(2):
            rig.hang()
            told = rig.ask(b"a")
            rig.store.asked.get(timeout=PATIENCE)
            rig.pass_time(WAIT_NS)
            rig.go_on()
            rig.loop.run_until(partial(next, iter((False, True))))  # the late answer arrives
            assert told == [None], "answered once"
            assert not rig.cache.room_for(1), "a server that is always late would delay every request"
            rig.now += RETRY_NS
        assert rig.get(b"a") is None
        assert rig.cache.room_for(1)


def test_server_that_is_gone_is_asked_once_per_second(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.store.errors = [ConnectionError("refused")] * 2
    with logged(caplog, OUT + "ConnectionError: refused", BACK):
        assert rig.get(b"a") is None
        assert rig.ask(b"a") == [None]
        rig.now += RETRY_NS
        assert rig.get(b"a") is None
        assert rig.ask(b"a") == [None]
        assert len(rig.store.batches) == 2
        rig.now += RETRY_NS
        assert rig.get(b"a") is None
        rig.cache.insert(b"a", b"x")
        assert rig.get(b"a") == b"x"


def test_refused_insertion_is_logged_once_and_lookups_go_on(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.store.refuses = RuntimeError("OOM")
    with logged(caplog, "response cache: Redis at h:1 refused an entry: OOM"):
        for _ in range(3):
            rig.cache.insert(b"a", b"x")
        assert rig.get(b"a") is None
        assert rig.get(b"a") is None


def test_pending_insertions_are_limited(rig: Rig) -> None:
    rig.hang()
    half = bytes(MAX_PENDING_BYTES // 2 + 1)
    rig.cache.insert(b"a", half)
    assert not rig.cache.room_for(len(half))
    rig.cache.insert(b"b", half)
    rig.go_on()
    assert rig.get(b"b") is None
    assert rig.cache.room_for(len(half))
    assert rig.get(b"a") == half


def test_abandoned_lookup_is_not_run(rig: Rig) -> None:
    rig.hang()
    rig.ask(b"a")
    rig.store.asked.get(timeout=PATIENCE)
    rig.ask(b"b")
    rig.pass_time(WAIT_NS)
    rig.go_on()
    rig.now += RETRY_NS
    assert rig.get(b"c") is None
    assert rig.store.batches == [[b"a"], [b"c"]]


def test_queued_lookups_run_in_batches() -> None:
    store, loop = FakeStore(), ManualLoop()
    back: list[int] = []
    threads = StoreThreads(1, lambda: store, loop, lambda tasks, results: back.append(len(results)))
    store.gate.clear()
    ignore: Callable[[bytes | None], None] = lambda entry: None  # noqa: E731
    threads.submit(CacheTask(b"first", on_found=ignore))
    assert store.asked.get(timeout=PATIENCE) == 1
    for _ in range(MAX_TASKS_PER_BATCH + 3):
        threads.submit(CacheTask(b"more", on_found=ignore))
    threads.close()
    store.gate.set()
    assert store.closed.wait(PATIENCE), "tasks from before the end are run"
    loop.run_until(lambda: sum(back) == MAX_TASKS_PER_BATCH + 4)
    assert back == [1, MAX_TASKS_PER_BATCH, 3]


def test_settings() -> None:
    assert redis_options({"host": "h", "port": "1"}) == RedisOptions("h", 1)
    words = ("user", "password", "db", "connect_timeout", "socket_timeout", "pool_size", "wait_timeout")
    values = ("u", "p", "2", "3", "4", "5", "6")
    given = {"host": "h", "port": "1", **dict(zip(words, values, strict=True))}
    assert redis_options(given) == RedisOptions("h", 1, "u", "p", 2, 3, 4, 5, 6)
    for_ever = dict.fromkeys(("connect_timeout", "socket_timeout", "wait_timeout"), "0")
    assert redis_options({"host": "h", "port": "1", **for_ever}) == RedisOptions("h", 1)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, False),
        ({"tls_enabled": "true"}, True),
        ({"tls_enabled": "false", "cacert": "file"}, False),
        *(({name: "x"}, True) for name in ("cert", "key", "cacert", "cacert_dir", "sni")),
    ],
)
def test_tls_settings_are_never_ignored(settings: dict[str, str], wanted: bool) -> None:
    assert wants_tls(settings) is wanted
