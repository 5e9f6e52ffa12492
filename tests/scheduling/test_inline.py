import threading
from collections import deque
from collections.abc import Callable

import pytest

from halimede.scheduling.execution import Execution
from halimede.scheduling.inline import (
    ENOUGH,
    LONG_NS,
    PROMISING_NS,
    QUICK_NS,
    TRIAL_EVERY,
    TURN_NS,
    WINDOW,
    InlineEligibility,
    TurnBudget,
    cooldown_after,
)
from tests.fakes import echo
from tests.scheduling.rig import Rig


def seen(rows: int, on_loop: int, ns: int = QUICK_NS // 2) -> InlineEligibility:
    """The state after enough quick runs on the threads and this many runs of `ns` on the loop."""
    eligibility = InlineEligibility(True)
    for _ in range(ENOUGH):
        eligibility.ran(rows, 1, False)
    for _ in range(on_loop):
        eligibility.ran(rows, ns, True)
    return eligibility


def placed(eligibility: InlineEligibility, runs: int, on_loop_ns: int, on_thread_ns: int) -> list[bool]:
    """Where this many runs of one row are placed. Each is reported with the time that it takes there."""
    places = []
    for _ in range(runs):
        places.append(eligibility.allows(1))
        eligibility.ran(1, on_loop_ns if places[-1] else on_thread_ns, places[-1])
    return places


def test_eligibility_needs_enough_runs_on_threads() -> None:
    eligibility = InlineEligibility(True)
    for _ in range(ENOUGH):
        assert not eligibility.allows(1)
        eligibility.ran(1, 1, False)
    assert eligibility.allows(1)


def test_eligibility_tries_a_promising_size_on_the_loop() -> None:
    """What takes long on a thread may be quick on the loop."""
    places = placed(InlineEligibility(True), 1000, QUICK_NS // 5, PROMISING_NS - 1)
    assert places == [False] * ENOUGH + [True] * (1000 - ENOUGH)


def test_eligibility_retries_a_size_that_was_slow_on_the_loop() -> None:
    places = placed(InlineEligibility(True), ENOUGH + 2 * (ENOUGH + TRIAL_EVERY), QUICK_NS, QUICK_NS)
    assert places == [False] * ENOUGH + 2 * ([True] * ENOUGH + [False] * TRIAL_EVERY)


def test_eligibility_does_not_try_a_size_that_is_slow_on_threads() -> None:
    assert not any(placed(InlineEligibility(True), 1000, 1, PROMISING_NS))


def test_eligibility_never_allows_a_model_that_is_not_inline_safe() -> None:
    assert not any(placed(InlineEligibility(False), 10 * ENOUGH, 1, 1))


@pytest.mark.parametrize(("rows", "allowed"), [(4, True), (7, True), (3, False), (8, False)])
def test_eligibility_judges_each_power_of_two_of_rows_separately(rows: int, allowed: bool) -> None:
    assert seen(5, ENOUGH).allows(rows) is allowed


def test_eligibility_refuses_a_slow_size() -> None:
    assert not seen(1, 10 * ENOUGH, ns=QUICK_NS).allows(1)


def test_eligibility_tolerates_one_interruption() -> None:
    eligibility = seen(1, WINDOW)
    eligibility.ran(1, QUICK_NS * 4, on_loop=True)
    assert eligibility.allows(1)


@pytest.mark.parametrize(("every", "allowed"), [(10, True), (3, False)])
def test_eligibility_allows_a_size_that_is_usually_quick(every: int, allowed: bool) -> None:
    """The operating system makes some runs slow."""
    eligibility = seen(1, 0)
    for i in range(2000):
        eligibility.ran(1, QUICK_NS * 2 if i % every == 0 else 1, True)
    assert eligibility.allows(1) is allowed


@pytest.mark.parametrize(("slow", "allowed"), [(1, True), (2, False)])
def test_eligibility_tries_a_size_that_is_usually_quick_on_threads(slow: int, allowed: bool) -> None:
    eligibility = InlineEligibility(True)
    for i in range(4 * ENOUGH):
        eligibility.ran(1, PROMISING_NS if i % 3 < slow else 1, False)
    assert eligibility.allows(1) is allowed


def test_eligibility_refuses_a_size_whose_first_runs_were_slow() -> None:
    eligibility = seen(1, 0)
    for i in range(ENOUGH):
        eligibility.ran(1, QUICK_NS * 2 if i % 4 == 0 else 1, True)
    assert not eligibility.allows(1)


def test_eligibility_refuses_all_sizes_after_a_long_run_on_the_loop() -> None:
    eligibility = seen(1, ENOUGH)
    for _ in range(ENOUGH):
        eligibility.ran(8, 1, True)
    assert eligibility.allows(8)
    eligibility.ran(8, LONG_NS, on_loop=True)
    assert not eligibility.allows(8)
    assert not eligibility.allows(1)


def test_cooldown_does_not_start_after_a_long_run_on_a_thread() -> None:
    eligibility = seen(1, WINDOW)
    eligibility.ran(1, LONG_NS, on_loop=False)
    assert eligibility.allows(1)


@pytest.mark.parametrize("long", [LONG_NS, 3 * LONG_NS])
def test_cooldown_ends_after_quick_runs(long: int) -> None:
    eligibility = seen(1, 4 * WINDOW)
    for _ in range(3):  # it is as dear the third time as the first: the system's hiccups do not add up
        eligibility.ran(1, long, on_loop=True)
        for _ in range(cooldown_after(long) - 1):
            eligibility.ran(1, 1, False)
        assert not eligibility.allows(1)
        eligibility.ran(1, 1, False)
        assert eligibility.allows(1)


@pytest.mark.parametrize(("milliseconds", "runs"), [(1, 5), (4, 80), (20, 2000), (200, 200_000)])
def test_cooldown_grows_faster_than_the_run(milliseconds: int, runs: int) -> None:
    assert cooldown_after(milliseconds * 1_000_000) == runs


def test_cooldown_is_longer_after_a_longer_run_on_a_thread() -> None:
    eligibility = seen(1, 4 * WINDOW)
    eligibility.ran(1, LONG_NS, on_loop=True)
    eligibility.ran(1, 2 * LONG_NS, on_loop=False)
    for _ in range(cooldown_after(2 * LONG_NS) - 1):
        eligibility.ran(1, 1, False)
    assert not eligibility.allows(1)


def test_cooldown_is_not_shortened_by_a_slow_run() -> None:
    eligibility = seen(1, 4 * WINDOW)
    eligibility.ran(1, LONG_NS, on_loop=True)
    for _ in range(cooldown_after(LONG_NS) - 1):
        eligibility.ran(1, 1, False)
    eligibility.ran(1, PROMISING_NS, on_loop=False)
    assert not eligibility.allows(1)


def test_eligibility_counts_runs_on_the_loop() -> None:
    eligibility = seen(1, 3)
    eligibility.ran(1, 1, on_loop=False)
    assert eligibility.inline_runs == 3


def test_model_that_stalls_now_and_then_delays_others_once() -> None:
    """A run takes 10 us, every thousandth 200 ms: it is on the loop at the first of them and at none of the next 99."""
    eligibility, delays = InlineEligibility(True), 0
    for number in range(1, 100_001):
        stalls, on_loop = number % 1000 == 0, eligibility.allows(1)
        delays += stalls and on_loop
        eligibility.ran(1, 200_000_000 if stalls else 10_000, on_loop)
    assert delays == 1
    assert eligibility.inline_runs == 1000 - ENOUGH


def test_budget_of_a_turn_is_spent_and_comes_back_with_the_next() -> None:
    turns: deque[Callable[[], None]] = deque()
    budget = TurnBudget(turns.append)
    budget.spend(TURN_NS - 1)
    assert budget.left
    budget.spend(1)
    assert not budget.left
    assert len(turns) == 1
    turns.popleft()()
    assert budget.left
    budget.spend(TURN_NS)
    assert len(turns) == 1


def test_runner_of_a_model_that_stalls_now_and_then_holds_the_loop_once() -> None:
    """Only the model moves the clock."""
    now, runs, stalls = 1, 0, []

    def behave(execution: Execution) -> None:
        nonlocal now, runs
        runs += 1
        now += 200_000_000 if runs % 1000 == 0 else 10_000
        if runs % 1000 == 0:
            stalls.append(threading.current_thread() is threading.main_thread())
        echo(execution)

    rig = Rig([behave], inline_safe=True, clock=lambda: now)
    for _ in range(3000):
        rig.finish(rig.submit())
        rig.loop.turn()
    assert stalls == [True, False, False]
    assert rig.runner.inline_executions == 1000 - ENOUGH
    rig.runner.close()


def test_quick_small_requests_do_not_make_a_large_one_quick() -> None:
    eligibility = InlineEligibility(True)
    for on_loop in [False] * ENOUGH + [True] * ENOUGH:
        eligibility.ran(1, 1, on_loop, 64)
    assert eligibility.allows(1, 127)
    assert not eligibility.allows(1, 128)
    assert not eligibility.allows(1, 1 << 30)
