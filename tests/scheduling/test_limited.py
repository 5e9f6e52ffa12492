"""Runners under a rate limiter: models that share resources run one after the other, in turn, and none is forgotten."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic_ns

import pytest

from halimede.scheduling.dynamic import DynamicPolicy
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.instances import Instances
from halimede.scheduling.policy import Policy
from halimede.scheduling.priority import PriorityQueuePolicy, QueueRules
from halimede.scheduling.queue import DefaultPolicy
from halimede.scheduling.rate_limiter import EVERYWHERE, Demand, LimiterSlots, RateLimiter, Resource, Slot
from halimede.scheduling.runner import Runner
from halimede.scheduling.runner_config import RunnerConfig
from halimede.tensors import FP32
from tests.fakes import FakeInstance, ManualLoop, RecordingObserver, RecordingReply, inference

ONE = Demand({Resource.of("R", 0): 1})
HISTORIES = 500


class House:
    """Several models of one engine. What they run is kept until a test ends it."""

    def __init__(self, amount: int = 1, clock: Callable[[], int] = monotonic_ns) -> None:
        self._clock = clock
        self.loop = ManualLoop()
        self.limiter = RateLimiter({("R", EVERYWHERE): amount}, self.loop.call_soon)
        self.running: list[tuple[str, Execution]] = []
        self.begun: list[str] = []
        self.settled = Counter[str]()
        self.turns: dict[str, LimiterSlots] = {}
        self.runners: dict[str, Runner] = {}

    def model(self, name: str, *demands: Demand, policy: Policy | None = None) -> Runner:
        instances = [FakeInstance(partial(self._begin, name)) for _ in demands]
        slots = {i: Slot(demand, instances[i]) for i, demand in enumerate(demands)}
        self.limiter.register(list(slots.values()))
        turns = self.turns[name] = LimiterSlots(self.limiter, slots)
        config = RunnerConfig(name, 1, {"x": FP32}, False, False, True)
        runner = self.runners[name] = Runner(
            config,
            policy or DefaultPolicy(),
            Instances(name, instances),
            self.loop,
            RecordingObserver(),
            partial(self._over, name),
            turns,
            self._clock,
        )
        return runner

    def _begin(self, name: str, execution: Execution) -> None:
        self.running.append((name, execution))
        self.begun.append(name)

    def _over(self, name: str, one: Inference) -> None:
        self.settled[name] += 1

    def submit(self, name: str, count: int = 1) -> list[Inference]:
        made = [inference(str(i), RecordingReply(), 1, outputs=["x"]) for i in range(count)]
        for one in made:
            self.runners[name].submit(one)
        return made

    def end(self, index: int = 0) -> None:
        """A batch that runs comes to its end."""
        _, execution = self.running.pop(index)
        for i in range(len(execution.requests)):
            execution.send(i, [])
        execution.finished()
        self.turn()

    def turn(self) -> None:
        while self.loop.ready:
            self.loop.turn()

    def end_all(self) -> list[str]:
        """Until nothing runs any more; who began, in order."""
        while self.running:
            self.end()
        return self.begun


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    for runner in house.runners.values():
        runner.close()


@pytest.mark.rows("S102")
def test_models_that_share_a_resource_run_one_at_a_time(house: House) -> None:
    house.model("a", ONE)
    house.model("b", ONE)
    house.submit("a", 2)
    house.submit("b", 2)
    assert house.begun == ["a"]
    house.end()
    assert house.begun == ["a", "b"]
    assert len(house.running) == 1
    house.end_all()
    assert house.begun == ["a", "b", "a", "b"]
    assert house.settled == {"a": 2, "b": 2}


def test_model_without_demands_does_not_wait(house: House) -> None:
    house.model("a", ONE)
    house.model("free", Demand())
    house.submit("a", 2)
    house.submit("free")
    assert house.begun == ["a", "free"]


@pytest.mark.rows("S101")
def test_instances_of_one_model_take_their_turns_by_priority(house: House) -> None:
    """The one of the larger priority only when the other is busy, or has run so much more often."""
    ran: list[int] = []
    house.model("m", Demand(priority=1), Demand(priority=3))
    for _ in range(12):
        house.submit("m")
        ran.append(house.running[0][1].instance)
        house.end()
    assert ran == [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]


def test_a_free_instance_whose_resources_are_there_runs_though_another_waits(house: House) -> None:
    house.model("other", ONE)
    house.model("m", ONE, Demand(priority=9))
    house.submit("other")
    house.submit("m", 2)
    assert house.begun == ["other", "m"]
    assert house.running[1][1].instance == 1


def test_cancelled_request_blocks_no_other(house: House) -> None:
    house.limiter = RateLimiter({("R", EVERYWHERE): 2}, house.loop.call_soon)
    house.model("small", ONE)
    house.model("large", Demand({Resource.of("R", 0): 2}))
    house.model("rare", Demand({Resource.of("R", 0): 1}, priority=5))
    house.submit("small")
    [waiting] = house.submit("large")
    house.submit("rare")
    assert house.begun == ["small"]
    house.runners["large"].cancel(waiting)
    house.turn()
    assert house.begun == ["small", "rare"]


def test_instance_that_broke_while_it_waited_blocks_no_other(house: House) -> None:
    house.model("a", ONE)
    house.model("b", ONE)
    house.model("c", ONE)
    house.submit("a")
    house.submit("b")
    house.submit("c")
    house.runners["b"].mark(0, healthy=False, expected=True)
    house.end()
    assert house.begun == ["a", "c"]
    house.runners["b"].mark(0, healthy=True, expected=False)
    house.end_all()
    assert house.begun == ["a", "c", "b"]


def test_batch_that_is_not_due_takes_no_resources(house: House) -> None:
    house.model("m", ONE, policy=DynamicPolicy(4, [4], 10_000_000_000))
    house.model("other", ONE)
    house.submit("m", 3)
    assert house.begun == []
    house.submit("other")
    assert house.begun == ["other"]
    house.submit("m")
    assert house.begun == ["other"], "it is due, but must wait for the resource"
    house.end()
    assert house.begun == ["other", "m"]
    assert len(house.running[0][1].requests) == 4


def test_what_a_model_held_is_free_when_it_is_gone(house: House) -> None:
    house.model("a", ONE)
    house.model("b", ONE)
    house.submit("a")
    house.submit("b")
    house.turns["a"].close()
    house.turn()
    assert house.begun == ["a", "b"]
    house.end_all()
    assert house.settled == {"a": 1, "b": 1}


def test_model_that_ends_keeps_what_its_last_batch_holds(house: House) -> None:
    """A request may have had its last answer before its batch is over, so that nothing keeps the model any more."""
    house.model("a", ONE, ONE)
    house.model("b", ONE)
    house.submit("a")
    house.turns["a"].retire()
    house.submit("b")
    house.turn()
    assert house.begun == ["a"]
    house.end()
    assert house.begun == ["a", "b"]


def test_batch_that_cannot_be_started_gives_its_resources_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = house.model("a", ONE)
    house.model("b", ONE)

    with monkeypatch.context() as patch:
        patch.setattr(runner._instances, "instances", [])
        house.submit("a")
    house.submit("b")
    assert house.begun == ["b"]


def test_blockers_are_the_slots_that_hold_or_run(house: House) -> None:
    house.model("a", ONE)
    house.model("b", ONE)
    house.submit("a")
    assert house.turns["a"].blockers() == []
    house.submit("b")
    [instance] = house.turns["b"].blockers()
    assert isinstance(instance, FakeInstance)
    house.end()
    assert house.begun == ["a", "b"]
    assert house.turns["b"].blockers() == []


def _demands(dice: random.Random, amount: int) -> Sequence[Demand]:
    return [
        Demand({Resource.of("R", 0): dice.randint(0, amount)}, dice.randint(0, 4)) for _ in range(dice.randint(1, 3))
    ]


def play(dice: random.Random) -> None:
    """Several models, requests that come, leave and end, instances that break: all are answered."""
    amount = dice.randint(1, 4)
    house = House(amount)
    names = "abcd"[: dice.randint(1, 4)]
    demands = {name: _demands(dice, amount) for name in names}
    for name in names:
        batching = dice.random() < 0.3
        house.model(name, *demands[name], policy=DynamicPolicy(4, [4], 0) if batching else None)
    submitted: list[tuple[str, Inference]] = []
    broken: set[tuple[str, int]] = set()

    def held() -> int:
        return sum(
            demands[name][execution.instance].resources[Resource.of("R", 0)] for name, execution in house.running
        )

    def submit() -> None:
        name = dice.choice(names)
        submitted.extend((name, one) for one in house.submit(name, dice.randint(1, 3)))

    def end() -> None:
        if house.running:
            house.end(dice.randrange(len(house.running)))

    def leave() -> None:
        if submitted:
            name, one = dice.choice(submitted)
            house.runners[name].cancel(one)

    def breaks() -> None:
        name = dice.choice(names)
        index = dice.randrange(len(demands[name]))
        broken.symmetric_difference_update({(name, index)})
        house.runners[name].mark(index, (name, index) not in broken, True)

    acts: Sequence[Callable[[], None]] = (submit, submit, end, end, leave, breaks, house.turn)
    for _ in range(40):
        dice.choice(acts)()
        assert held() <= amount
    for name, index in broken:
        house.runners[name].mark(index, True, False)
    house.turn()
    house.end_all()
    assert sum(house.settled.values()) == len(submitted)
    assert all(isinstance(one.reply, RecordingReply) and one.reply.finals == 1 for _, one in submitted)


def test_random_histories_answer_everybody() -> None:
    for seed in range(HISTORIES):
        try:
            play(random.Random(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_request_that_waits_for_a_resource_times_out() -> None:
    """It is assigned to an instance that is free, and may not run: the queue's rules hold on."""
    now = [1_000_000]
    house = House(clock=lambda: now[0])
    house.model("a", ONE)
    house.model("b", ONE, policy=PriorityQueuePolicy(0, 0, QueueRules(max_size=1, timeout_us=5), {}))
    house.submit("a")
    (late,) = house.submit("b")
    (refused,) = house.submit("b")
    assert isinstance(refused.reply, RecordingReply)
    assert str(refused.reply.error).endswith("Exceeds maximum queue size")
    assert isinstance(late.reply, RecordingReply)
    assert not late.reply.finals
    now[0] += 5_000
    assert house.loop.ring() == now[0]
    assert str(late.reply.error) == "Request timeout expired"
    house.end()
    assert house.begun == ["a"]
    house.submit("b")
    assert house.begun == ["a", "b"], "nobody waits for the resource any more"
    house.end()
    for runner in house.runners.values():
        runner.close()
