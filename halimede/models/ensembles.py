"""Checks an ensemble against the models of its steps (S82, S89), and connects its steps with the versions that serve.

Pure, except for `bind`, which looks up versions and runs on the event loop. When to load an ensemble is decided in
`loading.ensembles`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from halimede.config import ModelConfig, TensorSpec
from halimede.config.ensembles import Ensemble, EnsembleStep
from halimede.errors import Invalid, Unavailable
from halimede.scheduling.step_binding import Binding, BoundStep, Fitting, Member
from halimede.scheduling.step_graph import StepGraph, StepLinks
from halimede.tensors import DataType, Shape, shape_text

Members = Mapping[str, ModelConfig]
"""The configurations of the steps' models, by the names that the steps use."""


@dataclass(frozen=True, slots=True)
class _Inferred:
    """The type and shape of an ensemble tensor, as the first model that uses it has them."""

    model: str
    batching: bool
    datatype: DataType
    dims: Shape

    @property
    def full(self) -> Shape:
        return (-1, *self.dims) if self.batching else self.dims

    def fits(self, other: "_Inferred") -> bool:
        """Whether another model's view of the tensor agrees. A dimension of variable size agrees with any."""
        if _agree(self.dims, other.dims):
            return True
        # A tensor with a batch dimension may feed a model that has the same dimension in its shape, and the reverse.
        return self.batching != other.batching and _agree(self.full, other.full)


def _agree(one: Shape, other: Shape) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def steps_of(config: ModelConfig) -> tuple[EnsembleStep, ...]:
    """The steps; empty if the model is no ensemble."""
    return config.ensemble.steps if config.ensemble is not None else ()


def check_members(config: ModelConfig, members: Members) -> None:
    """Raises Invalid, in Triton's words, for the first tensor that does not fit (S82)."""
    for problem in member_problems(config, members):
        raise Invalid(problem)


def member_problems(config: ModelConfig, members: Members) -> Iterator[str]:
    """The texts of all problems, in the order in which Triton would find them. Steps whose models are not among
    `members` are not compared."""
    name = config.name
    batching = config.max_batch_size > 0
    tensors: dict[str, _Inferred] = {}
    for spec in (*config.inputs, *config.outputs):
        tensors.setdefault(spec.name, _Inferred(name, batching, spec.datatype, spec.model_dims))
    known = [step for step in steps_of(config) if step.model in members]
    for step in known:
        member = members[step.model]
        # A member without batches (0) takes tensors without a batch dimension: `bind` fits them.
        if 0 < member.max_batch_size < config.max_batch_size:
            yield (
                f"ensemble {name} allows maximum batch size {config.max_batch_size}, but it contains model "
                f"{step.model} which only allows maximum batch size to be {member.max_batch_size}"
            )
        yield from _step_problems(f"in ensemble {name}, ", step, member, tensors)
    # A step that is not known may be the decoupled one that the others depend on.
    if len(known) < len(steps_of(config)):
        return
    try:
        _check_origins(config, members, tensors)
    except Invalid as error:
        yield str(error)


def _step_problems(
    prefix: str, step: EnsembleStep, member: ModelConfig, tensors: dict[str, _Inferred]
) -> Iterator[str]:
    inputs = {spec.name for spec in member.inputs}
    for put, tensor in step.inputs:
        if put not in inputs:
            yield (f"{prefix}ensemble tensor {tensor} is mapping to non-existing input {put} in model {step.model}")
    mapped = dict(step.inputs)
    for spec in member.inputs:
        if spec.name in mapped:
            yield from _consistency_problems(prefix, mapped[spec.name], step.model, member, spec, tensors)
        elif not spec.optional:  # an optional input may be left out
            yield f"{prefix}input {spec.name} in model {step.model} is not mapped to any ensemble tensors"
    outputs = {spec.name: spec for spec in member.outputs}
    for put, tensor in step.outputs:
        if put not in outputs:
            yield (f"{prefix}ensemble tensor {tensor} is mapped from non-existing output {put} in model {step.model}")
    for put, tensor in step.outputs:
        if put in outputs:
            yield from _consistency_problems(prefix, tensor, step.model, member, outputs[put], tensors)


def _consistency_problems(
    prefix: str, tensor: str, model: str, member: ModelConfig, spec: TensorSpec, tensors: dict[str, _Inferred]
) -> Iterator[str]:
    now = _Inferred(model, member.max_batch_size > 0, spec.datatype, spec.dims)
    # The first model that uses a tensor says what it is; the others must agree.
    known = tensors.setdefault(tensor, now)
    if known.datatype is not now.datatype:
        yield (
            f"{prefix}ensemble tensor {tensor}: inconsistent data type: {known.datatype.config_name} is inferred from "
            f"model {known.model} while {now.datatype.config_name} is inferred from model {now.model}"
        )
    if not known.fits(now):
        yield (
            f"{prefix}ensemble tensor {tensor}: inconsistent shape: {shape_text(known.full)} is inferred from model "
            f"{known.model} while {shape_text(now.full)} is inferred from model {now.model}"
        )


def _check_origins(config: ModelConfig, members: Members, tensors: Mapping[str, _Inferred]) -> None:
    """The inputs of a step, and the outputs of the ensemble, must depend on the same decoupled step or on none (S89).

    Otherwise nobody could say which of its responses belong together. Raises Invalid.
    """
    # By tensor, the index of the decoupled step that it depends on; -1 for none.
    origins = dict.fromkeys((spec.name for spec in config.inputs), -1)
    steps = steps_of(config)
    # By step, its inputs that are not known yet; by tensor, the steps that read it.
    lacking = [{tensor for _, tensor in step.inputs}.difference(origins) for step in steps]
    readers: dict[str, list[int]] = {}
    for i, unknown in enumerate(lacking):
        for tensor in unknown:
            readers.setdefault(tensor, []).append(i)
    # Steps in the order in which their inputs become known. Those of a cycle never do, and are refused elsewhere.
    ready = [i for i, unknown in enumerate(lacking) if not unknown]
    for i in ready:
        step = steps[i]
        model = tensors[step.outputs[0][1]].model
        origin = _one({origins[tensor] for _, tensor in step.inputs}, config.name, model)
        decoupled = members[step.model].decoupled
        for _, tensor in step.outputs:
            if tensor not in origins:
                origins[tensor] = i if decoupled else origin
                for reader in readers.get(tensor, ()):
                    lacking[reader].discard(tensor)
                    if not lacking[reader]:
                        ready.append(reader)
    _one({origins.get(spec.name, -1) for spec in config.outputs}, config.name, config.name)


def _one(origins: set[int], ensemble: str, model: str) -> int:
    if len(origins) > 1:
        raise Invalid(
            f"in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled "
            "models"
        )
    return next(iter(origins), -1)


def is_decoupled(config: ModelConfig, members: Members) -> bool:
    """Whether a step is decoupled, so that the ensemble is, too (S89)."""
    return any(members[step.model].decoupled for step in steps_of(config))


def inherited_labels(
    config: ModelConfig, own: Mapping[str, Sequence[str]], labels_of: Callable[[str], Mapping[str, Sequence[str]]]
) -> dict[str, Sequence[str]]:
    """The labels of the outputs: the ensemble's own, or else those of the model that makes the output (H82).

    `labels_of` returns the labels of a step's model.
    """
    found = {tensor: labels_of(step.model).get(put, ()) for step in steps_of(config) for put, tensor in step.outputs}
    return {spec.name: own.get(spec.name) or found.get(spec.name, ()) for spec in config.outputs}


def graph_of(config: ModelConfig) -> StepGraph:
    """The graph of the steps and the tensors between them."""
    return StepGraph(
        [spec.name for spec in config.inputs],
        [spec.name for spec in config.outputs],
        [StepLinks(step.inputs, step.outputs) for step in steps_of(config)],
    )


class Serving(Member, Protocol):
    """A version in service."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def takes_device(self) -> bool:
        """Whether it takes tensors on a device as they are."""
        ...


def bind(config: ModelConfig, graph: StepGraph, find: Callable[[str, int], Serving]) -> Binding:
    """Finds the version in service of each step's model. Raises Error if one of them cannot serve the ensemble."""
    versions = [find(step.model, step.version) for step in steps_of(config)]
    for version in versions:
        # The model was loaded again, and the ensemble not yet.
        if version.decoupled and not config.decoupled:
            raise Unavailable(f"model '{version.name}' has become decoupled")
    batching = config.max_batch_size > 0
    batched = {number: versions[step].config.max_batch_size > 0 for number, step in graph.writer.items()}
    on_device = _on_device(config, graph, versions)
    steps: list[BoundStep] = []
    for version, reads in zip(versions, graph.reads, strict=True):
        dims = {spec.name: spec.dims for spec in version.config.inputs}
        batches = version.config.max_batch_size > 0
        inputs = tuple(
            (name, number, _fitting(batched.get(number, batching), batches, dims.get(name, ())))
            for name, number in reads
        )
        takes = on_device[len(steps)]
        steps.append(BoundStep(version, version.name, version.number, inputs, version.decoupled, takes))
    results = {
        spec.name: _fitting(batched.get(graph.number[spec.name], batching), batching, spec.model_dims)
        for spec in config.outputs
    }
    return Binding(tuple(steps), results, tuple(dict.fromkeys(versions)))


def _on_device(config: ModelConfig, graph: StepGraph, versions: Sequence[Serving]) -> list[bool]:
    """Of each step, whether all that it writes is read on a device: not by a model of the host, and by no client."""
    # A client reads its outputs on the host.
    on_host = {graph.number[spec.name] for spec in config.outputs}
    for version, reads in zip(versions, graph.reads, strict=True):
        if not version.takes_device:
            on_host |= {number for _, number in reads}
    held = {step for number, step in graph.writer.items() if number in on_host}
    return [step not in held for step in range(len(versions))]


def _fitting(written: bool, read: bool, dims: Shape) -> Fitting | None:
    """How a tensor, `written` with a batch dimension or without one, is changed for a reader. None if it is not."""
    return None if written is read else Fitting(dims, strips=written)


def members_of(ensemble: Ensemble) -> tuple[str, ...]:
    """The names of the steps' models, each once, in order."""
    return tuple(dict.fromkeys(step.model for step in ensemble.steps))


def missing(ensemble: str, names: Iterable[str]) -> Invalid:
    """The error for members that are not known (S83)."""
    return Invalid(f"ensemble {ensemble} contains models that are not available or ambiguous: {', '.join(names)}")
