"""How late the event loop is, with a hand-moved clock."""

from collections.abc import Callable

from halimede.measurement.loop_lag import INTERVAL_NS, LoopLag


def test_lateness_is_observed_and_the_timer_set_anew() -> None:
    set_at: list[tuple[int, Callable[[], None]]] = []
    now = 0
    lag = LoopLag(lambda when, call: set_at.append((when, call)), lambda: now)
    lag.start()
    for late in (0, 700_000, 30_000_000_000):
        when, ring = set_at.pop()
        assert when == now + INTERVAL_NS
        now = when + late
        ring()
    read = lag.read()
    at_most = dict(zip(read.bounds, read.counts, strict=True))
    assert (at_most[0.0005], at_most[0.001], at_most[2.5], at_most[float("inf")]) == (1, 2, 2, 3)
    assert read.sum == 30.0007
