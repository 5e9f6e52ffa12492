"""The direct strategy: a sequence has the same row in every batch of one instance (S61, S62). Loop thread."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np

from halimede.requests import Stamp
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.sequences.slots import SequencePolicy, SequenceRules, SequenceRun, batch_key_of

_QUEUE_START = int(Stamp.QUEUE_START)
MIN_HEADS_TO_CLEAR = 64
"""A smaller heap of heads is not cleared of requests that have run."""


class _Board:
    """The slots of one instance.

    runs -- the sequence of each slot, for as many slots as were ever used
    ready -- a bit mask of the slots in which a request waits that may run
    heads -- a heap by arrival of the first such request of each slot, only if batches may wait; it may contain
        requests that have run
    """

    __slots__ = ("heads", "ready", "runs")

    def __init__(self) -> None:
        self.runs: list[SequenceRun | None] = []
        self.ready = 0
        self.heads: list[tuple[int, int, Inference]] = []


class DirectPolicy(SequencePolicy):
    """A batch waits up to `delay_ns` until the share `utilization` of the slots has a request; it does not wait if
    either is 0. `start_at`, `start_backlog`: an instance runs nothing until this many requests wait there and this many
    sequences wait for a slot, once (C60)."""

    def __init__(
        self,
        rules: SequenceRules,
        delay_ns: int = 0,
        utilization: float = 0.0,
        start_at: int = 0,
        start_backlog: int = 0,
    ) -> None:
        super().__init__(rules)
        # A batch may end before its answers come. The next request of a sequence reads the states of the answer before
        # it, and an iterative request may run again first.
        self._one_at_a_time = rules.iterative or rules.begin is not None
        self._delay_ns = delay_ns if utilization else 0  # either being 0 means no wait (S62)
        self._enough = _enough(rules.slots, utilization)
        self._boards: dict[int, _Board] = {}
        self._order = count()
        self._start_at = start_at
        self._start_backlog = start_backlog
        self._started: set[int] = set()

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        wake = 0
        for instance in free:
            board = self._boards.get(instance)
            if board is None or not board.ready or (self._start_at and not self._starts(instance, board)):
                continue
            at = self._due_at(board)
            if at <= now:  # 0 is always due
                return Batch(instance, self._batch(board, now))
            wake = min(wake, at) if wake else at
        return Wake(wake) if wake else None

    def wants(self, instance: int) -> bool:
        board = self._boards.get(instance)
        return board is not None and board.ready > 0

    def _starts(self, instance: int, board: _Board) -> bool:
        if instance not in self._started:
            waiting = sum(len(run.queue) for run in board.runs if run is not None)
            if waiting < self._start_at or len(self._backlog) < self._start_backlog:
                return False
            self._started.add(instance)
        return True

    def _due_at(self, board: _Board) -> int:
        """When the batch of this instance must start; 0 if it need not wait."""
        if not self._delay_ns or board.ready.bit_count() >= self._enough:
            return 0
        heads = board.heads
        while not heads[0][2].waits:  # it has run or was cancelled; a bit of `ready` is set, so one is left
            heappop(heads)
        return heads[0][0] + self._delay_ns

    def _batch(self, board: _Board, now: int) -> list[Inference]:
        """A row for each slot up to the last that is ready. A request that does not fit the first one waits (S61)."""
        # Everything that may raise comes before a request is taken out of its queue.
        ready: list[SequenceRun | None] = []
        model: Inference | None = None
        key: object = None
        for slot, run in enumerate(board.runs[: board.ready.bit_length()]):
            # A slot may be empty, or kept by a sequence of which nothing may run.
            head = run.queue[0] if run is not None and board.ready >> slot & 1 else None
            if head is not None and model is None:
                model, key = head, batch_key_of(head)
            fits = head is not None and (head is model or batch_key_of(head) == key)
            ready.append(run if fits else None)
        assert model is not None  # a bit is set
        null: Inference | None = self._controls.null(model) if None in ready else None
        rows = (null if run is None else self._take(board, run, now) for run in ready)
        return [row for row in rows if row is not None]

    def _take(self, board: _Board, run: SequenceRun, now: int) -> Inference:
        inference = run.queue.popleft()
        self._out(inference)
        self._controls.add(inference.request, run.id_tensor)
        run.running += 1
        if run.queue and self._one_at_a_time:
            board.ready &= ~(1 << run.slot)  # until `released`
        elif run.queue:
            self._note_head(board, run)
        else:
            # In this order: the slot may be another run's after `_end_if_done`, and its bit must stay.
            self._shortened(run)
            self._end_if_done(run, now)
        return inference

    def _note_head(self, board: _Board, run: SequenceRun) -> None:
        if not self._delay_ns:
            return
        head = run.queue[0]
        heappush(board.heads, (head.times[_QUEUE_START], next(self._order), head))
        if len(board.heads) > MIN_HEADS_TO_CLEAR and len(board.heads) > 2 * board.ready.bit_count():
            board.heads = [entry for entry in board.heads if entry[2].waits]
            heapify(board.heads)

    def released(self, inference: Inference, now: int, again: bool) -> None:
        super().released(inference, now, again)
        run: SequenceRun = inference.sequence
        if self._one_at_a_time and run.instance >= 0 and not again:  # one that runs again is ready already
            self._ready(run, now)

    # ---- called by the slots

    def _ready(self, run: SequenceRun, now: int) -> None:
        board = self._boards[run.instance]
        # A configuration may have millions of slots; the list is as long as the highest one that was used.
        board.runs += [None] * (run.slot + 1 - len(board.runs))
        board.runs[run.slot] = run
        if run.queue and not (run.running and self._one_at_a_time):
            board.ready |= 1 << run.slot
            self._note_head(board, run)

    def _holds(self, run: SequenceRun) -> bool:
        # As in Triton. After END the slot is free when the last request starts, because the next batch of the instance
        # comes after it. After an idle timeout it is free when no request of the run is in flight. An iterative request
        # may run again, and needs its slot for that.
        return run.running > 0 and (run.was_idle or self.iterative)

    def _has_run(self, inference: Inference, run: SequenceRun) -> None:
        run.running -= 1

    def _shortened(self, run: SequenceRun) -> None:
        if run.instance >= 0 and not run.queue:  # a run in the backlog has no slot and no bit
            self._boards[run.instance].ready &= ~(1 << run.slot)

    def _placed(self, instance: int) -> None:
        self._boards.setdefault(instance, _Board())

    def _forgotten(self, instance: int) -> None:
        self._boards.pop(instance, None)


def _enough(slots: int, utilization: float) -> int:
    """How many slots are at least the share `utilization` of all."""
    # The configuration has 32-bit floats, and the real server compares in 32 bits.
    wanted = np.float32(utilization)
    least = max(0, int(utilization * slots * (1 - 1e-6)) - 1)
    return next((ready for ready in range(least, slots) if np.float32(ready) / np.float32(slots) >= wanted), slots)
