"""Timers that keep their time: one heap, and one timer descriptor if the system has them.

uvloop rounds `call_later` to whole milliseconds and calls up to one early; a batching delay of 300 us needs better.
Event-loop thread only; times are monotonic nanoseconds.
"""

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic_ns
from typing import Protocol

log = logging.getLogger(__name__)

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_ABSTIME = 1


class Alarm(Protocol):
    """Calls back once at the time that was set last."""

    def set(self, when: int) -> None: ...
    def close(self) -> None: ...


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class DescriptorAlarm:
    """A Linux timer descriptor, exact to some microseconds. Raises OSError if the system has none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        except AttributeError as error:
            raise OSError("no timer descriptors on this system") from error
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = loop
        self._ring = ring
        loop.add_reader(self._descriptor, self._rang)

    def set(self, when: int) -> None:
        when = max(when, 1)  # zero would switch the timer off
        spec = _Itimerspec(0, 0, when // 1_000_000_000, when % 1_000_000_000)
        self._libc.timerfd_settime(self._descriptor, _TFD_ABSTIME, ctypes.byref(spec), None)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _rang(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return  # it was set again after it had expired
        self._ring()


class LoopAlarm:
    """The event loop's own timer, rounded up so that it never rings early."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, when: int) -> None:
        self.close()
        milliseconds = -((monotonic_ns() - when) // 1_000_000)
        self._handle = self._loop.call_later(max(milliseconds, 0) / 1000 + 0.001, self._ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Timers:
    """Calls back at or soon after a time, never before. `close` forgets what is still to come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._alarm: Alarm
        try:
            self._alarm = DescriptorAlarm(loop, self._ring)
        except OSError:
            self._alarm = LoopAlarm(loop, self._ring)

    def call_at(self, when: int, callback: Callable[[], None]) -> None:
        heappush(self._due, (when, next(self._order), callback))
        if self._due[0][0] == when:
            self._alarm.set(when)

    def close(self) -> None:
        self._due.clear()
        self._alarm.close()

    def _ring(self) -> None:
        now, newest = monotonic_ns(), next(self._order)
        # What a callback sets for a time that has passed is called in the next turn of the loop.
        while self._due and self._due[0][0] <= now and self._due[0][1] < newest:
            callback = heappop(self._due)[2]
            try:
                callback()
            except Exception:
                log.exception("a timer's callback failed; the other timers go on")
        if self._due:
            self._alarm.set(self._due[0][0])
