"""Regrouping: when the batch after another one waits, and what that gives in a simulation."""

from collections.abc import Sequence

import pytest

from bench.adaptive_simulation import Case, Load, Model
from bench.regrouping import outcomes
from halimede.requests import Stamp
from halimede.scheduling.dynamic import DynamicPolicy, Forming
from halimede.scheduling.policy import Batch, Policy, Wake
from halimede.scheduling.priority import PriorityQueuePolicy, QueueRules
from halimede.scheduling.regrouping import MAX_SAVING_SHARE, MAX_SHARE, SKIPPED, Regrouping
from tests.fakes import inference

MS = 1_000_000
WAIT = int(MAX_SHARE * 20 * MS)
"""The wait after a batch of 20 ms whose time does not depend on its rows."""


def dynamic() -> Policy:
    return DynamicPolicy(8, [8], 0, 0, Regrouping(8))


def with_levels() -> Policy:
    return PriorityQueuePolicy(2, 1, QueueRules(), {}, Forming(8, [8], 0), 0, Regrouping(8))


@pytest.fixture(params=[dynamic, with_levels])
def policy(request: pytest.FixtureRequest) -> Policy:
    made: Policy = request.param()
    return made


def admit(policy: Policy, now: int, rows: Sequence[int]) -> None:
    for each in rows:
        one = inference(batch_size=each)
        one.times[Stamp.QUEUE_START] = now
        assert policy.admit(one, now) is None


def serve(policy: Policy, now: int, rows: Sequence[int], takes: int = 20 * MS) -> int:
    """A batch of new requests starts at `now`. Returns when it has finished."""
    admit(policy, now, rows)
    assert started(policy, now) == len(rows)
    policy.freed(0, now + takes)
    return now + takes


def started(policy: Policy, now: int) -> int | Wake | None:
    """The number of requests in the batch that starts, or the answer of the policy."""
    step = policy.next([0], now)
    return len(step.rows) if isinstance(step, Batch) else step


def test_request_waits_for_the_clients_of_the_batch_before(policy: Policy) -> None:
    end = serve(policy, 0, [1, 1, 1])
    admit(policy, end, [1])
    assert started(policy, end) == Wake(end + WAIT)
    admit(policy, end + WAIT // 2, [1])
    assert started(policy, end + WAIT // 2) == Wake(end + WAIT)
    admit(policy, end + WAIT // 2, [1])
    assert started(policy, end + WAIT // 2) == 3


def test_those_that_wait_already_count_as_well(policy: Policy) -> None:
    admit(policy, 0, [1])
    assert started(policy, 0) == 1
    admit(policy, 1, [1, 1, 1])  # while it runs
    policy.freed(0, 20 * MS)
    assert started(policy, 20 * MS) == Wake(20 * MS + WAIT)
    admit(policy, 20 * MS, [1])
    assert started(policy, 20 * MS) == 4


def test_wait_ends(policy: Policy) -> None:
    end = serve(policy, 0, [1, 1])
    admit(policy, end, [1])
    assert started(policy, end + WAIT - 1) == Wake(end + WAIT)
    assert started(policy, end + WAIT) == 1


def test_single_client_never_waits(policy: Policy) -> None:
    end = serve(policy, 0, [1])
    admit(policy, end, [1])
    assert started(policy, end) == 1


def test_request_that_comes_later_does_not_wait(policy: Policy) -> None:
    end = serve(policy, 0, [1, 1])
    admit(policy, end + WAIT, [1])
    assert started(policy, end + WAIT) == 1


def test_full_batch_does_not_wait(policy: Policy) -> None:
    end = serve(policy, 0, [4, 4])
    admit(policy, end, [8])
    assert started(policy, end) == 1


def test_batch_does_not_wait_after_one_that_left_requests(policy: Policy) -> None:
    admit(policy, 0, [8, 2])
    assert started(policy, 0) == 1
    policy.freed(0, 20 * MS)
    assert started(policy, 20 * MS) == 1


def test_batch_does_not_wait_after_a_quick_one(policy: Policy) -> None:
    end = serve(policy, 0, [1, 1], takes=3 * MS)
    admit(policy, end, [1])
    assert started(policy, end) == 1


def test_waits_in_which_nobody_came_are_skipped_for_a_while(policy: Policy) -> None:
    end = serve(policy, 0, [1, 1])
    admit(policy, end, [1])
    assert started(policy, end) == Wake(end + WAIT)
    assert started(policy, end + WAIT) == 1
    policy.freed(0, end + 20 * MS)
    end += 20 * MS
    for _ in range(SKIPPED - 1):
        end = serve(policy, end, [1, 1])
        admit(policy, end, [1])
        assert started(policy, end) == 1
        policy.freed(0, end)  # too quick to count
    end = serve(policy, end, [1, 1])
    admit(policy, end, [1])
    assert started(policy, end) == Wake(end + WAIT)


def test_wait_is_shorter_if_another_batch_costs_little(policy: Policy) -> None:
    """A batch takes 0.4 ms and 10 ms for each row."""
    now = 0
    for rows in (1, 2) * 40:
        now = serve(policy, now + 20 * MS, [rows], takes=(10 * rows) * MS + 400_000)
    end = serve(policy, now + 20 * MS, [1, 1], takes=20 * MS + 400_000)
    admit(policy, end, [1])
    step = policy.next([0], end)
    assert isinstance(step, Wake)
    assert step.at - end == pytest.approx(MAX_SAVING_SHARE * 400_000, rel=0.05)


def test_clients_that_wait_for_answers_are_served_quicker() -> None:
    case = Case(Model("m", fixed=10.0, each=5.0), Load("4 clients", clients=4), max_batch=8, seconds=4.0)
    with_it, without = outcomes(case)
    assert with_it.per_second > 1.15 * without.per_second
    assert with_it.p99_ms < 1.05 * without.p99_ms


def test_requests_at_random_wait_hardly_longer() -> None:
    case = Case(Model("m", fixed=10.0, each=5.0), Load("random", rate=60.0), max_batch=8, seconds=8.0)
    with_it, without = outcomes(case)
    assert with_it.p50_ms < 1.03 * without.p50_ms
    assert with_it.p99_ms < 1.05 * without.p99_ms
