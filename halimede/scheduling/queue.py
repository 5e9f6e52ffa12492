"""The default scheduler: first come, first served, one request a batch (S1, S2). Pure; loop thread."""

from collections import deque
from collections.abc import Iterable, Sequence

from halimede.errors import Error, Unavailable
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Refusals, Wake

MIN_CANCELLED_TO_CLEAR = 32
"""A queue with fewer cancelled inferences is not cleared of them, unless they are large."""
MAX_CANCELLED = 8192
"""A queue with more is cleared of them, however many wait: to free 50,000 at once takes 80 ms."""
MAX_CANCELLED_BYTES = 1 << 24
"""Bytes of inputs of cancelled inferences from which on the queue is cleared of them. If they fill the server's memory,
it takes no requests, and so no later request would pass them over."""


class FifoQueue:
    """The waiting inferences in order of arrival; base of the policies without priorities.

    A cancelled inference stays in the deque with `waits` unset and is passed over. The deque is rebuilt when most of it
    is cancelled, or if these are many or their inputs take much memory. So `cancel` takes much the same time however
    many wait.
    """

    expires_at = 0
    allows_fast_path = False
    """Whether a request that arrives while nothing waits may run at once as a batch of its own, without `admit`,
    `next` and `freed`."""

    def __init__(self) -> None:
        self._queue: deque[Inference] = deque()
        self._cancelled_bytes = 0
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
        cancelled = len(self._queue) - self.waiting
        self._cancelled_bytes += sum(tensor.memory.byte_size for tensor in inference.request.inputs.values())
        is_many = cancelled > MIN_CANCELLED_TO_CLEAR and cancelled > min(self.waiting, MAX_CANCELLED)
        if is_many or self._cancelled_bytes > MAX_CANCELLED_BYTES:
            self._queue = deque(self._in_order())
            self._cancelled_bytes = 0
        return True

    def freed(self, instance: int, now: int) -> None:
        """Any instance serves any request."""

    def expire(self, now: int) -> Refusals:
        return []

    def resize(self, instances: int, now: int) -> None:
        """The number of instances changes nothing."""

    def _in_order(self) -> Iterable[Inference]:
        queue = self._queue
        return queue if self.waiting == len(queue) else (one for one in queue if one.waits)

    def _pop(self) -> Inference:
        """Takes out the first waiting inference. There must be one."""
        while True:
            inference = self._queue.popleft()
            if inference.waits:
                inference.waits = False
                self.waiting -= 1
                return inference


class RefusingPolicy(FifoQueue):
    """Refuses each request with this text, for a version without instances that serve."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def admit(self, inference: Inference, now: int) -> Error | None:
        return Unavailable(inference.request.log_prefix + self._text)

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        return None


class DefaultPolicy(FifoQueue):
    """Each request is a batch of its own."""

    allows_fast_path = True

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        return Batch(free[0], (self._pop(),)) if self.waiting else None
