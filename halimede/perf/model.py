"""What the measurement needs to know of a model, from the server's metadata and configuration. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from halimede.errors import Invalid
from halimede.tensors import DataType, datatype_named

Identifier = tuple[str, str]
"""A model's name and version; the version may be empty."""


class Scheduler(Enum):
    """How the server schedules a model, as far as it matters to a client."""

    NONE = "none"
    DYNAMIC = "dynamic"
    SEQUENCE = "sequence"
    ENSEMBLE = "ensemble"
    ENSEMBLE_SEQUENCE = "ensemble with a sequence model"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output. `shape` has no batch dimension; -1 stands for any size."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    is_optional: bool = False
    is_shape_tensor: bool = False

    def is_fixed(self) -> bool:
        return min(self.shape, default=0) >= 0


@dataclass(frozen=True, slots=True)
class Model:
    """A model. `composing` has the models that an ensemble or another model calls, by the caller's name."""

    name: str
    version: str = ""
    inputs: Mapping[str, TensorInfo] = field(default_factory=dict)
    outputs: Mapping[str, TensorInfo] = field(default_factory=dict)
    max_batch_size: int = 0
    scheduler: Scheduler = Scheduler.NONE
    is_decoupled: bool = False
    is_cached: bool = False
    """Whether it or a model that it calls has a response cache."""
    is_cached_itself: bool = False
    composing: Mapping[str, tuple[Identifier, ...]] = field(default_factory=dict)

    @property
    def has_sequences(self) -> bool:
        return self.scheduler in (Scheduler.SEQUENCE, Scheduler.ENSEMBLE_SEQUENCE)


AskConfig = Callable[[str, str], Mapping[str, Any]]
"""Returns the configuration of a model by its name and version, in the form of the HTTP protocol."""


def model_of(
    metadata: Mapping[str, Any],
    config: Mapping[str, Any],
    version: str,
    called: Sequence[Identifier],
    shapes: Mapping[str, tuple[int, ...]],
    ask: AskConfig,
) -> Model:
    """The model of these answers. `called` are models that the user says it calls (X18); `shapes` are those of
    `--shape`. Raises Invalid, and what `ask` raises."""
    composing = _composing(config, called, ask)
    configs = [ask(*each) for step in composing.values() for each in step]
    cached = any(_is_cached(each) for each in (config, *configs))
    maximum = int(config.get("max_batch_size", 0))
    return Model(
        name=str(metadata["name"]),
        version=version,
        inputs=_tensors(metadata.get("inputs", ()), config.get("input", ()), maximum, shapes),
        outputs=_tensors(metadata.get("outputs", ()), config.get("output", ()), maximum, {}),
        max_batch_size=maximum,
        scheduler=_scheduler(config, configs, bool(composing)),
        is_decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        is_cached=cached,
        is_cached_itself=_is_cached(config),
        composing=composing,
    )


def _scheduler(config: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], has_steps: bool) -> Scheduler:
    if has_steps:
        sequential = any("sequence_batching" in each for each in steps)
        return Scheduler.ENSEMBLE_SEQUENCE if sequential else Scheduler.ENSEMBLE
    if "sequence_batching" in config:
        return Scheduler.SEQUENCE
    return Scheduler.DYNAMIC if "dynamic_batching" in config else Scheduler.NONE


def _is_cached(config: Mapping[str, Any]) -> bool:
    return bool(config.get("response_cache", {}).get("enable", False))


def _composing(
    config: Mapping[str, Any], called: Sequence[Identifier], ask: AskConfig
) -> dict[str, tuple[Identifier, ...]]:
    found: dict[str, tuple[Identifier, ...]] = {}
    if called:
        found[str(config["name"])] = tuple(called)
        for each in called:
            _add_steps(ask(*each), ask, found)
    _add_steps(config, ask, found)
    return found


def _add_steps(config: Mapping[str, Any], ask: AskConfig, found: dict[str, tuple[Identifier, ...]]) -> None:
    if config.get("platform") != "ensemble":
        return
    name = str(config["name"])
    steps: dict[Identifier, None] = dict.fromkeys(found.get(name, ()))
    for step in config.get("ensemble_scheduling", {}).get("step", ()):
        version = int(step.get("model_version", -1))
        steps[str(step["model_name"]), "" if version == -1 else str(version)] = None
    # Reported in the order of their names.
    found[name] = tuple(sorted(steps))
    for each in steps:
        _add_steps(ask(*each), ask, found)


def _tensors(
    described: Sequence[Mapping[str, Any]],
    configured: Sequence[Mapping[str, Any]],
    max_batch_size: int,
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, TensorInfo]:
    more = {str(each["name"]): each for each in configured}
    found = {}
    for each in sorted(described, key=lambda each: str(each["name"])):
        name = str(each["name"])
        shape = tuple(map(int, each["shape"]))[1 if max_batch_size else 0 :]
        # A shape of the command line fills variable dimensions only.
        if -1 in shape:
            shape = shapes.get(name, shape)
        extra = more.get(name, {})
        found[name] = TensorInfo(
            name,
            datatype_named(str(each["datatype"])),
            shape,
            bool(extra.get("optional", False)),
            bool(extra.get("is_shape_tensor", False)),
        )
    missing = next((name for name in more if name not in found), None)
    if missing is not None:
        raise Invalid(f"no metadata found for input tensor {missing}")
    return found
