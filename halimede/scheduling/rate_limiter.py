"""The rate limiter: which instances may run at the same time, and in which order (S100 to S105).

An instance holds all resources of its demand while it runs a batch. One limiter serves all models of an engine. It
knows instances only by their slots, does no I/O and reads no clock. Loop thread only. Differences from the original:
docs/decisions/rate-limiter.md.

    slot state   event                                       next state
    ----------   -----------------------------------------   ---------------------------------------------
    IDLE         ask: resources fit, no earlier one wants    HOLDING
    IDLE         ask: otherwise                              WAITING, in the stage by runs times priority
    WAITING      resources were given back, and it fits      HOLDING; `granted` is called
    WAITING      preempt_turn: resources fit                 HOLDING; `granted` is called in the next turn
    HOLDING      ran: its batch starts                       HOLDING; counts a run
    any          give_back, unregister                       IDLE
"""

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

from halimede.errors import Invalid

EVERYWHERE = -1
"""The device of a limit that holds for each device."""
_GLOBAL = -2
"""The device of a resource that belongs to the whole server."""
INITIAL_RUNS = 2
"""Runs that a new instance starts with: the original counts its initialization and its warm-up."""
MAX_RUNS_AHEAD = 100
"""How many of its own runs an idle or new instance can be ahead of the others. Without this bound an instance that ran
a million times would wait while a new one catches up."""


class Resource(NamedTuple):
    """A resource of one device, or of the whole server."""

    device: int
    name: str

    @classmethod
    def of(cls, name: str, device: int | None) -> "Resource":
        """The resource of a device, or of the whole server if `device` is None."""
        return cls(_GLOBAL if device is None else device, name)

    @property
    def is_global(self) -> bool:
        return self.device == _GLOBAL


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What an instance holds while it runs. With `priority` n it runs 1/n as often as with priority 1 (S101).

    Instances of one group share theirs, and the limiter counts its resources once for all of them.
    """

    resources: Mapping[Resource, int] = field(default_factory=lambda: MappingProxyType({}))
    priority: int = 1


class _State(Enum):
    IDLE = "idle"
    WAITING = "waiting"
    HOLDING = "holding"


class Slot:
    """An instance as the limiter sees it.

    granted -- called when the instance has waited and may run
    instance -- what the slot stands for; the limiter only hands it back
    order -- when it last asked, to decide between equal turns
    """

    __slots__ = ("demand", "granted", "instance", "needs", "order", "runs", "state", "weight")

    def __init__(self, demand: Demand, instance: object = None) -> None:
        self.demand = demand
        self.instance = instance
        needs = demand.resources
        self.needs = needs if all(needs.values()) else {each: amount for each, amount in needs.items() if amount}
        self.weight = max(demand.priority, 1)
        self.runs = float(INITIAL_RUNS)
        self.state = _State.IDLE
        self.order = 0
        self.granted: Callable[[], None] = lambda: None

    @property
    def turn(self) -> float:
        """The smallest turn runs first."""
        return self.runs * self.weight

    @property
    def waits(self) -> bool:
        return self.state is _State.WAITING

    @property
    def holds(self) -> bool:
        """Whether its resources are reserved for it or in use by it."""
        return self.state is _State.HOLDING


class RateLimiter:
    """`limits` has the amount of each resource by name and device (`EVERYWHERE` for each device). Without limits there
    is as much of each resource as the largest demand (S103). `call_soon` runs a callback in the next turn of the
    loop."""

    def __init__(
        self, limits: Mapping[tuple[str, int], int], call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._limits = limits
        self._call_soon = call_soon
        self._slots: dict[Slot, None] = {}
        self._asked: defaultdict[Resource, Counter[int]] = defaultdict(Counter)
        """How many slots ask for which amount of a resource."""
        self._devices: defaultdict[str, set[int]] = defaultdict(set)
        """By the name of a resource that is asked for, its devices."""
        self._amounts: dict[Resource, int] = {}
        self._held: dict[Resource, int] = {}
        self._stage: list[Slot] = []
        self._orders = count(1)
        self._last_turn = 0.0
        """The largest turn that has run: how far the others have come."""
        self._grant_is_due = False

    # ---- instances come and go

    def register(self, slots: Sequence[Slot]) -> None:
        """Adds instances, all or none. Raises Invalid if a limit is too small, or if a resource is both global and of a
        device (S103, S104)."""
        fresh = [slot for slot in slots if slot not in self._slots]
        self._slots.update(dict.fromkeys(fresh))
        demands = Counter(slot.demand for slot in fresh)
        for demand, number in demands.items():
            for resource, amount in demand.resources.items():
                self._asked[resource][amount] += number
                self._devices[resource.name].add(resource.device)
        try:
            self._count(demands)
        except Invalid:
            self.unregister(fresh)
            raise
        self._grant_next_turn()

    def unregister(self, slots: Iterable[Slot]) -> None:
        """Removes instances; what they held is free."""
        gone = list(slots)
        # Out of the stage all at once: it has all instances that wait.
        if any(slot.waits for slot in gone):
            leaving = set(gone)
            self._stage = [slot for slot in self._stage if slot not in leaving]
        for slot in gone:
            self._free(slot)
        self._grant_next_turn()
        known = [slot for slot in dict.fromkeys(gone) if slot in self._slots]
        for slot in known:
            del self._slots[slot]
        demands = Counter(slot.demand for slot in known)
        for demand, number in demands.items():
            for resource, amount in demand.resources.items():
                asked = self._asked[resource]
                asked[amount] -= number
                if not asked[amount]:
                    del asked[amount]
        self._count(demands)

    def _count(self, demands: Iterable[Demand]) -> None:
        """Sets the amount of each resource of demands that came or went. The others stay as they are."""
        resources = sorted({resource for demand in demands for resource in demand.resources})
        for resource in resources:
            needed = max(self._asked[resource], default=None)
            if needed is None:
                self._forget(resource)
                continue
            amount = self._amounts[resource] = self._limit_of(resource) if self._limits else needed
            if amount < needed:
                raise Invalid(
                    f'Resource count for "{resource.name}" is limited to {amount} which will prevent '
                    f"scheduling of one or more model instances, the minimum required count is {needed}"
                )
        for name in sorted({resource.name for resource in resources}):
            devices = self._devices.get(name, ())
            if _GLOBAL in devices and len(devices) > 1:
                raise Invalid(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )

    def _forget(self, resource: Resource) -> None:
        """No instance asks for the resource any more."""
        del self._asked[resource]
        self._amounts.pop(resource, None)
        if not self._held.get(resource):
            self._held.pop(resource, None)
        devices = self._devices[resource.name]
        devices.discard(resource.device)
        if not devices:
            del self._devices[resource.name]

    def _limit_of(self, resource: Resource) -> int:
        """The limit of a resource. For a global one it is the largest limit that any device has."""
        given = [
            amount
            for (name, device), amount in self._limits.items()
            if name == resource.name and (resource.is_global or device in (resource.device, EVERYWHERE))
        ]
        return max(given, default=0)

    # ---- who may run

    def ask(self, slot: Slot) -> bool:
        """Returns whether the instance may run now. If so, it holds its resources until `give_back`; if not, it waits
        and `granted` is called when it may."""
        if slot.state is not _State.IDLE:
            return slot.holds
        slot.runs = max(slot.runs, self._last_turn / slot.weight - MAX_RUNS_AHEAD)
        slot.order = next(self._orders)
        if self._fits(slot) and self._wanted_before(slot) is None:
            self._hold(slot)
            return True
        slot.state = _State.WAITING
        insort(self._stage, slot, key=_place)
        return False

    def ran(self, slot: Slot) -> None:
        """A batch has started on the instance, which holds its resources."""
        self._last_turn = max(self._last_turn, slot.turn)
        slot.runs += 1

    def give_back(self, slot: Slot) -> None:
        """The instance neither runs nor waits any more."""
        if slot.waits:
            self._stage.remove(slot)
        self._free(slot)
        self._grant_next_turn()

    def _free(self, slot: Slot) -> None:
        """The slot is not in the stage, and holds nothing any more."""
        if slot.holds:
            for resource, amount in slot.needs.items():
                self._held[resource] -= amount
        slot.state = _State.IDLE

    def blockers(self, slot: Slot) -> Sequence[Slot]:
        """The slots of which one must give back its resources before this waiting one can run."""
        for resource, amount in slot.needs.items():
            if self._held.get(resource, 0) + amount > self._amounts[resource]:
                return [other for other in self._slots if other.holds and resource in other.needs]
        before = self._wanted_before(slot)
        return () if before is None else self.blockers(before)

    def preempt_turn(self, slot: Slot) -> bool:
        """Lets a waiting slot run before those whose turn is earlier, if its resources fit. Returns whether they do.
        Used if these others wait, through calls between models, for this one."""
        if not slot.waits or not self._fits(slot):
            return False
        self._stage.remove(slot)
        self._hold(slot)
        # In the next turn, by which it may have given up.
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
        """A waiting slot with an earlier turn that needs a resource of this one. Freed amounts are kept for it, so that
        many small demands do not starve a large one."""
        mine = _place(slot)
        for other in self._stage:
            if _place(other) >= mine:
                return None
            if not slot.needs.keys().isdisjoint(other.needs):
                return other
        return None

    def _grant_next_turn(self) -> None:
        """Grants in the next turn of the loop. The caller that gives back may ask again at once."""
        if self._stage and not self._grant_is_due:
            self._grant_is_due = True
            self._call_soon(self._grant)

    def _grant(self) -> None:
        """Lets waiting slots run, in turn. One that does not fit holds back only those that need one of its
        resources."""
        self._grant_is_due = False
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
            if slot.holds:  # the callback of an earlier slot may have made this one give back
                slot.granted()


def _place(slot: Slot) -> tuple[float, int]:
    return slot.turn, slot.order


class LimiterSlots:
    """The slots of one model version's instances, by index: what its runner asks before each batch (S100 to S102).

    An instance without a slot never runs. A slot is asked (it waits, or holds and has no batch yet) or running.
    """

    def __init__(self, limiter: RateLimiter, slots: Mapping[int, Slot]) -> None:
        self._limiter = limiter
        self._slots = dict(slots)
        self._granted: Callable[[], None] = lambda: None
        self._asked: dict[int, Slot] = {}
        self._running: dict[int, Slot] = {}

    def register(self) -> None:
        """Makes the slots known to the limiter: all, or none. Raises Invalid if they need resources that it does not
        have (S103)."""
        self._limiter.register(tuple(self._slots.values()))

    def add(self, slots: Mapping[int, Slot]) -> None:
        """Adds the slots of further instances, all or none. Raises Invalid like `register`."""
        self._limiter.register(tuple(slots.values()))
        self._slots.update(slots)
        self.watch(self._granted)

    def remove(self, index: int) -> None:
        """The instance runs no batch any more; does nothing if it has no slot."""
        self._asked.pop(index, None)
        self._running.pop(index, None)
        slot = self._slots.pop(index, None)
        if slot is not None:
            self._limiter.unregister((slot,))

    def discard(self, slots: Mapping[int, Slot]) -> None:
        """Takes back `add`, even if it failed."""
        for index, slot in slots.items():
            if self._slots.get(index) is slot:
                self.remove(index)

    def removing(self, left: Callable[[int], None]) -> Callable[[int], None]:
        """Calls `remove` and then `left`, for an instance that is idle."""

        def gone(index: int) -> None:
            self.remove(index)
            left(index)

        return gone

    def watch(self, granted: Callable[[], None]) -> None:
        """Has `granted` called when an instance that waited may run."""
        self._granted = granted
        for slot in self._slots.values():
            slot.granted = granted

    def by_turn(self, free: Collection[int]) -> list[int]:
        """These instances in the order of their turns. Those that hold their resources already come first."""
        slots = self._slots
        return sorted(free, key=lambda index: (not slots[index].holds, slots[index].turn))

    def ask(self, index: int) -> bool:
        """Returns whether this instance may run a batch now; if not, it waits."""
        slot = self._asked[index] = self._slots[index]
        return self._limiter.ask(slot)

    def started(self, index: int) -> None:
        """A batch has started on the instance."""
        self._running[index] = self._asked.pop(index)
        self._limiter.ran(self._running[index])

    def finished(self, index: int) -> None:
        """The batch of the instance has finished; does nothing if none has started."""
        slot = self._running.pop(index, None)
        if slot is not None:
            self._limiter.give_back(slot)

    def withdraw(self, index: int) -> None:
        """The instance has no batch to run after all; does nothing if one has started."""
        slot = self._asked.pop(index, None)
        if slot is not None:
            self._limiter.give_back(slot)

    def trim(self, free: Collection[int], most: int) -> None:
        """Withdraws the asked instances that are not in `free`, and those beyond `most`: there is no batch for them."""
        for index in list(self._asked):
            if most > 0 and index in free:
                most -= 1
            else:
                self.withdraw(index)

    def blockers(self) -> list[object]:
        """The instances of which one must finish its batch before a waiting one of these can run. Empty if none of
        these waits for resources."""
        waiting = [slot for slot in self._asked.values() if slot.waits]
        others = [other.instance for slot in waiting for other in self._limiter.blockers(slot)]
        return [*others, *(slot.instance for slot in self._running.values())] if others else []

    def preempt_turn(self) -> bool:
        """Lets one of these that only waits for its turn run first. Returns whether there is one."""
        return any(self._limiter.preempt_turn(slot) for slot in self._asked.values())

    def retire(self) -> None:
        """No batch starts here any more. An instance that still runs one keeps its resources until it has finished: its
        requests may all have been answered before."""
        self._limiter.unregister(slot for index, slot in self._slots.items() if index not in self._running)

    def close(self) -> None:
        """The instances are gone."""
        self._limiter.unregister(self._slots.values())
