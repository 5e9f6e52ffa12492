"""Answers in the order in which their requests came, whichever is ready first (`preserve_ordering`, contract S34).

Stands between the runner and the reply slots: while a request is not the oldest that is under way, its reply slot is
one that keeps what it is sent. Loop thread.
"""

import logging
from collections import deque
from collections.abc import Callable

from halimede.errors import Error
from halimede.requests import Answer, Reply, Resume, Stamp
from halimede.scheduling.inference import Inference

log = logging.getLogger(__name__)


class _Turn:
    """The reply slot of a request whose turn has not come.

    Takes any number of answers: whoever makes them must not wait for others to answer, whom it may hold up itself. The
    answer to a request that never ran (rejected, too late, cancelled) is passed on at once, since no result is
    overtaken by it.
    """

    __slots__ = ("inference", "kept", "over", "reply")

    def __init__(self, inference: Inference) -> None:
        self.inference: Inference | None = inference
        """None when all is done and only the place in the line is left."""
        self.reply: Reply = inference.reply
        self.kept: deque[tuple[Answer, bool]] = deque()
        self.over = False

    def send(self, answer: Answer, final: bool) -> bool:
        if self.inference is not None and self.inference.cancelled:  # nobody hears what is kept
            self.kept.clear()
            if not final:
                return True
        never_ran = self.inference is not None and not self.inference.times[Stamp.COMPUTE_START]
        if final and never_ran and isinstance(answer, Error):  # a response was found in a cache, and waits as others
            self.over = True
            return self.reply.send(answer, final)
        self.kept.append((answer, final))
        return True

    def on_writable(self, resume: Resume) -> None:
        if self.kept:
            resume()
        else:
            self.reply.on_writable(resume)

    def open(self) -> None:
        """Passes on what was kept."""
        while self.kept:
            answer, final = self.kept.popleft()
            try:
                self.reply.send(answer, final)
            except Exception:
                log.exception("a reply slot broke")


class Ordering:
    """`settled` is told of each inference that is over and whose answers have all been passed on.

    A request that a model makes takes no part: it may be made for the sake of one that is before it in the line, and
    neither would ever be answered.
    """

    def __init__(self, settled: Callable[[Inference], None]) -> None:
        self._settled = settled
        self._line: deque[_Turn] = deque()

    def enter(self, inference: Inference) -> None:
        """The inference is about to be submitted."""
        if inference.request.inner:
            return
        turn = _Turn(inference)
        if self._line:
            inference.reply = turn
        self._line.append(turn)

    def over(self, inference: Inference) -> None:
        """The runner has settled the inference."""
        turn = inference.reply
        if inference.request.inner:
            self._settled(inference)
        elif not isinstance(turn, _Turn):  # it was its turn
            self._settle(inference)
            self._line.popleft()
            self._next()
        elif turn.over:
            inference.reply, turn.inference = turn.reply, None
            self._settled(inference)
        else:
            turn.over = True

    def _next(self) -> None:
        """It is the turn of the first in the line, and of those behind it as far as they are over."""
        while self._line:
            turn = self._line[0]
            inference = turn.inference
            if inference is not None:
                turn.open()
                inference.reply = turn.reply
                if not turn.over:
                    return
                self._settle(inference)
            self._line.popleft()

    def _settle(self, inference: Inference) -> None:
        """Whatever breaks there, the line goes on."""
        try:
            self._settled(inference)
        except Exception:
            log.exception("the end of a request broke")
