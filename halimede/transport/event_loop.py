"""The parts of the event loop that the transport needs, as Protocols.

The server passes asyncio's loop. Tests pass one whose clock they move by hand, so that no test waits for real time.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """What `call_later` returns."""

    def cancel(self) -> None: ...


class CallLater(Protocol):
    """Calls `callback` on the event loop after `delay` seconds."""

    def __call__(self, delay: float, callback: Callable[[], object]) -> TimerHandle: ...


class CallSoonLoop(Protocol):
    """An event loop without a clock."""

    def call_soon(self, callback: Callable[..., object]) -> object: ...


class EventLoop(Protocol):
    """An event loop with its clock. Times are in seconds."""

    def time(self) -> float: ...
    def call_soon(self, callback: Callable[..., object], *args: object) -> object: ...
    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> TimerHandle: ...


def call_later_on_running_loop(delay: float, callback: Callable[[], object]) -> TimerHandle:
    """A `CallLater` for the loop of the calling coroutine or callback."""
    return asyncio.get_running_loop().call_later(delay, callback)
