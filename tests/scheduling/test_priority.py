"""Priorities, limits and times of a queue against contract S26 to S32, H73 and C60. Time is moved by hand."""

from collections.abc import Mapping, Sequence

import pytest

from halimede.errors import TimedOut, Unavailable
from halimede.requests import Stamp
from halimede.scheduling.dynamic import Forming
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import MAX_EXPIRED_PER_CALL, Batch, Wake
from halimede.scheduling.priority import PriorityQueuePolicy, QueueRules
from tests.fakes import inference

MS = 1_000_000
FREE = (0,)
LATER = 10**15


def policy_of(
    levels: int = 3,
    default: int = 2,
    other: QueueRules = QueueRules(),  # noqa: B008 # it is frozen
    rules: Mapping[int, QueueRules] | None = None,
    forming: Forming | None = None,
    start_at: int = 0,
) -> PriorityQueuePolicy:
    return PriorityQueuePolicy(levels, default, other, rules or {}, forming, start_at)


def one_queue(rules: QueueRules) -> PriorityQueuePolicy:
    return policy_of(0, 0, rules)


def request(name: str, priority: int = 0, timeout_us: int = 0, rows: int = 1, now: int = 0) -> Inference:
    one = inference(name, batch_size=rows)
    one.request.priority, one.request.timeout_us = priority, timeout_us
    one.times[Stamp.QUEUE_START] = now
    return one


def admit(policy: PriorityQueuePolicy, name: str, priority: int = 0, now: int = 0, timeout_us: int = 0) -> Inference:
    one = request(name, priority, timeout_us, now=now)
    assert policy.admit(one, now) is None
    return one


def names(step: Batch | Wake | None) -> str:
    assert isinstance(step, Batch), step
    return "".join(one.request.id for one in step.rows)


def served(policy: PriorityQueuePolicy, now: int = 0) -> str:
    """Everything that waits, in the order in which it is served."""
    batches = []
    while policy.waiting:
        batches.append(names(policy.next(FREE, now)))
    assert policy.next(FREE, now) is None
    return " ".join(batches)


def expired(policy: PriorityQueuePolicy, now: int) -> str:
    refusals = policy.expire(now)
    assert all(isinstance(error, TimedOut) and str(error) == "Request timeout expired" for _, error in refusals)
    return "".join(one.request.id for one, _ in refusals)


# Priorities.


@pytest.mark.parametrize(
    ("priorities", "order"),
    [
        ((1, 2, 3), "a b c"),
        ((3, 2, 1), "c b a"),
        ((2, 1, 2, 1), "b d a c"),
        pytest.param((3, 0, 1), "c b a", id="0 is the default level"),
        pytest.param((3, 4, 1), "c b a", id="beyond the levels is the default level"),
        pytest.param((3, 2**64 - 1, 2, 1), "d b c a", id="far beyond them too"),
    ],
)
def test_levels_are_served_in_their_order_and_each_by_arrival(priorities: Sequence[int], order: str) -> None:
    policy = policy_of()
    for name, priority in zip("abcd", priorities, strict=False):
        admit(policy, name, priority)
    assert served(policy) == order


def test_priority_is_ignored_without_levels() -> None:
    policy = one_queue(QueueRules(max_size=9))
    for name, priority in (("a", 3), ("b", 1), ("c", 0)):
        admit(policy, name, priority)
    assert served(policy) == "a b c"


def test_batch_is_filled_from_the_next_levels() -> None:
    policy = policy_of(forming=Forming(3, (3,), 0))
    for name, priority in (("a", 3), ("b", 3), ("c", 2), ("d", 1)):
        admit(policy, name, priority)
    assert served(policy) == "dca b"


def test_more_urgent_request_goes_ahead_of_a_batch_that_waits_to_grow() -> None:
    policy = policy_of(forming=Forming(2, (2,), 10 * MS))
    admit(policy, "a", 2, now=0)
    assert policy.next(FREE, 4 * MS) == Wake(10 * MS)
    admit(policy, "b", 1, now=5 * MS)
    assert names(policy.next(FREE, 5 * MS)) == "ba"


def test_delay_counts_from_the_oldest_request_of_the_batch_whatever_its_level() -> None:
    policy = policy_of(forming=Forming(4, (4,), 10 * MS))
    admit(policy, "a", 3, now=1 * MS)
    admit(policy, "b", 1, now=6 * MS)
    assert policy.next(FREE, 7 * MS) == Wake(11 * MS)
    assert names(policy.next(FREE, 11 * MS)) == "ba"


def test_level_that_was_empty_is_served_again() -> None:
    policy = policy_of()
    for _ in range(2):
        admit(policy, "a", 3)
        admit(policy, "b", 1)
        assert served(policy) == "b a"


def test_any_number_of_levels_costs_what_is_used_of_them() -> None:
    policy = policy_of(levels=2**64 - 1, default=2**63)
    for name, priority in (("a", 2**64 - 1), ("b", 0), ("c", 1)):
        admit(policy, name, priority)
    assert served(policy) == "c b a"


# How many may wait.


def test_request_beyond_the_size_is_refused() -> None:
    policy = one_queue(QueueRules(max_size=2))
    admit(policy, "a")
    admit(policy, "b")
    refusal = policy.admit(request("c"), 0)
    assert type(refusal) is Unavailable
    assert str(refusal) == "[request id: c] Exceeds maximum queue size"
    assert policy.waiting == 2
    assert names(policy.next(FREE, 0)) == "a"
    assert policy.admit(request("d"), 0) is None
    assert served(policy) == "b d"


def test_size_counts_for_each_level_by_itself() -> None:
    policy = policy_of(other=QueueRules(max_size=1), rules={1: QueueRules(max_size=2), 3: QueueRules()})
    sent = [("a", 2), ("b", 0), ("c", 1), ("d", 1), ("e", 1), ("f", 3), ("g", 3)]
    refused = [name for name, priority in sent if policy.admit(request(name, priority), 0) is not None]
    assert (refused, served(policy)) == (["b", "e"], "c d a f g")


def test_queue_size_counts_late_requests() -> None:
    policy = one_queue(QueueRules(max_size=2, timeout_us=1000, delays=True))
    admit(policy, "a")
    assert expired(policy, MS) == ""
    admit(policy, "b", now=MS)
    assert policy.admit(request("c"), MS) is not None
    assert served(policy) == "b a"


# How long they may wait.


def test_request_that_waited_too_long_is_taken_out_at_its_time() -> None:
    policy = one_queue(QueueRules(timeout_us=1000))
    admit(policy, "a", now=0)
    admit(policy, "b", now=MS // 2)
    assert policy.expires_at == MS
    assert expired(policy, MS - 1) == ""
    assert expired(policy, MS) == "a"
    assert policy.expires_at == MS + MS // 2
    assert expired(policy, 5 * MS) == "b"
    assert (policy.expires_at, policy.waiting) == (0, 0)


def test_requests_that_expire_together_are_taken_out_a_part_at_a_time() -> None:
    policy = one_queue(QueueRules(timeout_us=1000))
    for _ in range(2 * MAX_EXPIRED_PER_CALL + 1):
        admit(policy, "a")
    for count, left in ((MAX_EXPIRED_PER_CALL, True), (MAX_EXPIRED_PER_CALL, True), (1, False)):
        assert len(policy.expire(MS)) == count
        # The others must not run meanwhile.
        assert policy.next(FREE, MS) == (Wake(MS) if left else None)
        assert bool(policy.expires_at) == left
    assert policy.waiting == 0


@pytest.mark.parametrize(
    ("default", "override", "asked", "limit"),
    [
        pytest.param(1000, True, 400, 400, id="less than the default"),
        pytest.param(1000, True, 1000, 1000, id="the same"),
        pytest.param(1000, True, 2000, 1000, id="more is not given"),
        pytest.param(1000, True, 0, 1000, id="not asked"),
        pytest.param(1000, False, 400, 1000, id="not allowed"),
        pytest.param(0, True, 400, 0, id="no default, no timeout"),
    ],
)
def test_timeout_that_a_request_asks_for(default: int, override: bool, asked: int, limit: int) -> None:
    """Contract S29."""
    policy = one_queue(QueueRules(timeout_us=default, allow_override=override))
    admit(policy, "a", timeout_us=asked)
    assert policy.expires_at == limit * 1000


def test_request_that_waited_too_long_may_be_served_after_the_others_of_its_level() -> None:
    """Contract S31."""
    delaying = QueueRules(timeout_us=1000, delays=True)
    policy = policy_of(other=delaying, rules={3: QueueRules()})
    admit(policy, "a", 2, now=0)
    admit(policy, "b", 2, now=100)
    admit(policy, "c", 3, now=200)
    assert expired(policy, MS + 100) == ""
    admit(policy, "d", 2, now=MS + 100)
    admit(policy, "e", 1, now=MS + 100)
    assert (policy.waiting, served(policy, MS + 200)) == (5, "e d a b c")


def test_request_that_waited_too_long_once_never_does_again() -> None:
    policy = one_queue(QueueRules(timeout_us=1000, delays=True))
    admit(policy, "a")
    assert expired(policy, MS) == ""
    assert policy.expires_at == 0
    assert expired(policy, LATER) == ""
    assert served(policy, LATER) == "a"


def test_next_deadline_is_never_that_of_a_request_that_has_gone() -> None:
    policy = policy_of(
        rules={1: QueueRules(timeout_us=1000), 2: QueueRules(timeout_us=2000), 3: QueueRules(timeout_us=3000)}
    )
    admit(policy, "a", 1)
    cancelled = admit(policy, "b", 2)
    admit(policy, "c", 3)
    assert names(policy.next(FREE, 0)) == "a"
    assert policy.expires_at == 2 * MS
    assert policy.cancel(cancelled, 0)
    assert policy.expires_at == 3 * MS
    assert names(policy.next(FREE, 0)) == "c"
    assert policy.expires_at == 0


@pytest.mark.parametrize("gone", ["served", "cancelled"])
def test_deadlines_of_requests_that_have_gone_do_not_pile_up(gone: str) -> None:
    """Behind one that may wait for long, many with shorter and longer times come and go."""
    policy = policy_of(rules={1: QueueRules(timeout_us=10**9), 3: QueueRules(timeout_us=1)})
    admit(policy, "z", 3)
    for _ in range(5000):
        one = admit(policy, "a", 1)
        if gone == "served":
            assert names(policy.next(FREE, 0)) == "a"
        else:
            assert policy.cancel(one, 0)
    assert len(policy._deadlines) < 100
    assert expired(policy, LATER) == "z"


# Leaving and coming back.


def test_cancelled_request_is_forgotten_late_or_not() -> None:
    policy = one_queue(QueueRules(timeout_us=1000, delays=True))
    late = admit(policy, "a", now=0)
    assert expired(policy, MS) == ""
    punctual = admit(policy, "b", now=MS)
    admit(policy, "c", now=MS)
    for one in (late, punctual):
        assert policy.cancel(one, MS)
        assert not policy.cancel(one, MS)
    assert (policy.waiting, served(policy, MS)) == (1, "c")


def test_request_that_was_served_or_refused_does_not_wait() -> None:
    policy = one_queue(QueueRules(max_size=1, timeout_us=1000))
    running, refused = admit(policy, "a"), request("b")
    assert policy.admit(refused, 0) is not None
    assert not policy.cancel(refused, 0)
    assert names(policy.next(FREE, 0)) == "a"
    assert not policy.cancel(running, 0)


def test_hook_holds_back_requests_until_enough_wait_in_all_levels() -> None:
    """Contract C60. Nothing waits too long before."""
    policy = policy_of(other=QueueRules(timeout_us=1000), rules={1: QueueRules()}, start_at=3)
    admit(policy, "a", 2, now=0)
    admit(policy, "b", 2, now=5 * MS)
    assert policy.expires_at == 0
    assert policy.next(FREE, 5 * MS) is None
    admit(policy, "c", 1, now=5 * MS)
    assert expired(policy, 5 * MS) == "a"
    assert served(policy, 5 * MS) == "c b"
    admit(policy, "d", 3, now=6 * MS)
    assert served(policy, 6 * MS) == "d"


def test_batch_names_the_instance_that_is_free_longest() -> None:
    policy = one_queue(QueueRules(max_size=1))
    admit(policy, "a")
    step = policy.next((3, 1), 0)
    assert isinstance(step, Batch)
    assert step.instance == 3
