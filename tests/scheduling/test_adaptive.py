"""Adaptive batching: what is learned, when a batch starts, and how it does against fixed delays in a simulation."""

import random

import pytest

from bench.adaptive import SHARES, Compared
from bench.adaptive_cases import MACHINES, MODELS, held_out, tuning
from bench.adaptive_simulation import STILL, Case, Load, Machine, Model, Outcome, Simulation, adaptive, run
from halimede.requests import Stamp
from halimede.scheduling.adaptive import (
    BRISK,
    EPISODE,
    GATHER,
    LOOKS,
    SETTLES,
    SOME,
    TRY_EVERY,
    AdaptivePolicy,
    Census,
    Cost,
    Pace,
    PacedForming,
    Trials,
)
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.priority import PriorityQueuePolicy, Rules
from tests.fakes import inference

MS = 1_000_000
COSTLY_START, COSTLY_ROWS, QUICK = MODELS


def test_cost_of_one_size_only_is_all_fixed() -> None:
    cost = Cost()
    for _ in range(10):
        cost.ran(4, 8 * MS)
    assert (round(cost.fixed), cost.of_a_row) == (8 * MS, 0.0)
    assert round(cost.expected(16)) == 8 * MS


@pytest.mark.parametrize(("fixed", "each"), [(5, 1), (0, 2), (7, 0)])
def test_cost_of_several_sizes_is_split(fixed: int, each: int) -> None:
    cost = Cost()
    for i in range(400):
        rows = 1 + i % 8
        cost.ran(rows, (fixed + each * rows) * MS)
    assert cost.fixed / MS == pytest.approx(fixed, abs=0.05)
    assert cost.of_a_row / MS == pytest.approx(each, abs=0.02)


def test_cost_never_expects_less_than_nothing() -> None:
    cost = Cost()
    for rows, ns in ((1, 9 * MS), (8, MS), (1, 8 * MS), (8, 2 * MS)):
        cost.ran(rows, ns)
    assert cost.of_a_row >= 0
    assert cost.fixed >= 0


@pytest.mark.parametrize("seed", range(5))
def test_arrivals_at_random_are_told_from_clients_that_wait(seed: int) -> None:
    """One server, 1 ms for each: half of what it can, at random; then three clients that send after 1 ms or so."""
    lots, census = random.Random(seed), Census()
    now, present, ends, comes = 1, 0, 1 << 60, 0
    for _ in range(LOOKS * 40):
        if comes <= ends:
            now = comes
            census.came(present, now)
            present, comes = present + 1, now + int(lots.expovariate(0.5) * MS)
        else:
            now = ends
            census.passed(present, now)
            present -= 1
        ends = (now + MS if present else 1 << 60) if ends == now or present == 1 else ends
    assert not census.answering
    events = [now + 1, now + 2, now + 3]
    for _ in range(LOOKS * 20):
        now = min(*events, ends) if events else ends
        if now == ends:
            census.passed(present, now)
            present -= 1
            events.append(now + 1 + int(lots.expovariate(1) * MS))
        else:
            events.remove(now)
            census.came(present, now)
            present += 1
        ends = (now + MS if present else 1 << 60) if ends == now or present == 1 else ends
    assert census.answering


def test_census_forgets_hours_without_requests() -> None:
    census, now = Census(), 3600 * 10**9
    for i in range(LOOKS * 8):
        if i == LOOKS:
            now += 3600 * 10**9
        census.came(0, now)
        census.passed(1, now + MS)
        now += MS + 1000
    assert census.answering


def served(trials: Trials, rates: dict[int, float], episodes: int, noise: float = 0.0) -> None:
    """As many batches of eight as these episodes have, each way at its rate."""
    lots, now = random.Random(1), 0
    for _ in range(episodes * (EPISODE + SETTLES)):
        now += int(8 * MS / rates[trials.way] * lots.uniform(1 - noise, 1 + noise))
        trials.ran(8, now)


@pytest.mark.parametrize("best", [BRISK, SOME, GATHER])
def test_way_that_serves_most_is_found(best: int) -> None:
    trials = Trials()
    served(trials, {way: 1.2 if way == best else 1.0 for way in (BRISK, SOME, GATHER)}, 30, noise=0.3)
    assert trials.way == best


def test_way_that_serves_most_by_now_is_found() -> None:
    trials = Trials()
    served(trials, {BRISK: 1.0, SOME: 1.5, GATHER: 1.0}, 60)
    assert trials.way == SOME
    served(trials, {BRISK: 1.0, SOME: 0.5, GATHER: 0.7}, 40)
    assert trials.way == BRISK


def test_ways_that_lost_are_tried_seldom() -> None:
    trials, lots = Trials(), {BRISK: 1.0, SOME: 0.9, GATHER: 0.6}
    served(trials, lots, 60)
    usual, tried = 0, 0
    for i in range(1000 * EPISODE):
        trials.ran(8, i * 8 * MS)
        usual, tried = usual + (trials.way == BRISK), tried + 1
    assert usual > 0.4 * tried


class Play:
    """A policy with one instance that takes `ns` for each batch."""

    def __init__(self, target_ms: int = 30, max_batch_size: int = 8) -> None:
        self.pace = Pace(target_ms * MS)
        forming = PacedForming(max_batch_size, (max_batch_size,), self.pace)
        self.policy = AdaptivePolicy(PriorityQueuePolicy(0, 0, Rules(max_size=16), {}, forming), self.pace)
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
        """Serves what waits, however long that is waited for; when it is over."""
        while (found := self.next(now)) is not None and found < 0:
            now = -found
        self.policy.freed(0, now + ns)
        return now + ns


def test_first_batch_of_all_starts_at_once() -> None:
    play = Play()
    play.arrive(0)
    assert play.next(0) == 1


def test_request_waits_for_others_no_longer_than_its_target_allows() -> None:
    play = Play()
    play.arrive(0)
    now = play.run(0) + 100 * MS  # nothing to do for long: waiting costs nothing but time
    for k in range(1, 8):
        play.arrive(now)
        if k < 7:
            found = play.next(now)
            assert found is not None
            assert found < 0, "others may come"
            assert -found <= now + (30 - 5) * MS
    play.arrive(now)
    assert play.next(now) == 8


def test_one_client_that_waits_for_its_answers_is_soon_served_at_once() -> None:
    play = Play()
    now, waits = 0, []
    for _ in range(3 * TRY_EVERY):
        play.arrive(now)
        ended = play.run(now)
        waits.append(ended - now - 5 * MS)
        now = ended + MS // 10
    assert sum(map(bool, waits[-2 * TRY_EVERY :])) <= 3, "it is only tried now and then"
    assert max(waits) <= 25 * MS


def test_request_that_was_late_because_it_was_made_to_wait_makes_waits_shorter() -> None:
    play = Play()
    play.arrive(0)
    now = play.run(0) + 100 * MS
    play.pace._census.answering = False
    before = play.pace._latest(1, now) - now
    play.arrive(now)
    found = play.next(now)
    assert found is not None
    assert found < 0
    assert play.next(-found) == 1
    play.policy.freed(0, now + 40 * MS)
    assert play.pace._latest(1, now) - now < before


def test_queue_limits_hold_beside_it() -> None:
    play = Play()
    for _ in range(16):
        play.arrive(0)
    refusal = play.policy.admit(inference(batch_size=1), 0)
    assert str(refusal).endswith("Exceeds maximum queue size")
    assert play.policy.waiting == 16
    assert play.next(0) == 8


def test_request_that_is_cancelled_while_others_are_waited_for() -> None:
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
    """The adaptive one, the best of some fixed delays, and none."""
    case = Case(model, load, machine, seconds=seconds)
    found = Compared(case, run(case), [run(case, case.target_ms * share) for share in SHARES[::2]])
    return found.ours, found.best, found.fixed[0]


TARGET_MS = 30.0


@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
@pytest.mark.parametrize("clients", [1, 4, 16, 40])
def test_clients_that_wait_for_answers_are_served_as_with_the_best_delay(model: Model, clients: int) -> None:
    ours, champion, _ = compared(model, Load("", clients=clients), 2.0 if model is QUICK else 6.0)
    assert ours.per_second > 0.93 * champion.per_second
    assert ours.p99_ms < max(TARGET_MS, 1.05 * champion.p99_ms)


@pytest.mark.parametrize("rate", [50, 200, 500, 900])
def test_arrivals_at_random_keep_the_target_at_the_work_of_the_best_delay(rate: int) -> None:
    ours, champion, none = compared(COSTLY_START, Load("", rate=rate), max(20.0, 3000 / rate))
    assert ours.p99_ms <= TARGET_MS
    assert ours.per_second > 0.97 * champion.per_second
    assert ours.busy < min(none.busy * 1.02, champion.busy * 1.3 + 0.02)


def test_clients_that_come_back_one_by_one_are_not_all_waited_for() -> None:
    """While half of them are served the others come back: nobody needs to be waited for, and it is found out."""
    machine = Machine("", late=0.1, turn=0.4)
    ours, champion, _ = compared(Model("", 1.2, 0.3), Load("", clients=7), 15.0, machine)
    assert ours.per_second > 0.95 * champion.per_second


@pytest.mark.parametrize("rate", [200, 900])
def test_machine_that_is_late_itself_does_not_keep_others_from_waiting(rate: int) -> None:
    """Its hiccups make one in a hundred late with any delay, and without one."""
    case = Case(COSTLY_START, Load("", rate=rate), MACHINES[2], seconds=25.0)
    found = Compared(case, run(case), [run(case, delay) for delay in (0.0, 3.0, 9.0, 18.0)])
    assert found.ours.p99_ms < 1.1 * max(each.p99_ms for each in found.fixed)
    assert found.ours.busy < 0.65 * found.fixed[0].busy


@pytest.mark.parametrize("rate", [100, 300])
def test_target_holds_where_timers_and_batches_are_late_now_and_then(rate: int) -> None:
    machine = Machine("", late=0.3, share=0.006, stall=10.0)
    ours, champion, _ = compared(Model("", 3.0, 0.2, noise=0.15), Load("", rate=rate), 30.0, machine)
    assert ours.p99_ms <= TARGET_MS
    assert ours.busy < 1.4 * champion.busy


def test_batches_that_are_late_by_themselves_do_not_keep_others_from_waiting() -> None:
    """Every tenth batch hangs for longer than the target, and would have been late without any wait."""
    pace, now = Pace(30 * MS), 0
    pace._census.answering = False
    for i in range(200):
        pace.start_at(1, now, now)
        pace.started(0, 1, [now], now + MS)
        now += MS + (50 * MS if i % 10 == 0 else 5 * MS)
        pace.ended(0, 0, now)
    assert pace.start_at(1, now, now) > now + MS


def test_batches_of_which_larger_ones_save_nothing_are_not_waited_for() -> None:
    ours, _, none = compared(COSTLY_ROWS, Load("", rate=900))
    assert ours.p50_ms < 1.3 * none.p50_ms


def test_fewer_clients_are_noticed() -> None:
    simulation = Simulation(
        adaptive(16, TARGET_MS), Case(COSTLY_START, Load("", clients=12, later_clients=5), seconds=16.0)
    )
    simulation.run()
    late = [rows for at, rows, _ in simulation.batches if at > 11e9]
    assert sum(rows == 5 for rows in late) > 0.7 * len(late), "but for a trial of other ways"


def test_loads_are_drawn_by_their_seed_and_differ() -> None:
    assert held_out(20, 5) == held_out(20, 5)
    assert not set(held_out(20, 5)) & set(held_out(20, 6))
    assert len(set(tuning())) == 81


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_lost_doubled_or_overtaken_whatever_happens(seed: int) -> None:
    """Arrivals, cancels and batches of any length by lot: each request runs once or was cancelled, in order, in batches
    that fit, and nobody is asked to wait for ever."""
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
