"""Answers questions about all models, so that asking them again and again does not hold the loop.

With a thousand models such an answer takes milliseconds, and hundreds of clients may ask in one turn of the loop. Each
turn has `SLICE_SECONDS` for answers. Later questions wait for the next turn, and equal ones get one answer together.
That answer is made after they were asked, so it is never out of date. Each client's answer is then written to it, which
also takes milliseconds, so that those who get one answer take turns too. Event-loop thread only.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from halimede.engine_port import Query
from halimede.errors import Internal

log = logging.getLogger(__name__)

SLICE_SECONDS = 0.001
"""Time for the questions of one kind in a turn of the loop, and for handing on their answers. The last may exceed
it."""

Done = Callable[[Any], None]


class SharedAnswers:
    """The questions of one kind, so that other kinds do not wait for them. `answer` answers a question, now or later.
    With `in_turn`, others wait for an answer that comes later. `clock` is in seconds."""

    def __init__(
        self,
        answer: Callable[[Query[Any], Done], None],
        call_soon: Callable[[Callable[[], None]], object],
        in_turn: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._answer = answer
        self._call_soon = call_soon
        self._in_turn = in_turn
        self._clock = clock
        self._waiting: dict[Query[Any], list[Done]] = {}
        self._untold: deque[tuple[Done, Any]] = deque()
        """Those whose answer is made, with it."""
        self._left = SLICE_SECONDS
        self._due = False
        self._busy = False
        self._telling = False
        """Whether clients are told their answers. One that asks again then must not be answered one level deeper."""

    def ask(self, query: Query[Any], done: Done) -> None:
        self._waiting.setdefault(query, []).append(done)
        if self._telling:
            self._renew()
        elif not self._busy:
            self._answer_some()

    def _answer_some(self) -> None:
        while self._waiting and self._left > 0 and not (self._busy or self._telling):
            query = next(iter(self._waiting))
            waiting = self._waiting.pop(query)
            left, began, self._busy = self._left, self._clock(), True
            try:
                self._answer(query, partial(self._tell, waiting))
            except Exception as error:
                log.exception("failed to answer %s", query)
                self._tell(waiting, Internal(f"{type(error).__name__}: {error}"))
            self._busy = self._busy and self._in_turn
            # This includes the time of clients that `_tell` has answered.
            self._left = left - (self._clock() - began)
        self._renew()

    def _renew(self) -> None:
        if not self._due:
            self._due = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self._due, self._left = False, SLICE_SECONDS
        self._tell_some()
        if self._waiting and not self._busy:
            self._answer_some()

    def _tell(self, waiting: list[Done], answer: Any) -> None:
        self._busy = False
        self._untold.extend((done, answer) for done in waiting)
        self._tell_some()
        # An answer that came later. The next one begins in another turn.
        if self._waiting:
            self._renew()

    def _tell_some(self) -> None:
        if self._telling:
            return  # the call that tells them goes on with those that were added
        self._telling = True
        while self._untold and self._left > 0:
            done, answer = self._untold.popleft()
            began = self._clock()
            try:
                done(answer)
            except Exception:
                log.exception("failed to hand on an answer")
            self._left -= self._clock() - began
        self._telling = False
        if self._untold or self._left <= 0:
            self._renew()
