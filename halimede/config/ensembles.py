"""The steps of an ensemble: their values, and the checks that they make a graph (S80, S81), in Triton's words.

Knows one configuration; whether the other models exist is checked when the ensemble loads. Pure, any thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from halimede.config.identify import ENSEMBLE
from halimede.config.message import Message


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """A step: a model, or another ensemble. `version` is -1 for the latest.

    `inputs` are pairs of an input of the model and the ensemble tensor that it reads. `outputs` are pairs of an output
    of the model and the ensemble tensor that it writes. Both are sorted by the model's names.
    """

    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The steps of an ensemble.

    `max_in_flight` limits the requests of each step that are in flight, over all requests to the ensemble (S90); 0 for
    no limit.
    """

    steps: tuple[EnsembleStep, ...]
    max_in_flight: int = 0


def ensemble_of(message: Message) -> Ensemble | None:
    """The ensemble of a message that passed its checks; None if the model is none."""
    if not message.HasField("ensemble_scheduling"):
        return None
    scheduling = message.ensemble_scheduling
    steps = tuple(
        EnsembleStep(
            step.model_name,
            step.model_version,
            tuple(sorted(step.input_map.items())),
            tuple(sorted(step.output_map.items())),
        )
        for step in scheduling.step
    )
    return Ensemble(steps, scheduling.max_inflight_requests)


def ensemble_problems(message: Message) -> Iterator[str]:
    """What is wrong with an ensemble, and with a configuration that only looks like one (S80, S81)."""
    name, is_ensemble = message.name, message.platform == ENSEMBLE
    if message.HasField("ensemble_scheduling") and not is_ensemble:
        yield f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE}"
    if not is_ensemble:
        return
    if not message.HasField("ensemble_scheduling"):
        yield f"ensemble scheduling must be set for ensemble {name} whose platform is {ENSEMBLE}"
    if message.instance_group:
        yield f"instance group should not be specified for ensemble '{name}'"
    if message.HasField("optimization"):
        yield f"optimization should not be specified for ensemble '{name}'"
    if message.model_warmup:
        yield f"model_warmup can not be specified for ensemble '{name}'"
    if not message.ensemble_scheduling.step:
        yield f"must specify 'step' for ensemble '{name}'"
    yield from _step_problems(message)
    yield from _flow_problems(message)


def _step_problems(message: Message) -> Iterator[str]:
    name, written = message.name, set()
    for i, step in enumerate(message.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                yield f"must specify '{field}' in step {i} of ensemble '{name}'"
        for _, tensor in sorted(step.output_map.items()):
            if tensor in written:
                yield (
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' step {i}"
                )
            written.add(tensor)


def _flow_problems(message: Message) -> Iterator[str]:
    """Each tensor must be written by a step or the request, and read by a step or the response (S81).

    The stray apostrophes after ensemble names are Triton's.
    """
    name = message.name
    sources: dict[str, list[str]] = {}
    """By tensor: the tensors that the step which writes it reads."""
    read: set[str] = set()
    for step in message.ensemble_scheduling.step:
        needed = [tensor for _, tensor in sorted(step.input_map.items())]
        read.update(needed)
        for tensor in needed:
            sources.setdefault(tensor, [])
        for _, tensor in sorted(step.output_map.items()):
            sources[tensor] = sources.get(tensor, []) + needed
    inputs, outputs = ([spec.name for spec in specs] for specs in (message.input, message.output))
    for tensor in inputs:
        if tensor not in sources:
            yield f"ensemble input '{tensor}' for ensemble {name}' is not used"
    reached = _reached(sources, inputs)
    for tensor in outputs:
        if tensor not in sources:
            yield f"ensemble output '{tensor}' for ensemble {name}' is not used"
        if tensor not in reached:
            yield f"output '{tensor}' for ensemble '{name}' is not written{_missing_source(tensor, sources, reached)}"
    for tensor in sorted(sources):
        if tensor not in outputs and (tensor not in reached or tensor not in read):
            yield f"ensemble tensor '{tensor}' is unused in ensemble '{name}'"


def _reached(sources: dict[str, list[str]], inputs: list[str]) -> set[str]:
    """The tensors that the steps can compute from the inputs, and the inputs."""
    reached, grows = set(inputs), True
    while grows:
        more = {tensor for tensor, needed in sources.items() if needed and reached.issuperset(needed)} - reached
        reached |= more
        grows = bool(more)
    return reached


def _missing_source(tensor: str, sources: dict[str, list[str]], reached: set[str]) -> str:
    """The end of the text about a tensor that is not written. It names the last unreached tensor on the way back."""
    seen = [tensor]

    def next_source() -> str | None:
        # `seen` ends the walk in a circle of steps.
        return next((t for t in sources.get(seen[-1], []) if t not in reached and t not in seen), None)

    while (found := next_source()) is not None:
        seen.append(found)
    if len(seen) == 1:
        return ""
    return f": at least one of its depending tensors, '{seen[-1]}', is not connected"
