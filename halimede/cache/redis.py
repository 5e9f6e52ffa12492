"""The cache in a Redis server, which several servers may share (K8).

A Redis server that is slow or gone counts as an empty cache: no lookup waits longer than `wait_timeout`, and a circuit
breaker stops the lookups during an outage. The client library is imported when a cache opens. `store_threads` make its
calls; everything else runs on the event loop.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from halimede.cache.api import CacheCounts, EventLoop, OnFound
from halimede.cache.store_threads import CacheTask, Result, Store, StoreThreads
from halimede.errors import Internal, Invalid

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

MAX_ENTRY_BYTES: Final = 512 << 20
"""The largest value that Redis accepts."""
MAX_PENDING_BYTES: Final = 64 << 20
"""Bytes of entries that wait for their insertion. More entries than that are not kept."""
RETRY_NS: Final = 1_000_000_000
"""How long after a failure the circuit breaker lets the next lookup through."""
_KEY_PREFIX: Final = b"halimede:"
_NO_ADDRESS: Final = (
    "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' and 'port' in the "
    "configuration - e.g. tritonserver --cache-config redis,host=redis --cache-config redis,port=6379 "
    "--model-repository=/models ..."
)
_TLS_SETTINGS: Final = ("cert", "key", "cacert", "cacert_dir", "sni")
_DEFAULT_TIMEOUT_MS: Final = 1000
"""The timeout of a connection if the setting is 0, which means no limit in Triton: a thread must not block forever."""
_DEFAULT_WAIT_MS: Final = 100
"""How long a lookup waits if the setting is 0."""


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """The settings of `--cache-config=redis,...` (K8). Timeouts in milliseconds."""

    host: str
    port: int
    user: str = "default"
    password: str = ""
    db: int = 0
    connect_timeout: int = _DEFAULT_TIMEOUT_MS
    socket_timeout: int = _DEFAULT_TIMEOUT_MS
    pool_size: int = 1
    wait_timeout: int = _DEFAULT_WAIT_MS


def redis_options(settings: Mapping[str, str]) -> RedisOptions:
    """The options from the settings. Raises Invalid without host or port, and for a number that is none."""
    if "host" not in settings or "port" not in settings:
        raise Invalid(_NO_ADDRESS)
    return RedisOptions(
        host=settings["host"],
        port=_number(settings, "port", 0),
        user=settings.get("user", "default"),
        password=settings.get("password", ""),
        db=_number(settings, "db", 0),
        connect_timeout=_number(settings, "connect_timeout", 0) or _DEFAULT_TIMEOUT_MS,
        socket_timeout=_number(settings, "socket_timeout", 0) or _DEFAULT_TIMEOUT_MS,
        pool_size=max(1, _number(settings, "pool_size", 1)),
        wait_timeout=_number(settings, "wait_timeout", 0) or _DEFAULT_WAIT_MS,
    )


def wants_tls(settings: Mapping[str, str]) -> bool:
    """Whether `tls_enabled` is true or, if it is not set, any other TLS setting is. Raises Invalid.

    A certificate in the settings must not be ignored: the connection would be in the clear without notice.
    """
    text = settings.get("tls_enabled")
    if text not in (None, "true", "false"):
        raise Invalid(f"Failed to initialize RedisCache: 'tls_enabled' must be true or false, got '{text}'")
    return text == "true" or (text is None and any(name in settings for name in _TLS_SETTINGS))


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    if not text.isdecimal():
        raise Invalid(f"Failed to initialize RedisCache: '{name}' must be a number, got '{text}'")
    return int(text)


def open_redis(settings: Mapping[str, str], loop: EventLoop) -> "RedisCache":
    """A cache in the configured Redis server. Does not wait for it. Raises Invalid, and Internal if the client library
    is missing."""
    options = redis_options(settings)
    try:
        import redis
    except ImportError as error:
        raise Internal(
            "Failed to initialize RedisCache: the Python package 'redis' is missing (pip install 'halimede[redis]')"
        ) from error
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    secured: dict[str, Any] = {}
    if wants_tls(settings):
        from halimede.cache.redis_tls import SecuredConnection, redis_tls

        secured = {"connection_class": SecuredConnection, "tls": redis_tls(settings)}

    def connect() -> Store:
        pool = redis.ConnectionPool(
            host=options.host,
            port=options.port,
            db=options.db,
            # Without a password, AUTH would fail on a server that has none.
            username=options.user if options.password else None,
            password=options.password or None,
            socket_connect_timeout=options.connect_timeout / 1000,
            socket_timeout=options.socket_timeout / 1000,
            # No retries: the circuit breaker decides when to try again.
            retry=Retry(NoBackoff(), 0),
            **secured,
        )
        return RedisStore(redis.Redis.from_pool(pool))

    where = f"{options.host}:{options.port}"
    return RedisCache(connect, loop, where, options.pool_size, options.wait_timeout * 1_000_000)


class RedisStore:
    """One connection, used by one worker thread."""

    def __init__(self, client: "Redis") -> None:
        self._client = client

    def run(self, tasks: Sequence[CacheTask]) -> Sequence[Result]:
        pipeline = self._client.pipeline(transaction=False)
        for task in tasks:
            name = _KEY_PREFIX + task.key.hex().encode()
            if task.entry is None:
                pipeline.get(name)
            else:
                pipeline.set(name, task.entry)
        results = pipeline.execute(raise_on_error=False)
        # An insertion gives True.
        return [result if isinstance(result, bytes | Exception) else None for result in results]

    def close(self) -> None:
        self._client.close()


class CircuitBreaker:
    """Decides whether a lookup may ask a server that may be gone. Pure; the caller gives the time (monotonic ns).

    | state | event | next state | returns |
    |---|---|---|---|
    | closed | `allows` | closed | True |
    | closed | `record_success` | closed | False |
    | closed | `record_failure` | open | True: an outage begins |
    | open | `allows` before RETRY_NS have passed | open | False |
    | open | `allows` later | half-open | True: this lookup is the probe |
    | half-open | `allows` | half-open | False: the probe is under way |
    | half-open | `record_success` | closed | True: the outage is over |
    | open, half-open | `record_failure` | open, for another RETRY_NS | False |
    | open | `record_success` | closed | True: a lookup from before the outage was answered in time |
    """

    def __init__(self) -> None:
        self._is_open = self._is_probing = False
        self._retry_at = 0

    @property
    def is_open(self) -> bool:
        """Whether there is an outage; also while a probe is under way."""
        return self._is_open

    def allows(self, now: int) -> bool:
        """Whether a lookup may ask now. After True, the caller must record a success or failure."""
        if not self._is_open:
            return True
        if self._is_probing or now < self._retry_at:
            return False
        self._is_probing = True
        return True

    def record_failure(self, now: int) -> bool:
        """There was no answer, or none in time. Returns True if an outage begins with that."""
        begins, self._is_open = not self._is_open, True
        self._is_probing = False
        self._retry_at = now + RETRY_NS
        return begins

    def record_success(self) -> bool:
        """There was an answer in time. Returns True if an outage ends with that."""
        ends, self._is_open = self._is_open, False
        self._is_probing = False
        return ends


class RedisCache:
    """A cache behind `threads` worker threads, which each call `connect` for their store.

    What happens to a lookup:

    | event | breaker | the request gets | log |
    |---|---|---|---|
    | lookup while the breaker refuses | no change | None, at once | |
    | answer before the deadline | success | the entry, or None | "available again" if an outage ends |
    | error before the deadline | failure | None | "not available" if an outage begins |
    | deadline (`wait_ns`) without an answer | failure | None | "not available" if an outage begins |
    | answer after the deadline | no change | nothing: it went on without | |
    | error after the deadline | failure | nothing: it went on without | |

    An insertion is dropped during an outage, and while MAX_PENDING_BYTES wait. If Redis refuses one (no memory, no
    right), that is logged once, until another one succeeds; lookups go on. Insertions do not move the breaker.
    """

    shared = True
    counts: CacheCounts | None = None

    def __init__(self, connect: Callable[[], Store], loop: EventLoop, where: str, threads: int, wait_ns: int) -> None:
        self._loop = loop
        self._where = where
        self._wait_ns = wait_ns
        self._breaker = CircuitBreaker()
        self._waiting: deque[tuple[int, CacheTask]] = deque()
        """Lookups and their deadlines, which ascend. Answered ones stay until their deadline is first."""
        self._has_timer = False
        self._insertion_refused = False
        self._pending_bytes = 0
        self._threads = StoreThreads(threads, connect, loop, self._finish_tasks)

    def lookup(self, key: bytes, on_found: OnFound) -> None:
        now = monotonic_ns()
        if not self._breaker.allows(now):
            on_found(None)
            return
        task = CacheTask(key, on_found=on_found)
        self._waiting.append((now + self._wait_ns, task))
        self._threads.submit(task)
        self._set_timer()

    def room_for(self, byte_size: int) -> bool:
        room = min(MAX_ENTRY_BYTES, MAX_PENDING_BYTES - self._pending_bytes)
        return byte_size <= room and not self._breaker.is_open

    def insert(self, key: bytes, entry: bytes) -> bool:
        if self.room_for(len(entry)):
            self._pending_bytes += len(entry)
            self._threads.submit(CacheTask(key, entry))
        # Only Redis knows whether the key has an entry, and the insertion does not wait for it.
        return True

    def close(self) -> None:
        self._threads.close()

    def _set_timer(self) -> None:
        # One timer, for the first deadline: all lookups wait equally long.
        if self._waiting and not self._has_timer:
            self._has_timer = True
            self._loop.call_at(self._waiting[0][0], self._expire_lookups)

    def _expire_lookups(self) -> None:
        """Answers the lookups whose deadline has passed with None."""
        self._has_timer = False
        now = monotonic_ns()
        while self._waiting and (self._waiting[0][0] <= now or self._waiting[0][1].on_found is None):
            _, task = self._waiting.popleft()
            if task.on_found is not None:
                self._record_failure(f"no answer within {self._wait_ns // 1_000_000} ms", now)
                self._answer(task, None)
        self._set_timer()

    def _finish_tasks(self, tasks: Sequence[CacheTask], results: Sequence[Result]) -> None:
        now = monotonic_ns()
        for task, result in zip(tasks, results, strict=True):
            if task.entry is not None:
                self._pending_bytes -= len(task.entry)
                self._finish_insertion(result)
            elif isinstance(result, Exception):
                self._record_failure(f"{type(result).__name__}: {result}", now)
                self._answer(task, None)
            # A late answer is no success: a server that is always late would delay every request by `wait_ns`.
            elif task.on_found is not None:
                if self._breaker.record_success():
                    log.info("response cache: Redis at %s is available again", self._where)
                self._answer(task, result)

    def _finish_insertion(self, result: Result) -> None:
        refused = isinstance(result, Exception)
        # During an outage, the failed insertions were only on their way: the outage is logged already.
        if refused and not self._insertion_refused and not self._breaker.is_open:
            log.error("response cache: Redis at %s refused an entry: %s", self._where, result)
        self._insertion_refused = refused

    def _record_failure(self, reason: str, now: int) -> None:
        if self._breaker.record_failure(now):
            log.error(
                "response cache: Redis at %s is not available; requests run without it until it answers: %s",
                self._where,
                reason,
            )

    @staticmethod
    def _answer(task: CacheTask, entry: bytes | None) -> None:
        on_found, task.on_found = task.on_found, None
        if on_found is not None:
            on_found(entry)
