"""The default scheduler: first come, first served, one request a batch (contract S1, S2). Pure; loop thread."""

from collections import deque
from collections.abc import Iterable, Sequence

from halimede.errors import Error, Unavailable
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Refusals, Wake

_FEW = 32
"""So many cancelled inferences may lie about in a queue before it is looked through for them."""


class FifoQueue:
    """The waiting inferences in order of arrival, and the answers of a policy that are the same for any order.

    One that is cancelled stays where it is, without its mark `waits`, and is passed over; when there are more of them
    than of others they are cleared out. So a cancel takes the same time whatever waits.
    """

    expires_at = 0
    direct = False
    """Whether a request that finds nobody waiting is a batch by itself, at once, which the policy need not be told of:
    neither `freed` nor `released` mean anything to it."""

    def __init__(self) -> None:
        self._queue: deque[Inference] = deque()
        self.waiting = 0

    def admit(self, inference: Inference, now: int) -> Error | None:
        inference.waits = True
        self._queue.append(inference)
        self.waiting += 1
        return None

    def cancel(self, inference: Inference, now: int) -> bool:
        if not inference.waits:
            return False
        inference.waits = False
        self.waiting -= 1
        gone = len(self._queue) - self.waiting
        if gone > _FEW and gone > self.waiting:
            self._queue = deque(self._in_order())
        return True

    def freed(self, instance: int, now: int) -> None:
        """Which instance ran makes no difference to requests without state."""

    def released(self, inference: Inference, now: int, again: bool) -> None:
        if again:
            inference.waits = True
            self._queue.appendleft(inference)
            self.waiting += 1

    def expire(self, now: int) -> Refusals:
        return []

    def resize(self, instances: int, now: int) -> None:
        """Any number of instances is served alike."""

    def _in_order(self) -> Iterable[Inference]:
        queue = self._queue
        return queue if self.waiting == len(queue) else (one for one in queue if one.waits)

    def _pop(self) -> Inference:
        """The first, taken out; there must be one."""
        while True:
            inference = self._queue.popleft()
            if inference.waits:
                inference.waits = False
                self.waiting -= 1
                return inference


class RefusingPolicy(FifoQueue):
    """Nobody is there to serve a request: each is refused with this text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def admit(self, inference: Inference, now: int) -> Error | None:
        return Unavailable(inference.request.log_prefix + self._text)

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        return None


class DefaultPolicy(FifoQueue):
    """Each request is a batch of its own."""

    direct = True

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        return Batch(free[0], (self._pop(),)) if self.waiting else None
