"""Waiting for a better batch exactly as long as a latency target allows and as it pays: `Pace` and what asks it.

Pure, told the time; loop thread. What is learned, and why so, stands in docs/decisions/adaptive-batching.md.
"""

from collections.abc import Iterable, Sequence
from math import log, sqrt

from halimede.errors import Error
from halimede.requests import Stamp
from halimede.scheduling.dynamic import Forming
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Policy, Wake

_QUEUE_START = int(Stamp.QUEUE_START)
_FAR = 1 << 62

MEMORY = 64
"""Batches that the costs are averaged over."""
WEIGHT = 0.1
"""Of the last try, in what is known of waiting at a number of rows."""
LEAST_SAVING = 0.1
"""Another request is waited for where it saves so much of what the batch takes."""
UNLIKELY = 0.2
"""Where requests come at random nobody is waited for who came in fewer of the tries."""
TRY_EVERY = 128
"""Where waiting does not pay, one in so many finds out whether that is still so."""
GAPS, LEAST_OF_SAVING = 3.0, 0.1
"""A client that comes is waited for as long as so many usual gaps, but at least for such a share of what it saves."""
LATE, STEP, FIRST_MARGIN, MOST_MARGIN = 0.007, 0.02, 0.2, 0.5
"""So many of the requests may be late; each that is keeps so much of the target back, and as many as may come for one
late take that away again; what is kept back at first; and the most, as who hardly waits is busy, and late for that."""
LOOKS, BLOCKS = 64, 8
"""Arrivals after which it is looked whether they come at random, and looks that the result is averaged over."""
FEWER, ALIKE = -0.13, -0.06
"""Deviations from what is here at any time: who finds so many fewer waits for answers; who finds as many does not."""
LEAST_VARIANCE = 1e-4
"""Of how many are here, so that it can be divided by."""
BRISK, SOME, GATHER = WAYS = range(3)
"""Ways of waiting for clients: not at all; until the oldest request has waited for a share of what a batch less saves;
until an instance has waited for that."""
SHARE = 0.5
"""Of what a batch less saves."""
EPISODE, ROWS, SETTLES = 16, 64, 4
"""Batches and rows of which it is told how many are served in what time; batches after a change that do not count."""
OUTLIER = 6
"""So many usual times between the ends of two batches are the most that counts: a hiccup is nobody's fault."""
ROUNDS, SURE, CHANCE = 10, 2.0, 0.01
"""Episodes of each way that a trial takes at most; standard errors behind the best with which one is out; the variance
that is thought of before there are figures."""
RESTS = 16, 256
"""Episodes until the ways are tried again: at first, and at most, as each trial that changes nothing doubles it."""
ELSE = 0.3
"""So much more or less served than before makes another load of it, and they are tried at once."""


class Cost:
    """What a batch takes by its rows: a fixed part and a part for each row, by moving averages, in nanoseconds.

    While all batches were of one size nobody knows which part is which, and all of it counts as fixed: so larger ones
    are worth a try.
    """

    __slots__ = ("_covariance", "_ns", "_rows", "_runs", "_variance")

    def __init__(self) -> None:
        self._runs = 0
        self._rows = self._ns = self._variance = self._covariance = 0.0

    def ran(self, rows: int, ns: int) -> None:
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


class Census:
    """Whether requests come because others were answered.

    Those that come at random find as many others here as there are at any time; clients that wait for their answers
    send when there are fewer.
    """

    def __init__(self) -> None:
        self.answering = True
        self._lean = 0.0
        """How many fewer they find, in standard deviations of what is here."""
        self._blocks = self._come = self._found = 0
        self._time = self._area = self._squares = 0
        """Nanoseconds, and over them the number that was here and its square."""
        self._at = 0

    def passed(self, present: int, now: int) -> None:
        """So many requests were here until now. What is told late is left out."""
        if now <= self._at:
            return
        since, self._at = now - (self._at or now), now
        self._time += since
        present_since = present * since
        self._area += present_since
        self._squares += present * present_since

    def came(self, present: int, now: int) -> None:
        """Another one came, and found so many."""
        self.passed(present, now)
        self._found += present
        self._come += 1
        if self._come >= LOOKS and self._time:
            self._look()

    def _look(self) -> None:
        mean = self._area / self._time
        variance = self._squares / self._time - mean * mean
        lean = (self._found / self._come - mean) / sqrt(max(variance, LEAST_VARIANCE))
        self._blocks = min(self._blocks + 1, BLOCKS)
        self._lean += (min(max(lean, -1.0), 1.0) - self._lean) / self._blocks
        self.answering = self._lean < (ALIKE if self.answering else FEWER)
        self._come = self._found = self._time = self._area = self._squares = 0


class Trials:
    """Which way of waiting serves most. Each in turn has an episode, and again, until all but one are surely behind."""

    def __init__(self) -> None:
        self.way = SOME
        self._rates: dict[int, list[float]] = {}
        """Of those that are on trial, logarithms of what was served a nanosecond, an episode each; empty between."""
        self._settled = -1
        self._left, self._rest = 1, RESTS[0]
        self._lately = self._usually = 0.0
        """Rates between trials."""
        self._batches = self._rows = 0
        self._ended_at = 0
        self._usual = self._time = 0.0
        """Nanoseconds between the ends of two batches, and of the episode so far."""

    def ran(self, rows: int, now: int) -> None:
        since = min(now - self._ended_at, OUTLIER * self._usual or _FAR) if self._ended_at else 0
        self._ended_at = now
        self._usual += (since - self._usual) / (MEMORY if self._usual else 1)
        self._batches += 1
        if self._batches <= SETTLES:
            self._rows = 0
            self._time = 0.0
            return
        self._time += since
        self._rows += rows
        if self._batches < SETTLES + EPISODE or self._rows < ROWS:
            return
        rate = self._rows / max(self._time, 1.0)
        self._batches, self._rows, self._time = SETTLES, 0, 0.0
        if self._rates:
            self._rates[self.way].append(log(rate))
            self._go_on()
        else:
            self._rested(rate)

    def _rested(self, rate: float) -> None:
        if not self._usually:
            self._lately = self._usually = rate
        self._lately += (rate - self._lately) / 4
        self._usually += (rate - self._usually) / 32
        self._left -= 1
        if abs(self._lately - self._usually) > ELSE * self._usually:
            self._left, self._settled = 0, -1
        if self._left <= 0:
            self._rates = {way: [] for way in WAYS}
            self._go_on()

    def _go_on(self) -> None:
        """To the way whose turn it is, or from a trial that is over to the best."""
        rates = self._rates
        way = min(rates, key=lambda each: len(rates[each]))
        number = len(rates[way])
        if number and number == max(map(len, rates.values())):
            best = max(rates, key=lambda each: sum(rates[each]))
            self._rates = rates = {each: found for each, found in rates.items() if not _behind(found, rates[best])}
            way = next(iter(rates))
            if len(rates) == 1 or number == ROUNDS:
                way = best
                self._rest = min(2 * self._rest, RESTS[1]) if best == self._settled else RESTS[0]
                self._settled, self._left, self._usually, self._rates = best, self._rest, 0.0, {}
        if way != self.way:
            self.way, self._batches = way, 0


def _behind(found: Sequence[float], best: Sequence[float]) -> bool:
    """Whether these are surely less."""
    number = len(found)
    ahead = [other - one for one, other in zip(found, best, strict=True)]
    mean = sum(ahead) / number
    return mean > SURE * sqrt(CHANCE + sum((each - mean) ** 2 for each in ahead)) / number


class Pace:
    """When a batch that could grow shall start, so that requests are answered within `target_ns` of their arrival."""

    def __init__(self, target_ns: int) -> None:
        self._target = target_ns
        self._census = Census()
        self._cost = Cost()
        self._odds: dict[int, _Odds] = {}
        self._trials = Trials()
        self._running: dict[int, tuple[int, int, Sequence[int], bool]] = {}
        self._requests = 0
        """In batches that run."""
        self._margin = FIRST_MARGIN
        self._rows = 0
        """While somebody is waited for: the rows that are there, else 0."""
        self._since = self._until = 0
        self._held_at = 0
        """Since when a batch that could have been started waits, 0 for none."""

    def came(self, waiting: int, now: int) -> None:
        """A request comes; so many wait."""
        self._census.came(waiting + self._requests, now)

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

    def started(self, instance: int, rows: int, arrivals: Sequence[int], now: int) -> None:
        """`arrivals` are the times at which its requests came."""
        if self._rows and rows > self._rows:
            self._grew(now)
        self._rows = self._held_at = 0
        self._requests += len(arrivals)
        self._running[instance] = (now, rows, arrivals, self._census.answering)

    def ended(self, instance: int, waiting: int, now: int) -> None:
        """A batch ended; so many requests wait."""
        self._census.passed(waiting + self._requests, now)
        batch = self._running.pop(instance, None)
        if batch is None:
            return
        began, rows, arrivals, answering = batch
        self._requests -= len(arrivals)
        self._cost.ran(rows, now - began)
        if answering:
            self._trials.ran(rows, now)
        else:
            late = sum(now - arrival > self._target for arrival in arrivals)
            margin = self._margin + STEP * (late - LATE * len(arrivals))
            self._margin = min(max(margin, 0.0), MOST_MARGIN)

    def _grew(self, now: int) -> None:
        """Somebody came while others were waiting for that."""
        if self._rows and self._until > self._since:
            self._odds_of(self._rows).came(now - self._since)

    def _patience(self, rows: int, oldest: int, now: int) -> int:
        """Until when to wait for the next request."""
        saving = self._cost.fixed
        if saving <= LEAST_SAVING * self._cost.expected(rows):
            return now
        odds = self._odds_of(rows)
        if self._census.answering:
            way = self._trials.way
            if way == BRISK:
                return now
            wait = min(max(GAPS * odds.gap, LEAST_OF_SAVING * saving), saving)
            pays = odds.likely * (saving - odds.gap) > (1 - odds.likely) * wait
            latest = (oldest if way == SOME else self._held_at or now) + int(SHARE * saving)
            until = min(latest, now + int(wait))
        else:
            until, pays = self._latest(rows, oldest), odds.likely >= UNLIKELY
        if not pays:
            odds.passed += 1
            if odds.passed % TRY_EVERY:
                return now
        return until

    def _latest(self, rows: int, oldest: int) -> int:
        """The latest start with which the oldest request is answered in time, as far as one can tell."""
        return oldest + int(self._target * (1 - self._margin) - self._cost.expected(rows + 1))

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
    """A policy whose forming asks `pace`; tells it what came, what was started and how it ended."""

    def __init__(self, policy: Policy, pace: Pace) -> None:
        self._policy = policy
        self._pace = pace
        self.cancel = policy.cancel
        self.released = policy.released
        self.expire = policy.expire
        self.resize = policy.resize

    @property
    def waiting(self) -> int:
        return self._policy.waiting

    @property
    def expires_at(self) -> int:
        return self._policy.expires_at

    def admit(self, inference: Inference, now: int) -> Error | None:
        self._pace.came(self._policy.waiting, now)
        return self._policy.admit(inference, now)

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        step = self._policy.next(free, now)
        if isinstance(step, Batch):
            rows = sum(inference.rows for inference in step.rows)
            self._pace.started(step.instance, rows, [inference.times[_QUEUE_START] for inference in step.rows], now)
        return step

    def freed(self, instance: int, now: int) -> None:
        self._pace.ended(instance, self._policy.waiting, now)
        self._policy.freed(instance, now)
