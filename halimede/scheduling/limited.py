"""A runner whose instances must be let by the rate limiter before each batch (contract S100 to S102).

Only made where the server has a limiter: others run as if there were none. Event-loop thread only.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.instances import Instances
from halimede.scheduling.policy import Batch, Policy
from halimede.scheduling.rate_limiter import RateLimiter, Slot
from halimede.scheduling.runner import Runner
from halimede.scheduling.runner_config import Loop, Observer, RunnerConfig


class LimiterSlots:
    """The slots of the instances of one model version, by index; instances without one run nothing."""

    def __init__(self, limiter: RateLimiter, slots: Mapping[int, Slot]) -> None:
        self._limiter = limiter
        self._slots = slots
        self._asked: dict[int, Slot] = {}
        """Those that wait, or were let and have no batch yet."""
        self._running: dict[int, Slot] = {}

    def register(self) -> None:
        """Makes the slots known to the limiter, all or none. Raises Invalid if they need what is not there (S103)."""
        self._limiter.register(tuple(self._slots.values()))

    def watch(self, granted: Callable[[], None]) -> None:
        """Has `granted` called when an instance that waited may run."""
        for slot in self._slots.values():
            slot.granted = granted

    def sorted(self, free: Collection[int]) -> list[int]:
        """Those of these instances whose turn it is first; before them those that have their resources already."""
        slots = self._slots
        return sorted(free, key=lambda index: (not slots[index].holds, slots[index].turn))

    def ask(self, index: int) -> bool:
        """Whether this instance may run a batch; else it waits."""
        slot = self._asked[index] = self._slots[index]
        return self._limiter.ask(slot)

    def ran(self, index: int) -> None:
        """A batch begins on it."""
        self._running[index] = self._asked.pop(index)
        self._limiter.ran(self._running[index])

    def give_back(self, index: int) -> None:
        """Its batch is over."""
        slot = self._running.pop(index, None)
        if slot is not None:
            self._limiter.give_back(slot)

    def leave(self, index: int) -> None:
        """It has nothing to run after all."""
        slot = self._asked.pop(index, None)
        if slot is not None:
            self._limiter.give_back(slot)

    def keep(self, free: Collection[int], most: int) -> None:
        """No more than `most` shall wait, and only those that are free."""
        for index in list(self._asked):
            if most > 0 and index in free:
                most -= 1
            else:
                self.leave(index)

    def blockers(self) -> list[object]:
        """The instances of which one must end its batch before another one of these can run; none where they do not
        wait for resources."""
        waiting = [slot for slot in self._asked.values() if slot.waits]
        others = [other.instance for slot in waiting for other in self._limiter.blockers(slot)]
        return [*others, *(slot.instance for slot in self._running.values())] if others else []

    def preempt_turn(self) -> bool:
        """Lets one of these that only waits for its turn go first; whether there is one."""
        return any(self._limiter.preempt_turn(slot) for slot in self._asked.values())

    def retire(self) -> None:
        """Nothing more begins here. An instance whose batch has had all its answers may run still, and keeps what it
        holds until that is over, or `close`."""
        self._limiter.unregister(slot for index, slot in self._slots.items() if index not in self._running)

    def close(self) -> None:
        """The instances are no more."""
        self._limiter.unregister(self._slots.values())


class LimitedRunner(Runner):
    def __init__(
        self,
        config: RunnerConfig,
        policy: Policy,
        instances: Instances,
        loop: Loop,
        observer: Observer,
        settled: Callable[[Inference], None],
        turns: LimiterSlots,
    ) -> None:
        super().__init__(config, policy, instances, loop, observer, settled)
        self._turns = turns
        turns.watch(self._enter)

    def _advance(self, now: int) -> None:
        try:
            super()._advance(now)
        finally:
            if not self._advancing:
                self._turns.keep(*self._wanted(self._instances.free))

    def _start_next(self, now: int, free: Sequence[int]) -> bool:
        """Asks for as many instances as there may be batches; those that must wait are told when they may run."""
        wanted, most = self._wanted(free)
        for index in self._turns.sorted(wanted)[:most]:
            if self._turns.ask(index):
                try:
                    if super()._start_next(now, (index,)):
                        return True
                finally:
                    self._turns.leave(index)
        return False

    def _wanted(self, free: Sequence[int]) -> tuple[Sequence[int], int]:
        """Which of these instances there may be batches for, and for how many of them."""
        stateful_policy = self._stateful_policy
        if stateful_policy is None:
            return free, self._policy.waiting
        wanted = [index for index in free if stateful_policy.wants(index)]
        return wanted, len(wanted)

    def _start(self, batch: Batch, now: int) -> None:
        self._turns.ran(batch.instance)
        try:
            super()._start(batch, now)
        except BaseException:
            self._turns.give_back(batch.instance)
            raise

    def _account(self, execution: Execution) -> None:
        index = execution.instance
        try:
            super()._account(execution)
        finally:
            self._turns.give_back(index)
