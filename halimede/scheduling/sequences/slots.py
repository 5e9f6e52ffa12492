"""Assigns slots to sequences and keeps those that wait for one: shared by both strategies (S50 to S57, S65, S72, S73).

A slot is a place for one sequence at an instance. A run has the requests that share a slot: those of one sequence, and
of another one if START comes while the id is live.

    state of a run     kept in               event                                 next state
    ----------------   -------------------   -----------------------------------   ------------------------------------
    (new)              -                     START of an unknown id                placed; backlog if no slot is free
    backlog            `_live`, `_backlog`   a slot is free                        placed
    backlog            `_live`, `_backlog`   END, cancel                           backlog, closing
    backlog            `_live`, `_backlog`   its shortest timeout passes           gone, its requests are refused
    backlog, closing   `_backlog`            a slot is free                        placed, closing
    backlog, closing   `_backlog`            its timeout passes; a cancel          gone
                                             leaves no request
    backlog, placed    `_live`               START of its id                       as before; new states, no new slot
    placed             `_live`, `_used`      END, cancel, idle timeout             placed, closing
    placed             `_live`, `_used`      an iterative request has run          placed, closing
    placed, closing    `_used`               nothing is queued, nothing is held    gone, its slot to the next run

The requests of a run wait in its queue until the strategy takes them. A closing run takes no more requests. The time
for one request is constant, or grows with the logarithm of the number of sequences. Reads no clock; loop thread.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from operator import attrgetter
from typing import NamedTuple

from halimede.errors import Error, Invalid, TimedOut, Unavailable
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import MAX_EXPIRED_PER_CALL, Batch, Refusals, Wake
from halimede.scheduling.refusals import STOPPING, cancelled
from halimede.scheduling.sequences.controls import Controls
from halimede.scheduling.states import SequenceStates
from halimede.tensors import Tensor

log = logging.getLogger(__name__)

MIN_TIMES_TO_CLEAR = 64
"""A smaller heap of times is not cleared of outdated ones."""
CONFLICTS_PERIOD_NS = 1_000_000_000
"""Time between two lines of the log about sequences that start again."""


@dataclass(frozen=True, slots=True)
class SequenceRules:
    """What the configuration of a model says of its sequences.

    model -- its name, for error texts
    slots -- sequences at a time on each instance
    idle_ns -- a sequence ends after this time without a request
    iterative -- a single request is a sequence, which ends when the model does not run it again
    begin -- makes the states of a sequence at each START; None if the server keeps none
    indices -- the instances that serve; None for the first ones, as many as `resize` says
    """

    model: str
    slots: int
    idle_ns: int
    controls: Controls
    iterative: bool = False
    begin: Callable[[], SequenceStates | None] | None = None
    indices: Sequence[int] | None = None


class SequenceRun:
    """The requests of one sequence, from its START until the last one has run. When it is closing, its id may start
    another run. A START before that begins another sequence in this run: earlier requests keep their states.

    queue -- the requests that wait
    running -- how many requests run (direct strategy)
    issued -- the request that the oldest strategy has given to its batcher
    closing -- it takes no more requests
    instance, slot -- -1 while it waits in the backlog
    """

    __slots__ = (
        "closing",
        "expires_at",
        "id",
        "id_tensor",
        "idle_at",
        "instance",
        "issued",
        "queue",
        "running",
        "slot",
        "states",
        "was_idle",
    )

    def __init__(self, correlation_id: int | str, id_tensor: Tensor | None) -> None:
        self.id = correlation_id
        self.id_tensor = id_tensor
        self.queue: deque[Inference] = deque()
        self.closing = False
        self.running = 0
        self.issued: Inference | None = None
        self.instance = -1
        self.slot = -1
        self.states: SequenceStates | None = None
        self.idle_at = 0
        """When it ends without another request; 0 while in the backlog or closing."""
        self.was_idle = False
        """Whether it was closed by the idle timeout."""
        self.expires_at = 0
        """Until when it may wait for a slot; 0 for no limit."""


class _Times:
    """Runs, ordered by the time when they are due. `due` returns this time, 0 for never. The time of a run may become
    later after it was added; then `pop` puts the run back."""

    def __init__(self, due: Callable[[SequenceRun], int]) -> None:
        self._due = due
        self._heap: list[tuple[int, int, SequenceRun]] = []
        self._order = count()
        self._living = 0

    def add(self, run: SequenceRun) -> None:
        heappush(self._heap, (self._due(run), next(self._order), run))
        self._living += 1

    def outdated(self) -> None:
        """A run that was added is not due any more."""
        self._living -= 1
        heap = self._heap
        if len(heap) > MIN_TIMES_TO_CLEAR and len(heap) > 2 * self._living:
            self._heap = [entry for entry in heap if self._due(entry[2])]
            heapify(self._heap)
            self._living = len(self._heap)

    @property
    def first(self) -> int:
        """When to call `pop`, 0 for never. No run is due before."""
        heap = self._heap
        while heap and not self._due(heap[0][2]):
            heappop(heap)
        return heap[0][0] if heap else 0

    def pop(self, now: int) -> SequenceRun | None:
        """Takes out a run that is due; None if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, run = heappop(heap)
            at = self._due(run)
            if at > now:  # it has become later
                heappush(heap, (at, next(self._order), run))
            elif at:
                self._living -= 1
                return run
        return None


class SequencePolicy:
    """Base of both strategies: owns the slots, the backlog and all requests that wait. A strategy forms the batches of
    the runs that have a slot."""

    def __init__(self, rules: SequenceRules) -> None:
        self.iterative = rules.iterative
        self._rules = rules
        self._controls = rules.controls
        self._live: dict[int | str, SequenceRun] = {}
        """The runs that take more requests, by id."""
        self._backlog: OrderedDict[SequenceRun, None] = OrderedDict()
        self._free: list[tuple[int, int]] = []
        """A heap of free slots: number, instance (S54). Of the slots of an instance that were never used only the first
        is in it, since a configuration may have millions of slots."""
        self._untouched: dict[int, int] = {}
        """By instance, its first slot that was never used."""
        self._used: dict[int, set[int]] = {}
        """By instance, the slots that are taken; includes instances that take no new sequences."""
        self._serving: set[int] = set()
        self._idle = _Times(attrgetter("idle_at"))
        self._slot_timeouts = _Times(attrgetter("expires_at"))
        self._refused: Refusals = []
        self._ids = count(1)
        self._stopping = False
        self._next_line = 0
        self._unlogged = 0
        self._left: dict[int, Callable[[int], None]] = {}
        """By removed instance, what to call when its last sequence has ended."""
        self.waiting = 0

    # ---- implemented by a strategy

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        """The batch that is due. Its requests run on the instance of their sequences."""
        raise NotImplementedError

    def wants(self, instance: int) -> bool:
        raise NotImplementedError

    def _ready(self, run: SequenceRun, now: int) -> None:
        """A run has got its slot, or has another request at the head of its queue."""
        raise NotImplementedError

    def _placed(self, instance: int) -> None:
        """An instance was added."""

    def _forgotten(self, instance: int) -> None:
        """An instance was removed, and its last sequence has ended."""

    def _taken_back(self, inference: Inference, run: SequenceRun, now: int) -> bool:
        """Takes back a request that the strategy has taken out of the queue and that does not run yet. Returns False if
        it has none."""
        return False

    def _holds(self, run: SequenceRun) -> bool:
        """Whether a closing run with an empty queue keeps its slot."""
        raise NotImplementedError

    def _has_run(self, inference: Inference, run: SequenceRun) -> None:
        """A request of the run has left its instance."""
        raise NotImplementedError

    # ---- requests arrive

    def admit(self, inference: Inference, now: int) -> Error | None:
        """Queues the request, or returns an error. The checks are in Triton's order (H72, S51, S50, S3, S52)."""
        request, rules = inference.request, self._rules
        correlation_id = request.correlation_id
        # A request without an id may be of an iterative sequence, whose id the server makes.
        if correlation_id and (problem := self._controls.problem(correlation_id, rules.model)) is not None:
            return problem.prefixed(request.log_prefix)
        if inference.batch_size > 1:
            return Invalid(
                f"inference request to model '{rules.model}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            )
        if not correlation_id:
            if not self.iterative:
                return Invalid(
                    f"inference request to model '{rules.model}' must specify a non-zero or non-empty correlation ID"
                )
            correlation_id = request.correlation_id = self._new_id()
            request.sequence_start = True
        if request.sequence_start and self._stopping:  # also of a live id: it would begin another sequence
            return Unavailable(STOPPING)
        run = self._live.get(correlation_id)
        if run is None and not request.sequence_start:
            return Invalid(
                f"inference request for sequence {correlation_id} to model '{rules.model}' must specify the START flag "
                "on the first request of the sequence"
            )
        self._accept(inference, run, now)
        return None

    def _accept(self, inference: Inference, run: SequenceRun | None, now: int) -> None:
        request, rules = inference.request, self._rules
        # `begin` may raise, so nothing is changed before.
        states = rules.begin() if request.sequence_start and rules.begin is not None else None
        is_new = run is None
        if run is None:
            correlation_id = request.correlation_id
            run = self._live[correlation_id] = SequenceRun(correlation_id, self._controls.id_tensor(correlation_id))
            self._assign(run)
        elif request.sequence_start:
            self._note_conflict(run, now)
        if request.sequence_start:
            # The requests that are in the queue already keep the states of their own sequence.
            run.states = states
        inference.states = run.states
        inference.sequence = run
        inference.waits = True
        run.queue.append(inference)
        self.waiting += 1
        if request.sequence_end:
            self._close(run)
        elif run.instance >= 0:  # a sequence in the backlog does not become idle (S56)
            self._count_idle(run, now)
        if run.instance < 0:
            self._wait_for_slot(run, inference, now, is_new)
        elif len(run.queue) == 1:  # else the strategy knows that the run has requests
            self._ready(run, now)

    def _note_conflict(self, run: SequenceRun, now: int) -> None:
        """Logs that a sequence starts again. Clients can cause any number of such lines, so most are only counted."""
        if now < self._next_line:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last such line)" if self._unlogged else ""
        self._next_line, self._unlogged = now + CONFLICTS_PERIOD_NS, 0
        # Triton's text. Nothing is terminated: the requests of the previous sequence still run.
        log.warning(
            "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence start. "
            "Previous sequence will be terminated early.%s",
            run.id,
            self._rules.model,
            more,
        )

    def _new_id(self) -> int:
        """A correlation id for an iterative request without one (S72)."""
        return next(number for number in self._ids if number not in self._live)

    def _assign(self, run: SequenceRun) -> None:
        """Gives the run the free slot with the lowest number, if there is one (S54)."""
        if self._free:
            run.slot, run.instance = self._take_slot()

    def _take_slot(self) -> tuple[int, int]:
        number, instance = heappop(self._free)
        if number == self._untouched[instance]:  # the next one that was never used takes its place in the heap
            self._untouched[instance] = number + 1
            if number + 1 < self._rules.slots:
                heappush(self._free, (number + 1, instance))
        self._used[instance].add(number)
        return number, instance

    def _wait_for_slot(self, run: SequenceRun, inference: Inference, now: int, is_new: bool) -> None:
        """Keeps a run in the backlog, for the shortest timeout of its requests (S57)."""
        if is_new:
            self._backlog[run] = None
        timeout_us = inference.request.timeout_us
        if timeout_us:
            at = now + timeout_us * 1000
            if not run.expires_at or at < run.expires_at:
                # An entry of the heap can only become later, so an earlier time is another entry.
                if run.expires_at:
                    self._slot_timeouts.outdated()
                run.expires_at = at
                self._slot_timeouts.add(run)

    def _count_idle(self, run: SequenceRun, now: int) -> None:
        """Restarts the idle timeout of a run."""
        is_first = not run.idle_at
        run.idle_at = now + self._rules.idle_ns
        if is_first:  # else its entry is in the heap, and moves when it comes up
            self._idle.add(run)

    # ---- sequences end

    def _close(self, run: SequenceRun) -> None:
        """The run takes no more requests; those that wait still run."""
        run.closing = True
        if self._live.get(run.id) is run:  # else another run has the id already
            del self._live[run.id]
        if run.idle_at:
            run.idle_at = 0
            self._idle.outdated()

    def _end_if_done(self, run: SequenceRun, now: int) -> None:
        """Ends a closing run of which nothing is left. The first run of the backlog gets its slot, with all its
        requests (S55)."""
        if not run.closing or run.queue or self._holds(run):
            return
        if run.instance < 0:
            self._leave_backlog(run)
            return
        slot, instance = run.slot, run.instance
        run.slot = run.instance = -1
        run.states = None
        self._used[instance].discard(slot)
        if instance not in self._serving:  # it was removed: no other run gets its slot
            self._report_if_gone(instance)
        elif self._backlog:
            self._promote(slot, instance, now)
        else:
            heappush(self._free, (slot, instance))

    def _promote(self, slot: int, instance: int, now: int) -> None:
        run = next(iter(self._backlog))
        self._leave_backlog(run)
        run.slot, run.instance = slot, instance
        self._used[instance].add(slot)
        if not run.closing:  # it ended while it waited: its requests run, and nothing more comes
            self._count_idle(run, now)
        self._ready(run, now)

    def _leave_backlog(self, run: SequenceRun) -> None:
        if run in self._backlog:
            del self._backlog[run]
        if run.expires_at:
            run.expires_at = 0
            self._slot_timeouts.outdated()

    def released(self, inference: Inference, now: int, again: bool) -> None:
        run: SequenceRun = inference.sequence
        self._has_run(inference, run)
        if again:
            self._run_again(inference, run, now)
            return
        if self.iterative and not run.closing:  # the model is done with the request, which was the whole sequence
            self._close(run)
        self._end_if_done(run, now)

    def _run_again(self, inference: Inference, run: SequenceRun, now: int) -> None:
        """Puts the request back at the front of its run, without its START and END (S72). The run has kept its slot."""
        request = inference.request
        request.sequence_start = request.sequence_end = False
        inference.waits = True
        run.queue.appendleft(inference)
        self.waiting += 1
        if not run.closing:
            self._count_idle(run, now)
        self._ready(run, now)

    def cancel(self, inference: Inference, now: int) -> bool:
        """A cancelled request ends its sequence: requests behind it are refused, those before it still run (S65)."""
        run: SequenceRun | None = inference.sequence
        if run is None or not inference.waits:
            return False
        if not self._taken_back(inference, run, now):  # it is in the queue of its run
            while (last := run.queue.pop()) is not inference:
                self._refuse_later(last)
            self._out(inference)
        else:
            while run.queue:
                self._refuse_later(run.queue.pop())
        if not run.closing:
            self._close(run)
        self._shortened(run)
        self._end_if_done(run, now)
        return True

    def _refuse_later(self, inference: Inference) -> None:
        self._out(inference)
        # The runner asks for these by `expire`: `cancel` itself only answers the one request.
        self._refused.append((inference, cancelled(inference)))

    def _out(self, inference: Inference) -> None:
        inference.waits = False
        self.waiting -= 1

    def _shortened(self, run: SequenceRun) -> None:
        """Requests were taken out of the queue of a run, possibly all."""

    # ---- timeouts

    @property
    def expires_at(self) -> int:
        if self._refused:  # at once
            return 1
        idle, timeout = self._idle.first, self._slot_timeouts.first
        return min(idle, timeout) if idle and timeout else idle or timeout

    def expire(self, now: int) -> Refusals:
        while len(self._refused) < MAX_EXPIRED_PER_CALL and (run := self._slot_timeouts.pop(now)) is not None:
            self._expired(run)
        for _ in range(MAX_EXPIRED_PER_CALL):
            if (run := self._idle.pop(now)) is None:
                break
            run.idle_at, run.was_idle = 0, True  # 0: the heap has given it out, and `_close` must not count it again
            self._close(run)
            self._end_if_done(run, now)
        refusals, self._refused = self._refused[:MAX_EXPIRED_PER_CALL], self._refused[MAX_EXPIRED_PER_CALL:]
        return refusals

    def _expired(self, run: SequenceRun) -> None:
        """A sequence waited too long for a slot: all its requests are refused (S57)."""
        run.expires_at = 0
        self._leave_backlog(run)
        if not run.closing:  # its later requests must not run without these
            self._close(run)
        while run.queue:
            inference = run.queue.popleft()
            self._out(inference)
            self._refused.append((inference, TimedOut("timeout of the corresponding sequence has been expired")))

    # ---- instances

    def stop(self) -> None:
        """Rejects only new sequences (S3)."""
        self._stopping = True

    def freed(self, instance: int, now: int) -> None:
        """Does nothing: slots stay with their sequences."""

    def resize(self, instances: int, now: int) -> None:
        indices = self._rules.indices
        self.serve_on(range(instances) if indices is None else indices[:instances], now)

    def serve_on(self, indices: Collection[int], now: int) -> None:
        """New sequences start on these instances only. Those on others stay there to their end (S73)."""
        added = [index for index in indices if index not in self._serving]
        removed = self._serving.difference(indices)
        self._serving = set(indices)
        self._free = [entry for entry in self._free if entry[1] in self._serving]
        heapify(self._free)
        for index in added:
            taken = self._used.setdefault(index, set())  # sequences may be left from before it was removed once
            self._placed(index)
            untouched = self._untouched.setdefault(index, 0)
            # Of the slots that were never used the first is enough: `_take_slot` adds the next ones.
            for number in range(min(untouched + 1, self._rules.slots)):
                if number not in taken:
                    heappush(self._free, (number, index))
        for index in removed:
            self._report_if_gone(index)
        while self._backlog and self._free:
            self._promote(*self._take_slot(), now)

    def change_instances(
        self, added: Collection[int], removed: Collection[int], left: Callable[[int], None], now: int
    ) -> None:
        self._left.update((index, left) for index in removed)
        self.serve_on(self._serving.difference(removed).union(added), now)
        for index in removed:
            self._report_if_gone(index)

    def _report_if_gone(self, instance: int) -> None:
        if not self._used.get(instance) and instance not in self._serving:
            self._used.pop(instance, None)
            self._untouched.pop(instance, None)
            self._forgotten(instance)
            left = self._left.pop(instance, None)
            if left is not None:
                left(instance)


class _WithStates(NamedTuple):
    own: object
    states: object


def batch_key_of(inference: Inference) -> object:
    """Equal for requests that may share a batch: by their own key and by the shapes of their sequences' states. Valid
    only when they are about to run, as the states change before that."""
    own, states = inference.batch_key, inference.states
    if states is None:
        return own
    if isinstance(own, _WithStates):  # the request runs again
        own = own.own
    key = states.key
    return own if key is None else _WithStates(own, key)
