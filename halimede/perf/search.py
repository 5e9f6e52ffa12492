"""Which levels to measure (X5). Pure: a search is asked for the next level, and told whether the last one was good."""

from collections.abc import Generator

from halimede.perf.options import NO_LIMIT, Range

Search = Generator[float, bool, None]
"""Yields levels; is sent whether the level was within the latency threshold and stable."""


def linear(levels: Range) -> Search:
    """From the start by the step until the end is passed or a level is not good."""
    value = levels.start
    while True:
        is_good = yield value
        value += levels.step
        if not is_good or (value > levels.end and levels.end != NO_LIMIT):
            return


def binary(levels: Range, whole: bool) -> Search:
    """The start, which must be good, the end, which must not, then halves until the gap is at most the step."""
    if not (yield levels.start):
        return
    if (yield levels.end):
        return
    low, high = levels.start, levels.end
    while high - low > levels.step:
        middle = (low + high) / 2
        if whole:
            middle = int(middle)
        if (yield middle):
            low = middle
        else:
            high = middle
