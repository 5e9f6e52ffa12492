from halimede.errors import Unavailable
from halimede.scheduling.policy import Batch
from halimede.scheduling.queue import MAX_CANCELLED, MAX_CANCELLED_BYTES, DefaultPolicy, RefusingPolicy
from halimede.tensors import INT32, HostMemory, Tensor
from tests.fakes import inference


def taken(policy: DefaultPolicy, free: tuple[int, ...] = (0,)) -> tuple[int, list[str]]:
    step = policy.next(free, 0)
    assert isinstance(step, Batch)
    return step.instance, [one.request.id for one in step.rows]


def policy_with(*ids: str) -> DefaultPolicy:
    policy = DefaultPolicy()
    for name in ids:
        assert policy.admit(inference(name), 0) is None
    return policy


def test_default_policy_serves_one_request_a_batch_in_order() -> None:
    policy = policy_with("a", "b", "c")
    assert [taken(policy)[1] for _ in range(3)] == [["a"], ["b"], ["c"]]
    assert policy.next((0,), 0) is None
    assert policy.waiting == 0


def test_default_policy_uses_the_instance_that_is_free_longest() -> None:
    policy = policy_with("a", "b")
    assert taken(policy, (2, 0)) == (2, ["a"])
    assert taken(policy, (0,)) == (0, ["b"])


def test_default_policy_never_joins_requests_that_could_be() -> None:
    policy = DefaultPolicy()
    for name in "ab":
        policy.admit(inference(name, batch_size=1, batch_key="same"), 0)
    assert taken(policy)[1] == ["a"]


def test_queue_forgets_a_request_cancelled_while_it_waits() -> None:
    policy = DefaultPolicy()
    kept, gone = inference("kept"), inference("gone")
    policy.admit(gone, 0)
    policy.admit(kept, 0)
    assert policy.cancel(gone, 1)
    assert not policy.cancel(gone, 2)
    assert policy.waiting == 1
    assert taken(policy)[1] == ["kept"]


def test_queue_lets_go_of_large_requests_that_were_cancelled() -> None:
    """Also if nothing comes that would pass them over."""
    policy = policy_with("kept")
    large = Tensor("x", INT32, (MAX_CANCELLED_BYTES,), HostMemory(bytes(4 * MAX_CANCELLED_BYTES)))
    gone = inference("gone", inputs=[large])
    policy.admit(gone, 0)
    assert policy.cancel(gone, 1)
    assert [one.request.id for one in policy._queue] == ["kept"]
    assert taken(policy)[1] == ["kept"]


def test_queue_never_keeps_tens_of_thousands_that_were_cancelled() -> None:
    """To let go of all of them at once would hold the loop."""
    policy = DefaultPolicy()
    several = [inference(str(number)) for number in range(5 * MAX_CANCELLED)]
    for one in several:
        policy.admit(one, 0)
    for one in several[:-1]:
        policy.cancel(one, 1)
        assert len(policy._queue) - policy.waiting <= MAX_CANCELLED
    assert taken(policy)[1] == [several[-1].request.id]


def test_queue_does_not_know_a_request_that_runs() -> None:
    policy = DefaultPolicy()
    running = inference("a")
    policy.admit(running, 0)
    policy.next((0,), 0)
    assert not policy.cancel(running, 1)


def test_queue_serves_those_behind_many_that_were_cancelled() -> None:
    policy = DefaultPolicy()
    several = [inference(str(i)) for i in range(500)]
    for one in several:
        policy.admit(one, 0)
    kept = several[7::50]
    for one in several:
        if one not in kept:
            assert policy.cancel(one, 1)
    assert policy.waiting == len(kept)
    assert len(policy._queue) <= 2 * len(kept) + 64, "what was cancelled stays in memory"
    assert [taken(policy)[1][0] for _ in kept] == [one.request.id for one in kept]
    assert (policy.waiting, policy.next((0,), 0)) == (0, None)


def test_queue_that_holds_only_what_was_cancelled_is_empty() -> None:
    policy = DefaultPolicy()
    gone = inference("gone")
    policy.admit(gone, 0)
    assert policy.cancel(gone, 0)
    assert (policy.waiting, policy.next((0,), 0)) == (0, None)
    policy.admit(inference("next"), 0)
    assert taken(policy)[1] == ["next"]


def test_refusing_policy_refuses_every_request() -> None:
    policy = RefusingPolicy("nobody is here")
    refusal = policy.admit(inference("a"), 0)
    assert (type(refusal), str(refusal)) == (Unavailable, "[request id: a] nobody is here")
    assert (policy.waiting, policy.next((0,), 0)) == (0, None)
