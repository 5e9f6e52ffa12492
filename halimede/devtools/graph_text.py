"""A pipeline as text for a terminal, as a Mermaid flowchart, and as JSON. Pure; any thread."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from graphlib import CycleError, TopologicalSorter

from halimede.devtools.graph_pipeline import LATEST, Pipeline, Step, Tensor, Times

_MERMAID = str.maketrans({letter: f"#{ord(letter)};" for letter in "#\"'`<>&\\"})
"""Mermaid writes a character as `#` and its decimal code."""


def text_of(pipeline: Pipeline) -> str:
    """The steps in the order in which they run. Steps with one number may run at the same time."""
    tensors = pipeline.tensors
    lines = [title_of(pipeline), *(f"input: {label_of(tensors[number])}" for number in pipeline.given), ""]
    for stage, step in _stages(pipeline):
        name, *facts = step_lines(step)
        share = share_of(step, pipeline)
        facts += [f"{share:.0%} of the time"] if share else []
        lines.append(f"{stage}. {name}" + (f": {'; '.join(facts)}" if facts else ""))
        if step.reads:
            lines.append(f"     <- {', '.join(shown(tensors[number].name) for number in _numbers(step.reads))}")
        lines += [f"     -> {label_of(tensors[number])}" for number in _numbers(step.writes)]
    lines += ["", *(f"output: {label_of(tensors[number])}" for number in pipeline.results)]
    return "\n".join(lines).rstrip()


def mermaid_of(pipeline: Pipeline) -> str:
    """A flowchart: a box for each step, an arrow for each tensor that goes from one to another."""
    tensors, writers = pipeline.tensors, pipeline.writers
    lines = ["---", f"title: {json.dumps(title_of(pipeline))}", "---", "flowchart TD"]
    lines += [f"  t{number}([{_quoted(tensor_lines(tensors[number]))}])" for number in pipeline.given]
    for i, step in enumerate(pipeline.steps):
        lines.append(f"  s{i}[{_quoted(step_lines(step))}]")
        if share := share_of(step, pipeline):
            lines.append(f"  style s{i} fill:#f97316,fill-opacity:{opacity(share):.2f}")
    for number in pipeline.results:
        lines.append(f"  r{number}([{_quoted(tensor_lines(tensors[number]))}])")
        if number in writers:
            lines.append(f"  s{writers[number]} --> r{number}")
    for i, step in enumerate(pipeline.steps):
        for number in _numbers(step.reads):
            if number in writers:
                lines.append(f"  s{writers[number]} -->|{_quoted(tensor_lines(tensors[number]))}| s{i}")
            # Anything else is written by no step: a mistake of the ensemble, which has nothing to draw.
            elif number in pipeline.given:
                lines.append(f"  t{number} --> s{i}")
    return "\n".join(lines)


def json_of(pipeline: Pipeline) -> str:
    """The pipeline as it is, for tools: tensors are numbered from 0."""
    return json.dumps(asdict(pipeline), indent=1)


# ---- labels


def title_of(pipeline: Pipeline) -> str:
    """The name, what it is, and how long a request takes."""
    title = f"{pipeline.name} ({', '.join(pipeline.facts)})" if pipeline.facts else pipeline.name
    times = pipeline.times
    if times is not None:
        title += f": {times.requests} requests, {duration(times.whole)} each" if times.requests else ": no requests yet"
    return shown(title)


def step_lines(step: Step) -> list[str]:
    """The name of a step, what runs it, and its times."""
    name = "/".join((*step.path, step.model))
    lines = [name if step.version == LATEST else f"{name} version {step.version}", ", ".join(step.facts)]
    if step.times is not None:
        lines.append(times_text(step.times))
    return [shown(line) for line in lines if line]


def tensor_lines(tensor: Tensor) -> list[str]:
    return [shown(line) for line in (tensor.name, tensor.kind) if line]


def label_of(tensor: Tensor) -> str:
    return " ".join(tensor_lines(tensor))


def times_text(times: Times) -> str:
    if not times.requests:
        return "no requests yet"
    return f"queue {duration(times.queue)}, compute {duration(times.compute)}"


def share_of(step: Step, pipeline: Pipeline) -> float:
    """The part of the time of all steps that a request spends in this one, 0 to 1."""
    # Steps may run at the same time, so their sum and not the duration of a request is the whole.
    whole = sum(map(_spent, pipeline.steps))
    return _spent(step) / whole if whole else 0.0


def opacity(share: float) -> float:
    """Of the colour of a step: the more time, the fuller."""
    return 0.05 + 0.45 * share


def shown(text: str) -> str:
    """One line. Names come from clients and servers, and must not send control codes to a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def duration(nanoseconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            value = nanoseconds / size
            return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"
    return f"{nanoseconds:.0f} ns"


def _spent(step: Step) -> float:
    return step.times.queue + step.times.compute if step.times is not None else 0.0


def _numbers(pairs: Iterable[tuple[str, int]]) -> list[int]:
    """The tensors of one side of a step, each once."""
    return list(dict.fromkeys(number for _, number in pairs))


def _quoted(lines: Iterable[str]) -> str:
    return '"' + "<br>".join(line.translate(_MERMAID) for line in lines) + '"'


def _stages(pipeline: Pipeline) -> Iterator[tuple[int, Step]]:
    """Each step with the number of its stage, from 1: a stage can run when those before it have ended."""
    steps, writers = pipeline.steps, pipeline.writers
    order = TopologicalSorter(
        {i: {writers[number] for _, number in step.reads if number in writers} for i, step in enumerate(steps)}
    )
    try:
        order.prepare()
    except CycleError:
        # No server loads such an ensemble, but its author may look at it: in the order of the configuration.
        yield from enumerate(steps, 1)
        return
    stage = 0
    while ready := sorted(order.get_ready()):
        stage += 1
        yield from ((stage, steps[i]) for i in ready)
        order.done(*ready)
