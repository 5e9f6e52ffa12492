"""The default scheduler: first come, first served, one request a batch (contract S1, S2). Pure; loop thread."""

from collections import deque
from collections.abc import Sequence

from halimede.errors import Error
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Refusals, Wake


class FifoQueue:
    """The waiting inferences in order of arrival, and the answers of a policy that are the same for any order."""

    def __init__(self) -> None:
        self._queue: deque[Inference] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def admit(self, inference: Inference, now: int) -> Error | None:
        self._queue.append(inference)
        return None

    def cancel(self, inference: Inference, now: int) -> bool:
        try:
            self._queue.remove(inference)
        except ValueError:
            return False
        return True

    def freed(self, instance: int, now: int) -> None:
        """Which instance ran makes no difference to requests without state."""

    def released(self, inference: Inference, now: int, again: bool) -> None:
        if again:
            self._queue.appendleft(inference)

    def expire(self, now: int) -> Refusals:
        return []

    def resize(self, instances: int, now: int) -> None:
        """Any number of instances is served alike."""


class DefaultPolicy(FifoQueue):
    """Each request is a batch of its own."""

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        if not self._queue:
            return None
        return Batch(free[0], (self._queue.popleft(),))
