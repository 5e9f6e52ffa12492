"""How long something of a connection has made no progress, the limits of such times, and the rounds of looks at it.

A port looks at its connections once a second. So nothing is measured on the path of a request. Event-loop thread only.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from halimede.transport.event_loop import CallLater, TimerHandle

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Time between two looks at the connections of a port."""
MAX_LOOKS_PER_TURN = 500
"""Connections that are looked at in one turn of the loop."""
LOOKS_SECONDS = 0.001
"""Time that the looks of a turn may take. A connection may have a thousand streams."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Times in seconds after which the server gives a client up. 0 means no limit. A slow model never counts: the times
    run only while the server waits for the client."""

    head: float = 60.0
    """For the whole head of an HTTP request (`--head-timeout-secs`). Then the client gets status 408."""
    body: float = 60.0
    """Without a byte of a body, a message or a header block that has begun (`--body-timeout-secs`). Then an HTTP client
    gets status 408. A gRPC call ends with DEADLINE_EXCEEDED."""
    idle: float = 4200.0
    """Without a request on a kept HTTP connection (`--idle-timeout-secs`), which is then closed. It is longer than the
    idle times of usual proxies, because they must close first: a request may be on its way when the server closes."""
    unread: float = 60.0
    """Without progress of an answer that the client does not read (`--unread-timeout-secs`). Then the connection, or
    the call, is reset."""


def is_over(limit: float, seconds: float) -> bool:
    """Whether a time is longer than its limit, if there is one."""
    return 0 < limit <= seconds


class Stall:
    """For how long what a client does has been the same."""

    __slots__ = ("_progress", "_since", "_state")

    def __init__(self) -> None:
        self._state: object = None
        self._progress = 0
        self._since = 0.0

    def seconds(self, state: object, progress: int, now: float) -> float:
        """Returns the time since the state or its progress changed."""
        if state != self._state or progress != self._progress:
            self._state, self._progress, self._since = state, progress, now
        return now - self._since


class LookedAt(Protocol):
    """A connection, as the rounds see it."""

    def look(self, now: float) -> None: ...


class LookRounds:
    """Looks at all connections of a port once a second, from `begin` to `end`."""

    def __init__(self, connections: Collection[LookedAt], clock: Callable[[], float], call_later: CallLater) -> None:
        self._connections = connections
        self._clock = clock
        self._call_later = call_later
        self._next: TimerHandle | None = None

    def begin(self) -> None:
        self._next = self._call_later(LOOK_SECONDS, self._round)

    def end(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _round(self) -> None:
        self._look(iter(list(self._connections)))

    def _look(self, left: Iterator[LookedAt]) -> None:
        now = self._clock()
        for number, connection in enumerate(left, 1):
            try:
                connection.look(now)
            except Exception:
                log.exception("failed to look at a connection")
            if number >= MAX_LOOKS_PER_TURN or self._clock() - now >= LOOKS_SECONDS:
                self._next = self._call_later(0.0, lambda: self._look(left))
                return
        self._next = self._call_later(LOOK_SECONDS, self._round)
