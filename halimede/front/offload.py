"""Work for other threads, as both front ends see it (`platform.offload` has the threads)."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from halimede.engine_port import ModelCounts
from halimede.errors import Error

A = TypeVar("A")


class Offload(Protocol):
    """Runs `work` on another thread, then `done` on the event loop with its result, or the Error that it raised. Work
    that may take long is `large`, so that other work need not wait for it."""

    def __call__(self, work: Callable[[], A], done: Callable[[A | Error], None], large: bool = False) -> None: ...


def at_once(work: Callable[[], A], done: Callable[[A | Error], None], large: bool = False) -> None:
    """An `Offload` without threads, for servers that are driven without an event loop."""
    result: A | Error
    try:
        result = work()
    except Error as error:
        result = error
    done(result)


def is_longer(answer: object, most: int) -> bool:
    """Whether an answer is a list that takes longer to write than `most` models or regions do."""
    if not isinstance(answer, list):
        return False
    # A model that has run thousands of batch sizes has as many statistics. Four take about as long as the rest.
    sizes = sum(len(each.batches) for each in answer if isinstance(each, ModelCounts))
    return len(answer) + sizes // 4 > most
