"""The instances of one model version: which are free, and the threads that run those which may block.

An instance is a capacity, not a thread: its thread starts when it first has something to run there. Loop thread only,
except for what the threads themselves do.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from queue import SimpleQueue
from threading import Thread
from types import MappingProxyType
from typing import Protocol

from halimede.scheduling.execution import Execution

log = logging.getLogger(__name__)


class WorkThread(Protocol):
    """Runs what it is given, in order."""

    def submit(self, work: Callable[[], None]) -> None: ...


class Runnable(Protocol):
    """What the runner needs of a backend's instance, which may have a `thread` of its own."""

    def execute(self, batch: Execution, responses: Execution, /) -> None: ...


class InstanceThread:
    """Runs what it is given, in order, until it is stopped; before all of it `prepare`."""

    def __init__(self, name: str, prepare: Callable[[], None] | None = None) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        if prepare is not None:
            self._work.put(prepare)
        Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def stop(self) -> None:
        """Ends the thread after what it was given; does not wait for it."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException:
                log.exception("the thread of an instance goes on after an error")
            del work  # and with it what the batch held: memory of clients too, which waits for its last user


class Instances:
    """`free` holds the indices of the instances that can be given a batch, the longest free first (so all take their
    turn). One that is broken is not among them while another is well, or while one is expected back: then requests
    wait. Where there is neither, the broken ones are there again, to refuse what they are given.

    Those that are `passive` are never among them. `prepare` are to be called on the threads of these instances first.
    Instances may come and go while the version serves (contract R13): the list is their owner's, who changes it.
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
        """Whether what waits can run on one instance only: then each that will not be back refuses what is its own."""
        self._name = name
        self.instances = instances
        self._passive = set(passive)
        """Also those that leave, and the places in the list of those that have left."""
        self._prepare = dict(prepare)
        self._threads: dict[int, WorkThread] = {}
        self._started: dict[int, InstanceThread] = {}
        self._leaving: dict[int, Callable[[int], None]] = {}
        """Those that end their last batch, and who is to be told of that."""
        self._in_flight = in_flight
        """How many batches an instance has at a time: it is as often in `free` as it can take another one."""
        each = [index for index in range(len(instances)) if index not in passive]
        self.free = deque(each * in_flight)
        self._withheld: list[int] = []
        self._broken: dict[int, bool] = {}
        """The instances that are not well, and whether they are expected back soon."""

    def __len__(self) -> int:
        """How many can be given batches."""
        return len(self.instances) - len(self._passive)

    @property
    def busy(self) -> int:
        """How many of them run a batch."""
        idle = [*self.free, *self._withheld]
        serving = (index for index in range(len(self.instances)) if index not in self._passive)
        return sum(idle.count(index) < self._in_flight for index in serving)

    def take(self, index: int) -> Runnable:
        if self.free[0] == index:
            self.free.popleft()
        else:
            self.free.remove(index)
        return self.instances[index]

    def turn(self) -> int:
        """The one that is free the longest, which there must be, for a run on the loop: it is over before anybody can
        ask who is free, so the instance only goes to the end of the line."""
        index = self.free[0]
        self.free.rotate(-1)
        return index

    def give_back(self, index: int) -> None:
        self.free.append(index)
        if self._broken:
            self._sort()

    def mark(self, index: int, healthy: bool, expected: bool) -> None:
        """An instance broke, or is well again. Broken, it may be `expected` back so soon that requests should wait."""
        if index in self._passive:
            return
        if healthy:
            self._broken.pop(index, None)
        else:
            self._broken[index] = expected
        self._sort()

    def add(self, index: int, passive: bool = False, prepare: Callable[[], None] | None = None) -> None:
        """There is another instance at this place of the list: it is behind those that are free already."""
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
        """The instance is given no more batches; `left` is told when it has ended the one that it may have."""
        slots = self.free.count(index) + self._withheld.count(index)
        busy = index not in self._passive and slots < self._in_flight
        self._passive.add(index)
        self._leaving[index] = left
        self._broken[index] = False  # so that its return is looked at
        if not busy:
            self._withheld = [*(each for each in self._withheld if each != index), *[index] * self._in_flight]
        self._sort()

    def _let_go(self, idle: Sequence[int]) -> None:
        for index in [index for index in self._leaving if idle.count(index) >= self._in_flight]:
            self._broken.pop(index, None)
            self._threads.pop(index, None)
            thread = self._started.pop(index, None)
            if thread is not None:
                thread.stop()
            self._leaving.pop(index)(index)

    def _sort(self) -> None:
        """Decides anew which of the instances without a batch can be given one."""
        idle = [*self.free, *self._withheld]
        ending: list[int] = []
        if self._leaving:
            self._let_go(idle)
            ending = [index for index in idle if index in self._leaving]  # it has another batch to end
            idle = [index for index in idle if index not in self._passive]
        broken = self._broken
        refusing = len(broken) - len(self._leaving) == len(self) and not any(broken.values())
        self.free.clear()
        withheld = {index for index in idle if not refusing and index in broken}
        if self.pinned:
            withheld = {index for index in withheld if broken[index]}
        self.free.extend(index for index in idle if index not in withheld)
        self._withheld = [*ending, *(index for index in idle if index in withheld)]

    def thread(self, index: int) -> WorkThread:
        thread = self._threads.get(index)
        if thread is None:
            own: WorkThread | None = getattr(self.instances[index], "thread", None)
            thread = self._threads[index] = own or self._new_thread(index)
        return thread

    def _new_thread(self, index: int) -> InstanceThread:
        thread = self._started[index] = InstanceThread(f"{self._name} #{index}", self._prepare.get(index))
        return thread

    def stop(self) -> None:
        """Ends the threads that were started here; an instance ends its own."""
        for thread in self._started.values():
            thread.stop()
        self._threads.clear()
        self._started.clear()
