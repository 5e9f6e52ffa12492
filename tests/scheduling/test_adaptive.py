"""Adaptive batching: what is learned, when a batch starts, and how it compares with fixed delays in a simulation."""

import random

import pytest

from bench.adaptive import SHARES, Compared
from bench.adaptive_cases import MACHINES, MODELS, held_out, tuning
from bench.adaptive_simulation import STILL, Case, Load, Machine, Model, Outcome, Simulation, adaptive, run
from halimede.requests import Stamp
from halimede.scheduling.adaptive import (
    CHANCE_WEIGHT,
    MARGIN,
    TRIAL_EVERY,
    AdaptivePolicy,
    Pace,
    PacedForming,
)
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.priority import PriorityQueuePolicy, QueueRules
from tests.fakes import inference

MS = 1_000_000
COSTLY_START, COSTLY_ROWS, QUICK = MODELS


class Play:
    """A policy with one instance that takes `ns` for each batch."""

    def __init__(self, target_ms: int = 30, max_batch_size: int = 8) -> None:
        self.pace = Pace(target_ms * MS)
        forming = PacedForming(max_batch_size, (max_batch_size,), self.pace)
        self.policy = AdaptivePolicy(PriorityQueuePolicy(0, 0, QueueRules(max_size=16), {}, forming), self.pace)
        self.policy.resize(1, 0)

    def arrive(self, now: int) -> Inference:
        one = inference(batch_size=1)
        one.times[Stamp.QUEUE_START] = now
        assert self.policy.admit(one, now) is None
        return one

    def next(self, now: int) -> int | None:
        """The rows of the batch that is due, else when to ask again."""
        step = self.policy.next((0,), now)
        if isinstance(step, Batch):
            return len(step.rows)
        assert isinstance(step, Wake)
        assert step.at > now
        return -step.at

    def run(self, now: int, ns: int = 5 * MS) -> int:
        """Serves one batch, after all waits; returns when it has finished."""
        while (found := self.next(now)) is not None and found < 0:
            now = -found
        self.policy.freed(0, now + ns)
        return now + ns


def test_first_batch_of_all_starts_at_once() -> None:
    play = Play()
    play.arrive(0)
    assert play.next(0) == 1


def test_batch_waits_until_the_target_forces_it_to_start() -> None:
    play = Play()
    play.arrive(0)
    now = play.run(0) + 100 * MS
    latest = now + int(30 * MS * (1 - MARGIN)) - 5 * MS
    for _ in range(1, 8):
        play.arrive(now)
        assert play.next(now) == -latest
    play.arrive(now)
    assert play.next(now) == 8


def test_wait_counts_from_the_oldest_request() -> None:
    play = Play()
    play.arrive(0)
    now = play.run(0) + 100 * MS
    play.arrive(now)
    first = play.next(now)
    play.arrive(now + 7 * MS)
    assert play.next(now + 7 * MS) == first
    assert play.next(-(first or 0)) == 2


def test_single_client_is_soon_served_at_once() -> None:
    play = Play()
    now, waits = 0, []
    for _ in range(3 * TRIAL_EVERY):
        play.arrive(now)
        ended = play.run(now)
        waits.append(ended - now - 5 * MS)
        now = ended + MS // 10
    assert sum(map(bool, waits[-2 * TRIAL_EVERY :])) == 2, "one wait in TRIAL_EVERY is a trial"
    assert max(waits[-2 * TRIAL_EVERY :]) <= 5 * MS, "a trial lasts no longer than what it can save"
    assert max(waits) <= 25 * MS


def test_waits_pay_again_when_others_come() -> None:
    play = Play()
    now = 0
    for _ in range(20):
        play.arrive(now)
        now = play.run(now) + MS
    waited = 0
    for _ in range(40 * TRIAL_EVERY):
        play.arrive(now)
        if (play.next(now) or 0) > 0:
            play.policy.freed(0, now + 5 * MS)
        else:
            waited += 1
            play.arrive(now + MS)
            play.run(now + MS)
        now += 10 * MS
    assert waited > 20 * TRIAL_EVERY


def test_cancelled_request_says_nothing_about_waits() -> None:
    play = Play()
    play.arrive(0)
    now = play.run(0) + 100 * MS
    first = play.arrive(now)
    play.arrive(now)
    assert (play.next(now) or 0) < 0
    assert play.policy.cancel(first, now)
    assert (play.next(now) or 0) < 0
    assert play.pace._chances == {}
    play.arrive(now)
    assert (play.next(now) or 0) < 0
    assert play.pace._chances == {1: 1.0}
    assert CHANCE_WEIGHT > 0


def test_queue_limits_hold_beside_it() -> None:
    play = Play()
    for _ in range(16):
        play.arrive(0)
    refusal = play.policy.admit(inference(batch_size=1), 0)
    assert str(refusal).endswith("Exceeds maximum queue size")
    assert play.policy.waiting == 16
    assert play.next(0) == 8


def test_batch_waits_on_when_one_of_its_requests_is_cancelled() -> None:
    play = Play()
    play.arrive(0)
    now = play.run(0) + 100 * MS
    first, second = play.arrive(now), play.arrive(now)
    found = play.next(now)
    assert found is not None
    assert found < 0
    assert play.policy.cancel(first, now)
    found = play.next(now)
    assert found is not None
    assert found < 0
    assert play.policy.cancel(second, now)
    assert play.policy.next((0,), now) is None


def compared(
    model: Model, load: Load, seconds: float = 6.0, machine: Machine = STILL
) -> tuple[Outcome, Outcome, Outcome]:
    """The outcomes of the adaptive delay, of the best of some fixed ones, and of none."""
    case = Case(model, load, machine, seconds=seconds)
    found = Compared(case, run(case), [run(case, case.target_ms * share) for share in SHARES[::2]])
    return found.ours, found.best, found.fixed[0]


TARGET_MS = 30.0


@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
@pytest.mark.parametrize("clients", [1, 4, 16, 40])
def test_clients_that_wait_for_answers_are_served_as_fast_as_with_the_best_delay(model: Model, clients: int) -> None:
    ours, best, _ = compared(model, Load("", clients=clients), 2.0 if model is QUICK else 6.0)
    assert ours.per_second > 0.93 * best.per_second
    assert ours.p99_ms < max(TARGET_MS, 1.05 * best.p99_ms)


@pytest.mark.parametrize(("rate", "share"), [(50, 1.02), (200, 0.65), (500, 0.5), (900, 0.6)])
def test_requests_at_random_keep_the_target_with_less_work_than_without_a_delay(rate: int, share: float) -> None:
    """At 50/s requests come too far apart to wait for."""
    ours, best, none = compared(COSTLY_START, Load("", rate=rate), max(20.0, 3000 / rate))
    assert ours.p99_ms <= TARGET_MS
    assert ours.per_second > 0.97 * best.per_second
    assert ours.busy < share * none.busy


def test_clients_that_come_back_one_by_one_are_served_by_large_batches() -> None:
    """Without a wait half of them are served while the others come back, which is quicker."""
    machine = Machine("", late=0.1, turn=0.4)
    ours, best, _ = compared(Model("", 1.2, 0.3), Load("", clients=7), 15.0, machine)
    assert ours.per_second > 0.75 * best.per_second
    assert ours.busy < 0.6 * best.busy


@pytest.mark.parametrize("rate", [200, 900])
def test_target_is_missed_no_more_than_by_fixed_delays_on_a_machine_with_hiccups(rate: int) -> None:
    """The hiccups make one in a hundred late with any delay, and without one."""
    case = Case(COSTLY_START, Load("", rate=rate), MACHINES[2], seconds=25.0)
    found = Compared(case, run(case), [run(case, delay) for delay in (0.0, 3.0, 9.0, 18.0)])
    assert found.ours.p99_ms < 1.1 * max(each.p99_ms for each in found.fixed)
    assert found.ours.busy < 0.75 * found.fixed[0].busy


@pytest.mark.parametrize("rate", [100, 300])
def test_target_holds_if_timers_and_batches_are_late_now_and_then(rate: int) -> None:
    machine = Machine("", late=0.3, share=0.006, stall=10.0)
    ours, _, none = compared(Model("", 3.0, 0.2, noise=0.15), Load("", rate=rate), 30.0, machine)
    assert ours.p99_ms <= TARGET_MS
    assert ours.busy < 1.02 * none.busy


def test_batches_that_are_late_by_themselves_do_not_end_waits() -> None:
    """Every tenth batch takes longer than the target and would be late without any wait."""
    pace, now = Pace(60 * MS), 0
    for i in range(200):
        pace.start_at(1, now, now)
        pace.started(0, 2, now + MS)
        now += MS + (70 * MS if i % 10 == 0 else 5 * MS)
        pace.finished(0, now)
    assert pace.start_at(1, now, now) > now + MS


def test_batches_do_not_wait_if_larger_ones_save_nothing() -> None:
    ours, _, none = compared(COSTLY_ROWS, Load("", rate=900))
    assert ours.p50_ms < 1.3 * none.p50_ms


def test_fewer_clients_are_noticed() -> None:
    simulation = Simulation(
        adaptive(16, TARGET_MS), Case(COSTLY_START, Load("", clients=12, later_clients=5), seconds=16.0)
    )
    simulation.run()
    late = [rows for at, rows, _ in simulation.batches if at > 11e9]
    assert sum(rows == 5 for rows in late) > 0.7 * len(late)


def test_loads_are_drawn_by_their_seed_and_differ() -> None:
    assert held_out(20, 5) == held_out(20, 5)
    assert not set(held_out(20, 5)) & set(held_out(20, 6))
    assert len(set(tuning())) == 81


@pytest.mark.parametrize("seed", range(40))
def test_requests_run_once_and_in_order_in_random_histories(seed: int) -> None:
    """Random arrivals, cancels and lengths of batches: each request runs once or was cancelled, in order, in batches
    that fit, and none waits beyond the target."""
    lots = random.Random(seed)
    play = Play(target_ms=lots.choice([1, 10, 50]), max_batch_size=lots.choice([1, 2, 8]))
    policy = play.policy
    now, free, wake, ends = 0, True, 0, 0
    waiting: list[Inference] = []
    ran = 0
    for _ in range(400):
        now += lots.choice([0, 1000, MS // 10, MS, 5 * MS])
        if not free and now >= ends:
            free = True
            policy.freed(0, ends)
        what = lots.random()
        if what < 0.5 and len(waiting) < 16:
            waiting.append(play.arrive(now))
        elif what < 0.6 and waiting:
            gone = waiting.pop(lots.randrange(len(waiting)))
            assert policy.cancel(gone, now)
        assert policy.waiting == len(waiting)
        if not free:
            continue
        step = policy.next((0,), now)
        if isinstance(step, Batch):
            assert list(step.rows) == waiting[: len(step.rows)], f"seed {seed}"
            del waiting[: len(step.rows)]
            ran += len(step.rows)
            free, ends = False, now + lots.randrange(1, 20 * MS)
        elif isinstance(step, Wake):
            wake = step.at
            assert now < wake <= waiting[0].times[Stamp.QUEUE_START] + 50 * MS, f"seed {seed}"
        else:
            assert not waiting
    assert ran, f"seed {seed}"
