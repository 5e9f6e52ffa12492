"""Keeps clients that wait for their answers together in one batch. Pure; loop thread.

Four such clients are often served in batches of one and three: while three run, the fourth waits, and its batch would
start before the three have sent their next requests. So a batch that could grow waits a moment after the one before.
Figures: docs/decisions/regrouping.md.
"""

from collections.abc import Iterable

from halimede.scheduling.cost import Cost
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch

MIN_BATCH_NS = 4_000_000
"""After a quicker batch none waits. Clients need some tenths of a millisecond to come back."""
MAX_SHARE = 0.08
"""The longest wait, as a share of the time of the batch before."""
MAX_SAVING_SHARE = 0.25
"""The longest wait, as a share of what one batch less saves."""
SKIPPED = 16
"""If no request comes during a wait, this number of later waits is skipped."""


class Regrouping:
    """Decides whether the next batch waits. `max_rows` is the size of the largest batch."""

    __slots__ = ("_cost", "_expected", "_held", "_max_rows", "_running", "_skips", "until")

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._cost = Cost()
        # By instance: start, batch, requests that it left in the queue.
        self._running: dict[int, tuple[int, Batch, int]] = {}
        self._expected = 0  # requests that may come together
        self._held = 0  # requests that waited when a batch was held back; 0 if none was
        self._skips = 0  # waits that are still to be skipped
        self.until = 0
        """The end of the wait; 0 if there is none."""

    def started(self, batch: Batch, waiting: int, now: int) -> None:
        """`waiting` requests are left in the queue."""
        if self._held:
            self._skips = 0 if len(batch.rows) > self._held else SKIPPED
        self.until = self._held = 0
        self._running[batch.instance] = now, batch, waiting

    def finished(self, instance: int, waiting: int, now: int) -> None:
        running = self._running.pop(instance, None)
        if running is None or (took := now - running[0]) < MIN_BATCH_NS:
            return
        _, batch, left = running
        self._cost.ran(sum(inference.rows for inference in batch.rows), took)
        # Requests that it left did not fit, so the next batch has no room for those that it answers.
        if left:
            return
        if self._skips:
            self._skips -= 1
            return
        self._expected = len(batch.rows) + waiting
        self.until = now + int(min(MAX_SHARE * took, MAX_SAVING_SHARE * self._cost.fixed))

    def holds(self, queue: Iterable[Inference], waiting: int, now: int) -> bool:
        """Whether the requests that wait are held back until `until`."""
        if now >= self.until or waiting >= self._expected:
            return False
        if sum(inference.rows for inference in queue) >= self._max_rows:
            return False
        self._held = self._held or waiting
        return True
