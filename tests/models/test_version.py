from collections.abc import Callable
from dataclasses import replace

import pytest

from halimede.backends.api import Batch as Batched
from halimede.backends.api import InstancePlace, Placement, Responses
from halimede.config import DynamicBatching, InstanceGroup, QueuePolicy
from halimede.config.model_config import InstanceKind
from halimede.errors import Cancelled, Invalid
from halimede.models.loader import LoadedVersion, places
from halimede.models.policies import policy_for
from halimede.models.version import ModelVersion
from halimede.platform.hosts import HostPolicy, available_cores
from halimede.requests import Stamp
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.runner_config import Reason
from tests.fakes import ManualLoop, RecordingObserver, RecordingReply, echo, inference
from tests.models.configs import asking, config_of, given, spec
from tests.models.fakes import FakeInstance, Returning, loaded

MS = 1_000_000


class Made:
    """A version with fakes around it."""

    def __init__(self, max_batch_size: int = 4, batching: DynamicBatching | None = None, start_at: int = 0) -> None:
        self.loop, self.observer = ManualLoop(), RecordingObserver()
        self.settled: list[Inference] = []
        config = config_of(
            spec("x", "INT32", [-1]),
            outputs=[spec("x", "INT32", [-1])],
            max_batch_size=max_batch_size,
            batching=batching,
        )
        self.version = ModelVersion(loaded(config, 7), self.loop, self.observer, self.settled.append, start_at)

    def infer(self, *shape: int) -> RecordingReply:
        reply = RecordingReply()
        one = self.version.infer(1, asking(given("x", "INT32", shape)), reply, 123)
        self.version.submit(one)
        return reply

    def finish(self, *replies: RecordingReply) -> None:
        self.loop.run_until(lambda: all(reply.finals for reply in replies))
        self.version.close()


def test_version_counts_the_inferences_that_hold_it() -> None:
    made = Made()
    replies = [made.infer(1, 1), made.infer(2, 1)]
    assert made.version.held == 2
    made.finish(*replies)
    assert (made.version.held, len(made.settled)) == (0, 2)
    assert [one.rows for one in made.observer.successes] == [1, 2]
    assert {one.times[0] for one in made.observer.successes} == {123}


class CoreRecordingInstance(FakeInstance):
    """Records the cores that its thread may use."""

    cores: frozenset[int] = frozenset()

    def execute(self, batch: Batched, responses: Responses) -> None:
        self.cores = available_cores()
        super().execute(batch, responses)


def cores_of_an_instance(policy: HostPolicy) -> frozenset[int]:
    config = config_of(spec("x", "INT32", [-1]), outputs=[spec("x", "INT32", [-1])])
    place = InstancePlace("m_0_0", InstanceKind.CPU, 0, 0, 1, host=policy)
    instance = CoreRecordingInstance(place, [])
    opened = replace(loaded(config), places=[place], instances=[instance])
    loop, reply = ManualLoop(), RecordingReply()
    version = ModelVersion(opened, loop, RecordingObserver(), lambda inference: None, inline=False)
    version.submit(version.infer(1, asking(given("x", "INT32", [1])), reply, 0))
    loop.run_until(lambda: bool(reply.finals))
    version.close()
    return instance.cores


def test_thread_of_an_instance_with_a_host_policy_uses_the_cores_of_the_policy() -> None:
    one = frozenset({min(available_cores())})
    assert cores_of_an_instance(HostPolicy(one)) == one


def test_thread_of_an_instance_without_a_host_policy_uses_the_cores_of_the_process() -> None:
    assert cores_of_an_instance(HostPolicy()) == available_cores()


def test_version_is_healthy_while_one_instance_is() -> None:
    opened = loaded(config_of(spec("x", "INT32", [-1])), instances=2)
    version = ModelVersion(opened, ManualLoop(), RecordingObserver(), lambda one: None)
    seen = []
    for instance in opened.instances:
        seen.append(version.healthy)
        assert isinstance(instance, FakeInstance)
        instance.healthy = False
    assert (seen, version.healthy) == ([True, True], False)
    version.close()


def test_closed_version_keeps_neither_model_nor_labels() -> None:
    opened = replace(loaded(config_of(spec("x", "INT32", [-1]))), labels={"y": ["cat"]})
    version = ModelVersion(opened, ManualLoop(), RecordingObserver(), lambda one: None)
    version.close()
    version.forget()
    assert (version.instances, version.loaded.instances, version.loaded.labels) == ([], (), {})


def with_a_passive_one() -> LoadedVersion:
    groups = [InstanceGroup("m_0", InstanceKind.CPU, passive=True), InstanceGroup("m_1", InstanceKind.CPU)]
    config = config_of(spec("x", "INT32", [-1]), groups=groups)
    return replace(loaded(config, instances=2), places=places(config))


def test_passive_instance_neither_makes_a_version_healthy_nor_lets_a_request_run() -> None:
    opened = with_a_passive_one()
    version = ModelVersion(opened, ManualLoop(), RecordingObserver(), lambda one: None)
    passive, active = opened.instances
    assert isinstance(passive, FakeInstance)
    assert isinstance(active, FakeInstance)
    assert list(version.blockers()) == [active]
    passive.healthy = False
    assert version.healthy
    passive.healthy, active.healthy = True, False
    assert not version.healthy
    version.close()


class Saying(FakeInstance):
    """An instance whose model may have a say in its readiness."""

    reports_readiness = True
    ready = True

    def ask_ready(self, done: Callable[[bool], None]) -> None:
        done(self.ready)


@pytest.mark.parametrize(
    ("ready", "healthy", "answer"),
    [
        ((True, True), (True, True), True),
        ((True, False), (True, True), False),
        ((True, False), (True, False), True),
        ((False, True), (False, True), True),
    ],
)
def test_all_healthy_instances_must_report_that_they_are_ready(
    ready: tuple[bool, ...], healthy: tuple[bool, ...], answer: bool
) -> None:
    """(P9)"""
    saying = [Saying(InstancePlace(f"m_0_{i}", InstanceKind.CPU, 0, i, 2), []) for i in range(2)]
    for instance, says, works in zip(saying, ready, healthy, strict=True):
        instance.ready, instance.healthy = says, works
    opened = replace(loaded(config_of(spec("x", "INT32", [-1]))), instances=saying)
    version = ModelVersion(opened, ManualLoop(), RecordingObserver(), lambda one: None)
    answers: list[bool] = []
    version.ask_ready(answers.append)
    assert (version.reports_readiness, answers) == (True, [answer])
    for instance in saying:
        instance.reports_readiness = False
    assert not version.reports_readiness
    version.close()


def test_passive_instance_is_not_asked_whether_it_is_ready() -> None:
    opened = with_a_passive_one()
    passive, active = saying = [Saying(place, []) for place in opened.places]
    passive.ready = False
    version = ModelVersion(replace(opened, instances=saying), ManualLoop(), RecordingObserver(), lambda one: None)
    answers: list[bool] = []
    version.ask_ready(answers.append)
    assert answers == [True]
    active.reports_readiness = False
    assert not version.reports_readiness
    version.close()


def test_version_without_self_assessing_instances_reports_no_readiness() -> None:
    version = Made().version
    assert not version.reports_readiness
    version.close()


def test_requests_wait_for_an_instance_that_restarts() -> None:
    made = Made()
    instance = Returning(InstancePlace("m_0_0", InstanceKind.CPU, 0, 0, 1), [])
    opened = replace(loaded(made.version.config), instances=[instance])
    made.version = ModelVersion(opened, made.loop, made.observer, made.settled.append)
    instance.changed(False, True)
    reply = made.infer(1, 1)
    assert (reply.finals, made.version.waiting) == (0, 1)
    instance.restarts = 3
    instance.changed(True, False)
    made.finish(reply)
    assert (made.version.waiting, made.version.restarts) == (0, 3)


def test_version_is_not_held_by_a_request_that_does_not_fit() -> None:
    made = Made()
    with pytest.raises(Invalid):
        made.infer(9, 1)
    assert made.version.held == 0


@pytest.mark.parametrize(
    ("widths", "executions"), [([2, 2, 2, 2], [4]), ([2, 2, 3, 3], [2, 2]), ([2, 3, 2, 2], [1, 1, 2])]
)
def test_version_batches_requests_of_one_shape(widths: list[int], executions: list[int]) -> None:
    """(S4)"""
    made = Made(4, DynamicBatching((4,)), start_at=4)
    replies = [made.infer(1, width) for width in widths]
    made.finish(*replies)
    assert made.observer.executions == executions
    assert [reply.response.outputs[0].shape for reply in replies] == [(1, width) for width in widths]


def test_version_calls_back_once_when_it_is_idle() -> None:
    made = Made()
    reply = made.infer(1, 1)
    idle: list[str] = []
    made.version.retire(lambda: idle.append("idle"))
    assert idle == []
    made.finish(reply)
    assert idle == ["idle"]


@pytest.mark.parametrize(
    ("batching", "start_at", "expected"),
    [
        (None, 0, 1),
        (None, 9, 1),
        (DynamicBatching((2,)), 0, 2),
        (DynamicBatching((4,)), 0, 3),
        (DynamicBatching((4,), 5000), 0, Wake(5 * MS)),
        (DynamicBatching((4,)), 9, None),
    ],
)
def test_policy_that_a_configuration_asks_for(
    batching: DynamicBatching | None, start_at: int, expected: int | Wake | None
) -> None:
    """How many of three requests with one row run at once (S1, S20, C60)."""
    policy = policy_for(config_of(max_batch_size=4, batching=batching), start_at)
    for _ in range(3):
        policy.admit(inference(batch_size=1), 0)
    step = policy.next((0,), 0)
    assert (len(step.rows) if isinstance(step, Batch) else step) == expected


def test_version_with_passive_instances_only_refuses_requests() -> None:
    group = InstanceGroup("m_0", InstanceKind.CPU, passive=True)
    config = config_of(spec("x", "INT32", [1]), groups=[group])
    policy = policy_for(config, 0)
    refusal = policy.admit(inference("a"), 0)
    assert str(refusal) == "[request id: a] all instances of model 'm' are passive and take no requests"


def test_passive_instances_get_no_batch() -> None:
    groups = [InstanceGroup("m_0", InstanceKind.CPU, passive=True), InstanceGroup("m_1", InstanceKind.CPU, 2)]
    config = config_of(spec("x", "INT32", [1]), outputs=[spec("x", "INT32", [1])], groups=groups)
    opened = replace(loaded(config, instances=3), places=places(config))
    version = ModelVersion(opened, loop := ManualLoop(), RecordingObserver(), lambda one: None)
    replies = [RecordingReply() for _ in range(4)]
    for key, reply in enumerate(replies):
        version.submit(version.infer(key, asking(given("x", "INT32", [1])), reply, 1))
    loop.run_until(lambda: all(reply.finals for reply in replies))
    version.close()
    ran = [instance.executed for instance in opened.instances if isinstance(instance, FakeInstance)]
    assert ran[0] == 0, ran
    assert sum(ran) == 4, ran


def test_intercepted_inferences_of_a_retired_version_still_run() -> None:
    """Inferences that wait for a cache are served, though the version takes no new ones (S3)."""
    made = Made()
    at_the_door: list[Inference] = []
    made.version.intercept_with(at_the_door.append)
    runs, settles = made.infer(1, 1), made.infer(1, 1)
    assert [runs.answers, settles.answers] == [[], []]
    idle: list[bool] = []
    made.version.retire(lambda: idle.append(True))
    first, second = at_the_door
    for one in at_the_door:
        made.version.enter(one)
    made.version.run(first)
    made.version.settle(second, Cancelled("Cancelled"))
    assert isinstance(settles.error, Cancelled)
    made.finish(runs)
    assert runs.response.model_version == 7
    assert idle == [True]
    assert [reason for _, reason in made.observer.failures] == [Reason.CANCELED]


@pytest.mark.parametrize(
    "batching", [None, DynamicBatching((4,)), DynamicBatching((4,), priority_levels=2, default_priority_level=2)]
)
def test_policy_has_the_limits_of_the_configuration(batching: DynamicBatching | None) -> None:
    """With or without a batcher, with or without priority levels (S27, D4)."""
    config = replace(config_of(max_batch_size=4, batching=batching), queue_policy=QueuePolicy(2, 5, True, False))
    policy = policy_for(config, 0)
    several = [inference(str(i), batch_size=1) for i in range(3)]
    several[1].request.timeout_us = 3
    refusals = [policy.admit(one, 0) for one in several]
    assert [str(error) for error in refusals if error] == ["[request id: 2] Exceeds maximum queue size"]
    assert policy.expires_at == 3000
    assert [one.request.id for one, _ in policy.expire(3000)] == ["1"]
    assert [one.request.id for one, _ in policy.expire(5000)] == ["0"]


@pytest.mark.parametrize("queue", [QueuePolicy(), QueuePolicy(max_size=9)])
@pytest.mark.parametrize(
    ("batching", "waits"),
    [(DynamicBatching((4,)), True), (DynamicBatching((4,), 1), False), (DynamicBatching((2, 4)), False)],
    ids=["nothing else", "delay", "preferred size"],
)
def test_batch_waits_for_the_clients_of_a_slow_batch_if_nothing_else_says_when_it_starts(
    queue: QueuePolicy, batching: DynamicBatching, waits: bool
) -> None:
    policy = policy_for(replace(config_of(max_batch_size=4, batching=batching), queue_policy=queue), 0)
    for _ in range(2):
        policy.admit(inference(batch_size=1), 0)
    assert isinstance(policy.next((0,), 1000), Batch)
    policy.freed(0, 20_000_000)
    one = inference(batch_size=1)
    one.times[Stamp.QUEUE_START] = 1
    policy.admit(one, 20_000_000)
    assert isinstance(policy.next((0,), 20_000_000), Wake if waits else Batch)


def test_level_has_limits_of_its_own() -> None:
    batching = DynamicBatching(
        (4,), priority_levels=2, default_priority_level=2, level_policies={1: QueuePolicy(timeout_us=7, delays=True)}
    )
    policy = policy_for(config_of(max_batch_size=4, batching=batching), 0)
    late, other = inference("late", batch_size=1), inference("other", batch_size=1)
    late.request.priority = 1
    for one in (late, other):
        assert policy.admit(one, 0) is None
    assert (policy.expires_at, policy.expire(7000), policy.waiting) == (7000, [], 2)


def test_version_keeps_the_order_of_responses() -> None:
    """Of two instances, the one with the later request ends first (S34)."""
    made = Made(1, DynamicBatching((1,), preserve_ordering=True))
    opened = loaded(made.version.config, instances=2)
    held: list[Execution] = []

    def keep(batch: Batched, responses: Responses) -> None:
        assert isinstance(responses, Execution)
        held.append(responses)

    for instance in opened.instances:
        instance.execute = keep  # type: ignore[method-assign]
    opened.model.placement = Placement.LOOP  # type: ignore[misc] # a fake's
    made.version = ModelVersion(opened, made.loop, made.observer, made.settled.append)
    first, second = made.infer(1, 1), made.infer(1, 2)
    for execution in reversed(held):
        echo(execution)
        execution.finished()
        assert second.finals == first.finals
    assert [one.reply for one in made.settled] == [first, second]
    assert made.version.held == 0
