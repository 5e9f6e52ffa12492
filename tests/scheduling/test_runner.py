"""Each inference gets exactly one final answer, whatever happens."""

import sys
import threading
from collections.abc import Callable
from threading import Event, Thread

import pytest

from halimede.errors import Cancelled, Error, Internal, Invalid, NotFound, Unavailable
from halimede.requests import Answer, InferResponse, Stamp
from halimede.scheduling.dynamic import DynamicPolicy
from halimede.scheduling.execution import Execution
from halimede.scheduling.flow import WINDOW, cost_of
from halimede.scheduling.inline import LONG_NS
from halimede.scheduling.runner import SLICE_NS
from halimede.scheduling.runner_config import Reason
from halimede.tensors import INT32, HostMemory, Tensor
from tests.fakes import PATIENCE, RecordingReply, echo
from tests.scheduling.rig import Rig, ScriptedPolicy, finishing, held_back, raising, tensor

# Answers.


def test_inference_is_answered_once(rigs: Callable[..., Rig]) -> None:
    rig = rigs([finishing(echo)])
    reply = rig.submit("a")
    rig.finish(reply)
    response = reply.response
    assert (response.id, response.model_name, response.model_version) == ("a", "m", 3)
    assert [t.name for t in response.outputs] == ["x"]
    assert rig.settled == ["a"]
    assert [one.request.id for one in rig.observer.successes] == ["a"]
    assert rig.observer.failures == []
    assert rig.observer.executions == [1]


def test_inference_has_all_its_moments_in_order(rigs: Callable[..., Rig]) -> None:
    rig = rigs([finishing(echo)])
    rig.finish(rig.submit())
    times = rig.observer.successes[0].times[Stamp.QUEUE_START :]
    assert times[0] > 0
    assert times == sorted(times)
    [phases] = rig.observer.phases
    assert sum(phases) == times[Stamp.COMPUTE_END - 1] - times[Stamp.COMPUTE_START - 1]


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (NotFound("no such word"), NotFound, "no such word"),
        (ZeroDivisionError("division by zero"), Internal, "ZeroDivisionError: division by zero"),
        (SystemExit(1), Internal, "SystemExit: 1"),
    ],
)
def test_backend_that_raises_fails_its_request_and_serves_the_next(
    rigs: Callable[..., Rig], raised: BaseException, kind: type[Error], text: str
) -> None:
    todo = [raising(raised), finishing(echo)]
    rig = rigs([lambda execution: todo.pop(0)(execution)])
    broken, fine = rig.submit("broken"), rig.submit("fine")
    rig.finish(broken, fine)
    assert type(broken.error) is kind
    assert str(broken.error) == text
    assert [(one.request.id, reason) for one, reason in rig.observer.failures] == [("broken", Reason.BACKEND)]
    assert fine.response.id == "fine"
    assert rig.settled == ["broken", "fine"]


def test_backend_that_fails_one_request_of_a_batch(rigs: Callable[..., Rig]) -> None:
    def behave(execution: Execution) -> None:
        execution.fail(1, NotFound("only this one"))
        execution.send(2, [tensor()])
        execution.send(0, [tensor()])

    rig = rigs([finishing(behave)], DynamicPolicy(8, [8], 0, start_at=3))
    replies = [rig.submit(name, 1) for name in "abc"]
    rig.finish(*replies)
    assert [isinstance(reply.only, InferResponse) for reply in replies] == [True, False, True]
    assert str(replies[1].error) == "only this one"
    assert sorted(rig.settled) == ["a", "b", "c"]
    assert rig.observer.executions == [3]


def test_backend_that_raises_after_it_answered_a_request_fails_the_others(rigs: Callable[..., Rig]) -> None:
    def behave(execution: Execution) -> None:
        execution.send(1, [tensor()])
        raise ValueError("broke")

    rig = rigs([behave], DynamicPolicy(8, [8], 0, start_at=3))
    replies = [rig.submit(name, 1) for name in "abc"]
    rig.finish(*replies)
    assert replies[1].response.id == "b"
    assert [str(replies[i].error) for i in (0, 2)] == ["ValueError: broke"] * 2


def test_response_holds_only_what_was_asked_for(rigs: Callable[..., Rig]) -> None:
    rig = rigs([finishing(lambda execution: execution.send(0, [tensor("y"), tensor("x"), tensor("z")]))])
    reply = rig.submit()
    rig.finish(reply)
    assert [t.name for t in reply.response.outputs] == ["x"]


@pytest.mark.parametrize(
    ("behave", "count"),
    [
        pytest.param(lambda execution: None, 0, id="none"),
        pytest.param(lambda execution: execution.send(0, None), 0, id="only the end"),
        pytest.param(lambda execution: [execution.send(0, [tensor()]) for _ in range(2)], 2, id="two finals"),
        pytest.param(
            lambda execution: [execution.send(0, [tensor()], final) for final in (False, False, True)], 3, id="three"
        ),
    ],
)
def test_model_of_one_response_that_sends_another_number(
    rigs: Callable[..., Rig], behave: Callable[[Execution], None], count: int
) -> None:
    """Contract H50."""
    rig = rigs([finishing(behave)])
    reply = rig.submit("a")
    rig.finish(reply)
    assert isinstance(reply.error, Internal)
    assert str(reply.error) == f"expected a single response, got {count}"
    assert rig.settled == ["a"]


def test_model_of_one_response_may_send_its_end_apart(rigs: Callable[..., Rig]) -> None:
    def behave(execution: Execution) -> None:
        execution.send(0, [tensor()], False)
        execution.send(0, None, True)

    rig = rigs([finishing(behave)])
    reply = rig.submit("a")
    rig.finish(reply)
    assert reply.response.id == "a"


def test_answer_for_an_unknown_request_is_ignored(rigs: Callable[..., Rig]) -> None:
    def behave(execution: Execution) -> None:
        execution.send(7, [tensor()])
        execution.send(0, [tensor()])

    rig = rigs([finishing(behave)])
    first, second = rig.submit("a"), rig.submit("b")
    rig.finish(first, second)
    assert rig.settled == ["a", "b"]


@pytest.mark.parametrize("decoupled", [False, True])
def test_rescheduled_request_without_a_sequence_fails(rigs: Callable[..., Rig], decoupled: bool) -> None:
    """Contract S72, CB37. The other requests of its batch have their answers."""

    def behave(execution: Execution) -> None:
        execution.send(0, [tensor()])
        execution.again(1)

    rig = rigs([finishing(behave)], DynamicPolicy(8, [8], 0, start_at=2), decoupled=decoupled)
    first, second = rig.submit("a", 1), rig.submit("b", 1)
    rig.finish(first, second)
    assert first.response.id == "a"
    assert isinstance(second.error, Invalid)
    assert str(second.error) == (
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag."
    )
    assert sorted(rig.settled) == ["a", "b"]
    assert rig.instances[0].batches == [["a", "b"]]
    assert [reason for _, reason in rig.observer.failures] == [Reason.BACKEND]


# Models of one response that answer after the batch.


def test_request_that_answers_later_does_not_hold_the_instance() -> None:
    held: list[Execution] = []
    rig = Rig([held.append], on_loop=True)
    first, second = rig.submit("first"), rig.submit("second")
    held[0].finished([0])
    assert len(held) == 2
    assert first.answers == []
    held[0].send(0, [tensor()])
    assert first.response.id == "first"
    held[1].send(0, [tensor()])
    held[1].finished()
    assert second.response.id == "second"
    assert rig.settled == ["first", "second"]
    assert rig.observer.executions == [1, 1]
    for times in rig.observer.times:
        assert times[Stamp.QUEUE_START :] == sorted(times[Stamp.QUEUE_START :])


def test_batch_of_which_some_answer_later_answers_the_others_at_its_end() -> None:
    held: list[Execution] = []
    rig = Rig([held.append], DynamicPolicy(8, [4], 0, start_at=4), on_loop=True)
    now, missing, late, failing = (rig.submit(name, 1) for name in ("now", "missing", "late", "failing"))
    held[0].send(0, [tensor()])
    held[0].finished([3, 2])
    assert now.response.id == "now"
    assert str(missing.error) == "expected a single response, got 0"
    assert late.answers == failing.answers == []
    held[0].fail(3, Internal("gone"))
    assert str(failing.error) == "gone"
    held[0].send(2, [tensor()])
    assert late.response.id == "late"
    assert rig.settled == ["now", "missing", "failing", "late"]


@pytest.mark.parametrize("answer_ns", [0, SLICE_NS // 40])
def test_answers_of_a_large_batch_that_take_long_come_in_several_turns(answer_ns: int) -> None:
    now = 0

    def write(answer: Answer, final: bool) -> None:
        nonlocal now
        now += answer_ns

    held: list[Execution] = []
    rig = Rig([held.append], DynamicPolicy(200, [200], 0, start_at=100), on_loop=True, clock=lambda: now)
    replies = [rig.submit(str(number), 1, write) for number in range(100)]
    for number in range(100):
        held[0].send(number, [tensor()])
    held[0].finished()
    # The clock is looked at after each 16.
    assert len(rig.settled) == (48 if answer_ns else 100)
    held[0].send(99, [tensor()])  # a second answer, while the first one waits, is ignored
    rig.finish(*replies)
    assert rig.settled == [str(number) for number in range(100)]
    assert all(reply.response.id == str(number) for number, reply in enumerate(replies))


def test_answer_given_before_the_end_of_the_batch_counts_for_a_request_that_may_answer_later() -> None:
    held: list[Execution] = []
    rig = Rig([held.append], DynamicPolicy(8, [2], 0, start_at=2), on_loop=True)
    first, second = rig.submit("a", 1), rig.submit("b", 1)
    held[0].send(1, [tensor()])
    held[0].finished([0, 1])
    assert (first.answers, second.response.id) == ([], "b")
    held[0].send(0, [tensor()])
    assert first.response.id == "a"


def test_request_that_is_given_up_later_says_so() -> None:
    """Contract H50."""
    held: list[Execution] = []
    rig = Rig([held.append], on_loop=True)
    reply = rig.submit()
    held[0].finished([0])
    held[0].send(0, None)
    assert str(reply.error) == "expected a single response, got 0"


# Decoupled models.


def test_decoupled_model_answers_as_often_as_it_likes(rigs: Callable[..., Rig]) -> None:
    def behave(execution: Execution) -> None:
        for _ in range(3):
            execution.send(0, [tensor()], False)
        execution.send(0, None, True)

    rig = rigs([finishing(behave)], decoupled=True)
    reply = rig.submit("a")
    rig.finish(reply)
    assert [final for _, final in reply.answers] == [False, False, False, True]
    assert reply.answers[-1][0] is None
    assert rig.settled == ["a"]
    assert rig.observer.responses == [(i, answer) for i, (answer, _) in enumerate(reply.answers)]


def test_decoupled_model_answers_after_the_batch_from_another_thread() -> None:
    sent = Event()
    late: list[Thread] = []

    def answer(execution: Execution) -> None:
        execution.send(0, [tensor()], False)
        execution.send(0, [tensor()], True)
        sent.set()

    def behave(execution: Execution) -> None:
        late.append(Thread(target=answer, args=(execution,)))

    rig = Rig([behave, echo], decoupled=True)
    threads: set[int] = set()
    first = rig.submit("late", on_send=lambda *_: threads.add(threading.get_ident()))
    rig.loop.run_until(lambda: bool(rig.observer.executions))
    assert first.answers == []
    second = rig.submit("second")
    rig.finish(second)
    late[0].start()
    assert sent.wait(PATIENCE)
    late[0].join(PATIENCE)
    assert first.answers == []
    rig.finish(first)
    assert [final for _, final in first.answers] == [False, True]
    assert threads == {threading.get_ident()}
    assert rig.settled == ["second", "late"]
    rig.runner.close()


def test_decoupled_model_that_fails_in_between_goes_on(rigs: Callable[..., Rig]) -> None:
    def behave(execution: Execution) -> None:
        execution.fail(0, Internal("one went wrong"), False)
        execution.send(0, [tensor()], True)

    rig = rigs([finishing(behave)], decoupled=True)
    reply = rig.submit("a")
    rig.finish(reply)
    assert [(type(answer), final) for answer, final in reply.answers] == [(Internal, False), (InferResponse, True)]


def test_decoupled_model_that_raises_after_answers_fails_only_what_is_open(rigs: Callable[..., Rig]) -> None:
    def behave(execution: Execution) -> None:
        execution.send(0, [tensor()], True)
        execution.send(1, [tensor()], False)
        raise ValueError("too late")

    rig = rigs([behave], DynamicPolicy(8, [8], 0, start_at=2), decoupled=True)
    over, open_ = rig.submit("over", 1), rig.submit("open", 1)
    rig.finish(over, open_)
    assert over.response.id == "over"
    assert [(type(answer), final) for answer, final in open_.answers] == [(InferResponse, False), (Internal, True)]


def test_decoupled_model_that_raises_while_its_answers_are_taken() -> None:
    """The loop empties the outcomes while the thread breaks off: the two must not meet."""
    usual = sys.getswitchinterval()
    breaking = Event()
    count = WINDOW // cost_of([tensor()])  # no more are sent before the first is taken

    def behave(execution: Execution) -> None:
        for _ in range(count):
            execution.send(0, [tensor()], False)
        breaking.set()
        raise ValueError("broke")

    rig = Rig([behave], decoupled=True)
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            breaking.clear()
            reply = rig.submit(on_send=lambda *_: None if breaking.wait(PATIENCE) else pytest.fail("never broke"))
            rig.finish(reply)
            assert isinstance(reply.answers[-1][0], Internal)
            assert len(reply.answers) == count + 1
    finally:
        sys.setswitchinterval(usual)
        rig.runner.close()


def test_decoupled_answer_before_the_end_of_the_batch_has_times_that_add_up() -> None:
    def behave(execution: Execution) -> None:
        execution.send(0, [tensor()], True)
        held.append(execution)

    held: list[Execution] = []
    rig = Rig([behave], decoupled=True, on_loop=True)
    reply = rig.submit()
    assert reply.finals == 1
    held[0].finished()
    [times] = rig.observer.times
    assert times[Stamp.QUEUE_START :] == sorted(times[Stamp.QUEUE_START :]), "a phase of negative length"


# Refusals, cancellation, the end.


def test_refusal_by_the_policy_is_the_answer(rigs: Callable[..., Rig]) -> None:
    rig = rigs([finishing(echo)], ScriptedPolicy(refuse=Unavailable("Exceeds maximum queue size")))
    refused, fine = rig.submit("refused"), rig.submit("fine")
    rig.finish(refused, fine)
    assert str(refused.error) == "Exceeds maximum queue size"
    assert [(one.request.id, reason) for one, reason in rig.observer.failures] == [("refused", Reason.REJECTED)]
    assert rig.settled == ["refused", "fine"]
    assert rig.instances[0].batches == [["fine"]]


def test_cancel_while_waiting_ends_it_at_once() -> None:
    release = Event()
    rig = Rig([held_back(release)])
    running = rig.submit("running")
    waiting = RecordingReply()
    one = rig.start("waiting", waiting)
    rig.runner.cancel(one)
    assert isinstance(waiting.error, Cancelled)
    assert str(waiting.error) == "[request id: waiting] Cancelled"
    assert rig.observer.failures == [(one, Reason.CANCELED)]
    rig.runner.cancel(one)
    release.set()
    rig.finish(running)
    assert rig.settled == ["waiting", "running"]
    assert rig.instances[0].batches == [["running"]]
    rig.runner.close()


def test_cancel_while_running_notifies_the_backend_and_keeps_its_answer() -> None:
    begun, release = Event(), Event()
    seen: list[bool] = []

    def behave(execution: Execution) -> None:
        begun.set()
        assert release.wait(PATIENCE)
        seen.append(execution.requests[0].cancelled)
        echo(execution)

    rig = Rig([behave])
    reply = RecordingReply()
    one = rig.start("a", reply)
    assert begun.wait(PATIENCE)
    rig.runner.cancel(one)
    release.set()
    rig.finish(reply)
    assert seen == [True]
    assert reply.finals == 1
    rig.runner.cancel(one)
    assert (reply.finals, rig.settled) == (1, ["a"])
    rig.runner.close()


def test_stop_refuses_new_requests_and_finishes_the_others() -> None:
    release = Event()
    rig = Rig([held_back(release)])
    here = [rig.submit("running"), rig.submit("waiting")]
    rig.runner.stop()
    late = rig.submit("late")
    assert isinstance(late.error, Unavailable)
    assert str(late.error) == (
        "[request id: late] Server is stopping, scheduler for model has stopped accepting new inference requests"
    )
    release.set()
    rig.finish(*here)
    assert [reply.response.id for reply in here] == ["running", "waiting"]
    assert rig.settled == ["late", "running", "waiting"]
    rig.runner.close()


# Order of things.


def test_wake_asks_again_at_that_time_and_not_before() -> None:
    rig = Rig([finishing(echo)], ScriptedPolicy(wake=[500]), on_loop=True)
    reply = rig.submit()
    assert [when for when, _, _ in rig.loop.timers] == [500]
    assert reply.answers == []
    rig.loop.ring()
    assert reply.finals == 1


def test_wake_that_is_nearer_than_the_last_one_is_not_missed() -> None:
    rig = Rig([finishing(echo)], ScriptedPolicy(wake=[500, 900, 200, 900]), on_loop=True)
    replies = [rig.submit() for _ in range(3)]
    assert rig.loop.ring() == 200
    assert [reply.finals for reply in replies] == [0, 0, 0]
    while rig.loop.timers:
        rig.loop.ring()
    assert [reply.finals for reply in replies] == [1, 1, 1]


def test_instances_run_at_the_same_time() -> None:
    together = threading.Barrier(2)

    def behave(execution: Execution) -> None:
        together.wait(PATIENCE)
        echo(execution)

    rig = Rig([behave, behave])
    replies = [rig.submit() for _ in range(4)]
    rig.finish(*replies)
    assert [len(instance.batches) for instance in rig.instances] == [2, 2]
    rig.runner.close()


def test_slow_batch_of_one_instance_does_not_hold_up_the_other() -> None:
    release = Event()
    rig = Rig([held_back(release), echo])
    slow = rig.submit("slow")
    quick = [rig.submit(f"q{i}") for i in range(3)]
    rig.finish(*quick)
    assert slow.answers == []
    release.set()
    rig.finish(slow)
    rig.runner.close()


def test_reply_slot_that_submits_again_from_within_is_served(rigs: Callable[..., Rig]) -> None:
    rig = rigs([finishing(echo)])
    replies: list[RecordingReply] = []

    def chain(*_: object) -> None:
        if len(replies) < 200:
            replies.append(RecordingReply(chain))
            rig.start(str(len(replies)), replies[-1])

    chain()
    rig.loop.run_until(lambda: len(replies) == 200 and all(reply.finals for reply in replies))
    assert rig.settled == [str(i) for i in range(1, 201)]
    assert all(reply.finals == 1 for reply in replies)


def test_reply_slot_that_cancels_a_waiting_request_from_within(rigs: Callable[..., Rig]) -> None:
    """A worker has its next batch before the answers of the one before are written, but not the one after that."""
    rig = rigs([finishing(echo)], DynamicPolicy(1, [1], 0, start_at=4))
    doomed_reply = RecordingReply()
    first = rig.submit("first", on_send=lambda *_: rig.runner.cancel(doomed))
    second = rig.submit("second")
    doomed = rig.start("doomed", doomed_reply)
    last = rig.submit("last")
    rig.finish(first, second, last)
    assert isinstance(doomed_reply.error, Cancelled)
    assert rig.settled == ["doomed", "first", "second", "last"]


# On the loop or on a thread.


def recording_threads(seen: list[str]) -> Callable[[Execution], None]:
    def behave(execution: Execution) -> None:
        seen.append(threading.current_thread().name)
        echo(execution)

    return behave


def test_model_that_is_not_inline_safe_always_runs_on_its_thread() -> None:
    seen: list[str] = []
    rig = Rig([recording_threads(seen)])
    for _ in range(40):
        rig.finish(rig.submit())
    assert set(seen) == {"m:3 #0"}
    rig.runner.close()


def test_safe_model_runs_on_its_thread_until_it_is_known_to_be_quick() -> None:
    seen: list[str] = []
    rig = Rig([recording_threads(seen)], inline_safe=True)
    rig.finish(rig.submit())
    rig.warm_up()
    rig.finish(rig.submit())
    assert seen == ["m:3 #0", threading.current_thread().name]
    rig.runner.close()


def test_inline_run_is_answered_before_submit_returns() -> None:
    rig = Rig(inline_safe=True)
    rig.warm_up()
    assert rig.submit("a").response.id == "a"
    rig.runner.close()


def test_long_run_on_the_loop_sends_the_model_back_to_its_threads() -> None:
    seen: list[str] = []
    rig = Rig([recording_threads(seen)], inline_safe=True)
    rig.warm_up()
    rig.runner._eligibility.ran(1, LONG_NS, True)
    rig.finish(rig.submit())
    assert seen == ["m:3 #0"]
    rig.runner.close()


def test_budget_of_a_turn_holds_for_all_submits_in_it() -> None:
    rig = Rig(inline_safe=True)
    rig.warm_up()
    rig.loop.budget.spend(10**9)
    replies = [rig.submit(str(i)) for i in range(5)]
    assert rig.instances[0].batches == [], "ran inline in a turn whose budget was spent"
    rig.finish(*replies)
    assert rig.settled == [str(i) for i in range(5)]
    rig.runner.close()


def test_run_that_spends_the_budget_is_answered_in_the_same_turn() -> None:
    rig = Rig(inline_safe=True)
    rig.warm_up()
    rig.loop.budget.spend(199_999)
    first = rig.submit("first")
    assert first.finals == 1
    second = rig.submit("second")
    rig.finish(first, second)
    assert rig.settled == ["first", "second"]
    rig.runner.close()


def test_model_placed_on_the_loop_takes_a_batch_for_each_instance_and_no_more() -> None:
    held: list[Execution] = []
    rig = Rig([held.append] * 2, on_loop=True)
    replies = [rig.submit(str(i)) for i in range(3)]
    assert len(held) == 2
    for execution in held[:2]:
        echo(execution)
        execution.finished()
    assert len(held) == 3
    echo(held[2])
    held[2].finished()
    assert [reply.response.id for reply in replies] == ["0", "1", "2"]


def refused(rigs: Callable[..., Rig], sent: Tensor) -> Error:
    """The answer to a request whose model sends `sent` with its output. The model goes on, and nothing is logged."""
    rig = rigs([finishing(lambda execution: execution.send(0, [tensor("x"), sent]))])
    reply = rig.submit()
    rig.finish(reply)
    assert rig.observer.failures
    assert rig.runner.waiting == 0
    return reply.error


def test_output_that_the_configuration_does_not_have_fails_its_request(rigs: Callable[..., Rig]) -> None:
    error = refused(rigs, tensor("w"))
    assert isinstance(error, Internal)
    assert str(error) == "the backend returned output 'w', but the configuration has: 'x', 'y', 'z'"


def test_output_of_another_datatype_fails_its_request(rigs: Callable[..., Rig]) -> None:
    error = refused(rigs, Tensor("x", INT32, (1, 1), HostMemory(bytes(4))))
    assert isinstance(error, Internal)
    assert str(error) == "the backend returned output 'x' with type INT32, but the configuration has FP32"
