"""Calls of torch on a thread that ends with them. Load threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_passing_thread(call: Callable[[], T]) -> T:
    """The result of a call, or its exception.

    OpenMP's library keeps helper threads for each thread that has run torch, and counts them. If it counts more than
    there are cores, its threads sleep at once when they wait for each other, and all models become slower: MiniLM on
    two cores took 1.4 times as long. So a load must not leave such threads behind.
    """
    with ThreadPoolExecutor(1, "torch load") as thread:
        return thread.submit(call).result()
