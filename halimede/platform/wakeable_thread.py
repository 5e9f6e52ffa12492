"""A thread that does what it is given, woken through a descriptor.

A lock of Python's wakes a sleeper as fast, but keeps the interpreter while it does: the sleeper wakes, finds it taken,
and sleeps again until the event loop waits for the network. A write to a descriptor lets go of the interpreter first.
Measured from a loop to a thread and back, on two cores: 14 us that way, 40 us by `queue.SimpleQueue`.
"""

import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_SIGNAL = (1).to_bytes(8, "little")
"""What an eventfd takes; a pipe takes anything."""


class WakeableThread:
    """A daemon thread, on the cores of the one that starts it, which may be under a host policy. `submit` and `stop`
    may be called on any other thread."""

    def __init__(self, name: str) -> None:
        """Raises OSError or RuntimeError if the system has no descriptors or threads left."""
        self._work: deque[Callable[[], None] | None] = deque()
        self._sleeps = False
        self._ringing = Lock()
        self._ear, self._bell = _descriptors()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._close()
            raise

    def submit(self, work: Callable[[], None]) -> None:
        self._put(work)

    def call(self, work: Callable[[], T]) -> "Future[T]":
        """The result of `work`, once it was done."""
        future: Future[T] = Future()

        def fulfil() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._put(fulfil)
        return future

    def stop(self) -> None:
        """Ends the thread after what it was given; does not wait for it."""
        self._put(None)

    def _put(self, work: Callable[[], None] | None) -> None:
        self._work.append(work)
        if self._sleeps:  # it says so before it looks for the last time, so that nothing is left lying
            with self._ringing:  # it may have seen the work by itself: then it must not end before the bell has rung
                if self._sleeps:
                    self._sleeps = False
                    os.write(self._bell, _SIGNAL)

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                try:
                    work()
                except BaseException:
                    log.exception("a thread goes on after an error")
                del work  # and with it what it held, until there is more
        finally:
            self._close()

    def _next(self) -> Callable[[], None] | None:
        while not self._work:
            self._sleeps = True
            if not self._work:
                os.read(self._ear, 64)
            self._sleeps = False
        return self._work.popleft()

    def _close(self) -> None:
        with self._ringing:
            for descriptor in {self._ear, self._bell}:
                os.close(descriptor)


def _descriptors() -> tuple[int, int]:
    """To read from and to write to."""
    if hasattr(os, "eventfd"):
        descriptor = os.eventfd(0, os.EFD_CLOEXEC)
        return descriptor, descriptor
    return os.pipe()
