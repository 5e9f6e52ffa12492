"""The run without a chosen load: which levels it measures, and the sentence at its end. Pure."""

from collections.abc import Sequence

from halimede.perf.report import BUSY_PERCENT
from halimede.perf.statistics import Level

MAX_CLIENTS = 512
LEVEL_SHARE = 0.07
"""The share of the time that one level gets while the best one is searched."""
LEAST_LEVEL_SECONDS = 0.3
SETTLE_SHARE = 0.1
"""The share of a level's time that passes before it is measured."""
GAIN = 0.05
"""A level is better than another if its throughput is higher by this share."""
FLAT_LEVELS = 2
"""Levels without a gain after which the search ends."""
NOISY = 0.2
"""A share by which windows differ that deserves a remark."""
ENOUGH = 0.95
"""The best level is the lowest one that has this share of the highest throughput."""

TITLES = f"{'clients':>9} {'inferences/s':>14} {'p50 ms':>9} {'p99 ms':>9} {'queue ms':>9} {'compute ms':>11}"


def is_flat(levels: Sequence[Level]) -> bool:
    """Whether the last levels gained nothing over those before them."""
    rates = [level.client.infer_per_sec for level in levels]
    if len(rates) <= FLAT_LEVELS:
        return False
    return max(rates[-FLAT_LEVELS:]) < max(rates[:-FLAT_LEVELS]) * (1 + GAIN)


def best(levels: Sequence[Level]) -> Level:
    """The lowest level whose throughput is nearly the highest."""
    highest = max(level.client.infer_per_sec for level in levels)
    return next(level for level in levels if level.client.infer_per_sec >= highest * ENOUGH)


def row(level: Level) -> str:
    """A level as a line under TITLES."""
    client, queue, compute = level.client, "-", "-"
    if level.server is not None and level.server.counts.successes:
        counts = level.server.counts
        queue = f"{counts.queue_ns / max(1, counts.queued) / 1e6:.3f}"
        compute = f"{counts.compute_ns / max(1, counts.inputs) / 1e6:.3f}" if not level.server.composing else "-"
    return (
        f"{level.value:>9.0f} {client.infer_per_sec:>14,.1f} {client.at(50) / 1e6:>9.3f} {client.at(99) / 1e6:>9.3f} "
        f"{queue:>9} {compute:>11}"
    )


def sentence(model: str, levels: Sequence[Level], final: Level) -> str:
    """What was found. `levels` are those of the search; `final` is the best one, measured longer."""
    client = final.client
    found = (
        f"{model} serves {_round(client.infer_per_sec)} inferences/s with {_clients(final.value)} "
        f"(p50 {_ms(client.at(50))}, p99 {_ms(client.at(99))})"
    )
    single = next((level for level in levels if level.value == 1), None)
    if single is not None and final.value != 1:
        found += f"; one client alone waits {_ms(single.client.at(50))}"
    if _grows(levels):
        found += f", and throughput still grows at {_clients(levels[-1].value)}"
    else:
        found += ", and more clients only wait longer"
    rates = [window.client.infer_per_sec for window in final.windows]
    if rates and max(rates) > min(rates) * (1 + NOISY):
        found += f"; the windows differ by {max(rates) / min(rates) - 1:.0%}, so something else is busy on the machine"
    if final.window.overhead > BUSY_PERCENT:
        found += "; the load processes were busy all the time, so the server may be faster than that"
    return found + "."


def _grows(levels: Sequence[Level]) -> bool:
    """Whether the last level is better than all before it."""
    rates = [level.client.infer_per_sec for level in levels]
    return len(rates) < 2 or rates[-1] > max(rates[:-1]) * (1 + GAIN)


def _clients(count: float) -> str:
    return "1 client" if count == 1 else f"{count:.0f} clients"


def _round(value: float) -> str:
    """Three significant digits."""
    if value >= 100:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3g} ms"
