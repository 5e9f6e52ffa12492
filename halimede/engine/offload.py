"""What this room needs of the threads for work that would hold the event loop (`platform.offload` has them)."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from halimede.errors import Error

A = TypeVar("A")


class Offload(Protocol):
    """Runs `work` on another thread, then `done` with its result or the Error it raised, on the event loop."""

    def __call__(self, work: Callable[[], A], done: Callable[[A | Error], None], /) -> None: ...
