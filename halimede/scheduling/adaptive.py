"""Waiting for a better batch exactly as long as a latency target allows and as it pays: `Pace` and what asks it.

Pure, told the time; loop thread. What is learned, and why so, stands in docs/decisions/adaptive-batching.md.
"""

from collections.abc import Iterable, Sequence

from halimede.requests import Moment
from halimede.scheduling.dynamic import Forming
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Policy, Wake

_QUEUE_START = int(Moment.QUEUE_START)
_FAR = 1 << 62

MEMORY = 64
"""Batches that the costs are averaged over."""
WEIGHT = 0.1
"""Of the last try, in what is known of waiting at a number of rows."""
LEAST_SAVING = 0.1
"""Another request is waited for where it saves so much of what the batch takes."""
SCARCE = 0.8
"""Instances are, where they are busy for more of the time than that."""
CROWDED = 1.25
"""They would be, where requests that ran each on its own would keep so many times as many of them busy."""
UNLIKELY = 0.2
"""Nobody is waited for, though it costs nothing but time, where fewer of the tries brought another request."""
TRY_EVERY = 128
"""Where waiting does not pay, one in so many finds out whether that is still so."""
GAPS = 3.0
"""One that comes is waited for as long as so many usual gaps, but at least for a share of what may be spent on that:"""
LEAST_OF_SAVING, LEAST_OF_TARGET = 0.1, 0.25
DEVIATIONS = 4.0
"""By so many mean deviations a batch may take longer than expected."""
STEP, LATE, MOST_MARGIN = 0.1, 0.004, 0.9
"""Of the target: what is kept back after each batch that was late because it was made to wait, and the most of it. It
fades so slowly that in the end so few batches are late."""
EPISODE, BLOCK, SETTLES = 16, 3, 2
"""Batches of which it is told how many were served in what time, how many such figures make one side of a comparison,
and batches after a change that do not count."""
RESTS = 32, 512
"""Episodes until the other way is tried: at first and where not to wait has won, and at most; each trial that is lost
makes it four times as many."""


class Cost:
    """What a batch takes by its rows: a fixed part and a part for each row, by moving averages, in nanoseconds.

    While all batches were of one size nobody knows which part is which, and all of it counts as fixed: so larger ones
    are worth a try.
    """

    __slots__ = ("_covariance", "_ns", "_rows", "_runs", "_variance", "deviation")

    def __init__(self) -> None:
        self._runs = 0
        self._rows = self._ns = self._variance = self._covariance = 0.0
        self.deviation = 0.0

    def ran(self, rows: int, ns: int) -> None:
        if self._runs:
            miss = abs(ns - self.expected(rows))
            self.deviation += (miss - self.deviation) / min(self._runs, MEMORY)
        self._runs += 1
        share = 1 / min(self._runs, MEMORY)
        ahead_rows, ahead_ns = rows - self._rows, ns - self._ns
        self._rows += share * ahead_rows
        self._ns += share * ahead_ns
        self._variance += share * ((1 - share) * ahead_rows**2 - self._variance)
        self._covariance += share * ((1 - share) * ahead_rows * ahead_ns - self._covariance)

    @property
    def of_a_row(self) -> float:
        if self._variance < 0.01:
            return 0.0
        return min(max(self._covariance / self._variance, 0.0), self._ns / max(self._rows, 1.0))

    @property
    def fixed(self) -> float:
        """What one batch less saves."""
        return max(self._ns - self.of_a_row * self._rows, 0.0)

    def expected(self, rows: int) -> float:
        return self.fixed + self.of_a_row * rows


class _Odds:
    """What became of waiting while so many rows were there: `likely` is the share of tries in which another request
    came, `gap` after how long."""

    __slots__ = ("gap", "likely", "passed")

    def __init__(self) -> None:
        self.likely = 1.0
        self.gap = 0.0
        self.passed = 0

    def came(self, ns: int) -> None:
        self.likely += WEIGHT * (1 - self.likely)
        self.gap += WEIGHT * (ns - self.gap) if self.gap else ns
        self.passed = 0

    def stayed_away(self) -> None:
        self.likely -= WEIGHT * self.likely


class Trials:
    """Whether to wait at all where instances would be scarce without: what serves more. Clients that wait for their
    answers send while the batches of others run, and who keeps an instance free until they are all there may serve
    fewer."""

    def __init__(self) -> None:
        self.brisk = False
        """Nobody is waited for."""
        self._on_trial = False
        self._rates: list[float] = []
        self._usual: list[float] = []
        self._left = self._rest = RESTS[0]
        self._batches = self._rows = self._began = 0

    def ran(self, rows: int, now: int) -> None:
        self._batches += 1
        if self._batches <= SETTLES:
            self._rows, self._began = 0, now
            return
        self._rows += rows
        if self._batches < SETTLES + EPISODE:
            return
        self._rates = [*self._rates, self._rows / max(now - self._began, 1)][-BLOCK:]
        self._batches, self._rows, self._began = SETTLES, 0, now
        self._left -= 1
        if len(self._rates) < BLOCK or self._left > 0:
            return
        if self._on_trial:
            self._decide()
        else:
            self._usual, self._on_trial = self._rates, True
            self._change()

    def _decide(self) -> None:
        brisk, patient = (self._rates, self._usual) if self.brisk else (self._usual, self._rates)
        # The worst of these against the best of those: what comes at random, and is served anyhow, is waited for.
        won = (min(brisk) > max(patient)) is self.brisk
        self._on_trial = False
        if not won:
            self._rest = min(4 * self._rest, RESTS[1])
            self._change()
        elif self.brisk:
            self._rest = RESTS[0]
        self._left = self._rest

    def _change(self) -> None:
        self.brisk = not self.brisk
        self._rates, self._batches = [], 0


class Pace:
    """When a batch that could grow shall start, so that requests are answered within `target_ns` of their arrival."""

    def __init__(self, target_ns: int) -> None:
        self._target = target_ns
        self._cost = Cost()
        self._odds: dict[int, _Odds] = {}
        self._trials = Trials()
        self._running: dict[int, tuple[int, int, int, int]] = {}
        self._margin = STEP
        self._instances = 1
        self._busy = 0.0
        """How busy the instances are: between 0 and 1."""
        self._served = self._elapsed = 0.0
        """Rows and nanoseconds of late."""
        self._ended_at = 0
        self._rows = 0
        """While somebody is waited for: the rows that are there, else 0."""
        self._since = self._until = 0
        self._held_at = 0
        """Since when a batch that could have been started waits, 0 for none."""

    def resize(self, instances: int) -> None:
        """So many are there."""
        self._instances = max(instances, 1)

    def start_at(self, rows: int, oldest: int, now: int) -> int:
        """When to start this batch, an instance being free: now or earlier for at once. Asked again whenever a request
        comes, and at the time it said."""
        if rows != self._rows:
            if rows > self._rows:
                self._grew(now)
            self._rows, self._since = rows, now
            self._until = self._patience(rows, oldest, now)
        elif now >= self._until:
            self._odds_of(rows).stayed_away()
        if self._until > now and not self._held_at:
            self._held_at = now
        return self._until

    def started(self, instance: int, rows: int, oldest: int, now: int) -> None:
        if self._rows and rows > self._rows:
            self._grew(now)
        self._rows = 0
        held_ns = now - self._held_at if self._held_at else 0
        self._running[instance] = (now, rows, oldest, held_ns)
        self._held_at = 0

    def ended(self, instance: int, now: int) -> None:
        batch = self._running.pop(instance, None)
        since, self._ended_at = now - self._ended_at, now
        if batch is None:
            return
        began, rows, oldest, held_ns = batch
        self._cost.ran(rows, now - began)
        self._served += rows - self._served / MEMORY
        self._elapsed += since - self._elapsed / MEMORY
        self._busy += (min((now - began) / max(since * self._instances, 1), 1.0) - self._busy) / MEMORY
        if self._crowded:
            self._trials.ran(rows, now)
        if now - oldest - held_ns <= self._target < now - oldest:
            self._margin = min(self._margin + STEP, MOST_MARGIN)
        elif held_ns:
            self._margin = max(self._margin - STEP * LATE, 0.0)

    @property
    def _crowded(self) -> bool:
        return self._served * self._cost.expected(1) > CROWDED * self._elapsed * self._instances

    def _grew(self, now: int) -> None:
        """Somebody came while others were waiting for that."""
        if self._rows and self._until > self._since:
            self._odds_of(self._rows).came(now - self._since)

    def _patience(self, rows: int, oldest: int, now: int) -> int:
        """Until when it pays to wait for the next request. Where instances are scarce a wait costs work, and may cost
        less than it saves; else it costs nothing but time."""
        saving = self._cost.fixed
        if saving <= LEAST_SAVING * self._cost.expected(rows):
            return now
        odds = self._odds_of(rows)
        if self._trials.brisk and self._crowded:
            return now
        if self._busy > SCARCE:
            wait = min(max(GAPS * odds.gap, LEAST_OF_SAVING * saving), saving)
            pays = odds.likely * (saving - odds.gap) > (1 - odds.likely) * wait
        else:
            wait = max(GAPS * odds.gap, LEAST_OF_TARGET * self._target)
            pays = odds.likely >= UNLIKELY
        if not pays:
            odds.passed += 1
            if odds.passed % TRY_EVERY:
                return now
        return min(self._deadline(rows, oldest), now + int(wait))

    def _deadline(self, rows: int, oldest: int) -> int:
        """The latest start with which the oldest request is answered in time, as far as one can tell."""
        takes = self._cost.expected(rows + 1) + DEVIATIONS * self._cost.deviation
        return oldest + int(self._target * (1 - self._margin) - takes)

    def _odds_of(self, rows: int) -> _Odds:
        odds = self._odds.get(rows)
        if odds is None:
            odds = self._odds[rows] = _Odds()
        return odds


class PacedForming(Forming):
    """Forms batches as ever, but lets a `Pace` say how long one that could grow waits."""

    def __init__(self, max_batch_size: int, preferred: Sequence[int], pace: Pace) -> None:
        super().__init__(max_batch_size, preferred, _FAR)
        self._pace = pace

    def due(self, queue: Iterable[Inference], now: int) -> int | Wake:
        taken = super().due(queue, now)
        if not isinstance(taken, Wake):
            return taken
        at = self._pace.start_at(self.open_rows, taken.at - self.delay_ns, now)
        return self.open_requests if at <= now else Wake(at)


class AdaptivePolicy:
    """A policy whose forming asks `pace`: tells it what was started and how it ended."""

    def __init__(self, policy: Policy, pace: Pace) -> None:
        self._policy = policy
        self._pace = pace
        self.admit = policy.admit
        self.cancel = policy.cancel
        self.released = policy.released
        self.expire = policy.expire

    @property
    def waiting(self) -> int:
        return self._policy.waiting

    @property
    def expires_at(self) -> int:
        return self._policy.expires_at

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        step = self._policy.next(free, now)
        if isinstance(step, Batch):
            rows = sum(inference.rows for inference in step.rows)
            oldest = min(inference.times[_QUEUE_START] for inference in step.rows)
            self._pace.started(step.instance, rows, oldest, now)
        return step

    def resize(self, instances: int, now: int) -> None:
        self._pace.resize(instances)
        self._policy.resize(instances, now)

    def freed(self, instance: int, now: int) -> None:
        self._pace.ended(instance, now)
        self._policy.freed(instance, now)
