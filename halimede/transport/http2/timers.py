"""The timers of one HTTP/2 connection: its greeting, keep-alive pings, its age, and its end.

A timer sets flags or calls the connection. A read only stores its time. Event-loop thread only.

| timer | set when | fires | then |
| --- | --- | --- | --- |
| greeting | the connection is made | `GREETING_SECONDS` passed without the client's SETTINGS | abort |
| keep-alive | the client has greeted | nothing received for `Keepalive.time` | ping, if pings are allowed |
| keep-alive | a ping was sent | nothing received for `Keepalive.timeout` | abort |
| age | the connection is made | `max_age`, plus or minus 10 % | drain |
| age | draining because of age | `max_age_grace` | the open calls are aborted |
| end | GOAWAY and a ping were sent | `DRAIN_PING_SECONDS` without the answer | the client is assumed to know |
| end | the connection closes | the client took nothing for `CLOSING_SECONDS` | abort |
"""

from random import uniform
from typing import Protocol

from halimede.transport.event_loop import EventLoop, TimerHandle
from halimede.transport.http2.limits import Keepalive, PingStrikes
from halimede.transport.http2.writer import FrameWriter

GREETING_SECONDS = 20.0
"""For the client to send its first SETTINGS frame."""
DRAIN_PING_SECONDS = 5.0
"""For the client to answer the ping that follows GOAWAY."""
CLOSING_SECONDS = 5.0
"""For a client to take some of the last bytes of a connection that closes."""
TIMER_TOLERANCE_SECONDS = 0.001
"""Event loops count milliseconds, so a timer may fire this much too early."""


class TimedConnection(Protocol):
    """What the timers need of a connection."""

    out: FrameWriter

    @property
    def calls(self) -> int: ...
    def ping(self) -> None: ...
    def drain(self) -> None: ...
    def drain_timed_out(self) -> None: ...
    def abort_calls(self) -> None: ...
    def abort(self) -> None: ...


class ConnectionTimers:
    """The timers of one connection. `heard_at` is when bytes were last received, by the loop's clock."""

    __slots__ = ("_age", "_connection", "_keepalive", "_last", "_loop", "_next", "_pings_left", "_police", "heard_at")

    def __init__(self, loop: EventLoop, keepalive: Keepalive, connection: TimedConnection) -> None:
        self._loop = loop
        self._keepalive = keepalive
        self._connection = connection
        self._police = PingStrikes(keepalive)
        self._pings_left = keepalive.max_pings_without_data
        self.heard_at = loop.time()
        self._next = loop.call_later(GREETING_SECONDS, connection.abort)
        self._last: TimerHandle | None = None
        self._age: TimerHandle | None = None
        if keepalive.max_age is not None:
            # gRPC spreads the ends of connections that began together.
            self._age = loop.call_later(keepalive.max_age * uniform(0.9, 1.1), self._too_old)

    def close(self) -> None:
        """Cancels all timers, because the connection is lost."""
        for handle in (self._next, self._last, self._age):
            if handle is not None:
                handle.cancel()

    def greeted(self) -> None:
        """Starts keep-alive, because the client's first SETTINGS have come."""
        self._next.cancel()
        self._watch()

    def allows_ping(self, calls: int) -> bool:
        """Counts a ping of the client. Returns False if the client sends pings too often."""
        self._reset_if_sent()
        return self._police.allows(self._loop.time(), calls)

    def drain_begun(self) -> None:
        """Starts the timer for the answer to the ping that follows GOAWAY."""
        self._last = self._loop.call_later(DRAIN_PING_SECONDS, self._connection.drain_timed_out)

    def closing(self) -> None:
        """Starts the timer of a connection that closes after its client has taken the last bytes."""
        self.close()
        self._check_again()

    def _check_again(self) -> None:
        self._last = self._loop.call_later(CLOSING_SECONDS, self._check_unwritten, self._connection.out.unwritten)

    def _check_unwritten(self, before: int) -> None:
        """Waits longer while the client takes bytes, else aborts."""
        # A slow client that makes progress gets its last answer.
        if self._connection.out.unwritten < before:
            self._check_again()
        else:
            self._connection.abort()

    def _reset_if_sent(self) -> None:
        """Resets the counts of pings on both sides if headers or data were sent (gRPC's rule)."""
        out = self._connection.out
        if out.sent_data:
            out.sent_data = False
            self._police.sent_data()
            self._pings_left = self._keepalive.max_pings_without_data

    def _watch(self) -> None:
        """Sets the keep-alive timer: `time` after the last bytes, or after now if that has passed."""
        keepalive = self._keepalive
        left = self.heard_at + keepalive.time - self._loop.time()
        self._next = self._loop.call_later(left if left > 0 else keepalive.time, self._look)

    def _look(self) -> None:
        """Sends a ping if nothing came for `time`."""
        self._reset_if_sent()
        keepalive = self._keepalive
        silent = self._loop.time() - self.heard_at >= keepalive.time - TIMER_TOLERANCE_SECONDS
        # Without open calls gRPC sends no pings, unless the option permits them.
        wanted = silent and (self._connection.calls or keepalive.permit_without_calls)
        # Clients too may end a connection whose peer pings too often without data.
        if not wanted or (keepalive.max_pings_without_data and not self._pings_left):
            self._watch()
            return
        self._pings_left -= 1
        self._connection.ping()
        self._next = self._loop.call_later(keepalive.timeout, self._unanswered, self._loop.time())

    def _unanswered(self, asked_at: float) -> None:
        """Aborts the connection if no byte has arrived since the ping. Any byte counts, not only the answer."""
        if self.heard_at >= asked_at:
            self._watch()
        else:
            self._connection.abort()

    def _too_old(self) -> None:
        """Asks the client to go, because the connection has reached its maximum age."""
        self._connection.drain()
        grace = self._keepalive.max_age_grace
        if grace is not None:
            self._age = self._loop.call_later(grace, self._connection.abort_calls)
