"""The timers of one connection: its greeting, keep-alive pings, its age, and the end of a drain.

Timers only set flags or call the connection; what a read costs here is a note of its time. Event-loop thread only.
"""

from random import uniform
from typing import Protocol

from halimede.transport.event_loop import EventLoop, TimerHandle
from halimede.transport.http2.limits import Keepalive, PingStrikes
from halimede.transport.http2.writer import FrameWriter

GREETING_SECONDS = 20.0
DRAIN_PING_SECONDS = 5.0
CLOSING_SECONDS = 5.0
"""For a client to take more of the last bytes of a connection that is closed."""
TIMER_TOLERANCE_SECONDS = 0.001
"""Loops count time in milliseconds: a timer may fire so much too soon."""


class TimedConnection(Protocol):
    """What the timers do to a connection."""

    out: FrameWriter

    @property
    def calls(self) -> int: ...
    def ping(self) -> None: ...
    def drain(self) -> None: ...
    def drain_timed_out(self) -> None: ...
    def abort_calls(self) -> None: ...
    def abort(self) -> None: ...


class ConnectionTimers:
    """`heard_at` is when something was last received, by the loop's clock."""

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
            self._age = loop.call_later(keepalive.max_age * uniform(0.9, 1.1), self._too_old)

    def close(self) -> None:
        """The connection is lost."""
        for handle in (self._next, self._last, self._age):
            if handle is not None:
                handle.cancel()

    def greeted(self) -> None:
        """The client's first SETTINGS have come."""
        self._next.cancel()
        self._watch()

    def allows_ping(self, calls: int) -> bool:
        """Notes a ping of the client; False when it was one too many."""
        self._note_sent()
        return self._police.allows(self._loop.time(), calls)

    def drain_begun(self) -> None:
        self._last = self._loop.call_later(DRAIN_PING_SECONDS, self._connection.drain_timed_out)

    def closing(self) -> None:
        """The connection is closed, once its client has taken the last bytes."""
        self.close()
        self._look_again()

    def _look_again(self) -> None:
        self._last = self._loop.call_later(CLOSING_SECONDS, self._look_at_rest, self._connection.out.unwritten)

    def _look_at_rest(self, before: int) -> None:
        """Waits on as long as the client takes some."""
        if self._connection.out.unwritten < before:
            self._look_again()
        else:
            self._connection.abort()

    def _note_sent(self) -> None:
        """Sending headers or data gives both sides their pings back."""
        out = self._connection.out
        if out.sent_data:
            out.sent_data = False
            self._police.sent_data()
            self._pings_left = self._keepalive.max_pings_without_data

    def _watch(self) -> None:
        """Looks again when `time` has passed since the client was last heard, or from now if that is past."""
        keepalive = self._keepalive
        left = self.heard_at + keepalive.time - self._loop.time()
        self._next = self._loop.call_later(left if left > 0 else keepalive.time, self._look)

    def _look(self) -> None:
        """Asks the client if nothing came for `time`."""
        self._note_sent()
        keepalive = self._keepalive
        silent = self._loop.time() - self.heard_at >= keepalive.time - TIMER_TOLERANCE_SECONDS
        wanted = silent and (self._connection.calls or keepalive.permit_without_calls)
        if not wanted or (keepalive.max_pings_without_data and not self._pings_left):
            self._watch()
            return
        self._pings_left -= 1
        self._connection.ping()
        self._next = self._loop.call_later(keepalive.timeout, self._unanswered, self._loop.time())

    def _unanswered(self, asked_at: float) -> None:
        if self.heard_at >= asked_at:
            self._watch()
        else:
            self._connection.abort()

    def _too_old(self) -> None:
        self._connection.drain()
        grace = self._keepalive.max_age_grace
        if grace is not None:
            self._age = self._loop.call_later(grace, self._connection.abort_calls)
