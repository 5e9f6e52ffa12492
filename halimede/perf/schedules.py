"""When requests are due in open loop (X3, X4): endless or finite series of nanoseconds after the beginning. Pure."""

import random
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

SECOND = 1_000_000_000


def constant(rate: float) -> Iterator[int]:
    """Equal gaps. The n-th time is rounded by itself, so that errors do not add up."""
    number = 0
    while True:
        number += 1
        yield round(number * SECOND / rate)


def poisson(rate: float, lot: random.Random) -> Iterator[int]:
    """Exponential gaps, as requests of many independent clients have."""
    at = 0.0
    while True:
        at += lot.expovariate(rate) * SECOND
        yield round(at)


def repeated(gaps: Sequence[int]) -> Iterator[int]:
    """The gaps of a file, in nanoseconds, over and over."""
    at = 0
    for gap in cycle(gaps):
        at += gap
        yield at


def share(times: Iterator[int], number: int, of: int) -> Iterator[int]:
    """The times that process `number` of `of` serves."""
    return islice(times, number, None, of)


def rate_of(gaps: Sequence[int]) -> float:
    """Requests per second of repeated gaps."""
    return len(gaps) * SECOND / sum(gaps)
