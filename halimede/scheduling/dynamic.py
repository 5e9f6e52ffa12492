"""The dynamic batcher: which of the waiting requests go together, and when (contract S20 to S25). Pure; loop thread."""

from collections.abc import Sequence
from dataclasses import dataclass

from halimede.requests import Moment
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.queue import FifoQueue


@dataclass(slots=True)
class _Prefix:
    """How far a batch reaches into the queue: so many requests, with so many rows."""

    requests: int = 0
    rows: int = 0


class DynamicPolicy(FifoQueue):
    """Batches of the longest waiting requests that fit together.

    `preferred` are the preferred batch sizes, `delay_ns` how long the oldest request may wait for a better batch.
    `start_at` holds everything back until so many requests wait, once: the test hook TRITONSERVER_DELAY_SCHEDULER
    (contract C60).
    """

    def __init__(self, max_batch_size: int, preferred: Sequence[int], delay_ns: int, start_at: int = 0) -> None:
        super().__init__()
        self._max_rows = max(1, max_batch_size)
        self._preferred = frozenset(preferred)
        self._max_preferred = max(preferred, default=0)
        self._delay_ns = delay_ns
        self._start_at = start_at

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        queue = self._queue
        waiting = len(queue)
        if waiting < max(1, self._start_at):
            return None
        self._start_at = 0
        if waiting == 1 and not self._delay_ns:
            return Batch(free[0], (queue.popleft(),))
        taken = self._due(now)
        if isinstance(taken, Wake):
            return taken
        return Batch(free[0], [queue.popleft() for _ in range(taken)])

    def _due(self, now: int) -> int | Wake:
        """How many of the waiting requests to run now, or when to look again (contract S21, S22)."""
        fitting, best, full = self._fitting()
        overdue_at = self._queue[0].times[Moment.QUEUE_START] + self._delay_ns
        overdue = self._delay_ns and now >= overdue_at
        if best.requests and not overdue:
            return best.requests
        if full or overdue or not self._delay_ns or fitting.rows >= self._max_preferred:
            return fitting.requests
        return Wake(overdue_at)

    def _fitting(self) -> tuple[_Prefix, _Prefix, bool]:
        """The longest prefix of the queue that makes one batch, the best preferred one in it, and whether the first
        cannot grow any more.

        Best is the largest prefix of a preferred size; where the queue runs past the largest preferred size without
        meeting one, it is what comes before that (contract S21 b).
        """
        fitting, best = _Prefix(), _Prefix()
        key = self._queue[0].batch_key
        for inference in self._queue:
            rows = fitting.rows + inference.rows
            if fitting.requests:
                if rows > self._max_preferred and not best.requests:
                    best = _Prefix(fitting.requests, fitting.rows)
                if rows > self._max_rows or inference.batch_key != key:
                    return fitting, best, True
            fitting = _Prefix(fitting.requests + 1, rows)
            if rows in self._preferred:
                best = fitting
        return fitting, best, False
