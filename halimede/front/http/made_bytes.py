"""Counts the bytes of an answer while another thread makes it: JSON may have six times the bytes of its tensors.

The transport counts what it has written and the client has not read. Without the count here, any number of requests
could pass before the first of their answers is written.
"""

from collections.abc import Callable
from functools import partial
from typing import NoReturn, TypeVar

from halimede.errors import Error, Unavailable
from halimede.front.http.handling import Answerable, run_offloaded
from halimede.front.offload import Offload
from halimede.transport.buffered_bytes import FULL, BufferedBytes

A = TypeVar("A")


class MadeBytes:
    """The bytes of one answer: first as many as it is expected to have, and more if it turns out to have more."""

    __slots__ = ("_buffered", "_counted", "_made")

    def __init__(self, buffered: BufferedBytes, expected: int) -> None:
        """Event-loop thread."""
        self._buffered = buffered
        self._counted = expected
        self._made = 0
        buffered.take(expected)

    def add(self, size: int) -> None:
        """More bytes were made. Raises Unavailable if they are unexpected and there is no room. Any thread, one at a
        time."""
        self._made += size
        if self._made <= self._counted:
            return
        if self._buffered.full:
            raise Unavailable(FULL)
        # `take` is for the event loop's thread.
        self._buffered.give(self._counted - self._made)
        self._counted = self._made

    def end(self) -> None:
        """The answer is written, or was not made."""
        self._buffered.give(self._counted)
        self._counted = 0


def make_offloaded(
    offload: Offload,
    exchange: Answerable,
    work: Callable[[Callable[[int], None]], A],
    done: Callable[[A | Error], None],
    size: int,
    expected: int,
) -> None:
    """Does what `run_offloaded` does for work that makes an answer of about `expected` bytes. These count until `done`
    is called, which gets Unavailable if there is no room. `work` gets a function that it calls with the number of bytes
    after each piece."""
    if exchange.buffered.is_full():
        # Not at once, because `done` may go on with the next answer, and that with the next one.
        run_offloaded(offload, exchange, _refuse, done)
        return
    made = MadeBytes(exchange.buffered, expected)
    run_offloaded(offload, exchange, partial(work, made.add), partial(_made, made, done), size=size)


def _refuse() -> NoReturn:
    raise Unavailable(FULL)


def _made(made: MadeBytes, done: Callable[[A | Error], None], result: A | Error) -> None:
    # Within the same turn the transport counts what it cannot send.
    made.end()
    done(result)
