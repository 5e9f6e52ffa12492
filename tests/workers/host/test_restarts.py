"""When a worker is started again: by a hand-moved clock."""

import pytest

from halimede.workers.host.restarts import DELAYS, Restart, Restarts


def test_tries_come_later_and_later_up_to_half_a_minute() -> None:
    restarts = Restarts()
    assert [restarts.ended(100.0).at - 100.0 for _ in range(10)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_worker_that_starts_and_serves_nobody_is_not_forgiven() -> None:
    restarts = Restarts()
    delays = []
    for now in (0.0, 50.0, 100.0):
        delays.append(restarts.ended(now).at - now)
        restarts.started(0.1)
    assert delays == [0, 0.5, 1]


def test_one_served_request_makes_the_next_death_the_first() -> None:
    restarts = Restarts()
    for _ in DELAYS:
        restarts.ended(1.0)
    restarts.started(0.1)
    restarts.served()
    assert restarts.ended(7.0).at == 7.0


def test_requests_wait_from_the_first_death_on_and_not_anew_for_each_try() -> None:
    restarts = Restarts(patience=2.0)
    assert restarts.ended(10.0) == Restart(10.0, 12.0)
    assert restarts.ended(10.3) == Restart(10.8, 12.0)
    assert restarts.ended(11.2) == Restart(12.2, 11.2), "the next try comes too late for them"
    restarts.started(0.1)
    restarts.served()
    assert restarts.ended(90.0) == Restart(90.0, 92.0)


@pytest.mark.parametrize(("took", "waits"), [(0.2, True), (1.9, True), (2.1, False), (60.0, False)])
def test_requests_do_not_wait_for_a_model_that_starts_slowly(took: float, waits: bool) -> None:
    restarts = Restarts(patience=2.0)
    restarts.started(took)
    assert (restarts.ended(5.0).awaited_until > 5.0) is waits


def test_requests_do_not_wait_where_the_operator_wants_none() -> None:
    assert Restarts(patience=0.0).ended(5.0).awaited_until == 5.0
