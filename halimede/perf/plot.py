"""Draws a document of results (`--plot`), by the library matplotlib of the extra `halimede[perf]`."""

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from halimede.perf.results import Document

SIZE = (10, 9)
"""Inches."""
KINDS = (".png", ".svg", ".html")
"""The endings of files that can be drawn."""


def draw(document: Document, path: Path) -> None:
    """Writes a picture, or a page with the picture and a table. Raises OSError."""
    figure = figure_of(document)
    if path.suffix != ".html":
        figure.savefig(path, dpi=110)
        return
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    # What comes before the element is a declaration that a page cannot have.
    svg = picture.getvalue()
    path.write_text(_page(document, svg[svg.index("<svg") :]))


def figure_of(document: Document) -> Figure:
    """Throughput over latency, the latencies of the fastest level, and its course in time."""
    figure = Figure(figsize=SIZE, layout="constrained")
    figure.suptitle(_title(document))
    top, left, right = figure.subplot_mosaic([["curve", "curve"], ["histogram", "time"]]).values()
    levels = [level for level in document["levels"] if level["rounds"]]
    _curve(top, levels)
    fastest = max(levels, key=_throughput)
    name = _name(fastest)
    best = max(fastest["rounds"], key=lambda each: float(each["throughput"]))
    _histogram(left, best, name)
    _timeline(right, best, name)
    return figure


def _title(document: Document) -> str:
    return f"{document['model']} over {document['protocol']} at {document['url']}"


def _name(level: Mapping[str, Any]) -> str:
    return f"{level['value']:g} clients" if level["mode"] == "concurrency" else f"{level['value']:g} requests/s"


def _throughput(level: Mapping[str, Any]) -> float:
    return float(median(each["throughput"] for each in level["rounds"]))


def _latency(level: Mapping[str, Any], name: str) -> float:
    return float(median(each["latency_us"][name] for each in level["rounds"])) / 1000


def _curve(axes: Axes, levels: Sequence[Mapping[str, Any]]) -> None:
    rates = [_throughput(level) for level in levels]
    for name, marker in (("p50", "o"), ("p99", "s")):
        axes.plot(rates, [_latency(level, name) for level in levels], marker=marker, label=name)
    for level, rate in zip(levels, rates, strict=True):
        axes.annotate(
            f"{level['value']:g}", (rate, _latency(level, "p99")), (0, 6), textcoords="offset points", ha="center"
        )
    axes.set(xlabel="inferences/s", ylabel="latency (ms)", yscale="log", title="Throughput and latency by level")
    axes.grid(True, alpha=0.3)
    axes.legend()


def _histogram(axes: Axes, best: Mapping[str, Any], name: str) -> None:
    edges = [upper / 1000 for upper, _ in best["histogram_us"]]
    counts = [count for _, count in best["histogram_us"]]
    if len(edges) > 1:
        step = edges[1] / edges[0]
        axes.stairs(counts, [edges[0] / step, *edges], fill=True)
    axes.set(xlabel="latency (ms)", ylabel="requests", xscale="log", title=f"Latencies with {name}")


def _timeline(axes: Axes, best: Mapping[str, Any], name: str) -> None:
    line = best["timeline"]
    axes.plot([each[0] for each in line], [each[1] for each in line])
    axes.set(xlabel="seconds", ylabel="requests/s", title=f"Course with {name}")
    axes.set_ylim(bottom=0)
    axes.grid(True, alpha=0.3)


def _page(document: Document, svg: str) -> str:
    rows = "".join(
        f"<tr><td>{_name(level)}</td><td>{_throughput(level):,.1f}</td><td>{_latency(level, 'p50'):.3f}</td>"
        f"<td>{_latency(level, 'p99'):.3f}</td></tr>"
        for level in document["levels"]
        if level["rounds"]
    )
    title = html.escape(_title(document))
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title>"
        "<style>body{font:16px sans-serif;margin:2em auto;max-width:60em}td,th{padding:.2em 1em;text-align:right}"
        f"svg{{max-width:100%;height:auto}}</style><h1>{title}</h1>"
        f"<table><tr><th>level</th><th>inferences/s</th><th>p50 ms</th><th>p99 ms</th></tr>{rows}</table>{svg}\n"
    )
