"""The cache in a Redis server, which several servers may share (contract K8).

A Redis server that is slow or gone is as one that has nothing: no lookup waits longer than `wait_timeout`, and during
an outage one in a second is asked at all. The client library is imported when a cache is opened; its calls are made by
`couriers`, everything else is on the event loop.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from halimede.cache.api import CacheCounts, Found, Loop
from halimede.cache.couriers import Couriers, Errand, Store
from halimede.cache.outage import Outage
from halimede.errors import Internal, Invalid

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

MOST_BYTES: Final = 512 << 20
"""Of one entry: Redis takes no more."""
MOST_ON_THE_WAY: Final = 64 << 20
"""Bytes of entries that wait to be carried there; what comes on top is not kept."""
_PREFIX: Final = b"halimede:"
_NO_ADDRESS: Final = (
    "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' and 'port' in the "
    "configuration - e.g. tritonserver --cache-config redis,host=redis --cache-config redis,port=6379 "
    "--model-repository=/models ..."
)
_TLS: Final = ("cert", "key", "cacert", "cacert_dir", "sni")
_LIMIT_MS: Final = 1000
"""What 0, "for ever", stands for where a thread waits for the network."""


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Times in milliseconds."""

    host: str
    port: int
    user: str = "default"
    password: str = ""
    db: int = 0
    connect_timeout: int = _LIMIT_MS
    socket_timeout: int = _LIMIT_MS
    pool_size: int = 1
    wait_timeout: int = 100


def redis_options(settings: Mapping[str, str]) -> RedisOptions:
    """Raises Invalid."""
    if "host" not in settings or "port" not in settings:
        raise Invalid(_NO_ADDRESS)
    return RedisOptions(
        host=settings["host"],
        port=_number(settings, "port", 0),
        user=settings.get("user", "default"),
        password=settings.get("password", ""),
        db=_number(settings, "db", 0),
        connect_timeout=_number(settings, "connect_timeout", 0) or _LIMIT_MS,
        socket_timeout=_number(settings, "socket_timeout", 0) or _LIMIT_MS,
        pool_size=max(1, _number(settings, "pool_size", 1)),
        wait_timeout=_number(settings, "wait_timeout", 0) or 100,
    )


def wants_tls(settings: Mapping[str, str]) -> bool:
    """Whether `tls_enabled` says so or, where it says nothing, another setting of TLS is there. Raises Invalid."""
    text = settings.get("tls_enabled")
    if text not in (None, "true", "false"):
        raise Invalid(f"Failed to initialize RedisCache: 'tls_enabled' must be true or false, got '{text}'")
    return text == "true" or (text is None and any(name in settings for name in _TLS))


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    if not text.isdecimal():
        raise Invalid(f"Failed to initialize RedisCache: '{name}' must be a number, got '{text}'")
    return int(text)


def open_redis(settings: Mapping[str, str], loop: Loop) -> "RedisCache":
    """Does not wait for the Redis server. Raises Invalid, and Internal without its client library."""
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
            username=options.user if options.password else None,
            password=options.password or None,
            socket_connect_timeout=options.connect_timeout / 1000,
            socket_timeout=options.socket_timeout / 1000,
            retry=Retry(NoBackoff(), 0),
            **secured,
        )
        return RedisStore(redis.Redis.from_pool(pool))

    where = f"{options.host}:{options.port}"
    return RedisCache(connect, loop, where, options.pool_size, options.wait_timeout * 1_000_000)


class RedisStore:
    """One connection; on the thread of its courier."""

    def __init__(self, client: "Redis") -> None:
        self._client = client

    def carry(self, errands: Sequence[Errand]) -> Sequence[bytes | Exception | None]:
        pipeline = self._client.pipeline(transaction=False)
        for errand in errands:
            name = _PREFIX + errand.key.hex().encode()
            if errand.entry is None:
                pipeline.get(name)
            else:
                pipeline.set(name, errand.entry)
        results = pipeline.execute(raise_on_error=False)
        return [result if isinstance(result, bytes | Exception) else None for result in results]

    def close(self) -> None:
        self._client.close()


class RedisCache:
    """`connect` makes a store for each of `threads` couriers; it must not wait."""

    shared = True
    counts: CacheCounts | None = None

    def __init__(self, connect: Callable[[], Store], loop: Loop, where: str, threads: int, wait_ns: int) -> None:
        self._loop = loop
        self._where = where
        self._wait_ns = wait_ns
        self._outage = Outage()
        self._waiting: deque[tuple[int, Errand]] = deque()
        self._timed = self._refused = False
        self._on_the_way = 0
        self._couriers = Couriers(threads, connect, loop, self._carried)

    def lookup(self, key: bytes, found: Found) -> None:
        now = monotonic_ns()
        if not self._outage.may_ask(now):
            found(None)
            return
        errand = Errand(key, found=found)
        self._waiting.append((now + self._wait_ns, errand))
        self._couriers.send(errand)
        self._set_timer()

    def room_for(self, byte_size: int) -> bool:
        """There is none during an outage, nor while too much is on its way."""
        room = min(MOST_BYTES, MOST_ON_THE_WAY - self._on_the_way)
        return byte_size <= room and not self._outage.lasts

    def insert(self, key: bytes, entry: bytes) -> bool:
        if self.room_for(len(entry)):
            self._on_the_way += len(entry)
            self._couriers.send(Errand(key, entry))
        return True

    def close(self) -> None:
        self._couriers.close()

    def _set_timer(self) -> None:
        if self._waiting and not self._timed:
            self._timed = True
            self._loop.call_at(self._waiting[0][0], self._look_at_clock)

    def _look_at_clock(self) -> None:
        """Those who waited too long go on without."""
        self._timed = False
        now = monotonic_ns()
        while self._waiting and (self._waiting[0][0] <= now or self._waiting[0][1].found is None):
            _, errand = self._waiting.popleft()
            if errand.found is not None:
                self._failed(f"no answer within {self._wait_ns // 1_000_000} ms", now)
                self._tell(errand, None)
        self._set_timer()

    def _carried(self, errands: Sequence[Errand], results: Sequence[bytes | Exception | None]) -> None:
        now = monotonic_ns()
        for errand, result in zip(errands, results, strict=True):
            if errand.entry is not None:
                self._on_the_way -= len(errand.entry)
                self._inserted(result)
            elif isinstance(result, Exception):
                self._failed(f"{type(result).__name__}: {result}", now)
                self._tell(errand, None)
            elif errand.found is not None:  # what comes too late does not promise that the next will be in time
                if self._outage.answered():
                    log.info("response cache: Redis at %s is available again", self._where)
                self._tell(errand, result)

    def _inserted(self, result: bytes | Exception | None) -> None:
        """An insertion that is refused (no memory, no right) is told once, until one succeeds."""
        refused = isinstance(result, Exception)
        if refused and not self._refused and not self._outage.lasts:
            log.error("response cache: Redis at %s refused an entry: %s", self._where, result)
        self._refused = refused

    def _failed(self, reason: str, now: int) -> None:
        if self._outage.failed(now):
            log.error(
                "response cache: Redis at %s is not available; requests run without it until it answers: %s",
                self._where,
                reason,
            )

    @staticmethod
    def _tell(errand: Errand, entry: bytes | None) -> None:
        found, errand.found = errand.found, None
        if found is not None:
            found(entry)
