from collections.abc import Callable

import pytest

from halimede.backends.api import InstancePlace
from halimede.config import DynamicBatching
from halimede.config.model_config import InstanceKind
from halimede.errors import Invalid
from halimede.models.version import ModelVersion, policy_for
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from tests.fakes import ManualLoop, RecordingObserver, RecordingReply, inference
from tests.models.configs import asking, config_of, given, spec
from tests.models.fakes import FakeInstance, loaded

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


def test_version_is_healthy_while_one_of_its_instances_is() -> None:
    opened = loaded(config_of(spec("x", "INT32", [-1])), instances=2)
    version = ModelVersion(opened, ManualLoop(), RecordingObserver(), lambda one: None)
    seen = []
    for instance in opened.instances:
        seen.append(version.healthy)
        assert isinstance(instance, FakeInstance)
        instance.healthy = False
    assert (seen, version.healthy) == ([True, True], False)
    version.close()


class Returning(FakeInstance):
    """An instance that breaks and comes back when a test says so."""

    restarts = 0

    def watch(self, changed: Callable[[bool, bool], None]) -> None:
        self.changed = changed


def test_version_has_requests_wait_for_an_instance_that_is_expected_back() -> None:
    made = Made()
    opened = loaded(made.version.config)
    place = InstancePlace("m_0_0", InstanceKind.CPU, 0, 0, 1)
    instance = Returning(place, [])
    opened.instances[:] = [instance]
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
    """Contract S4."""
    made = Made(4, DynamicBatching((4,)), start_at=4)
    replies = [made.infer(1, width) for width in widths]
    made.finish(*replies)
    assert made.observer.executions == executions
    assert [reply.response.outputs[0].shape for reply in replies] == [(1, width) for width in widths]


def test_version_tells_once_when_nobody_holds_it() -> None:
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
    """Contract S1, S20, C60: how many of three requests of one row run now."""
    policy = policy_for(config_of(max_batch_size=4, batching=batching), start_at)
    for _ in range(3):
        policy.admit(inference(batch_size=1), 0)
    step = policy.next((0,), 0)
    assert (len(step.rows) if isinstance(step, Batch) else step) == expected
