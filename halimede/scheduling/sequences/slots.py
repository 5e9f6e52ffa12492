"""Which sequence has which slot, and who waits for one: what both strategies share (S50 to S57, S65, S72, S73).

Whatever is done for one request takes the same time however many sequences there are, or grows with its logarithm.
Pure; loop thread.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from operator import attrgetter
from typing import NamedTuple

from halimede.errors import Cancelled, Error, Invalid, TimedOut, Unavailable
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Refusals, Wake
from halimede.scheduling.sequences.controls import Controls
from halimede.scheduling.states import SequenceStates
from halimede.tensors import Tensor

log = logging.getLogger(__name__)

_FEW = 64
"""So many outdated times may lie about before they are cleared out."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a model wants of its sequences: `slots` of them at once on each instance; one is over after `idle_ns`
    without a request. `iterative`: a request is a sequence until the model lets go of it.

    `begin` makes what a sequence keeps between its requests, at each START; None where it keeps nothing. `indices` are
    the instances that can be given batches; None for the first so many.
    """

    model: str
    slots: int
    idle_ns: int
    controls: Controls
    iterative: bool = False
    begin: Callable[[], SequenceStates | None] | None = None
    indices: Sequence[int] | None = None


class SequenceRun:
    """One sequence, from its START until what is behind its last request: an id may begin another one meanwhile.

    `queue` are the requests that wait; `running` how many are under way. `closing`: no more will come. Without
    `instance` it waits in the backlog.
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
        """When it is over without another request, 0 while that is not counted."""
        self.was_idle = False
        self.expires_at = 0
        """Until when it waits for a slot, 0 for as long as it takes."""


class _Times:
    """Who is due when. `due` says it of a run, 0 for never; it may have become later since, or never."""

    def __init__(self, due: Callable[[SequenceRun], int]) -> None:
        self._due = due
        self._heap: list[tuple[int, int, SequenceRun]] = []
        self._order = count()
        self._living = 0

    def add(self, run: SequenceRun) -> None:
        heappush(self._heap, (self._due(run), next(self._order), run))
        self._living += 1

    def outdated(self) -> None:
        """One of those that were added is never due now."""
        self._living -= 1
        heap = self._heap
        if len(heap) > _FEW and len(heap) > 2 * self._living:
            self._heap = [entry for entry in heap if self._due(entry[2])]
            heapify(self._heap)
            self._living = len(self._heap)

    @property
    def first(self) -> int:
        """When to look again, 0 for never: nobody is due before."""
        heap = self._heap
        while heap and not self._due(heap[0][2]):
            heappop(heap)
        return heap[0][0] if heap else 0

    def pop(self, now: int) -> SequenceRun | None:
        """One that is due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, run = heappop(heap)
            at = self._due(run)
            if at > now:
                heappush(heap, (at, next(self._order), run))
            elif at:
                self._living -= 1
                return run
        return None


class SequencePolicy:
    """Owns the slots, the backlog, and all that waits in them. A strategy says what becomes of a run that has a slot
    and a request."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._controls = rules.controls
        self._live: dict[int | str, SequenceRun] = {}
        """By id, those that take more requests."""
        self._backlog: OrderedDict[SequenceRun, None] = OrderedDict()
        self._free: list[tuple[int, int]] = []
        """A heap of free slots: number, instance (contract S54). Of those that nobody ever had only the first of each
        instance is there: a model may be given more than there ever are sequences."""
        self._untouched: dict[int, int] = {}
        """The first slot of an instance that nobody had yet."""
        self._used: dict[int, set[int]] = {}
        """The slots that are taken, by instance; also of those that take no more."""
        self._serving: set[int] = set()
        self._idle = _Times(attrgetter("idle_at"))
        self._patience = _Times(attrgetter("expires_at"))
        self._refused: Refusals = []
        self._ids = count(1)
        self._stopping = False
        self._left: dict[int, Callable[[int], None]] = {}
        """Whom to tell that the last sequence has left an instance."""
        self.waiting = 0

    # ---- what a strategy adds

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        """What is due, on an instance that has its sequences."""
        raise NotImplementedError

    def wants(self, instance: int) -> bool:
        raise NotImplementedError

    def _ready(self, run: SequenceRun, now: int) -> None:
        """Another request is the first that waits of a run with a slot."""
        raise NotImplementedError

    def _placed(self, instance: int) -> None:
        """An instance came."""

    def _forgotten(self, instance: int) -> None:
        """An instance has gone."""

    def _taken_back(self, inference: Inference, run: SequenceRun, now: int) -> bool:
        """Takes back a request that waits to run; False where it does not."""
        return False

    def _holds(self, run: SequenceRun) -> bool:
        """Whether the slot is still the run's, though nothing of it waits. That of one that ended is given on when its
        last request begins; of one that was idle, when nothing of it is under way."""
        return run.running > 0 and (run.was_idle or self._rules.iterative)

    # ---- requests come

    def admit(self, inference: Inference, now: int) -> Error | None:
        """The errors in the order of the contract (H72, S51, S50, S3, S52)."""
        request, rules = inference.request, self._rules
        correlation_id = request.correlation_id
        if correlation_id and (problem := self._controls.problem(correlation_id, rules.model)) is not None:
            return problem.prefixed(request.log_prefix)
        if inference.batch_size > 1:
            return Invalid(
                f"inference request to model '{rules.model}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            )
        if not correlation_id:
            if not rules.iterative:
                return Invalid(
                    f"inference request to model '{rules.model}' must specify a non-zero or non-empty correlation ID"
                )
            correlation_id = request.correlation_id = self._new_id()
            request.sequence_start = True
        if request.sequence_start and self._stopping:
            return Unavailable("Server is stopping, scheduler for model has stopped accepting new inference requests")
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
        states = rules.begin() if request.sequence_start and rules.begin is not None else None  # first: it may raise
        is_new = run is None
        if run is None:
            correlation_id = request.correlation_id
            run = self._live[correlation_id] = SequenceRun(correlation_id, self._controls.id_tensor(correlation_id))
            self._assign(run)
        elif request.sequence_start:
            log.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence "
                "start. Previous sequence will be terminated early.",
                run.id,
                rules.model,
            )
        if request.sequence_start:
            run.states = states
        inference.states = run.states
        inference.sequence = run
        inference.waits = True
        run.queue.append(inference)
        self.waiting += 1
        if request.sequence_end:
            self._close(run)
        elif run.instance >= 0:
            self._count_idle(run, now)
        if run.instance < 0:
            self._wait(run, inference, now, is_new)
        elif len(run.queue) == 1:
            self._ready(run, now)

    def _new_id(self) -> int:
        """For a request that has none (contract S72)."""
        return next(number for number in self._ids if number not in self._live)

    def _assign(self, run: SequenceRun) -> None:
        """The free slot with the lowest number, where there is one (contract S54)."""
        if self._free:
            run.slot, run.instance = self._take_slot()

    def _take_slot(self) -> tuple[int, int]:
        number, instance = heappop(self._free)
        if number == self._untouched[instance]:
            self._untouched[instance] = number + 1
            if number + 1 < self._rules.slots:
                heappush(self._free, (number + 1, instance))
        self._used[instance].add(number)
        return number, instance

    def _wait(self, run: SequenceRun, inference: Inference, now: int, is_new: bool) -> None:
        """In the backlog; as long as its most impatient request says (contract S57)."""
        if is_new:
            self._backlog[run] = None
        timeout_us = inference.request.timeout_us
        if timeout_us:
            at = now + timeout_us * 1000
            if not run.expires_at or at < run.expires_at:
                if run.expires_at:
                    self._patience.outdated()
                run.expires_at = at
                self._patience.add(run)

    def _count_idle(self, run: SequenceRun, now: int) -> None:
        is_first = not run.idle_at
        run.idle_at = now + self._rules.idle_ns
        if is_first:
            self._idle.add(run)

    # ---- sequences end

    def _close(self, run: SequenceRun) -> None:
        """No more requests will come; what waits goes on."""
        run.closing = True
        if self._live.get(run.id) is run:
            del self._live[run.id]
        if run.idle_at:
            run.idle_at = 0
            self._idle.outdated()

    def _settle(self, run: SequenceRun, now: int) -> None:
        """Gives up the slot of a run of which nothing is left; the backlog's first takes it with all that it has
        (contract S55)."""
        if not run.closing or run.queue or self._holds(run):
            return
        if run.instance < 0:
            self._leave_backlog(run)
            return
        slot, instance = run.slot, run.instance
        run.slot = run.instance = -1
        run.states = None
        self._used[instance].discard(slot)
        if instance not in self._serving:
            self._perhaps_gone(instance)
        elif self._backlog:
            self._promote(slot, instance, now)
        else:
            heappush(self._free, (slot, instance))

    def _promote(self, slot: int, instance: int, now: int) -> None:
        run = next(iter(self._backlog))
        self._leave_backlog(run)
        run.slot, run.instance = slot, instance
        self._used[instance].add(slot)
        if not run.closing:
            self._count_idle(run, now)
        self._ready(run, now)

    def _leave_backlog(self, run: SequenceRun) -> None:
        if run in self._backlog:
            del self._backlog[run]
        if run.expires_at:
            run.expires_at = 0
            self._patience.outdated()

    def released(self, inference: Inference, now: int, again: bool) -> None:
        run: SequenceRun | None = inference.sequence
        if run is None:
            return
        run.running = max(0, run.running - 1)
        if run.issued is inference:
            run.issued = None
        if again and run.instance >= 0:
            self._run_again(inference, run, now)
            return
        if self._rules.iterative and not run.closing:
            self._close(run)
        self._settle(run, now)

    def _run_again(self, inference: Inference, run: SequenceRun, now: int) -> None:
        """The same request, which starts nothing any more, before those that came after it (contract S72)."""
        request = inference.request
        request.sequence_start = request.sequence_end = False
        inference.waits = True
        run.queue.appendleft(inference)
        self.waiting += 1
        if not run.closing:
            self._count_idle(run, now)
        self._ready(run, now)

    def cancel(self, inference: Inference, now: int) -> bool:
        """With a request its sequence is over: what came after it will not run (S65), what came before will."""
        run: SequenceRun | None = inference.sequence
        if run is None or not inference.waits:
            return False
        if not self._taken_back(inference, run, now):
            while (last := run.queue.pop()) is not inference:
                self._refuse_later(last)
            self._out(inference)
        else:
            while run.queue:
                self._refuse_later(run.queue.pop())
        if not run.closing:
            self._close(run)
        self._dried(run)
        self._settle(run, now)
        return True

    def _refuse_later(self, inference: Inference) -> None:
        self._out(inference)
        self._refused.append((inference, Cancelled(inference.request.log_prefix + "Cancelled")))

    def _out(self, inference: Inference) -> None:
        inference.waits = False
        self.waiting -= 1

    def _dried(self, run: SequenceRun) -> None:
        """Requests of the run were taken out of its queue, perhaps all."""

    # ---- time passes

    @property
    def expires_at(self) -> int:
        if self._refused:
            return 1
        idle, patience = self._idle.first, self._patience.first
        return min(idle, patience) if idle and patience else idle or patience

    def expire(self, now: int) -> Refusals:
        refusals, self._refused = self._refused, []
        while (run := self._patience.pop(now)) is not None:
            refusals += self._expired(run)
        while (run := self._idle.pop(now)) is not None:
            run.idle_at, run.was_idle = 0, True
            self._close(run)
            self._settle(run, now)
        return refusals

    def _expired(self, run: SequenceRun) -> Refusals:
        """A sequence waited too long for a slot: all that it has is refused (contract S57)."""
        run.expires_at = 0
        self._leave_backlog(run)
        if not run.closing:
            self._close(run)
        refusals: Refusals = []
        while run.queue:
            inference = run.queue.popleft()
            self._out(inference)
            refusals.append((inference, TimedOut("timeout of the corresponding sequence has been expired")))
        return refusals

    # ---- instances

    def stop(self) -> None:
        """No sequence is begun any more; those that are go on (contract S3)."""
        self._stopping = True

    def freed(self, instance: int, now: int) -> None:
        """Its slots stay with their sequences."""

    def resize(self, instances: int, now: int) -> None:
        indices = self._rules.indices
        self.serve_on(range(instances) if indices is None else indices[:instances], now)

    def serve_on(self, indices: Collection[int], now: int) -> None:
        """Sequences begin on these instances only. Those on others stay there to their end (contract S73)."""
        added = [index for index in indices if index not in self._serving]
        removed = self._serving.difference(indices)
        self._serving = set(indices)
        self._free = [entry for entry in self._free if entry[1] in self._serving]
        heapify(self._free)
        for index in added:
            taken = self._used.setdefault(index, set())  # it may have been about to leave
            self._placed(index)
            untouched = self._untouched.setdefault(index, 0)
            for number in range(min(untouched + 1, self._rules.slots)):
                if number not in taken:
                    heappush(self._free, (number, index))
        for index in removed:
            self._perhaps_gone(index)
        while self._backlog and self._free:
            self._promote(*self._take_slot(), now)

    def exchange(self, added: Collection[int], removed: Collection[int], left: Callable[[int], None], now: int) -> None:
        self._left.update((index, left) for index in removed)
        self.serve_on(self._serving.difference(removed).union(added), now)
        for index in removed:
            self._perhaps_gone(index)

    def _perhaps_gone(self, instance: int) -> None:
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
    """Equal for requests that may share a batch: by their inputs, and by the shapes of the states of their sequences,
    which are known when they are about to run."""
    own, states = inference.batch_key, inference.states
    if states is None:
        return own
    if isinstance(own, _WithStates):  # it runs once more
        own = own.own
    key = states.key
    return own if key is None else _WithStates(own, key)
