"""Reads the sockets of workers during a long turn of the event loop.

A loop handles all descriptors that were ready before it polls again. With hundreds of busy connections a turn takes ten
milliseconds and more, and a worker that has finished a batch is idle for as long. So the front ends call `look` between
requests. The loop watches the descriptors too, so a callback may find nothing to read. Event-loop thread only.
"""

import logging
import select
from collections.abc import Callable
from sys import maxsize

log = logging.getLogger(__name__)

EVERY_NS = 1_000_000
"""Nanoseconds between two polls. A poll that finds nothing takes less than a microsecond."""


class WorkerPoller:
    """`due` is the time of the next `look`, in monotonic nanoseconds; the largest integer if nothing is watched."""

    __slots__ = ("_looking", "_poll", "_watched", "due")

    def __init__(self) -> None:
        self._poll: select.epoll | None = None
        self._watched: dict[int, Callable[[], None]] = {}
        self._looking = False
        self.due = maxsize

    def watch(self, descriptor: int, readable: Callable[[], None]) -> None:
        """Calls `readable` when the descriptor is readable, until `forget`. Does nothing if the system has no epoll, or
        no descriptor left for it: then only the event loop reads."""
        try:
            if self._poll is None:
                self._poll = select.epoll()
            self._poll.register(descriptor, select.EPOLLIN)
        except (OSError, AttributeError):
            return
        self._watched[descriptor] = readable
        self.due = 0

    def forget(self, descriptor: int) -> None:
        """Must be called before the descriptor is closed. The descriptor need not be watched."""
        if self._watched.pop(descriptor, None) is None or self._poll is None:
            return
        self._poll.unregister(descriptor)
        if not self._watched:
            self._poll.close()
            self._poll = None
            self.due = maxsize

    def look(self, now: int) -> None:
        """Calls back for each readable descriptor. A callback may lead here again: then nothing happens. Exceptions of
        callbacks are logged, since they are not the caller's."""
        if self._looking or self._poll is None:
            return
        self.due = now + EVERY_NS
        self._looking = True
        try:
            for descriptor, _ in self._poll.poll(0):
                readable = self._watched.get(descriptor)  # a callback before it may have forgotten it
                if readable is not None:
                    _call(readable)
        finally:
            self._looking = False


def _call(readable: Callable[[], None]) -> None:
    try:
        readable()
    except Exception:
        log.exception("reading from a worker failed")
