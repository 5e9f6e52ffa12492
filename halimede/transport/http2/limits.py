"""What a client may do on a connection before it counts as an attack, and the keep-alive options.

Pure objects that are given the time, in seconds of the loop's clock. One connection calls each, on the event-loop
thread.
"""

from dataclasses import dataclass

NEVER = float("-inf")
"""A time before all others."""
WRITE_BUFFER_BYTES = 1 << 20
"""Unsent bytes at which asyncio calls `pause_writing`."""
MAX_UNREAD_BYTES = 1 << 16
"""Bytes that the server writes to a client that does not read. Then it does not read from the client either."""
COUNTED_BYTES = 1 << 22
"""Received bytes after which the small messages that still arrive are counted."""
FREE_WINDOW_UPDATES = 10_000
"""Window updates that a client may send regardless of its calls."""
WINDOW_UPDATES_PER_FRAME = 8
"""Further window updates for each call and each DATA frame sent to the client. The limit does not depend on time,
because a client with 12,000 answers per second sends 30,000 of them."""
IDLE_PING_INTERVAL_SECONDS = 7200.0
"""Least time between pings while no call is open, if pings without calls are not permitted (gRPC's rule)."""


class TokenBucket:
    """A token bucket: `burst` tokens at first, then `rate` tokens per second up to `burst`."""

    __slots__ = ("_burst", "_filled_at", "_left", "_rate")

    def __init__(self, burst: float, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = burst
        self._filled_at = 0.0

    def take(self, now: float) -> bool:
        """Takes a token. Returns False if none is left."""
        self._left = min(self._burst, self._left + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class FloodLimits:
    """The limits of one connection for frames that cost the server more than their sender."""

    __slots__ = ("_updates", "cancels", "empty_frames", "refusals", "resets", "settings")

    def __init__(self) -> None:
        self.settings = TokenBucket(100, 10)
        """SETTINGS frames."""
        self.cancels = TokenBucket(10_000, 5_000)
        """Calls that the client cancelled before they were answered (the rapid reset attack). As many may time out in
        earnest if a model is slow."""
        self.resets = TokenBucket(2000, 500)
        """Calls that the server had to reset because the client broke a rule."""
        self.refusals = TokenBucket(10_000, 5_000)
        """Calls that were answered by their heads alone. A harmless client may have mistaken the service."""
        self.empty_frames = TokenBucket(1000, 100)
        """Frames without effect: empty DATA, PRIORITY, unknown kinds, answers to pings that were not sent."""
        self._updates = 0

    def allow_window_update(self, occasions: int) -> bool:
        """Counts a window update. `occasions` is how many calls and DATA frames the client had. Returns False if it
        sends too many."""
        self._updates += 1
        return self._updates <= FREE_WINDOW_UPDATES + WINDOW_UPDATES_PER_FRAME * occasions


class RecentIds:
    """The `KEPT` stream ids that were added last."""

    KEPT = 4096

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[int, None] = {}

    def add(self, stream_id: int) -> None:
        self._ids[stream_id] = None
        # A dict keeps the order of insertion, so the first key is the oldest.
        if len(self._ids) > self.KEPT:
            del self._ids[next(iter(self._ids))]

    def __contains__(self, stream_id: object) -> bool:
        return stream_id in self._ids


@dataclass(frozen=True, slots=True)
class Keepalive:
    """How connections are kept open and ended, in seconds, with gRPC's meaning of each option (G38, C34)."""

    time: float = 7200.0
    """Silence of the client after which the server sends a ping."""
    timeout: float = 20.0
    """Time for the answer to that ping. After it the connection is closed."""
    permit_without_calls: bool = False
    """Whether the server sends pings, and takes them, while no call is open."""
    max_pings_without_data: int = 2
    """Pings that the server sends with no header or data frame between them. 0 means no limit."""
    min_ping_interval: float = 300.0
    """Time between two pings of a client with no header or data frame sent between them. A ping that comes earlier is a
    strike."""
    max_ping_strikes: int = 2
    """Strikes after which one more ends the connection. 0 means no limit."""
    max_age: float | None = None
    """Age at which the server asks the client to end the connection, plus or minus 10 % at random."""
    max_age_grace: float | None = None
    """Time for the open calls after that."""


class PingStrikes:
    """Counts pings of a client that come too soon (gRPC's ping strikes)."""

    __slots__ = ("_keepalive", "_last", "_strikes")

    def __init__(self, keepalive: Keepalive) -> None:
        self._keepalive = keepalive
        self._last = NEVER
        self._strikes = 0

    def sent_data(self) -> None:
        """Starts the count again, because the server has sent headers or data."""
        self._last = NEVER
        self._strikes = 0

    def allows(self, now: float, calls: int) -> bool:
        """Counts a ping of a client with `calls` open calls. Returns False if there were too many strikes."""
        keepalive = self._keepalive
        idle = not calls and not keepalive.permit_without_calls
        # Pings of an idle client keep an unused connection open.
        least = IDLE_PING_INTERVAL_SECONDS if idle else keepalive.min_ping_interval
        early = now < self._last + least
        self._last = now
        # Strikes stay: only headers or data of the server reset them, as in gRPC.
        if not early:
            return True
        self._strikes += 1
        return not keepalive.max_ping_strikes or self._strikes <= keepalive.max_ping_strikes
