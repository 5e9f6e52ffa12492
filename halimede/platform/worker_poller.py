"""Descriptors whose news shall not wait until a long turn of the event loop is over.

A loop serves everybody who was ready before it looks again who is ready now. Under hundreds of busy connections that
takes ten milliseconds and more, in which a worker that has finished a batch has nothing to do. So whoever takes up
requests looks, now and then, whether one of these few descriptors has something to say. The loop goes on watching them
too: a callback may be called where there is nothing to read. Event-loop thread only.
"""

import logging
import select
from collections.abc import Callable
from sys import maxsize

log = logging.getLogger(__name__)

EVERY_NS = 1_000_000
"""Between two looks. One costs less than a microsecond where nobody has anything to say."""


class WorkerPoller:
    """`due` is when to `look`, in monotonic nanoseconds: never, while nothing is watched."""

    __slots__ = ("_looking", "_poll", "_watched", "due")

    def __init__(self) -> None:
        self._poll: select.epoll | None = None
        self._watched: dict[int, Callable[[], None]] = {}
        self._looking = False
        self.due = maxsize

    def watch(self, descriptor: int, readable: Callable[[], None]) -> None:
        """Calls `readable` where there is something to read, until `forget`; never where the system has no way to look,
        or no descriptor for it: then the loop alone does."""
        try:
            if self._poll is None:
                self._poll = select.epoll()
            self._poll.register(descriptor, select.EPOLLIN)
        except (OSError, AttributeError):
            return
        self._watched[descriptor] = readable
        self.due = 0

    def forget(self, descriptor: int) -> None:
        """Before the descriptor is closed. It need not be watched."""
        if self._watched.pop(descriptor, None) is None or self._poll is None:
            return
        self._poll.unregister(descriptor)
        if not self._watched:
            self._poll.close()
            self._poll = None
            self.due = maxsize

    def look(self, now: int) -> None:
        """Tells whoever has something to read. What is called may bring here again: then nothing happens. What breaks
        there is not the caller's: it is logged."""
        if self._looking or self._poll is None:
            return
        self.due = now + EVERY_NS
        self._looking = True
        try:
            for descriptor, _ in self._poll.poll(0):
                readable = self._watched.get(descriptor)  # it may have been forgotten in this loop
                if readable is not None:
                    _call(readable)
        finally:
            self._looking = False


def _call(readable: Callable[[], None]) -> None:
    try:
        readable()
    except Exception:
        log.exception("reading broke")
