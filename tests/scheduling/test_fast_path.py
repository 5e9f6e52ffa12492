"""The fast path: a request that runs on the loop as a batch of its own and is answered at once; and which requests take
the way through the queue instead."""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np
import pytest

from halimede.errors import Cancelled, Internal, Unavailable
from halimede.requests import Answer, InferResponse, Stamp
from halimede.scheduling import inline
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import RUNNING, SETTLED, Inference
from halimede.scheduling.instances import Instances
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.queue import DefaultPolicy
from halimede.scheduling.runner import Runner
from halimede.scheduling.runner_config import Reason, RunnerConfig
from halimede.tensors import FP32, Tensor, tensor_of
from tests.fakes import FakeInstance, ManualLoop, RecordingObserver, RecordingReply, echo, inference
from tests.scheduling.rig import Behaviour, Rig, raising, tensor
from tests.scheduling.test_destinations import FakeDestination


def never_slow() -> Callable[[], int]:
    """A clock that moves by 1 ns with each reading, so that no run is slow on a busy machine."""
    return count(1).__next__


class Unasked(DefaultPolicy):
    """The default policy. `told` lists the calls of it."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def admit(self, inference: Inference, now: int) -> None:
        self.told.append("admit")
        super().admit(inference, now)

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        self.told.append("next")
        return super().next(free, now)


@pytest.fixture
def quick() -> Iterator[Callable[..., Rig]]:
    """Makes rigs whose model is known to be quick."""
    made: list[Rig] = []

    def make(*behaviours: Behaviour, **options: object) -> Rig:
        options.setdefault("clock", never_slow())
        made.append(Rig(behaviours or (echo,), inline_safe=True, **options))  # type: ignore[arg-type] # passed through
        made[-1].warm_up()
        return made[-1]

    yield make
    for rig in made:
        assert list(rig.runner._instances.free) != []
        rig.runner.close()


def test_request_is_answered_before_submit_returns_if_nothing_waits(quick: Callable[..., Rig]) -> None:
    policy = Unasked()
    rig = quick(policy=policy)
    before = rig.runner.inline_executions
    reply = rig.submit("a", 1)
    assert reply.response.id == "a"
    assert [output.name for output in reply.response.outputs] == ["x"]
    assert (rig.observer.executions, len(rig.observer.successes)) == ([1], 1)
    assert rig.settled == ["a"]
    assert rig.runner.inline_executions == before + 1
    assert policy.told == [], "nothing waited, but the policy was asked"
    assert not rig.loop.ready


def test_time_stamps_are_complete_and_in_order(quick: Callable[..., Rig]) -> None:
    rig = quick()
    rig.submit("a", 1)
    [times] = rig.observer.times
    computed = times[Stamp.QUEUE_START :]
    assert all(computed)
    assert computed == sorted(computed)
    input_ns, infer_ns, output_ns = rig.observer.phases[0]
    assert input_ns + infer_ns + output_ns == times[Stamp.COMPUTE_END] - times[Stamp.COMPUTE_START]


def test_request_is_counted_answered_and_settled_in_this_order(quick: Callable[..., Rig]) -> None:
    order: list[str] = []
    rig = quick(settled=lambda one: order.append("settled"))
    rig.submit("a", 1, on_send=lambda answer, final: order.append(f"answered {len(rig.observer.successes)}"))
    assert order == ["answered 1", "settled"]


def test_model_sees_a_batch_of_one_that_runs_on_the_loop(quick: Callable[..., Rig]) -> None:
    seen: list[tuple[int, int, bool, object]] = []

    def behave(execution: Execution) -> None:
        [one] = execution.requests
        seen.append((execution.rows, len(execution.requests), execution.on_loop, one.state))
        echo(execution)

    one = quick(behave).start("a", RecordingReply(), 1)
    assert seen == [(1, 1, True, RUNNING)]
    assert one.state is SETTLED


def test_outputs_that_were_not_requested_are_left_out(quick: Callable[..., Rig]) -> None:
    rig = quick(lambda execution: execution.send(0, [tensor("y"), tensor("x"), tensor("z")]))
    assert [output.name for output in rig.submit("a", 1).response.outputs] == ["x"]


def twice(execution: Execution) -> None:
    execution.send(0, [tensor()])
    execution.send(0, [tensor()])


@pytest.mark.parametrize(
    ("behave", "text"),
    [
        (raising(Unavailable("not now")), "not now"),
        (raising(ValueError("x")), "ValueError: x"),
        (raising(SystemExit("out")), "SystemExit: out"),
        (lambda execution: execution.fail(0, Internal("failed")), "failed"),
        (lambda execution: None, "expected a single response, got 0"),
        (lambda execution: execution.send(0, None), "expected a single response, got 0"),
        (lambda execution: execution.send(1, [tensor()]), "expected a single response, got 0"),
        (twice, "expected a single response, got 2"),
    ],
)
def test_outcomes_that_are_no_single_answer_end_as_on_a_thread(
    quick: Callable[..., Rig], behave: Behaviour, text: str
) -> None:
    rig = quick(behave, echo)
    reply, later = rig.submit("a", 1), rig.submit("b", 1)
    assert str(reply.error) == text
    assert later.response.id == "b"
    assert [(one.request.id, reason) for one, reason in rig.observer.failures] == [("a", Reason.BACKEND)]
    assert rig.observer.executions == [1, 1]
    assert rig.settled == ["a", "b"]
    assert sorted(rig.runner._instances.free) == [0, 1]

    on_thread = Rig([behave])
    slow = on_thread.submit("a", 1)
    on_thread.finish(slow)
    assert str(slow.error) == text
    on_thread.runner.close()


def test_answer_that_is_not_said_to_be_the_last_is_the_answer(quick: Callable[..., Rig]) -> None:
    rig = quick(lambda execution: execution.send(0, [tensor()], final=False))
    assert rig.submit("a", 1).response.id == "a"
    assert rig.settled == ["a"]


def test_reschedule_on_the_fast_path_fails_the_request(quick: Callable[..., Rig]) -> None:
    rig = quick(lambda execution: execution.again(0))
    assert "RELEASE_RESCHEDULE" in str(rig.submit("a", 1).error)
    assert rig.settled == ["a"]


def test_instances_take_turns(quick: Callable[..., Rig]) -> None:
    rig = quick(echo, echo, echo)
    for i in range(6):
        rig.submit(str(i), 1)
    assert [len(instance.batches) for instance in rig.instances] == [2, 2, 2]
    assert list(rig.runner._instances.free) == [0, 1, 2]


def test_requests_that_come_from_an_answer_wait_until_that_is_sent(quick: Callable[..., Rig]) -> None:
    """However many: each from the answer of the one before."""
    rig = quick()
    replies: list[RecordingReply] = []
    within: list[bool] = []

    def answered(answer: Answer, final: bool) -> None:
        if len(replies) < 5_000:
            within.append(True)
            replies.append(RecordingReply(answered))
            rig.start(str(len(replies)), replies[-1], 1)
            assert not replies[-1].answers, "answered from within the answer before"
            within.pop()

    first = rig.submit("0", 1, answered)
    rig.loop.run_until(lambda: len(replies) == 5_000 and bool(replies[-1].answers))
    assert not within
    assert first.response.id == "0"
    assert [reply.response.id for reply in replies] == [str(i + 1) for i in range(5_000)]


def break_always(*_: object) -> None:
    raise RuntimeError("broke")


@pytest.mark.parametrize("port", ["observer", "reply", "settled"])
def test_port_that_raises_affects_no_other_request(quick: Callable[..., Rig], port: str) -> None:
    rig = quick(settled=break_always if port == "settled" else None)
    served = rig.observer.served
    if port == "observer":
        rig.observer.served = break_always  # type: ignore[assignment, method-assign] # a port that breaks
    broken = rig.submit("a", 1, on_send=break_always if port == "reply" else None)
    rig.observer.served = served  # type: ignore[method-assign]
    fine = rig.submit("b", 1)
    assert (broken.response.id, fine.response.id) == ("a", "b")
    assert rig.settled == ["a", "b"]
    assert list(rig.runner._instances.free) == [0]


def test_client_that_goes_while_it_runs_is_answered_all_the_same(quick: Callable[..., Rig]) -> None:
    told: list[bool] = []

    def behave(execution: Execution) -> None:
        one = execution.requests[0]
        one.when_cancelled(lambda: told.append(True))
        rig.runner.cancel(one)
        echo(execution)

    rig = quick(behave)
    assert rig.submit("a", 1).response.id == "a"
    assert told == [True]
    assert rig.settled == ["a"]


def test_stopped_runner_refuses_it(quick: Callable[..., Rig]) -> None:
    rig = quick()
    rig.runner.stop()
    assert isinstance(rig.submit("a", 1).error, Unavailable)


def test_request_with_destinations_does_not_take_the_fast_path(quick: Callable[..., Rig]) -> None:
    rig = quick()
    reply, there = RecordingReply(), FakeDestination()
    one = inference("a", reply, 1, [tensor_of("x", FP32, np.ones((1, 1), np.float32))], ["x"])
    one.destinations = {"x": there}
    rig.runner.submit(one)
    assert reply.response.outputs[0].memory.byte_size == 0
    assert there.written == np.ones(1, np.float32).tobytes()


def restoring(restore: Callable[[Tensor], Tensor]) -> tuple[Runner, RecordingObserver, list[str]]:
    """A quick runner whose outputs are given another shape."""
    settled: list[str] = []
    observer = RecordingObserver()
    config = RunnerConfig("m", 3, {"x": FP32}, False, True, False, restore=restore)
    instances = Instances("m:3", [FakeInstance(echo)])
    runner = Runner(
        config,
        DefaultPolicy(),
        instances,
        ManualLoop(),
        observer,
        lambda one: settled.append(one.request.id),
        clock=never_slow(),
    )
    for _ in range(inline.WINDOW):
        runner._eligibility.ran(1, 1, True)
    return runner, observer, settled


def ask(runner: Runner) -> RecordingReply:
    reply = RecordingReply()
    runner.submit(inference("a", reply, 1, [tensor()], ["x"]))
    return reply


def test_outputs_have_the_shape_that_clients_see() -> None:
    runner, _, _ = restoring(lambda one: Tensor(one.name, one.datatype, (1, 1, 1), one.memory))
    assert ask(runner).response.outputs[0].shape == (1, 1, 1)


def test_output_that_cannot_be_restored_fails_its_request_only() -> None:
    runner, observer, settled = restoring(break_always)  # type: ignore[arg-type] # it returns nothing
    assert str(ask(runner).error) == "RuntimeError: broke"
    assert str(ask(runner).error) == "RuntimeError: broke"
    assert observer.executions == [1, 1]
    assert [reason for _, reason in observer.failures] == [Reason.OTHER, Reason.OTHER]
    assert settled == ["a", "a"]


def test_waiting_requests_are_served_behind_it_in_their_order(quick: Callable[..., Rig]) -> None:
    order: list[str] = []

    def note(answer: Answer, final: bool) -> None:
        assert isinstance(answer, InferResponse)
        order.append(answer.id)

    def more(answer: Answer, final: bool) -> None:
        note(answer, final)
        for name in "bc":
            rig.submit(name, 1, note)
        gone = rig.start("gone", RecordingReply(), 1)
        rig.runner.cancel(gone)
        rig.submit("d", 1, note)

    rig = quick()
    rig.submit("a", 1, more)
    rig.loop.run_until(lambda: len(order) == 4)
    assert order == ["a", "b", "c", "d"]
    assert [(one.request.id, reason) for one, reason in rig.observer.failures] == [("gone", Reason.CANCELED)]


def test_request_is_cancelled_while_it_waits(quick: Callable[..., Rig]) -> None:
    gone = RecordingReply()

    def cancel(answer: Answer, final: bool) -> None:
        rig.runner.cancel(rig.start("gone", gone, 1))

    rig = quick()
    rig.submit("a", 1, cancel)
    assert isinstance(gone.error, Cancelled)


def test_closed_runner_is_given_back_at_once() -> None:
    """And not when circles are looked for."""
    runner, _, _ = restoring(lambda one: one)
    gone = weakref.ref(runner._policy)  # which it alone holds
    runner.close()
    gc.disable()
    try:
        del runner
        assert gone() is None
    finally:
        gc.enable()
