"""A queue with priority levels, size limits and timeouts (S26 to S32). Reads no clock; loop thread.

Levels are served in order of their number, each in order of arrival.

    a request is   event                                        then
    ------------   ------------------------------------------   ------------------------------------------------
    (new)          admit: its level is full                     refused
    (new)          admit                                        punctual, with a deadline if its level has one
    punctual       its deadline passes, the level rejects       refused (`expire`)
    punctual       its deadline passes, the level delays        late: served after the punctual ones of its level
    punctual       its batch starts, or it is cancelled         out; its deadline is outdated
    late           its batch starts, or it is cancelled         out

Every operation but forming a batch takes constant time, or grows with the logarithm of the number that waits.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain, count

from halimede.errors import Error, TimedOut, Unavailable
from halimede.scheduling.dynamic import Forming
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import MAX_EXPIRED_PER_CALL, Batch, Refusals, Wake
from halimede.scheduling.regrouping import Regrouping

MIN_DEADLINES_TO_CLEAR = 64
"""A smaller heap of deadlines is not cleared of outdated ones."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How the requests of a level may wait (S27).

    max_size -- of them wait at most, 0 for no limit
    timeout_us -- how long one may wait, 0 for no limit
    allow_override -- a request may ask for less time
    delays -- a late request is served after the others of its level instead of being rejected
    """

    max_size: int = 0
    timeout_us: int = 0
    allow_override: bool = False
    delays: bool = False

    def timeout_of(self, inference: Inference) -> int:
        """Microseconds that the inference may wait, 0 for no limit (S29)."""
        wanted = inference.request.timeout_us
        return wanted if self.allow_override and 0 < wanted < self.timeout_us else self.timeout_us


class _Deadline:
    """The deadline of an inference; outdated if `inference` is None."""

    __slots__ = ("inference", "level")

    def __init__(self, inference: Inference, level: "_Level") -> None:
        self.inference: Inference | None = inference
        self.level = level


class _Level:
    """The waiting inferences of one level: the punctual ones with their deadlines, and the late ones."""

    __slots__ = ("late", "number", "punctual", "rules")

    def __init__(self, number: int, rules: QueueRules) -> None:
        self.number = number
        self.rules = rules
        self.punctual: OrderedDict[Inference, _Deadline | None] = OrderedDict()
        self.late: OrderedDict[Inference, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.punctual) + len(self.late)


class PriorityQueuePolicy:
    """The policy of the dynamic batcher if it has priorities, limits or timeouts.

    levels -- number of priority levels, 0 for one queue without levels
    default -- the level of requests without a valid one (H73)
    other -- the rules of the levels that have none of their own
    rules -- by level
    forming -- how batches are formed; without it each request is a batch
    start_at -- holds everything back, once, until this many requests wait; no deadline passes before (C60)
    regrouping -- lets the next batch wait a moment for the clients of the one before
    """

    def __init__(
        self,
        levels: int,
        default: int,
        other: QueueRules,
        rules: Mapping[int, QueueRules],
        forming: Forming | None = None,
        start_at: int = 0,
        regrouping: Regrouping | None = None,
    ) -> None:
        self._number = levels
        self._default = default if levels else 0
        self._other = other
        self._rules = rules
        self._forming = forming
        self._start_at = start_at
        self._regrouping = regrouping
        self._levels: dict[int, _Level] = {}
        self._filled: list[int] = []
        """The numbers of the levels that are not empty, in order."""
        self._deadlines: list[tuple[int, int, _Deadline]] = []
        """A heap by time; some may be outdated."""
        self._timed = 0
        """How many deadlines are not outdated."""
        self._order = count()
        self.waiting = 0

    def admit(self, inference: Inference, now: int) -> Error | None:
        level = self._level_of(inference)
        rules = level.rules
        if rules.max_size and len(level) >= rules.max_size:
            return Unavailable(inference.request.log_prefix + "Exceeds maximum queue size")
        deadline = None
        if rules.timeout_us:  # a request's own timeout counts only if its level has one (S29)
            deadline = _Deadline(inference, level)
            heappush(self._deadlines, (now + rules.timeout_of(inference) * 1000, next(self._order), deadline))
            self._timed += 1
        level.punctual[inference] = deadline
        self._added(level)
        if self._start_at and self.waiting >= self._start_at:
            self._start_at = 0  # held back once only
        return None

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        if not self.waiting or self._start_at:
            return None
        # `expire` has taken out as many as it may: the others that are due must not run.
        if 0 < self.expires_at <= now:
            return Wake(now)
        if self._forming is None:
            return Batch(free[0], (self._pop(),))
        regrouping = self._regrouping
        if regrouping is not None and regrouping.until and regrouping.holds(self._in_order(), self.waiting, now):
            return Wake(regrouping.until)
        taken = self._forming.due(self._in_order(), now)
        if isinstance(taken, Wake):
            return taken
        batch = Batch(free[0], [self._pop() for _ in range(taken)])
        if regrouping is not None:
            regrouping.started(batch, self.waiting, now)
        return batch

    def cancel(self, inference: Inference, now: int) -> bool:
        level = self._level_of(inference)
        if inference in level.punctual:
            self._outdate(level.punctual.pop(inference))
        elif inference in level.late:
            del level.late[inference]
        else:
            return False
        self._removed(level)
        return True

    @property
    def expires_at(self) -> int:
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].inference is None:
            heappop(deadlines)
        # While the test hook holds everything back, nothing is served, so nothing must time out either.
        return deadlines[0][0] if deadlines and not self._start_at else 0

    def expire(self, now: int) -> Refusals:
        refusals: Refusals = []
        for _ in range(MAX_EXPIRED_PER_CALL):
            if not 0 < self.expires_at <= now:
                break
            deadline = heappop(self._deadlines)[2]
            self._timed -= 1
            inference, level = deadline.inference, deadline.level
            if inference is None:  # for the type checker: `expires_at` has removed these
                continue
            del level.punctual[inference]
            if level.rules.delays:  # it still counts in `waiting`, and in the size of its level
                level.late[inference] = None
            else:
                self._removed(level)
                refusals.append((inference, TimedOut("Request timeout expired")))
        return refusals

    def freed(self, instance: int, now: int) -> None:
        if self._regrouping is not None:
            self._regrouping.finished(instance, self.waiting, now)

    def resize(self, instances: int, now: int) -> None:
        """The number of instances changes nothing."""

    def _level_of(self, inference: Inference) -> _Level:
        number = inference.request.priority
        if not 0 < number <= self._number:  # 0 asks for the default; a number beyond the levels gets it too (H73)
            number = self._default
        level = self._levels.get(number)
        if level is None:  # made on demand: a configuration may have millions of levels
            level = self._levels[number] = _Level(number, self._rules.get(number, self._other))
        return level

    def _added(self, level: _Level) -> None:
        self.waiting += 1
        if len(level) == 1:
            insort(self._filled, level.number)

    def _removed(self, level: _Level) -> None:
        self.waiting -= 1
        if not level:
            del self._filled[bisect_left(self._filled, level.number)]

    def _in_order(self) -> Iterable[Inference]:
        if len(self._filled) == 1:  # most often so, and quicker
            level = self._levels[self._filled[0]]
            if not level.late:
                return level.punctual
        levels = map(self._levels.__getitem__, self._filled)
        return chain.from_iterable(chain(level.punctual, level.late) for level in levels)

    def _pop(self) -> Inference:
        """Takes out the first waiting inference. There must be one."""
        level = self._levels[self._filled[0]]
        if level.punctual:  # the late ones of a level come after all punctual ones (S31)
            inference, deadline = level.punctual.popitem(last=False)
            self._outdate(deadline)
        else:
            inference, _ = level.late.popitem(last=False)
        self._removed(level)
        return inference

    def _outdate(self, deadline: _Deadline | None) -> None:
        """The inference waits no more. The deadline stays in the heap but must not keep it in memory."""
        if deadline is None:
            return
        deadline.inference = None
        self._timed -= 1
        if len(self._deadlines) > MIN_DEADLINES_TO_CLEAR and len(self._deadlines) > 2 * self._timed:
            self._deadlines = [entry for entry in self._deadlines if entry[2].inference is not None]
            heapify(self._deadlines)
