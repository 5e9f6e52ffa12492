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


class LimiterRig:
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
def limited() -> Iterator[LimiterRig]:
    limited = LimiterRig()
    yield limited
    for runner in limited.runners.values():
        runner.close()


@pytest.mark.rows("S102")
def test_models_that_share_a_resource_run_one_at_a_time(limited: LimiterRig) -> None:
    limited.model("a", ONE)
    limited.model("b", ONE)
    limited.submit("a", 2)
    limited.submit("b", 2)
    assert limited.begun == ["a"]
    limited.end()
    assert limited.begun == ["a", "b"]
    assert len(limited.running) == 1
    limited.end_all()
    assert limited.begun == ["a", "b", "a", "b"]
    assert limited.settled == {"a": 2, "b": 2}


def test_model_without_demands_does_not_wait(limited: LimiterRig) -> None:
    limited.model("a", ONE)
    limited.model("free", Demand())
    limited.submit("a", 2)
    limited.submit("free")
    assert limited.begun == ["a", "free"]


@pytest.mark.rows("S101")
def test_instances_of_one_model_take_their_turns_by_priority(limited: LimiterRig) -> None:
    """The one of the larger priority only when the other is busy, or has run so much more often."""
    ran: list[int] = []
    limited.model("m", Demand(priority=1), Demand(priority=3))
    for _ in range(12):
        limited.submit("m")
        ran.append(limited.running[0][1].instance)
        limited.end()
    assert ran == [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]


def test_free_instance_with_its_resources_runs_although_another_waits(limited: LimiterRig) -> None:
    limited.model("other", ONE)
    limited.model("m", ONE, Demand(priority=9))
    limited.submit("other")
    limited.submit("m", 2)
    assert limited.begun == ["other", "m"]
    assert limited.running[1][1].instance == 1


def test_cancelled_request_blocks_no_other(limited: LimiterRig) -> None:
    limited.limiter = RateLimiter({("R", EVERYWHERE): 2}, limited.loop.call_soon)
    limited.model("small", ONE)
    limited.model("large", Demand({Resource.of("R", 0): 2}))
    limited.model("rare", Demand({Resource.of("R", 0): 1}, priority=5))
    limited.submit("small")
    [waiting] = limited.submit("large")
    limited.submit("rare")
    assert limited.begun == ["small"]
    limited.runners["large"].cancel(waiting)
    limited.turn()
    assert limited.begun == ["small", "rare"]


def test_instance_that_broke_while_it_waited_blocks_no_other(limited: LimiterRig) -> None:
    limited.model("a", ONE)
    limited.model("b", ONE)
    limited.model("c", ONE)
    limited.submit("a")
    limited.submit("b")
    limited.submit("c")
    limited.runners["b"].mark(0, healthy=False, expected=True)
    limited.end()
    assert limited.begun == ["a", "c"]
    limited.runners["b"].mark(0, healthy=True, expected=False)
    limited.end_all()
    assert limited.begun == ["a", "c", "b"]


def test_batch_that_is_not_due_takes_no_resources(limited: LimiterRig) -> None:
    limited.model("m", ONE, policy=DynamicPolicy(4, [4], 10_000_000_000))
    limited.model("other", ONE)
    limited.submit("m", 3)
    assert limited.begun == []
    limited.submit("other")
    assert limited.begun == ["other"]
    limited.submit("m")
    assert limited.begun == ["other"], "it is due, but must wait for the resource"
    limited.end()
    assert limited.begun == ["other", "m"]
    assert len(limited.running[0][1].requests) == 4


def test_resources_of_a_closed_model_are_free(limited: LimiterRig) -> None:
    limited.model("a", ONE)
    limited.model("b", ONE)
    limited.submit("a")
    limited.submit("b")
    limited.turns["a"].close()
    limited.turn()
    assert limited.begun == ["a", "b"]
    limited.end_all()
    assert limited.settled == {"a": 1, "b": 1}


def test_model_that_ends_keeps_what_its_last_batch_holds(limited: LimiterRig) -> None:
    """A request may have had its last answer before its batch is over, so that nothing keeps the model any more."""
    limited.model("a", ONE, ONE)
    limited.model("b", ONE)
    limited.submit("a")
    limited.turns["a"].retire()
    limited.submit("b")
    limited.turn()
    assert limited.begun == ["a"]
    limited.end()
    assert limited.begun == ["a", "b"]


def test_batch_that_cannot_be_started_gives_its_resources_back(
    limited: LimiterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = limited.model("a", ONE)
    limited.model("b", ONE)

    with monkeypatch.context() as patch:
        patch.setattr(runner._instances, "instances", [])
        limited.submit("a")
    limited.submit("b")
    assert limited.begun == ["b"]


def test_blockers_are_the_slots_that_hold_or_run(limited: LimiterRig) -> None:
    limited.model("a", ONE)
    limited.model("b", ONE)
    limited.submit("a")
    assert limited.turns["a"].blockers() == []
    limited.submit("b")
    [instance] = limited.turns["b"].blockers()
    assert isinstance(instance, FakeInstance)
    limited.end()
    assert limited.begun == ["a", "b"]
    assert limited.turns["b"].blockers() == []


def _demands(dice: random.Random, amount: int) -> Sequence[Demand]:
    return [
        Demand({Resource.of("R", 0): dice.randint(0, amount)}, dice.randint(0, 4)) for _ in range(dice.randint(1, 3))
    ]


def play(dice: random.Random) -> None:
    """Several models, requests that come, leave and end, instances that break: all are answered."""
    amount = dice.randint(1, 4)
    limited = LimiterRig(amount)
    names = "abcd"[: dice.randint(1, 4)]
    demands = {name: _demands(dice, amount) for name in names}
    for name in names:
        batching = dice.random() < 0.3
        limited.model(name, *demands[name], policy=DynamicPolicy(4, [4], 0) if batching else None)
    submitted: list[tuple[str, Inference]] = []
    broken: set[tuple[str, int]] = set()

    def held() -> int:
        return sum(
            demands[name][execution.instance].resources[Resource.of("R", 0)] for name, execution in limited.running
        )

    def submit() -> None:
        name = dice.choice(names)
        submitted.extend((name, one) for one in limited.submit(name, dice.randint(1, 3)))

    def end() -> None:
        if limited.running:
            limited.end(dice.randrange(len(limited.running)))

    def leave() -> None:
        if submitted:
            name, one = dice.choice(submitted)
            limited.runners[name].cancel(one)

    def breaks() -> None:
        name = dice.choice(names)
        index = dice.randrange(len(demands[name]))
        broken.symmetric_difference_update({(name, index)})
        limited.runners[name].mark(index, (name, index) not in broken, True)

    acts: Sequence[Callable[[], None]] = (submit, submit, end, end, leave, breaks, limited.turn)
    for _ in range(40):
        dice.choice(acts)()
        assert held() <= amount
    for name, index in broken:
        limited.runners[name].mark(index, True, False)
    limited.turn()
    limited.end_all()
    assert sum(limited.settled.values()) == len(submitted)
    assert all(isinstance(one.reply, RecordingReply) and one.reply.finals == 1 for _, one in submitted)


def test_random_histories_answer_every_request() -> None:
    for seed in range(HISTORIES):
        try:
            play(random.Random(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_request_that_waits_for_a_resource_times_out() -> None:
    """It is assigned to an instance that is free, and may not run: the queue's rules hold on."""
    now = [1_000_000]
    limited = LimiterRig(clock=lambda: now[0])
    limited.model("a", ONE)
    limited.model("b", ONE, policy=PriorityQueuePolicy(0, 0, QueueRules(max_size=1, timeout_us=5), {}))
    limited.submit("a")
    (late,) = limited.submit("b")
    (refused,) = limited.submit("b")
    assert isinstance(refused.reply, RecordingReply)
    assert str(refused.reply.error).endswith("Exceeds maximum queue size")
    assert isinstance(late.reply, RecordingReply)
    assert not late.reply.finals
    now[0] += 5_000
    assert limited.loop.ring() == now[0]
    assert str(late.reply.error) == "Request timeout expired"
    limited.end()
    assert limited.begun == ["a"]
    limited.submit("b")
    assert limited.begun == ["a", "b"], "nobody waits for the resource any more"
    limited.end()
    for runner in limited.runners.values():
        runner.close()
