"""The rate limiter by itself: amounts, turns, what holds up whom; and random histories of it against its promises."""

import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.errors import Invalid
from halimede.scheduling.rate_limiter import (
    EVERYWHERE,
    INITIAL_RUNS,
    MAX_RUNS_AHEAD,
    Demand,
    LimiterSlots,
    RateLimiter,
    Resource,
    Slot,
)

R, S = Resource.of("R", 0), Resource.of("S", 0)
EVERYONE = Resource.of("R", None)
HISTORIES = 5000


class Floor:
    """A limiter with a loop that is turned by hand, and who was told to run."""

    def __init__(self, limits: Mapping[tuple[str, int], int] | None = None) -> None:
        self.ready: deque[Callable[[], None]] = deque()
        self.limiter = RateLimiter(limits or {}, self.ready.append)
        self.told: list[Slot] = []

    def slot(self, needs: Mapping[Resource, int] | None = None, priority: int = 0) -> Slot:
        slot = Slot(Demand(needs or {}, priority))
        slot.granted = lambda: self.told.append(slot)
        self.limiter.register([slot])
        return slot

    def run(self, slot: Slot) -> bool:
        """Whether it may run, and so does."""
        if self.limiter.ask(slot):
            self.limiter.ran(slot)
            return True
        return False

    def turn(self) -> list[Slot]:
        """Who may run after this turn of the loop; they do."""
        while self.ready:
            self.ready.popleft()()
        told, self.told = self.told, []
        for slot in told:
            self.limiter.ran(slot)
        return told

    def order(self, slots: Sequence[Slot], count: int) -> list[int]:
        """Who runs when all want to, one after the other."""
        ran: list[int] = []
        running = [slot for slot in slots if self.run(slot)]
        while len(ran) < count:
            slot = running.pop(0)
            ran.append(slots.index(slot))
            self.limiter.give_back(slot)
            if self.run(slot):
                running.append(slot)
            running += self.turn()
        return ran


# How much there is.


@pytest.mark.rows("S103")
def test_without_limits_there_is_as_much_as_any_instance_asks_for() -> None:
    floor = Floor()
    small, large = floor.slot({R: 1}), floor.slot({R: 3})
    others = [floor.slot({R: 1}) for _ in range(2)]
    assert [floor.run(slot) for slot in (small, *others)] == [True, True, True]
    assert not floor.run(large)
    for slot in (small, *others):
        assert floor.turn() == []
        floor.limiter.give_back(slot)
    assert floor.turn() == [large]


@pytest.mark.rows("S103")
@pytest.mark.parametrize(
    ("limits", "resource", "amount"),
    [
        ({("R", EVERYWHERE): 4}, R, 4),
        ({("R", 0): 4}, R, 4),
        ({("R", 0): 4, ("R", EVERYWHERE): 8}, R, 8),
        ({("R", 0): 8, ("R", EVERYWHERE): 4}, R, 8),
        ({("R", 1): 8}, R, 0),
        ({("S", EVERYWHERE): 8}, R, 0),
        ({("R", 0): 3, ("R", 5): 7, ("R", EVERYWHERE): 2}, EVERYONE, 7),
    ],
)
def test_limits_say_how_much_there_is(limits: Mapping[tuple[str, int], int], resource: Resource, amount: int) -> None:
    floor = Floor(limits)
    floor.slot({resource: amount})
    with pytest.raises(Invalid) as caught:
        floor.slot({resource: amount + 1})
    assert str(caught.value) == (
        f'Resource count for "R" is limited to {amount} which will prevent scheduling of one or more model instances, '
        f"the minimum required count is {amount + 1}"
    )


@pytest.mark.rows("S104")
def test_a_resource_is_either_of_a_device_or_of_the_server() -> None:
    text = 'Resource "R" is present as both global and device-specific resource in the model configuration.'
    for first, second in ((R, EVERYONE), (EVERYONE, R)):
        floor = Floor()
        floor.slot({first: 1})
        with pytest.raises(Invalid) as caught:
            floor.slot({second: 1})
        assert str(caught.value) == text
        with pytest.raises(Invalid):
            Floor().slot({R: 1, EVERYONE: 1})


def test_refused_instances_leave_nothing_behind() -> None:
    floor = Floor({("R", EVERYWHERE): 2})
    with pytest.raises(Invalid):
        floor.limiter.register([Slot(Demand({R: 2})), Slot(Demand({R: 3}))])
    assert floor.run(floor.slot({R: 2}))


def test_slots_cost_the_same_among_many() -> None:
    """A client may load a version with a thousand instances, when others have thousands too."""

    def steps_of(others: int) -> int:
        floor, demand = Floor(), Demand({R: 1, S: 2})
        floor.limiter.register([Slot(Demand({R: 1})) for _ in range(others)])
        steps = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal steps
            steps += 1

        sys.setprofile(count)
        slots = [Slot(demand) for _ in range(100)]
        floor.limiter.register(slots)
        for slot in slots:
            floor.limiter.ask(slot)
        floor.limiter.unregister(slots)
        sys.setprofile(None)
        return steps

    assert steps_of(500) <= steps_of(1) + 20


def test_resources_that_nobody_asks_for_are_forgotten() -> None:
    floor = Floor({("R", EVERYWHERE): 2})
    slot = floor.slot({R: 1})
    assert floor.run(slot)
    floor.limiter.unregister([slot])
    everyone = floor.slot({EVERYONE: 2})
    assert floor.run(everyone), "the name is free for a resource of the server"
    floor.limiter.unregister([everyone])
    large, small = floor.slot({R: 2}), floor.slot({R: 2})
    assert floor.run(large)
    assert not floor.run(small)


def test_slots_of_a_version_come_and_go() -> None:
    floor = Floor({("R", EVERYWHERE): 2})
    granted: list[None] = []
    slots = LimiterSlots(floor.limiter, {0: Slot(Demand({R: 1}))})
    slots.register()
    slots.watch(lambda: granted.append(None))
    with pytest.raises(Invalid):
        slots.add({1: Slot(Demand({R: 1})), 2: Slot(Demand({R: 3}))})
    slots.add({1: Slot(Demand({R: 2}))})
    assert slots.ask(0)
    slots.started(0)
    assert not slots.ask(1), "it waits for the other"
    left: list[int] = []
    slots.removing(left.append)(0)
    floor.turn()
    assert (left, len(granted)) == ([0], 1), "what the removed one held is free"
    assert slots.ask(1)
    added = {0: Slot(Demand({R: 1}))}
    slots.add(added)
    slots.discard(added)
    slots.remove(7)
    assert slots.by_turn([1]) == [1]


def test_removed_instance_takes_its_demand_with_it() -> None:
    floor = Floor()
    large, small, other = floor.slot({R: 4}), floor.slot({R: 2}), floor.slot({R: 2})
    assert floor.run(small)
    floor.limiter.unregister([large])
    assert not floor.run(other), "there are 2 now"
    floor.limiter.unregister([small])
    assert floor.turn() == [other]


def test_devices_have_their_own() -> None:
    floor = Floor()
    here, there = floor.slot({R: 1}), floor.slot({Resource.of("R", 1): 1})
    assert floor.run(here)
    assert floor.run(there)


def test_none_of_a_resource_is_always_there() -> None:
    floor = Floor({("S", EVERYWHERE): 1})
    assert floor.run(floor.slot({R: 0}))
    assert floor.run(floor.slot({R: 0}))


# Whose turn it is.


@pytest.mark.rows("S101")
@pytest.mark.parametrize(
    ("priorities", "expected"),
    [
        ((1, 1), [0, 1] * 6),
        ((0, 1), [0, 1] * 6),
        ((1, 2), [0, 0, 1] * 4),
        ((1, 3), [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]),
    ],
)
def test_priority_says_how_often_an_instance_runs(priorities: Sequence[int], expected: list[int]) -> None:
    """From a start that counts as two runs, as in the real server."""
    floor = Floor()
    slots = [floor.slot({R: 1}, priority) for priority in priorities]
    ran = floor.order(slots, 12)
    assert ran == expected
    assert INITIAL_RUNS == 2


def test_priority_holds_in_the_long_run() -> None:
    floor = Floor()
    ran = Counter(floor.order([floor.slot({R: 1}, priority) for priority in (1, 2, 5)], 17 * 100))
    assert [round(ran[i] / ran[2], 1) for i in range(3)] == pytest.approx([5, 2.5, 1], abs=0.15)


def test_new_instance_does_not_keep_others_waiting_until_it_has_caught_up() -> None:
    floor = Floor()
    old = floor.slot({R: 1})
    for _ in range(10_000):
        assert floor.run(old)
        floor.limiter.give_back(old)
    ran = floor.order([old, floor.slot({R: 1})], 400)
    assert ran.index(0, 1) <= MAX_RUNS_AHEAD + 2
    assert Counter(ran[MAX_RUNS_AHEAD + 2 :]) == pytest.approx(Counter({0: 149, 1: 149}), abs=2)


@pytest.mark.rows("S102")
def test_freed_resource_is_kept_for_the_next_in_turn() -> None:
    floor = Floor({("R", EVERYWHERE): 2})
    small, other, large = floor.slot({R: 1}), floor.slot({R: 1}, 3), floor.slot({R: 2})
    assert floor.run(small)
    assert not floor.run(large)
    assert not floor.run(other), "it would fit, but then the large one might never"
    floor.limiter.give_back(small)
    assert floor.turn() == [large]
    floor.limiter.give_back(large)
    assert floor.turn() == [other]


def test_slot_does_not_wait_if_its_resources_are_free() -> None:
    """Better than the original (contract D31), where everybody behind the first who waits does too."""
    floor = Floor()
    first, waiting = floor.slot({R: 1}), floor.slot({R: 1})
    assert floor.run(first)
    assert not floor.run(waiting)
    assert floor.run(floor.slot({S: 1}, 9))
    assert floor.run(floor.slot({}, 9))


def test_slot_that_gives_up_is_not_granted_and_blocks_no_other() -> None:
    floor = Floor({("R", EVERYWHERE): 2})
    small, other, large = floor.slot({R: 1}), floor.slot({R: 1}, 9), floor.slot({R: 2})
    assert floor.run(small)
    assert not floor.run(large)
    assert not floor.run(other)
    floor.limiter.give_back(large)
    assert floor.turn() == [other]


def test_blockers_hold_the_missing_resource() -> None:
    floor = Floor()
    holder, waiting, behind = floor.slot({R: 1, S: 1}), floor.slot({R: 1}), floor.slot({S: 1})
    assert floor.run(holder)
    assert not floor.run(waiting)
    assert not floor.run(behind)
    assert floor.limiter.blockers(waiting) == [holder]
    assert floor.limiter.blockers(behind) == [holder]


def test_blockers_of_a_slot_behind_another_are_those_of_the_other() -> None:
    floor = Floor({("R", EVERYWHERE): 2})
    holder, first, second = floor.slot({R: 1}), floor.slot({R: 2}), floor.slot({R: 1}, 9)
    assert floor.run(holder)
    assert not floor.run(first)
    assert not floor.run(second)
    assert floor.limiter.blockers(second) == [holder]


def test_slot_that_waits_only_for_its_turn_can_preempt() -> None:
    floor = Floor({("R", EVERYWHERE): 2})
    holder, first, second = floor.slot({R: 1}), floor.slot({R: 2}), floor.slot({R: 1}, 9)
    assert floor.run(holder)
    assert not floor.run(first)
    assert not floor.run(second)
    assert not floor.limiter.preempt_turn(first), "there is too little for it"
    assert floor.limiter.preempt_turn(second)
    assert not floor.limiter.preempt_turn(second), "it may run already"
    assert floor.turn() == [second]
    floor.limiter.give_back(holder)
    assert floor.turn() == []
    floor.limiter.give_back(second)
    assert floor.turn() == [first]


# Random histories.


class History:
    """A limiter under instances that come, ask, run, change their mind, end and go, at random."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        names = ["R", "S", "T"][: dice.randint(1, 3)]
        self.amounts = {name: dice.randint(1, 4) for name in names}
        self.floor = Floor({(name, EVERYWHERE): amount for name, amount in self.amounts.items()})
        self.idle: list[Slot] = []
        self.waiting: list[Slot] = []
        self.running: list[Slot] = []
        for _ in range(dice.randint(1, 6)):
            self.come()

    def come(self) -> None:
        chosen = self.dice.sample(sorted(self.amounts), self.dice.randint(0, len(self.amounts)))
        needs = {Resource.of(name, 0): self.dice.randint(0, self.amounts[name]) for name in chosen}
        self.idle.append(self.floor.slot(needs, self.dice.randint(0, 4)))

    def step(self) -> None:
        often = (self.ask, self.end)
        self.dice.choice((*often, *often, self.change_mind, self.come, self.go, self.turn))()
        self.check()

    def ask(self) -> None:
        if self.idle:
            slot = self.idle.pop(self.dice.randrange(len(self.idle)))
            (self.running if self.floor.run(slot) else self.waiting).append(slot)

    def end(self) -> None:
        if self.running:
            slot = self.running.pop(self.dice.randrange(len(self.running)))
            self.floor.limiter.give_back(slot)
            self.idle.append(slot)

    def change_mind(self) -> None:
        if self.waiting and self.dice.random() < 0.3:
            slot = self.waiting.pop(self.dice.randrange(len(self.waiting)))
            self.floor.limiter.give_back(slot)
            self.idle.append(slot)

    def go(self) -> None:
        for group in (self.idle, self.waiting, self.running):
            if len(group) > 1 and self.dice.random() < 0.2:
                self.floor.limiter.unregister([group.pop()])

    def turn(self) -> None:
        for slot in self.floor.turn():
            self.waiting.remove(slot)
            self.running.append(slot)
        self.check_nobody_waits_in_vain()

    def check(self) -> None:
        held = self.held()
        assert all(amount <= self.amounts[resource.name] for resource, amount in held.items()), held
        assert all(slot.waits for slot in self.waiting)
        assert all(slot.holds for slot in self.running)

    def held(self) -> Counter[Resource]:
        held: Counter[Resource] = Counter()
        for slot in self.running:
            held.update(slot.demand.resources)
        return held

    def check_nobody_waits_in_vain(self) -> None:
        """Whoever waits lacks something, or shares something with one that waits and whose turn is sooner."""
        held, wanted = self.held(), set[Resource]()
        for slot in sorted(self.waiting, key=lambda slot: (slot.turn, slot.order)):
            needs = {resource: amount for resource, amount in slot.demand.resources.items() if amount}
            lacks = any(held[resource] + amount > self.amounts[resource.name] for resource, amount in needs.items())
            assert lacks or wanted.intersection(needs)
            assert self.floor.limiter.blockers(slot), "who waits, waits for somebody that runs"
            wanted.update(needs)

    def settle(self) -> None:
        """When what runs ends and nobody asks any more, everybody who waits has run: no deadlock, no starvation."""
        rounds = len(self.waiting) + 1
        for _ in range(rounds):
            while self.running:
                self.end()
            self.turn()
        assert not self.waiting


def play(dice: random.Random, steps: int) -> None:
    history = History(dice)
    for _ in range(steps):
        history.step()
    history.settle()


@pytest.mark.rows("S102")
def test_random_histories_keep_the_promises() -> None:
    for seed in range(HISTORIES):
        try:
            play(random.Random(seed), 30)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@settings(deadline=None, max_examples=100)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_any_history_keeps_the_promises(dice: random.Random, steps: int) -> None:
    play(dice, steps)


def test_large_demand_is_not_starved_by_small_ones() -> None:
    """As long as the others go on for ever, too; by how much it can be late depends on the priorities only."""
    for seed in range(50):
        dice = random.Random(seed)
        floor = Floor({("R", EVERYWHERE): 4})
        many = [floor.slot({R: 1}, dice.randint(0, 3)) for _ in range(8)]
        large = floor.slot({R: 4}, dice.randint(0, 3))
        running = [slot for slot in many if floor.run(slot)]
        assert not floor.run(large)
        for _ in range(50):
            slot = running.pop(dice.randrange(len(running)))
            floor.limiter.give_back(slot)
            if floor.run(slot):
                running.append(slot)
            running += floor.turn()
            if large in running:
                break
        assert large in running, seed


def test_slot_that_gives_up_in_its_turn_is_not_granted() -> None:
    """Who is told first may find that it has nothing to run, there neither."""
    floor = Floor({("R", EVERYWHERE): 2})
    holder, first, second = floor.slot({R: 2}), floor.slot({R: 1}), floor.slot({R: 1})
    assert floor.run(holder)
    assert not floor.run(first)
    assert not floor.run(second)

    def granted() -> None:
        floor.told.append(first)
        floor.limiter.give_back(second)

    first.granted = granted
    floor.limiter.give_back(holder)
    assert floor.turn() == [first]
