"""Draws measurements, by the library matplotlib of the extra `halimede[analyze]`."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from halimede.analyze.answer import frontier
from halimede.analyze.checkpoint import Record
from halimede.analyze.measurements import SERVER_TAGS, Measurement
from halimede.analyze.ranking import Goal
from halimede.analyze.space import Setup
from halimede.analyze.tags import TAGS, known
from halimede.errors import Invalid

SIZE = (9, 5)
"""Inches."""
LINES = 6
"""Configurations with a line of their own."""
DEFAULT_PLOTS: Mapping[str, Mapping[str, Any]] = {
    "throughput_v_latency": {
        "title": "Throughput and latency",
        "x_axis": "perf_latency_p99",
        "y_axis": "perf_throughput",
    },
    "memory_v_throughput": {"title": "Memory and throughput", "x_axis": "perf_throughput", "y_axis": "cpu_used_ram"},
}
"""The plots of a report, in the form that a YAML file may have."""
_PARTS = ("perf_client_send_recv", *SERVER_TAGS)


def _axes(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.grid(True, alpha=0.3)
    return figure, axes


def frontier_figure(record: Record) -> Figure:
    """All measurements, and the frontier that no other one beats in both throughput and latency."""
    figure, axes = _axes(f"What {record.names.model} can do: no point beats the frontier in both")
    best = record.goal.top(record.measurements, LINES)
    shown = {each.candidate.setup for each in best}
    others = [each for each in record.measurements if each.candidate.setup not in shown]
    axes.scatter(_values(others, "perf_latency_p99"), _values(others, "perf_throughput"), s=12, color="0.75")
    for each in best:
        own = [one for one in record.measurements if one.candidate.setup == each.candidate.setup]
        _line(axes, own, "perf_latency_p99", "perf_throughput", record.names.of(each.candidate.setup))
    front = frontier(record.measurements)
    axes.plot(
        _values(front, "perf_latency_p99"),
        _values(front, "perf_throughput"),
        color="black",
        lw=1,
        ls="--",
        label="frontier",
    )
    _limits(axes, record.goal, "perf_latency_p99", "perf_throughput")
    axes.set(xlabel=TAGS["perf_latency_p99"].title, ylabel=TAGS["perf_throughput"].title, xscale="log")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    return figure


def user_figure(record: Record, wanted: Mapping[str, Any], setups: Sequence[Setup]) -> Figure | None:
    """A plot as the user describes it: `title`, `x_axis` and `y_axis` as tags, and `monotonic`. None if nothing was
    measured of it. Raises Invalid."""
    try:
        x, y = known(str(wanted["x_axis"])), known(str(wanted["y_axis"]))
    except (KeyError, TypeError):
        raise Invalid("a plot must have title, x_axis and y_axis") from None
    if x is None or y is None:
        raise Invalid(f"unknown tag in a plot: x_axis is '{wanted['x_axis']}', y_axis is '{wanted['y_axis']}'")
    figure, axes = _axes(f"{wanted.get('title', '')}: {record.names.model}")
    is_empty = True
    for setup in setups:
        own = [one for one in record.measurements if one.candidate.setup == setup and {x, y} <= set(one.figures)]
        if wanted.get("monotonic"):
            own = _rising(sorted(own, key=lambda one: one.figures[x]), y)
        is_empty = is_empty and not own
        _line(axes, own, x, y, record.names.of(setup))
    if is_empty:
        return None
    _limits(axes, record.goal, x, y)
    axes.set(xlabel=TAGS[x].title, ylabel=TAGS[y].title)
    axes.legend(fontsize="small")
    return figure


def breakdown_figure(record: Record, setup: Setup) -> Figure:
    """Where the time of a request goes, by load."""
    own = sorted(_once(record, setup), key=lambda one: one.candidate.load)
    figure, axes = _axes(f"Where the time goes: {record.names.of(setup)}")
    names = [f"{one.candidate.load.value:g}" for one in own]
    bottom = [0.0] * len(own)
    for tag in _PARTS:
        heights = [one.figures.get(tag, 0.0) for one in own]
        axes.bar(names, heights, bottom=bottom, label=TAGS[tag].title)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    rest = [max(0.0, one.figures["perf_latency_avg"] - low) for one, low in zip(own, bottom, strict=True)]
    axes.bar(names, rest, bottom=bottom, label="other (ms)", color="0.8")
    is_rate = bool(own) and own[0].candidate.load.is_rate
    axes.set(xlabel="requests/s" if is_rate else "clients", ylabel="mean latency (ms)")
    axes.legend(fontsize="small")
    return figure


def _once(record: Record, setup: Setup) -> list[Measurement]:
    """The measurements of a configuration, the longest for each load."""
    found: dict[object, Measurement] = {}
    for one in record.measurements:
        if one.candidate.setup == setup and (one.candidate.is_final or one.candidate.load not in found):
            found[one.candidate.load] = one
    return list(found.values())


def _values(found: Sequence[Measurement], tag: str) -> list[float]:
    return [each.figures[tag] for each in found]


def _line(axes: Axes, found: Sequence[Measurement], x: str, y: str, label: str) -> None:
    ordered = sorted(found, key=lambda one: one.figures[x])
    if ordered:
        axes.plot(_values(ordered, x), _values(ordered, y), marker="o", ms=4, label=label)


def _rising(found: Sequence[Measurement], tag: str) -> list[Measurement]:
    """Those that are above all before them."""
    kept: list[Measurement] = []
    for each in found:
        if not kept or each.figures[tag] > kept[-1].figures[tag]:
            kept.append(each)
    return kept


def _limits(axes: Axes, goal: Goal, x: str, y: str) -> None:
    for tag, draw in ((x, axes.axvline), (y, axes.axhline)):
        limits = goal.constraints.get(tag)
        for value in (limits.least, limits.most) if limits is not None else ():
            if abs(value) != float("inf"):
                draw(value, color="tab:red", ls=":", label=f"constraint: {value:g}")


def png(figure: Figure, path: Path) -> Path:
    """Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def svg(figure: Figure) -> str:
    """The element for a page."""
    sink = io.StringIO()
    figure.savefig(sink, format="svg")
    text = sink.getvalue()
    # What comes before the element is a declaration that a page cannot have.
    return text[text.index("<svg") :]
