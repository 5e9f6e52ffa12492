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
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

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
    """

    def __init__(
        self,
        name: str,
        instances: Sequence[Runnable],
        passive: Collection[int] = (),
        prepare: Mapping[int, Callable[[], None]] = MappingProxyType({}),
    ) -> None:
        self._name = name
        self._instances = instances
        self._passive = passive
        self._prepare = prepare
        self._threads: dict[int, WorkThread] = {}
        self._started: list[InstanceThread] = []
        self.free = deque(index for index in range(len(instances)) if index not in passive)
        self._withheld: list[int] = []
        self._broken: dict[int, bool] = {}
        """The instances that are not well, and whether they are expected back soon."""

    def __len__(self) -> int:
        """How many can be given batches."""
        return len(self._instances) - len(self._passive)

    def take(self, index: int) -> Runnable:
        if self.free[0] == index:
            self.free.popleft()
        else:
            self.free.remove(index)
        return self._instances[index]

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

    def _sort(self) -> None:
        """Decides anew which of the instances without a batch can be given one."""
        idle = [*self.free, *self._withheld]
        broken = self._broken
        refusing = len(broken) == len(self) and not any(broken.values())
        self.free.clear()
        self.free.extend(index for index in idle if refusing or index not in broken)
        self._withheld = [index for index in idle if not refusing and index in broken]

    def thread(self, index: int) -> WorkThread:
        thread = self._threads.get(index)
        if thread is None:
            own: WorkThread | None = getattr(self._instances[index], "thread", None)
            thread = self._threads[index] = own or self._new_thread(index)
        return thread

    def _new_thread(self, index: int) -> InstanceThread:
        thread = InstanceThread(f"{self._name} #{index}", self._prepare.get(index))
        self._started.append(thread)
        return thread

    def stop(self) -> None:
        """Ends the threads that were started here; an instance ends its own."""
        for thread in self._started:
            thread.stop()
        self._threads.clear()
        self._started.clear()
