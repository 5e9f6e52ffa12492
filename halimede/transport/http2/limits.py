"""What one client may ask of a connection before it counts as an attack. Pure objects that are told the time.

Times are in seconds of the loop's clock. Each is asked from the event-loop thread by one connection.
"""

from dataclasses import dataclass

NEVER = float("-inf")
FREE_WINDOW_UPDATES, WINDOW_UPDATES_PER_FRAME = 10_000, 8
"""Window updates that a client may send in all, and for each call and DATA frame. Not by time: a client that is
answered 12,000 times a second sends 30,000 of them."""
IDLE_PING_INTERVAL_SECONDS = 7200.0
"""Between pings while no call is open, where those are not permitted (gRPC's rule)."""


class TokenBucket:
    """`burst` at once, and `rate` a second after that."""

    __slots__ = ("_burst", "_filled_at", "_left", "_rate")

    def __init__(self, burst: float, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = burst
        self._filled_at = 0.0

    def take(self, now: float) -> bool:
        """Takes one; False when none is left."""
        self._left = min(self._burst, self._left + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class FloodLimits:
    """The buckets of one connection: frames that cost the server more than their sender."""

    __slots__ = ("_updates", "cancels", "empty_frames", "refusals", "resets", "settings")

    def __init__(self) -> None:
        self.settings = TokenBucket(100, 10)
        self.cancels = TokenBucket(10_000, 5_000)
        """Calls that the client took back before they were answered (rapid reset). As many as time out in earnest when
        a model is slow."""
        self.resets = TokenBucket(2000, 500)
        """Calls that the client made the server reset."""
        self.refusals = TokenBucket(10_000, 5_000)
        """Calls that were answered by their heads alone. A client in earnest may take a service for another one."""
        self.empty_frames = TokenBucket(1000, 100)
        """Frames that bring nothing: empty DATA, PRIORITY, unknown kinds, answers to pings that nobody sent."""
        self._updates = 0

    def allow_window_update(self, occasions: int) -> bool:
        """Notes a window update of a client that had so many occasions to send some: calls, and frames of data that it
        was sent. False when it was one too many."""
        self._updates += 1
        return self._updates <= FREE_WINDOW_UPDATES + WINDOW_UPDATES_PER_FRAME * occasions


class RecentIds:
    """The stream ids that were added last."""

    KEPT = 4096

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[int, None] = {}

    def add(self, stream_id: int) -> None:
        self._ids[stream_id] = None
        if len(self._ids) > self.KEPT:
            del self._ids[next(iter(self._ids))]

    def __contains__(self, stream_id: object) -> bool:
        return stream_id in self._ids


@dataclass(frozen=True, slots=True)
class Keepalive:
    """How connections are kept and ended, in seconds, by the meaning that gRPC gives to it (contract G38, C34)."""

    time: float = 7200.0
    """Without a byte from the client before the server asks with a ping."""
    timeout: float = 20.0
    """For the answer to that ping, else the connection is closed."""
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    """Pings of the server with no header or data frame sent between them; 0 for any number."""
    min_ping_interval: float = 300.0
    """Between two pings of a client with no header or data frame sent between them; sooner is a strike."""
    max_ping_strikes: int = 2
    """More strikes end the connection; 0 for any number."""
    max_age: float | None = None
    """Of a connection before it is asked to end, give or take a tenth by chance."""
    max_age_grace: float | None = None
    """For its calls to finish after that."""


class PingStrikes:
    """Counts the pings of a client that come too soon (gRPC's ping strikes)."""

    __slots__ = ("_keepalive", "_last", "_strikes")

    def __init__(self, keepalive: Keepalive) -> None:
        self._keepalive = keepalive
        self._last = NEVER
        self._strikes = 0

    def sent_data(self) -> None:
        """The server has sent headers or data: the count begins anew."""
        self._last = NEVER
        self._strikes = 0

    def allows(self, now: float, calls: int) -> bool:
        """Notes a ping of the client while so many calls are open; False when it was one too many."""
        keepalive = self._keepalive
        idle = not calls and not keepalive.permit_without_calls
        least = IDLE_PING_INTERVAL_SECONDS if idle else keepalive.min_ping_interval
        early = now < self._last + least
        self._last = now
        if not early:
            return True
        self._strikes += 1
        return not keepalive.max_ping_strikes or self._strikes <= keepalive.max_ping_strikes
