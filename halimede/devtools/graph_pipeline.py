"""The steps of a model and the tensors between them, from configurations as JSON. Pure; any thread.

An ensemble within an ensemble is replaced by its steps, so every step is a model that a backend runs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from halimede.errors import Invalid

LATEST = -1

Config = Mapping[str, Any]
"""A configuration as the protocol's JSON."""


@dataclass(frozen=True, slots=True)
class Times:
    """The number of requests that a version of a model answered, and their mean durations in nanoseconds.

    `whole` is from the arrival of a request to its answer. `compute` is 0 for an ensemble.
    """

    requests: int
    queue: float
    compute: float
    whole: float


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. `kind` is datatype and shape; it is empty if no configuration has them."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Step:
    """One model of the pipeline.

    `path` are the ensembles around it, the outermost first, without the one that is drawn. `reads` and `writes` are
    pairs of the model's own name for a tensor and the tensor's number in the pipeline.
    """

    model: str
    version: int
    path: tuple[str, ...]
    facts: tuple[str, ...]
    reads: tuple[tuple[str, int], ...]
    writes: tuple[tuple[str, int], ...]
    times: Times | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """All steps and tensors. `given` and `results` are the numbers of the inputs and outputs of the whole."""

    name: str
    facts: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    given: tuple[int, ...]
    results: tuple[int, ...]
    times: Times | None = None

    @property
    def writers(self) -> dict[int, int]:
        """For each tensor that a step writes, the place of that step in `steps`."""
        return {number: i for i, step in enumerate(self.steps) for _, number in step.writes}


ConfigOf = Callable[[str, int], Config]
"""The configuration of a model and a version, -1 for the latest. Raises Error if there is none."""
TimesOf = Callable[[str, int], Times | None]
"""The times of a model and a version, -1 for the latest; None if nothing is known."""


def pipeline_of(model: str, config_of: ConfigOf, times_of: TimesOf = lambda model, version: None) -> Pipeline:
    """The pipeline of a model. Raises Invalid for an ensemble that is part of itself, and what `config_of` raises."""
    config = config_of(model, LATEST)
    work = _Work(config_of, times_of)
    inputs = {str(spec["name"]): work.tensor(spec, config) for spec in config.get("input", ())}
    outputs = {str(spec["name"]): work.tensor(spec, config) for spec in config.get("output", ())}
    if _steps(config):
        work.expand(config, inputs | outputs, (model,))
    else:
        work.add(model, LATEST, config, inputs.items(), outputs.items(), ())
    return Pipeline(
        model,
        _facts(config),
        tuple(work.tensors),
        tuple(work.steps),
        tuple(inputs.values()),
        tuple(outputs.values()),
        # A model that is no ensemble has its times in its only step.
        times_of(model, LATEST) if _steps(config) else None,
    )


def _steps(config: Config) -> list[Any]:
    return list(config.get("ensemble_scheduling", {}).get("step", ()))


class _Work:
    """The steps and tensors that were found so far."""

    def __init__(self, config_of: ConfigOf, times_of: TimesOf) -> None:
        self._config_of = config_of
        self._times_of = times_of
        self.tensors: list[Tensor] = []
        self.steps: list[Step] = []

    def tensor(self, spec: Config, config: Config) -> int:
        self.tensors.append(Tensor(str(spec["name"]), kind_of(spec, config)))
        return len(self.tensors) - 1

    def expand(self, config: Config, known: dict[str, int], path: tuple[str, ...]) -> None:
        """Adds the steps of an ensemble. `known` are the numbers of its tensors by name, and grows."""
        for step in _steps(config):
            model, version = str(step.get("model_name", "")), int(step.get("model_version", LATEST))
            # Without this check a circle would expand for ever.
            if model in path:
                raise Invalid(f"circular dependency between ensembles: {' -> '.join((*path, model))}")
            member = self._config_of(model, version)
            reads = self._numbers(step.get("input_map", {}), member, "input", known)
            writes = self._numbers(step.get("output_map", {}), member, "output", known)
            if _steps(member):
                # Only the inputs and outputs of the inner ensemble are tensors of the outer one.
                self.expand(member, dict(reads) | dict(writes), (*path, model))
            else:
                self.add(model, version, member, reads, writes, path[1:])

    def _numbers(
        self, names: Mapping[str, str], member: Config, side: str, known: dict[str, int]
    ) -> list[tuple[str, int]]:
        """The tensors of one side of a step, in the order of its model. Numbers those that are new."""
        specs = {str(spec["name"]): spec for spec in member.get(side, ())}
        numbers = []
        # A map of the protocol has no order of its own.
        for own in sorted(names, key=lambda name: (list(specs).index(name) if name in specs else len(specs), name)):
            tensor, spec = str(names[own]), specs.get(own)
            kind = kind_of(spec, member) if spec is not None else ""
            if tensor not in known:
                known[tensor] = len(self.tensors)
                self.tensors.append(Tensor(tensor, kind))
            elif not self.tensors[known[tensor]].kind:  # the model that was seen first does not declare it
                self.tensors[known[tensor]] = Tensor(tensor, kind)
            numbers.append((own, known[tensor]))
        return numbers

    def add(
        self,
        model: str,
        version: int,
        config: Config,
        reads: Iterable[tuple[str, int]],
        writes: Iterable[tuple[str, int]],
        path: tuple[str, ...],
    ) -> None:
        times = self._times_of(model, version)
        self.steps.append(Step(model, version, path, _facts(config), tuple(reads), tuple(writes), times))


def kind_of(spec: Config, config: Config) -> str:
    """Datatype and shape of an input or output, such as `FP32[-1,384]`."""
    datatype = str(spec.get("data_type", "")).removeprefix("TYPE_").replace("STRING", "BYTES")
    # The dims of a batching model do not have the batch dimension.
    batch = [-1] if _batch(config) else []
    shape = ",".join(str(size) for size in (*batch, *map(int, spec.get("dims", ()))))
    return f"{datatype}[{shape}]"


def _batch(config: Config) -> int:
    return int(config.get("max_batch_size", 0))


def _facts(config: Config) -> tuple[str, ...]:
    kind = str(config.get("backend") or config.get("platform") or "")
    facts = [kind] if kind else []
    if _batch(config):
        facts.append(f"batch {_batch(config)}")
    if config.get("model_transaction_policy", {}).get("decoupled"):
        facts.append("decoupled")
    return tuple(facts)
