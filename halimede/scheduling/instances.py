"""The instances of one model version: which of them are free, and their threads.

The thread of an instance starts with the first batch that does not run on the loop. A request waits in its policy while
an instance restarts: then no instance is free, or another one runs it. Loop thread only, except for the bodies of the
threads. One batch per instance at a time is the rule of `models.version._in_flight`, for sequences and rate limits.

    state              kept in                   event                                   next state
    ----------------   -----------------------   -------------------------------------   -----------------------------
    free               `free`                    take                                    busy
    free               `free`                    mark: it is broken                      withheld
    busy               -                         give_back                               free; withheld if it is broken
    withheld           `_broken`, `_withheld`    mark: it is healthy                     free
    withheld           `_broken`, `_withheld`    all are broken for good                 free, to fail its batches
    free or withheld   as above                  remove                                  gone
    busy               -                         remove                                  leaving
    leaving            `_passive`, `_leaving`    give_back of its last batch             gone
    passive or gone    `_passive`                add, at the same index                  free
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from queue import SimpleQueue
from threading import Thread, current_thread
from types import MappingProxyType
from typing import Protocol

from halimede.scheduling.execution import Execution

log = logging.getLogger(__name__)


class WorkThread(Protocol):
    """Runs work in the order in which it was submitted."""

    def submit(self, work: Callable[[], None]) -> None: ...


class Runnable(Protocol):
    """What the runner needs of a backend's instance. An instance may have a `thread` (a WorkThread) of its own."""

    def execute(self, batch: Execution, responses: Execution, /) -> None: ...


class InstanceThread:
    """A daemon thread that runs work in order until it is stopped. It calls `prepare` first."""

    def __init__(self, name: str, prepare: Callable[[], None] | None = None) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        if prepare is not None:
            self._work.put(prepare)
        Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def stop(self) -> None:
        """Ends the thread when it has done the work submitted so far. Does not wait for that."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException:
                log.exception(
                    "instance thread '%s': error outside of a batch; the thread goes on", current_thread().name
                )
            # The batch holds memory of its clients. Without this line the next batch would release it.
            del work


class Instances:
    """The instances of a version, by their index in `instances`. The owner of that list adds and removes them (R13).

    `free` has the indices of the instances that can get a batch, the longest free first, so that all take their turn.
    A broken instance is not in it while another one is healthy or will recover soon; requests wait for these. If there
    is no such instance, the broken ones become free, get the batches and fail them.

    `passive` instances are never free. `prepare` has what the thread of an instance calls first.
    """

    def __init__(
        self,
        name: str,
        instances: Sequence[Runnable],
        passive: Collection[int] = (),
        prepare: Mapping[int, Callable[[], None]] = MappingProxyType({}),
        in_flight: int = 1,
    ) -> None:
        self.pinned = False
        """Whether a request can run on one instance only, as with sequences. Then an instance that is broken for good
        is free even if others are healthy: it gets the requests of its own sequences and fails them."""
        self._name = name
        self.instances = instances
        self._passive = set(passive)
        """Includes the indices of instances that are leaving or have left."""
        self._prepare = dict(prepare)
        self._threads: dict[int, WorkThread] = {}
        self._started: dict[int, InstanceThread] = {}
        self._leaving: dict[int, Callable[[int], None]] = {}
        """The instances that finish their last batch, with the callback for its end."""
        self._in_flight = in_flight
        """How many batches an instance may have at a time. `free` has its index once for each that it can take."""
        each = [index for index in range(len(instances)) if index not in passive]
        self.free = deque(each * in_flight)
        self._withheld: list[int] = []
        self._on_idle: Callable[[], None] | None = None
        self._must_sort = False
        """Whether `give_back` must call `_sort`, because the end of a batch may do more than free its instance."""
        self._broken: dict[int, bool] = {}
        """The broken instances, and whether they are expected back soon. Includes leaving ones, as False."""

    def __len__(self) -> int:
        """How many instances serve."""
        return len(self.instances) - len(self._passive)

    @property
    def busy(self) -> int:
        """How many instances run a batch."""
        idle = [*self.free, *self._withheld]
        serving = (index for index in range(len(self.instances)) if index not in self._passive)
        return sum(idle.count(index) < self._in_flight for index in serving)

    def take(self, index: int) -> Runnable:
        """Makes a free instance busy."""
        if self.free[0] == index:  # most policies take the first one
            self.free.popleft()
        else:
            self.free.remove(index)
        return self.instances[index]

    def rotate(self) -> int:
        """Returns the instance that has been free the longest, and puts it last: `take` and `give_back` in one call,
        for a batch that finishes before other code reads `free`. One must be free."""
        index = self.free[0]
        self.free.rotate(-1)
        return index

    def give_back(self, index: int) -> None:
        """The batch of an instance has finished."""
        # Sorting costs more than a small batch, and most servers never have a broken instance.
        self.free.append(index)
        if self._must_sort:
            self._sort()

    def mark(self, index: int, healthy: bool, expected: bool) -> None:
        """An instance broke or recovered. `expected`: the broken one will recover so soon that requests wait for it."""
        if index in self._passive:  # it gets no batches, whatever its health
            return
        if healthy:
            self._broken.pop(index, None)
        else:
            self._broken[index] = expected
        self._sort()

    def add(self, index: int, passive: bool = False, prepare: Callable[[], None] | None = None) -> None:
        """There is a new instance at this index. It becomes the last one in `free`."""
        self._prepare.pop(index, None)
        if prepare is not None:
            self._prepare[index] = prepare
        if passive:
            self._passive.add(index)
            return
        self._passive.discard(index)
        self.free.extend([index] * self._in_flight)
        self._sort()

    def remove(self, index: int, left: Callable[[int], None]) -> None:
        """The instance gets no more batches. Calls `left` with its index when it is idle, possibly before this
        returns."""
        slots = self.free.count(index) + self._withheld.count(index)
        busy = index not in self._passive and slots < self._in_flight
        self._passive.add(index)
        self._leaving[index] = left
        self._broken[index] = False  # so that `give_back` sorts, and `_sort` lets the instance go
        if not busy:  # its index must be there once for each batch that it can take, so that `_let_go` finds it idle
            self._withheld = [*(each for each in self._withheld if each != index), *[index] * self._in_flight]
        self._sort()

    def when_idle(self, done: Callable[[], None]) -> None:
        """Calls `done` once, when no instance has a batch; before this returns if none has one now."""
        self._on_idle = done
        self._sort()

    def _let_go(self, idle: Sequence[int]) -> None:
        """Ends the threads of leaving instances that are idle, and reports them."""
        for index in [index for index in self._leaving if idle.count(index) >= self._in_flight]:
            self._broken.pop(index, None)
            self._threads.pop(index, None)
            thread = self._started.pop(index, None)
            if thread is not None:
                thread.stop()
            self._leaving.pop(index)(index)

    def _sort(self) -> None:
        """Decides anew which of the idle instances are free."""
        idle = [*self.free, *self._withheld]
        ending: list[int] = []
        if self._leaving:
            self._let_go(idle)
            ending = [index for index in idle if index in self._leaving]  # it has another batch to end
            # Those that have just left are passive like those that are leaving.
            idle = [index for index in idle if index not in self._passive]
        broken = self._broken
        # If all are broken for good, they get the requests and fail them, which would wait for ever otherwise.
        refusing = len(broken) - len(self._leaving) == len(self) and not any(broken.values())
        # The deque is changed in place: the runner holds it.
        self.free.clear()
        withheld = {index for index in idle if not refusing and index in broken}
        if self.pinned:  # an instance that is broken for good must get its requests, to fail them
            withheld = {index for index in withheld if broken[index]}
        self.free.extend(index for index in idle if index not in withheld)
        self._withheld = [*ending, *(index for index in idle if index in withheld)]
        if self._on_idle is not None and not self._leaving and not self.busy:
            done, self._on_idle = self._on_idle, None
            done()
        self._must_sort = bool(self._broken) or self._on_idle is not None

    def thread(self, index: int) -> WorkThread:
        """The thread of an instance: its own if it has one, else one that is started with its first batch."""
        thread = self._threads.get(index)
        if thread is None:
            own: WorkThread | None = getattr(self.instances[index], "thread", None)
            thread = self._threads[index] = own or self._new_thread(index)
        return thread

    def _new_thread(self, index: int) -> InstanceThread:
        thread = self._started[index] = InstanceThread(f"{self._name} #{index}", self._prepare.get(index))
        return thread

    def stop(self) -> None:
        """Ends the threads that were started here. An instance ends its own thread itself."""
        for thread in self._started.values():
            thread.stop()
        self._threads.clear()
        self._started.clear()
