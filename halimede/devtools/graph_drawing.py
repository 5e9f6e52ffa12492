"""A pipeline as nodes to lay out: what is written in its boxes and beside its lines. Pure; any thread."""

from collections.abc import Iterable

from halimede.devtools.graph_layout import Drawing, Labels, Node, layout
from halimede.devtools.graph_pipeline import LATEST, Pipeline, Step, Times


def drawing_of(pipeline: Pipeline) -> Drawing:
    tensors = pipeline.tensors
    nodes = [Node((shown(tensors[number].label),), writes=(number,), boxed=False) for number in pipeline.given]
    whole = sum(_seconds(step.times) for step in pipeline.steps)
    for step in pipeline.steps:
        weight = _seconds(step.times) / whole if whole else 0.0
        reads, writes = (_numbers(pairs) for pairs in (step.reads, step.writes))
        nodes.append(Node(_lines(step), reads, tuple(n for n in writes if n not in pipeline.given), weight=weight))
    nodes += [Node((shown(tensors[number].label),), reads=(number,), boxed=False) for number in pipeline.results]
    return layout(nodes, _labels(pipeline))


def _labels(pipeline: Pipeline) -> Labels:
    """Of the tensors between steps: what comes in and goes out is named at its end."""
    read = {number for step in pipeline.steps for _, number in step.reads}
    between = read - set(pipeline.given)
    texts = {number: (pipeline.tensors[number].name, pipeline.tensors[number].kind) for number in sorted(between)}
    return {number: tuple(shown(text) for text in each if text) for number, each in texts.items()}


def _numbers(pairs: Iterable[tuple[str, int]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(number for _, number in pairs))


def _lines(step: Step) -> tuple[str, ...]:
    name = "/".join((*step.path, step.model))
    title = name if step.version == LATEST else f"{name} version {step.version}"
    lines = [title, " · ".join(step.facts)]
    if step.times is not None:
        lines.append(times_text(step.times))
    return tuple(shown(line) for line in lines if line)


def times_text(times: Times) -> str:
    if not times.requests:
        return "no requests yet"
    return f"queue {duration(times.queue)} · compute {duration(times.compute)}"


def title_of(pipeline: Pipeline) -> str:
    """The line above the drawing."""
    parts = [" ".join((pipeline.name, f"({', '.join(pipeline.facts)})" if pipeline.facts else "")).rstrip()]
    times = pipeline.times
    if times is not None:
        told = f"{times.requests} requests, {duration(times.whole)} each"
        parts.append(told if times.requests else "no requests yet")
    return shown(": ".join(parts))


def shown(text: str) -> str:
    """One line: names come from others, and none of them shall say anything to a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def duration(nanoseconds: float) -> str:
    """Three digits, in ms or us."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            value = nanoseconds / size
            return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"
    return f"{nanoseconds:.0f} ns"


def _seconds(times: Times | None) -> float:
    return times.queue + times.compute if times is not None else 0.0
