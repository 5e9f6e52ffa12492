"""Sends answers in the order in which their requests came (`preserve_ordering`, S34).

Stands between the runner and the reply slots. The oldest request under way answers directly. Any other has a
`_BufferedReply` as its reply slot, which keeps its answers.

    a request is         event                                  then
    ------------------   ------------------------------------   ---------------------------------------------------
    first in the line    settled                                leaves; the next one becomes first
    behind others        becomes first                          its kept answers are sent; it answers directly now
    behind others        settled: it ran, or had a response     stays; is sent and leaves when it becomes first
    behind others        settled: an error, and it never ran    the error is sent at once; only its place stays

Loop thread.
"""

import logging
from collections import deque
from collections.abc import Callable

from halimede.errors import Error
from halimede.requests import Answer, Reply, Resume, Stamp
from halimede.scheduling.inference import Inference

log = logging.getLogger(__name__)

MAX_AT_ONCE = 256
"""Kept answers that are sent in one turn of the loop."""


class _BufferedReply:
    """The reply slot of a request that is not the first in the line.

    It is always writable: a producer that waited here might hold up the requests before it. The error of a request that
    never ran (rejected, too late, cancelled) is sent at once, since it overtakes no result.
    """

    __slots__ = ("inference", "kept", "reply", "settled")

    def __init__(self, inference: Inference) -> None:
        self.inference: Inference | None = inference
        """None if the request is settled and only its place in the line is left."""
        self.reply: Reply = inference.reply
        self.kept: deque[tuple[Answer, bool]] = deque()
        self.settled = False

    def send(self, answer: Answer, final: bool) -> bool:
        if self.inference is not None and self.inference.cancelled:  # its client has gone, so nothing is kept
            self.kept.clear()
            if not final:
                return True
        never_ran = self.inference is not None and not self.inference.times[Stamp.COMPUTE_START]
        if final and never_ran and isinstance(answer, Error):  # a response from a cache never ran either, but waits
            self.settled = True
            return self.reply.send(answer, final)
        self.kept.append((answer, final))
        return True

    def on_writable(self, resume: Resume) -> None:
        if self.kept:
            resume()
        else:
            self.reply.on_writable(resume)

    def open(self, most: int) -> int:
        """Sends at most `most` of the kept answers. Returns the number that it sent."""
        count = min(most, len(self.kept))
        for _ in range(count):
            answer, final = self.kept.popleft()
            try:
                self.reply.send(answer, final)
            except Exception:
                log.exception("sending a kept answer failed; the other requests go on")
        return count


class Ordering:
    """`settled` is called with each inference that is settled and whose answers have all been sent. `later` gets what
    is to be done in the next turn of the loop.

    A request that a model makes is not ordered: it may belong to one that is before it in the line, and neither would
    ever be answered.
    """

    def __init__(self, settled: Callable[[Inference], None], later: Callable[[Callable[[], None]], object]) -> None:
        self._settled = settled
        self._later = later
        self._line: deque[_BufferedReply] = deque()

    def enter(self, inference: Inference) -> None:
        """The inference is about to be submitted; it gets its place in the line."""
        if inference.request.inner:
            return
        turn = _BufferedReply(inference)
        if self._line:
            inference.reply = turn
        self._line.append(turn)

    def settled(self, inference: Inference) -> None:
        """The runner has settled the inference."""
        turn = inference.reply
        if inference.request.inner:
            self._settled(inference)
        elif not isinstance(turn, _BufferedReply):  # it was the first in the line
            self._settle(inference)
            # Not before: an inference that this submits must not pass those in the line.
            self._line.popleft()
            self._next()
        elif turn.settled:
            inference.reply, turn.inference = turn.reply, None
            self._settled(inference)
        else:
            turn.settled = True

    def _next(self) -> None:
        """Sends what the first in the line has kept, and goes on to those behind it as far as they are settled. Many
        answers take several turns of the loop. Until then those in the line keep theirs."""
        left = MAX_AT_ONCE
        while self._line:
            turn = self._line[0]
            inference = turn.inference
            if inference is not None:
                left -= turn.open(left)
                if turn.kept:
                    self._later(self._next)
                    return
                # A response from a cache has another slot once it is sent. To change it back would make a cycle.
                if inference.reply is turn:
                    inference.reply = turn.reply
                if not turn.settled:
                    return
                self._settle(inference)
            self._line.popleft()

    def _settle(self, inference: Inference) -> None:
        try:
            self._settled(inference)
        except Exception:
            log.exception("settling a request failed; the requests behind it go on")
