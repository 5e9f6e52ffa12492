"""The dynamic batcher: which of the waiting requests go together, and when (S20 to S25). Pure; loop thread."""

from collections.abc import Iterable, Sequence

from halimede.requests import Stamp
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.queue import FifoQueue
from halimede.scheduling.regrouping import Regrouping

_QUEUE_START = int(Stamp.QUEUE_START)


class Forming:
    """Decides how many requests from the front of a queue form the next batch.

    preferred -- the preferred batch sizes, which start without delay. `config.completion` fills in an empty
        list; without any size no batch waits
    delay_ns -- how long the oldest request may wait for a better batch
    open_requests, open_rows -- size of the batch that is not due yet, set when `due` returns a Wake
    """

    __slots__ = ("_max_preferred", "_max_rows", "_preferred", "delay_ns", "open_requests", "open_rows")

    def __init__(self, max_batch_size: int, preferred: Sequence[int], delay_ns: int) -> None:
        self._max_rows = max(1, max_batch_size)
        self._preferred = frozenset(preferred)
        self._max_preferred = max(preferred, default=0)
        self.delay_ns = delay_ns
        self.open_requests = self.open_rows = 0

    def due(self, queue: Iterable[Inference], now: int) -> int | Wake:
        """Returns how many requests from the front to run now, or when to ask again (S21, S22). The queue must not be
        empty.

        Chosen is the longest run of requests with a preferred size. If the queue grows past the largest preferred size
        without meeting one, the requests before that are chosen. The oldest request need not be the first: priorities
        change the order.
        """
        max_rows, max_preferred, preferred = self._max_rows, self._max_preferred, self._preferred
        requests = rows = best = 0
        full = False
        oldest = now
        key: object = None
        for inference in queue:
            total = rows + (inference.batch_size or 1)
            if requests:
                # Past the largest preferred size no better batch will come.
                if total > max_preferred and not best:
                    best = requests
                if total > max_rows or inference.batch_key != key:
                    full = True
                    break
            else:
                key = inference.batch_key
            requests += 1
            rows = total
            queued = inference.times[_QUEUE_START]  # not in order: priorities change it
            if queued < oldest:
                oldest = queued
            if rows in preferred:
                best = requests
        # An overdue batch takes all that fits, not only a preferred size (S22).
        overdue_at = oldest + self.delay_ns
        overdue = self.delay_ns and now >= overdue_at
        if best and not overdue:
            return best
        if full or overdue or not self.delay_ns or rows >= max_preferred:
            return requests
        self.open_requests, self.open_rows = requests, rows
        return Wake(overdue_at)


class DynamicPolicy(FifoQueue):
    """Batches of the requests that have waited longest, without priorities.

    `start_at` holds everything back, once, until that many requests wait: the test hook TRITONSERVER_DELAY_SCHEDULER
    (C60). With `regrouping`, the next batch may wait a moment for the clients of the one before.
    """

    def __init__(
        self,
        max_batch_size: int,
        preferred: Sequence[int],
        delay_ns: int,
        start_at: int = 0,
        regrouping: Regrouping | None = None,
    ) -> None:
        super().__init__()
        self._forming = Forming(max_batch_size, preferred, delay_ns)
        self._regrouping = regrouping
        self._start_at = start_at
        self.allows_fast_path = not delay_ns and not start_at

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        waiting = self.waiting
        if not waiting or waiting < self._start_at:
            return None
        self._start_at = 0
        regrouping = self._regrouping
        if regrouping is not None and regrouping.until and regrouping.holds(self._in_order(), waiting, now):
            return Wake(regrouping.until)
        # Most often one waits, and that is quicker.
        is_alone = waiting == 1 and not self._forming.delay_ns
        taken = 1 if is_alone else self._forming.due(self._in_order(), now)
        if isinstance(taken, Wake):
            return taken
        batch = Batch(free[0], [self._pop() for _ in range(taken)])
        if regrouping is not None:
            regrouping.started(batch, self.waiting, now)
        return batch

    def freed(self, instance: int, now: int) -> None:
        if self._regrouping is not None:
            self._regrouping.finished(instance, self.waiting, now)
