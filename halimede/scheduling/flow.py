"""Back-pressure of one request with many responses: how far its producer is ahead of its reader, and who waits.

The event loop owns a flow; a producer in a thread of this process only ever calls `enter`. Knows no model and no
transport. The rule and its numbers: docs/decisions/back-pressure.md.
"""

from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Lock, get_ident

from halimede.errors import Error
from halimede.requests import Reply
from halimede.tensors import Tensor

WINDOW = 1 << 20
"""How far ahead of a reader that takes nothing a producer of this process may be, in bytes."""
OVERHEAD = 4 << 10
"""What a response counts besides its tensors: many small ones fill memory too."""


def cost_of(answer: Sequence[Tensor] | Error | None) -> int:
    """What a response counts against the window."""
    if answer is None or isinstance(answer, Error):
        return OVERHEAD
    return OVERHEAD + sum(tensor.memory.byte_size for tensor in answer)


class Flow:
    """Created on the event-loop thread. A flow that is `open` holds nobody back any more: the client has gone, or the
    request is over. `most_ahead` responses fill the window however small they are, and each is waited for by itself; 0
    for as many as there is room for.
    """

    __slots__ = (
        "_delivered",
        "_least_cost",
        "_line",
        "_loop_thread",
        "_posted",
        "_reply",
        "_room",
        "_taken",
        "_unsent",
        "open",
    )

    def __init__(self, reply: Reply, most_ahead: int = 0) -> None:
        self.open = False
        self._least_cost = -(-WINDOW // most_ahead) if most_ahead else 0
        self._reply = reply
        self._unsent: deque[tuple[int, list[Callable[[], None]]]] = deque()
        """What was delivered up to where the reply slot is waited for, and whom to wake then."""
        self._loop_thread = get_ident()
        self._delivered = 0
        self._taken = 0
        self._posted = 0
        self._line = Lock()
        self._room: Event | None = None

    # On the event loop.

    def delivered(self, cost: int, writable: bool) -> None:
        """A response was sent to the reply slot, which takes more at once or not."""
        self._delivered += max(cost, self._least_cost)
        if not writable and not self.open and (self._least_cost or not self._unsent):
            self._unsent.append((self._delivered, []))
            self._reply.on_writable(self._next_sent)
        if not self._unsent:
            self._take(self._delivered)

    def on_writable(self, resume: Callable[[], None]) -> None:
        """Calls `resume`, which must not raise, once when the reply slot takes more: at once where it does."""
        if self._unsent:
            self._unsent[-1][1].append(resume)
        else:
            resume()

    def release(self) -> None:
        """Opens the flow for good, and wakes whoever waits."""
        self.open = True
        unsent, self._unsent = self._unsent, deque()
        self._take(self._delivered)
        for _, waiting in unsent:
            for resume in waiting:
                resume()

    def _next_sent(self) -> None:
        """The reply slot has called back, in the order in which it was asked; too late where the flow is open."""
        if not self._unsent:
            return
        sent, waiting = self._unsent.popleft()
        self._take(sent if self._unsent else self._delivered)
        for resume in waiting:
            resume()

    def _take(self, sent: int) -> None:
        self._taken = sent
        if self._room is not None:
            self._room.set()

    # On a thread of the producer.

    def enter(self, cost: int) -> None:
        """Counts a response that is about to be sent; blocks while the window is full. Any number of threads may come,
        one goes at a time. Never blocks the event loop, not even behind a thread that waits: a backend that answers
        from there asks by `on_writable`, and its responses take no room from the threads."""
        cost = max(cost, self._least_cost)
        if get_ident() == self._loop_thread:
            self._delivered -= cost
            return
        with self._line:
            while self._is_full():
                if self._room is None:
                    self._room = Event()
                self._room.clear()
                if self._is_full():  # the loop may have made room since
                    self._room.wait()
            self._posted += cost

    def _is_full(self) -> bool:
        return self._posted - self._taken >= WINDOW and not self.open
