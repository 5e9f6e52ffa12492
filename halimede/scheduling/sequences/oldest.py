"""The oldest strategy: each instance has a dynamic batcher, which gets one request of each sequence at a time (S63).

A request is queued in its run, then issued (`run.issued`) to the batcher of its instance, then running. The next one of
the sequence is issued when it has settled. Loop thread.
"""

from collections.abc import Sequence

from halimede.scheduling.dynamic import DynamicPolicy
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.sequences.slots import SequencePolicy, SequenceRules, SequenceRun, batch_key_of


class OldestPolicy(SequencePolicy):
    """`preferred` are the preferred batch sizes, `delay_ns` is how long the oldest request may wait for one. `start_at`
    holds everything back, once, until this many requests wait at an instance (C60)."""

    def __init__(
        self,
        rules: SequenceRules,
        max_batch_size: int,
        preferred: Sequence[int] = (),
        delay_ns: int = 0,
        start_at: int = 0,
    ) -> None:
        super().__init__(rules)
        self._forming = max_batch_size, tuple(preferred), delay_ns, start_at
        self._batchers: dict[int, DynamicPolicy] = {}

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        wake = 0
        for instance in free:
            batcher = self._batchers.get(instance)
            if batcher is None or not batcher.waiting:
                continue
            step = batcher.next((instance,), now)
            if isinstance(step, Batch):
                # Issued requests are counted until they run, as those in the queues of their runs.
                self.waiting -= len(step.rows)
                return step
            if step is not None:
                wake = min(wake, step.at) if wake else step.at
        return Wake(wake) if wake else None

    def wants(self, instance: int) -> bool:
        batcher = self._batchers.get(instance)
        return batcher is not None and batcher.waiting > 0

    def released(self, inference: Inference, now: int, again: bool) -> None:
        super().released(inference, now, again)
        run: SequenceRun = inference.sequence
        if run.instance >= 0:  # else this was its last request, and it has left its slot
            self._ready(run, now)

    def _ready(self, run: SequenceRun, now: int) -> None:
        """Issues the next request of a sequence, unless one is issued already."""
        if run.issued is not None or not run.queue:
            return
        # Now and not when the request came: only now its states are those that it will read.
        inference = run.issued = run.queue.popleft()
        self._controls.add(inference.request, run.id_tensor)
        inference.batch_key = batch_key_of(inference)
        self._batchers[run.instance].admit(inference, now)

    def _holds(self, run: SequenceRun) -> bool:
        return run.issued is not None

    def _has_run(self, inference: Inference, run: SequenceRun) -> None:
        run.issued = None

    def _taken_back(self, inference: Inference, run: SequenceRun, now: int) -> bool:
        if run.issued is not inference:  # it waits in the queue of its run
            return False
        self._batchers[run.instance].cancel(inference, now)
        self.waiting -= 1
        run.issued = None
        return True

    def _placed(self, instance: int) -> None:
        self._batchers.setdefault(instance, DynamicPolicy(*self._forming))

    def _forgotten(self, instance: int) -> None:
        self._batchers.pop(instance, None)
