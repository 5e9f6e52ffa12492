"""The steps of an ensemble: what a configuration says of them, and whether they make a graph (contract S80, S81).

Each check yields the first thing that is wrong, in Triton's words. Pure, any thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from halimede.config.identify import ENSEMBLE
from halimede.config.message import Message


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble, or another ensemble. `version` is -1 for the latest; `inputs` are pairs of an input of
    that model and the ensemble's tensor that goes there, `outputs` pairs of an output and the tensor that it becomes,
    both by the model's names."""

    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Ensemble:
    """`most_in_flight`: how many requests of one step may be under way at a time, of all requests to the ensemble
    together (contract S90); 0 for any number."""

    steps: tuple[EnsembleStep, ...]
    most_in_flight: int = 0


def ensemble_of(message: Message) -> Ensemble | None:
    """Of a message that passed its checks."""
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
    """Contract S80, S81."""
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
    """Every tensor comes from somewhere and goes somewhere. (Where the real server names an ensemble here, an
    apostrophe is left over.)"""
    name = message.name
    before: dict[str, list[str]] = {}
    """Of each tensor those that the step which writes it needs."""
    read: set[str] = set()
    for step in message.ensemble_scheduling.step:
        needed = [tensor for _, tensor in sorted(step.input_map.items())]
        read.update(needed)
        for tensor in needed:
            before.setdefault(tensor, [])
        for _, tensor in sorted(step.output_map.items()):
            before[tensor] = before.get(tensor, []) + needed
    inputs, outputs = ([spec.name for spec in specs] for specs in (message.input, message.output))
    for tensor in inputs:
        if tensor not in before:
            yield f"ensemble input '{tensor}' for ensemble {name}' is not used"
    there = _reached(before, inputs)
    for tensor in outputs:
        if tensor not in before:
            yield f"ensemble output '{tensor}' for ensemble {name}' is not used"
        if tensor not in there:
            yield f"output '{tensor}' for ensemble '{name}' is not written{_missing(tensor, before, there)}"
    for tensor in sorted(before):
        if tensor not in outputs and (tensor not in there or tensor not in read):
            yield f"ensemble tensor '{tensor}' is unused in ensemble '{name}'"


def _reached(before: dict[str, list[str]], inputs: list[str]) -> set[str]:
    """The tensors that come about when those are given."""
    there, grows = set(inputs), True
    while grows:
        more = {tensor for tensor, needed in before.items() if needed and there.issuperset(needed)} - there
        there |= more
        grows = bool(more)
    return there


def _missing(tensor: str, before: dict[str, list[str]], there: set[str]) -> str:
    """Where the way back from a tensor that does not come about ends, or goes round in a circle."""
    seen = [tensor]
    while (found := next((t for t in before.get(seen[-1], []) if t not in there and t not in seen), None)) is not None:
        seen.append(found)
    if len(seen) == 1:
        return ""
    return f": at least one of its depending tensors, '{seen[-1]}', is not connected"
