"""The rate limiter: which instances may run at the same time, and whose turn it is (contract S100 to S105).

An instance holds all resources that it asks for while it runs a batch. Who cannot have them waits in the stage, ordered
by how much ran already (times its priority). One limiter is for all models of an engine. Knows instances by their slots
only; does no I/O and reads no clock. Loop thread only. Where this differs from the original, and why:
docs/decisions/rate-limiter.md.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

from halimede.errors import Invalid

EVERYWHERE = -1
"""As the device of a limit: each device has that much."""
_GLOBAL = -2
FIRST_RUNS = 2
"""What a new instance counts as having run: as in the original, which counts its initialization and its warm-up."""
MOST_AHEAD = 100
"""By how many runs of its own one that was idle, or is new, can be before the others. Without a bound an instance that
ran a million times would wait while a new one catches up."""


class Resource(NamedTuple):
    """A resource of one device, or of the whole server."""

    device: int
    name: str

    @classmethod
    def of(cls, name: str, device: int | None) -> "Resource":
        """None: of the whole server."""
        return cls(_GLOBAL if device is None else device, name)

    @property
    def is_global(self) -> bool:
        return self.device == _GLOBAL


@dataclass(frozen=True, slots=True)
class Demand:
    """What an instance takes while it runs; `priority` n runs it 1/n as often as priority 1 (contract S101)."""

    resources: Mapping[Resource, int] = field(default_factory=lambda: MappingProxyType({}))
    priority: int = 1


class _State(Enum):
    IDLE = "idle"
    WAITING = "waiting"
    HOLDING = "holding"


class Slot:
    """An instance as the limiter sees it. `granted` is called when it has waited and may run. `instance` is what the
    slot stands for, which is nothing to the limiter."""

    __slots__ = ("demand", "granted", "instance", "needs", "order", "runs", "state", "weight")

    def __init__(self, demand: Demand, instance: object = None) -> None:
        self.demand = demand
        self.instance = instance
        self.needs = {resource: amount for resource, amount in demand.resources.items() if amount}
        self.weight = max(demand.priority, 1)
        self.runs = float(FIRST_RUNS)
        self.state = _State.IDLE
        self.order = 0
        self.granted: Callable[[], None] = lambda: None

    @property
    def turn(self) -> float:
        """The smaller, the sooner it is its turn."""
        return self.runs * self.weight

    @property
    def waits(self) -> bool:
        return self.state is _State.WAITING

    @property
    def holds(self) -> bool:
        """Whether its resources are set aside for it, or in use by it."""
        return self.state is _State.HOLDING


class RateLimiter:
    """`limits` say how much there is, by name and device (`EVERYWHERE`: of each device); where there are none, as much
    of everything as any instance asks for (contract S103). `call_soon` runs a callback in the next turn of the loop."""

    def __init__(
        self, limits: Mapping[tuple[str, int], int], call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._limits = limits
        self._call_soon = call_soon
        self._slots: dict[Slot, None] = {}
        self._amounts: Mapping[Resource, int] = {}
        self._held: dict[Resource, int] = {}
        self._stage: list[Slot] = []
        self._orders = count(1)
        self._reached = 0.0
        self._armed = False

    # Instances come and go.

    def register(self, slots: Sequence[Slot]) -> None:
        """New instances, all or none. Raises Invalid in the words of the contract (S103, S104)."""
        try:
            for slot in slots:
                self._slots[slot] = None
                self._amounts = self._count()
        except Invalid:
            self.unregister(slots)
            raise
        self._look_again()

    def unregister(self, slots: Iterable[Slot]) -> None:
        """Their instances are no more; what they held is free."""
        for slot in slots:
            self.give_back(slot)
            self._slots.pop(slot, None)
        self._amounts = self._count()

    def _count(self) -> Mapping[Resource, int]:
        """How much there is of each resource."""
        amounts: dict[Resource, int] = {}
        for slot in self._slots:
            for resource, amount in slot.demand.resources.items():
                amounts[resource] = max(amounts.get(resource, 0), amount)
        if self._limits:
            for resource, needed in sorted(amounts.items()):
                amounts[resource] = self._limit_of(resource)
                if amounts[resource] < needed:
                    raise Invalid(
                        f'Resource count for "{resource.name}" is limited to {amounts[resource]} which will prevent '
                        f"scheduling of one or more model instances, the minimum required count is {needed}"
                    )
        everywhere = {resource.name for resource in amounts if resource.is_global}
        for name in sorted(everywhere.intersection(resource.name for resource in amounts if not resource.is_global)):
            raise Invalid(
                f'Resource "{name}" is present as both global and device-specific resource in the model configuration.'
            )
        return amounts

    def _limit_of(self, resource: Resource) -> int:
        """Of a global resource the most that is given for any device."""
        given = [
            amount
            for (name, device), amount in self._limits.items()
            if name == resource.name and (resource.is_global or device in (resource.device, EVERYWHERE))
        ]
        return max(given, default=0)

    # Turns.

    def ask(self, slot: Slot) -> bool:
        """Whether the instance may run now: then it holds its resources until it gives them back. Else it waits, and is
        told when it may."""
        if slot.state is not _State.IDLE:
            return slot.holds
        slot.runs = max(slot.runs, self._reached / slot.weight - MOST_AHEAD)
        slot.order = next(self._orders)
        if self._fits(slot) and self._wanted_before(slot) is None:
            self._hold(slot)
            return True
        slot.state = _State.WAITING
        insort(self._stage, slot, key=_place)
        return False

    def ran(self, slot: Slot) -> None:
        """The instance, which holds its resources, has begun a batch."""
        self._reached = max(self._reached, slot.turn)
        slot.runs += 1

    def give_back(self, slot: Slot) -> None:
        """The instance does not run, and waits no more."""
        if slot.waits:
            self._stage.remove(slot)
        elif slot.holds:
            for resource, amount in slot.needs.items():
                self._held[resource] -= amount
        slot.state = _State.IDLE
        self._look_again()

    def blockers(self, slot: Slot) -> Sequence[Slot]:
        """Those of which one must give back before this one, which waits, can run."""
        for resource, amount in slot.needs.items():
            if self._held.get(resource, 0) + amount > self._amounts[resource]:
                return [other for other in self._slots if other.holds and resource in other.needs]
        before = self._wanted_before(slot)
        return () if before is None else self.blockers(before)

    def preempt_turn(self, slot: Slot) -> bool:
        """Lets one that waits only because others are to go first go before them; whether it can. For when these wait,
        in the end, for it."""
        if not slot.waits or not self._fits(slot):
            return False
        self._stage.remove(slot)
        self._hold(slot)
        self._call_soon(lambda: slot.granted() if slot.holds else None)
        return True

    def _hold(self, slot: Slot) -> None:
        slot.state = _State.HOLDING
        for resource, amount in slot.needs.items():
            self._held[resource] = self._held.get(resource, 0) + amount

    def _fits(self, slot: Slot) -> bool:
        held, amounts = self._held, self._amounts
        return all(held.get(resource, 0) + amount <= amounts[resource] for resource, amount in slot.needs.items())

    def _wanted_before(self, slot: Slot) -> Slot | None:
        """One whose turn is sooner and that waits for a resource of this one: what comes free is kept for it, so that
        many that need little do not starve one that needs much."""
        mine = _place(slot)
        for other in self._stage:
            if _place(other) >= mine:
                return None
            if not slot.needs.keys().isdisjoint(other.needs):
                return other
        return None

    def _look_again(self) -> None:
        """In the next turn of the loop: who gives back may be in the middle of something, and ask again at once."""
        if self._stage and not self._armed:
            self._armed = True
            self._call_soon(self._grant)

    def _grant(self) -> None:
        """Lets those run that can, in turn. One that cannot holds up those only that need what it waits for."""
        self._armed = False
        wanted: set[Resource] = set()
        granted = []
        for slot in self._stage:
            if wanted.isdisjoint(slot.needs) and self._fits(slot):
                self._hold(slot)
                granted.append(slot)
            else:
                wanted.update(slot.needs)
        self._stage = [slot for slot in self._stage if slot.waits]
        for slot in granted:
            if slot.holds:  # one that was told before may have given up for this one too
                slot.granted()


def _place(slot: Slot) -> tuple[float, int]:
    return slot.turn, slot.order
