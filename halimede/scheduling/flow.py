"""Back-pressure of one request with many responses: how far its producer may be ahead of its reader.

Bytes count three times: `_posted` when a producer's thread sends, `_delivered` when the loop hands them to the reply
slot, `_taken` when the reply slot has room again. A thread blocks while `_posted - _taken` fills the window.

    state of a flow        event                                    next state
    --------------------   --------------------------------------   ------------------------------------------
    all taken              delivered, the reply slot is writable    all taken
    all taken              delivered, it is not writable            unsent: waits for the slot's callback
    unsent                 the slot calls back                      all taken, or the next unsent one
    any                    release: client gone or request over     open: blocks no one, for good

The event loop owns a flow; a thread of a producer calls only `enter`. Knows no model and no transport. Figures:
docs/decisions/back-pressure.md.
"""

from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Lock, get_ident

from halimede.errors import Error
from halimede.requests import Reply
from halimede.tensors import Tensor

WINDOW = 1 << 20
"""Bytes that a producer in this process may be ahead of a reader that takes nothing."""
OVERHEAD = 4 << 10
"""Bytes that a response counts besides its tensors, since many small ones fill memory too."""


def cost_of(answer: Sequence[Tensor] | Error | None) -> int:
    """Bytes that a response counts against the window."""
    if answer is None or isinstance(answer, Error):
        return OVERHEAD
    return OVERHEAD + sum(tensor.memory.byte_size for tensor in answer)


class Flow:
    """Created on the event-loop thread. An `open` flow blocks no producer any more. `most_ahead` responses fill the
    window however small they are, and the reply slot is asked about each; 0 for as many as there is room for.
    """

    __slots__ = (
        "_delivered",
        "_least_cost",
        "_loop_thread",
        "_posted",
        "_producers",
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
        """For each pending callback of the reply slot: `_delivered` when it was asked for, and what to call then."""
        self._loop_thread = get_ident()
        self._delivered = 0
        self._taken = 0
        self._posted = 0
        self._producers = Lock()
        self._room: Event | None = None

    # On the event loop.

    def delivered(self, cost: int, writable: bool) -> None:
        """A response was sent to the reply slot. `writable`: the slot takes more at once."""
        self._delivered += max(cost, self._least_cost)
        if not writable and not self.open and (self._least_cost or not self._unsent):
            self._unsent.append((self._delivered, []))
            self._reply.on_writable(self._next_sent)
        if not self._unsent:
            self._take(self._delivered)

    def on_writable(self, resume: Callable[[], None]) -> None:
        """Calls `resume` once, when the reply slot takes more; before this returns if it does now. `resume` must not
        raise."""
        if self._unsent:
            self._unsent[-1][1].append(resume)
        else:
            resume()

    def release(self) -> None:
        """Opens the flow for good and wakes every producer that waits."""
        self.open = True
        unsent, self._unsent = self._unsent, deque()
        self._take(self._delivered)
        for _, waiting in unsent:
            for resume in waiting:
                resume()

    def _next_sent(self) -> None:
        """The reply slot has room again. It calls back in the order in which it was asked."""
        if not self._unsent:  # the flow was opened meanwhile
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
        """Counts a response that is about to be sent; blocks while the window is full (G32). Any number of threads may
        call it; they pass one at a time."""
        cost = max(cost, self._least_cost)
        # The loop must never block. A backend that answers there asks `on_writable`; its responses take no room.
        if get_ident() == self._loop_thread:
            self._delivered -= cost
            return
        with self._producers:
            while self._is_full():
                if self._room is None:
                    self._room = Event()
                self._room.clear()
                if self._is_full():  # the loop may have made room before `clear`
                    self._room.wait()
            self._posted += cost

    def _is_full(self) -> bool:
        return self._posted - self._taken >= WINDOW and not self.open
