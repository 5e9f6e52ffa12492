"""Long answers, made in slices of the loop's time. With thousands of models such an answer takes longer than a turn of
the loop may take. Event-loop thread only."""

import logging
from collections.abc import Callable, Generator
from time import monotonic
from typing import TypeVar

from halimede.errors import Error, Internal

log = logging.getLogger(__name__)

A = TypeVar("A")
Sliced = Generator[None, None, A]
"""Makes an answer. It yields where other work of the loop may run, and returns the answer."""

SLICE_SECONDS = 0.001


def run_in_slices(
    making: Sliced[A],
    done: Callable[[A | Error], None],
    call_soon: Callable[[Callable[[], None]], object],
    clock: Callable[[], float] = monotonic,
) -> None:
    """Hands the answer to `done`, or the Error that making it raised. It comes at once if it is ready within a slice.
    `clock` is in seconds."""

    def run() -> None:
        end = clock() + SLICE_SECONDS
        answer: A | Error
        try:
            while clock() < end:
                next(making)
        except StopIteration as ended:
            answer = ended.value
        except Error as error:
            answer = error.bare()
        except Exception as error:
            log.exception("failed to make an answer")
            answer = Internal(f"{type(error).__name__}: {error}")
        else:
            call_soon(run)
            return
        done(answer)

    run()
