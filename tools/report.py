#!/usr/bin/env python3
"""Writes a table (Markdown) and a plot (PNG) of the results of `versus.py --json`.

    report.py RESULTS.json

Both files lie next to RESULTS.json and have the same name. A is Halimede, B is the real server. Needs matplotlib (the
extra `bench`).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

Row = Mapping[str, Any]  # a `versus.Row`, read from JSON


class Panel(NamedTuple):
    """One panel of the plot. `better` is 1 if a ratio above 1 is good for A, else -1."""

    figure: str
    title: str
    better: int


PANELS = (
    Panel("throughput", "Throughput\n(more is better)", 1),
    Panel("p99", "Latency, 99th percentile\n(less is better)", -1),
    Panel("cpu", "CPU time per inference\n(less is better)", -1),
)
GOOD, BAD = "#2a78b5", "#d1603d"
TICKS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


def family(name: str) -> str:
    return name.partition("-")[0]


def table(results: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the table of rows."""
    yield "| row | A inf/s | B inf/s | throughput | (rounds) | p50 | p99 | cpu | A cpu us |"
    yield "|---|---:|---:|---:|---|---:|---:|---:|---:|"
    for name, row in results["rows"].items():
        a, b, ratio = row["median"]["a"], row["median"]["b"], row["ratio"]
        low, high = extent(row, "throughput")
        yield (
            f"| {name} | {a['throughput']:,.0f} | {b['throughput']:,.0f} | {ratio['throughput']:.2f} | {low:.2f} to "
            f"{high:.2f} | {ratio['p50']:.2f} | {ratio['p99']:.2f} | {ratio['cpu']:.2f} | {a['cpu']:.0f} |"
        )


def servers(results: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the table of servers: start-up time and memory."""
    yield "| server | start-up s | idle MiB | MiB after the load |"
    yield "|---|---:|---:|---:|"
    for name, facts in results["servers"].items():
        startup = "never" if facts["startup"] is None else f"{facts['startup']:.2f}"
        yield f"| {name.upper()} | {startup} | {facts['idle']:.0f} | {facts['after']:.0f} |"


def document(results: Mapping[str, Any]) -> str:
    """The whole Markdown document."""
    count = max((len(row["rounds"]["a"]) for row in results["rows"].values()), default=0)
    lines = [
        "# A (Halimede) compared with B (Triton)",
        "",
        f"Medians of {count} rounds; client and servers share {results['cores']} cores. Ratios are A / B: more is",
        "better for throughput, less for the others. `(rounds)`: the lowest and the highest round.",
        "",
        *table(results),
        "",
        *servers(results),
        "",
    ]
    drawn = [f"- {name}: {row['work']}" for name, row in results["rows"].items() if name.endswith("held-out")]
    lines += ["Chosen at random:", "", *drawn, ""] if drawn else []
    refused = [f"- {name}: {reason}" for name, reason in results["not_served"].items()]
    lines += ["Not served by A:", "", *refused, ""] if refused else []
    short = [f"- {words}" for words in results["short"]]
    lines += ["Missed gates and failures:", "", *short, ""] if short else []
    return "\n".join(lines)


def extent(row: Row, figure: str) -> tuple[float, float]:
    """The lowest and the highest ratio A/B of a single round."""
    rounds = zip(row["rounds"]["a"], row["rounds"]["b"], strict=True)
    ratios = [a[figure] / max(b[figure], 1e-9) for a, b in rounds]
    return min(ratios), max(ratios)


def draw_panel(axes: Axes, panel: Panel, rows: Sequence[tuple[str, Row]]) -> None:
    """Draws one bar for each row, from 1 to the ratio of the medians, and a line over the range of its rounds."""
    for place, (_, row) in enumerate(rows):
        ratio = row["ratio"][panel.figure]
        good = (ratio - 1) * panel.better >= 0
        axes.barh(place, ratio - 1, left=1, height=0.62, color=GOOD if good else BAD, zorder=2)
        axes.plot(extent(row, panel.figure), (place, place), color="#333333", linewidth=1.1, marker="|", zorder=3)
        axes.annotate(
            f"{ratio:.2f}",
            (1.02, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            color=GOOD if good else BAD,
            fontweight="bold",
            annotation_clip=False,
        )
    axes.axvline(1, color="black", linewidth=1.2, zorder=4)
    axes.set_xscale("log")
    ends = [end for _, row in rows for end in extent(row, panel.figure)]
    low, high = min([*ends, 0.7]) / 1.1, max([*ends, 1.4]) * 1.1
    axes.set_xlim(low, high)
    axes.set_xticks([tick for tick in TICKS if low <= tick <= high])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes.grid(axis="x", color="#dddddd", zorder=0)
    axes.tick_params(axis="y", length=0)
    axes.set_title(panel.title, fontsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def draw(results: Mapping[str, Any], to: Path) -> None:
    """Draws the plot: a panel for each figure, a line for each row. Dotted lines separate the families."""
    rows = list(results["rows"].items())
    height = 1.9 + 0.27 * len(rows)
    figure, panels = plt.subplots(1, len(PANELS), sharey=True, figsize=(11.5, height))
    for axes, panel in zip(panels, PANELS, strict=True):
        draw_panel(axes, panel, rows)
        for place in range(1, len(rows)):
            if family(rows[place][0]) != family(rows[place - 1][0]):
                axes.axhline(place - 0.5, color="#999999", linewidth=0.8, linestyle=":")
    panels[0].set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=9)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.suptitle("Halimede and Triton: ratios of the medians, same work on the same machine", fontsize=12)
    legend = [
        Patch(color=GOOD, label="Halimede is better"),
        Patch(color=BAD, label="Triton is better"),
        Line2D([], [], color="#333333", marker="|", label="lowest to highest round"),
        Line2D([], [], color="black", label="1.0: equal"),
    ]
    figure.legend(handles=legend, loc="lower center", ncol=len(legend), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.45 / height, 1, 1 - 0.1 / height), w_pad=2.5)
    figure.savefig(to, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    path: Path = parser.parse_args().results
    results = json.loads(path.read_text())
    path.with_suffix(".md").write_text(document(results))
    if results["rows"]:
        draw(results, path.with_suffix(".png"))
    print(f"{path.with_suffix('.md')}, {path.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
