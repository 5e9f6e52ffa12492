"""The dynamic batcher: which of the waiting requests go together, and when (contract S20 to S25). Pure; loop thread."""

from collections.abc import Iterable, Sequence

from halimede.requests import Stamp
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.queue import FifoQueue

_QUEUE_START = int(Stamp.QUEUE_START)


class Forming:
    """How batches are formed of requests that wait in some order.

    `preferred` are the preferred batch sizes, `delay_ns` how long the oldest request may wait for a better batch.
    `open_requests` and `open_rows` are those of the batch that is not due, when `due` said so.
    """

    __slots__ = ("_max_preferred", "_max_rows", "_preferred", "delay_ns", "open_requests", "open_rows")

    def __init__(self, max_batch_size: int, preferred: Sequence[int], delay_ns: int) -> None:
        self._max_rows = max(1, max_batch_size)
        self._preferred = frozenset(preferred)
        self._max_preferred = max(preferred, default=0)
        self.delay_ns = delay_ns
        self.open_requests = self.open_rows = 0

    def due(self, queue: Iterable[Inference], now: int) -> int | Wake:
        """How many requests from the front to run now, or when to look again (contract S21, S22). One waits at least.

        The batch that is preferred is the longest with a preferred size; where the queue runs past the largest such
        size without meeting one, it is what comes before that. The oldest request need not be the first one.
        """
        max_rows, max_preferred, preferred = self._max_rows, self._max_preferred, self._preferred
        requests = rows = best = 0
        full = False
        oldest = now
        key: object = None
        for inference in queue:
            total = rows + (inference.batch_size or 1)
            if requests:
                if total > max_preferred and not best:
                    best = requests
                if total > max_rows or inference.batch_key != key:
                    full = True
                    break
            else:
                key = inference.batch_key
            requests += 1
            rows = total
            queued = inference.times[_QUEUE_START]
            if queued < oldest:
                oldest = queued
            if rows in preferred:
                best = requests
        overdue_at = oldest + self.delay_ns
        overdue = self.delay_ns and now >= overdue_at
        if best and not overdue:
            return best
        if full or overdue or not self.delay_ns or rows >= max_preferred:
            return requests
        self.open_requests, self.open_rows = requests, rows
        return Wake(overdue_at)


class DynamicPolicy(FifoQueue):
    """Batches of the longest waiting requests that fit together, all requests being alike.

    `start_at` holds everything back until so many requests wait, once: the test hook TRITONSERVER_DELAY_SCHEDULER
    (contract C60).
    """

    def __init__(self, max_batch_size: int, preferred: Sequence[int], delay_ns: int, start_at: int = 0) -> None:
        super().__init__()
        self._forming = Forming(max_batch_size, preferred, delay_ns)
        self._start_at = start_at
        self.direct = not delay_ns and not start_at

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        waiting = self.waiting
        if not waiting or waiting < self._start_at:
            return None
        self._start_at = 0
        if waiting == 1 and not self._forming.delay_ns:
            return Batch(free[0], (self._pop(),))
        taken = self._forming.due(self._in_order(), now)
        if isinstance(taken, Wake):
            return taken
        return Batch(free[0], [self._pop() for _ in range(taken)])
