"""Adaptive batching: a batch that could grow waits until a latency target forces it to start.

It starts at once if larger batches save little, or if the next request seldom came soon. Reads no clock, times are
nanoseconds; loop thread. Figures: docs/decisions/adaptive-batching.md.
"""

from collections.abc import Iterable, Sequence

from halimede.scheduling.cost import Cost
from halimede.scheduling.dynamic import Forming
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Policy, Wake

_NO_DELAY_LIMIT = 1 << 62
MIN_SAVING = 0.1
"""Share of a batch's time that one batch less must save for a wait to pay."""
MAX_GAP = 2.0
"""A wait pays if the next request comes within this multiple of what one batch less saves."""
MIN_CHANCE = 0.5
"""Share of the waits that must pay for further ones to be made."""
CHANCE_WEIGHT = 0.1
"""Weight of the latest wait in that share."""
TRIAL_EVERY = 128
"""Of the waits that do not pay, one in this number is made, to notice if they pay again."""
MARGIN = 0.3
"""Share of the target that is kept back for batches that take longer than expected."""


class Pace:
    """Decides when a batch that could grow starts, so that requests are answered within `target_ns`."""

    def __init__(self, target_ns: int) -> None:
        self._target, self._cost = target_ns, Cost()
        self._running: dict[int, tuple[int, int]] = {}  # by instance: start and rows of its batch
        self._chances: dict[int, float] = {}  # by rows: share of the waits that paid
        self._skipped = 0  # waits that were not made, as they do not pay
        self._rows = self._until = 0  # of the batch that could grow; no rows if there is none
        self._since = 0  # when its wait began; 0 if it does not wait

    def start_at(self, rows: int, oldest: int, now: int) -> int:
        """When to start a batch with this arrival of its oldest request; `now` or earlier for at once. Asked while an
        instance is free: whenever a request comes, and at the time that it returned."""
        if rows != self._rows:  # else the decision stands: the time of asking must not change it
            self._end_wait(rows, now)
            self._rows, self._until = rows, self._latest(rows, oldest, now)
            self._since = now if self._until > now else 0
        return self._until

    def started(self, instance: int, rows: int, now: int) -> None:
        self._end_wait(rows, now)
        self._rows = self._since = 0
        self._running[instance] = now, rows

    def finished(self, instance: int, now: int) -> None:
        start, rows = self._running.pop(instance)
        self._cost.ran(rows, now - start)

    def _end_wait(self, rows: int, now: int) -> None:
        """The batch that could grow has `rows` rows now. Fewer than before says nothing: a request was cancelled."""
        if self._since and rows >= self._rows:
            paid = rows > self._rows and now - self._since <= MAX_GAP * self._cost.fixed
            chance = self._chances.get(self._rows, 1.0)
            self._chances[self._rows] = chance + CHANCE_WEIGHT * (paid - chance)

    def _latest(self, rows: int, oldest: int, now: int) -> int:
        """The latest start that answers the oldest request in time, or `now` if waiting does not pay."""
        if (saving := self._cost.fixed) <= MIN_SAVING * self._cost.expected(rows):
            return now  # a batch costs what its rows cost, so waiting gains nothing
        latest = oldest + int(self._target * (1 - MARGIN) - self._cost.expected(rows + 1))
        if self._chances.get(rows, 1.0) >= MIN_CHANCE:
            return latest
        self._skipped += 1
        # A trial costs clients that wait for their answers, so it lasts no longer than what it can save.
        return min(latest, now + int(saving)) if self._skipped % TRIAL_EVERY == 0 else now


class PacedForming(Forming):
    """Forms batches as its base does, except that a `Pace` says how long one that could grow waits."""

    def __init__(self, max_batch_size: int, preferred: Sequence[int], pace: Pace) -> None:
        super().__init__(max_batch_size, preferred, _NO_DELAY_LIMIT)
        self._pace = pace

    def due(self, queue: Iterable[Inference], now: int) -> int | Wake:
        taken = super().due(queue, now)
        if not isinstance(taken, Wake):  # it is full, so it cannot grow
            return taken
        at = self._pace.start_at(self.open_rows, taken.at - self.delay_ns, now)
        return self.open_requests if at <= now else Wake(at)


class AdaptivePolicy:
    """A policy whose forming asks `pace`. Reports batches to it as they start and finish."""

    def __init__(self, policy: Policy, pace: Pace) -> None:
        self._policy, self._pace = policy, pace
        self.admit, self.cancel, self.expire, self.resize = policy.admit, policy.cancel, policy.expire, policy.resize

    @property
    def waiting(self) -> int:
        return self._policy.waiting

    @property
    def expires_at(self) -> int:
        return self._policy.expires_at

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        step = self._policy.next(free, now)
        if isinstance(step, Batch):
            self._pace.started(step.instance, sum(inference.rows for inference in step.rows), now)
        return step

    def freed(self, instance: int, now: int) -> None:
        self._pace.finished(instance, now)
        self._policy.freed(instance, now)
