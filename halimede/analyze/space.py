"""What can be changed: axes of values, and the candidates that they make. Pure."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Config = Mapping[str, Any]
"""A model's configuration in the JSON form of the protocol."""


class Kind(Enum):
    """What an axis changes."""

    INSTANCES = "instances"
    BATCH = "max_batch_size"
    DELAY = "max_queue_delay_microseconds"


@dataclass(frozen=True, slots=True)
class Variant:
    """Changes to the configuration of one model: top-level fields with their new values, as JSON with sorted keys. A
    value of null removes the field."""

    model: str
    changes: str

    @property
    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.changes)
        return found


def variant(model: str, changes: Mapping[str, Any]) -> Variant:
    return Variant(model, json.dumps(changes, sort_keys=True))


Setup = tuple[Variant, ...]
"""The changes of a candidate, by model; empty for the configurations as they are."""


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """What the clients do. `value` is a number of clients, or requests per second."""

    value: float
    is_rate: bool = False
    batch_size: int = 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something to measure. `is_final`: longer, because it is one of the best."""

    setup: Setup
    load: Load
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """Values of one field of one model, ascending. `start` is the place of the configured value, or the nearest."""

    model: str
    kind: Kind
    values: tuple[int, ...]
    start: int = 0


Point = tuple[int, ...]
"""A place on each axis."""


@dataclass(frozen=True, slots=True)
class Space:
    """The axes, and the configurations of the models that they change."""

    axes: tuple[Axis, ...]
    configs: Mapping[str, Config] = field(default_factory=dict)
    is_group: bool = False
    """Whether each model gets load of its own, instead of what passes through a pipeline."""

    @property
    def start(self) -> Point:
        """The place nearest to the configurations as they are."""
        return tuple(axis.start for axis in self.axes)

    @property
    def size(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    def has(self, point: Point) -> bool:
        return all(0 <= place < len(axis.values) for place, axis in zip(point, self.axes, strict=True))

    def values(self, point: Point) -> dict[str, dict[Kind, int]]:
        """The values there, by model."""
        found: dict[str, dict[Kind, int]] = {}
        for place, axis in zip(point, self.axes, strict=True):
            found.setdefault(axis.model, {})[axis.kind] = axis.values[place]
        return found

    def value(self, point: Point, model: str, kind: Kind) -> int | None:
        """The value that a model has there; None if the space does not change it."""
        return self.values(point).get(model, {}).get(kind)

    def models(self) -> list[str]:
        return list(dict.fromkeys(axis.model for axis in self.axes))

    def setup(self, point: Point) -> Setup:
        """The changes that lead there. Fields that have their value already are left out."""
        changes = {model: changes_of(self.configs[model], values) for model, values in self.values(point).items()}
        return tuple(variant(model, each) for model, each in changes.items() if each)

    def clients(self, point: Point) -> int:
        """Twice the requests that all instances can run at a time (X37), those of the narrowest model of a pipeline, or
        of the widest one of a group."""
        places = [each.get(Kind.BATCH, 1) * each.get(Kind.INSTANCES, 1) for each in self.values(point).values()]
        return 2 * (max(places, default=1) if self.is_group else min(places, default=1))


# ---- reading configurations


def batch_limit(config: Config) -> int:
    return int(config.get("max_batch_size", 0))


def instances_of(config: Config) -> int:
    """Instances of all groups; 1 if the server decides."""
    groups = config.get("instance_group", ())
    return sum(max(1, int(group.get("count", 1))) for group in groups) or 1


def delay_of(config: Config) -> int:
    return int(config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0))


def is_ensemble(config: Config) -> bool:
    return str(config.get("platform", "")) == "ensemble"


def members_of(config: Config) -> list[str]:
    """The models of an ensemble's steps, each once."""
    steps = config.get("ensemble_scheduling", {}).get("step", ())
    return list(dict.fromkeys(str(step["model_name"]) for step in steps))


def can_batch(config: Config) -> bool:
    """Whether the server can make batches of requests (X35)."""
    return batch_limit(config) > 0 and "sequence_batching" not in config and not is_ensemble(config)


# ---- making changes


def changes_of(config: Config, values: Mapping[Kind, int]) -> dict[str, Any]:
    """The fields that must change so that a model has these values."""
    changes: dict[str, Any] = {}
    count = values.get(Kind.INSTANCES)
    if count is not None and count != instances_of(config):
        changes["instance_group"] = [group_of(config, count)]
    size = values.get(Kind.BATCH)
    if size is not None and size != batch_limit(config):
        changes["max_batch_size"] = size
    if Kind.BATCH in values or Kind.DELAY in values:
        batching = batching_of(config, values.get(Kind.DELAY), size or batch_limit(config))
        if batching != dict(config.get("dynamic_batching", {})) or "dynamic_batching" not in config:
            changes["dynamic_batching"] = batching
    return changes


def group_of(config: Config, count: int) -> dict[str, Any]:
    """One instance group with so many instances, where the first group was."""
    groups = config.get("instance_group", ())
    kept = {
        name: value
        for name, value in (groups[0] if groups else {}).items()
        if name in ("kind", "gpus", "rate_limiter", "profile", "passive", "host_policy", "secondary_devices") and value
    }
    return {**kept, "count": count}


def batching_of(config: Config, delay: int | None, size: int) -> dict[str, Any]:
    """Dynamic batching as it is configured, with another delay, and without preferred sizes that are too large."""
    found = dict(config.get("dynamic_batching", {}))
    preferred = found.get("preferred_batch_size")
    if preferred:
        found["preferred_batch_size"] = [each for each in preferred if int(each) <= size]
    if delay is not None and delay != delay_of(config):
        found["max_queue_delay_microseconds"] = delay
    return found


# ---- axes


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a search (X34)."""

    min_concurrency: int = 1
    max_concurrency: int = 1024
    min_rate: int = 16
    max_rate: int = 8192
    min_instances: int = 1
    max_instances: int = 5
    min_batch: int = 1
    max_batch: int = 128
    binary_steps: int = 5


def axes_of(model: str, config: Config, bounds: Bounds, delays: Sequence[int] = ()) -> list[Axis]:
    """The axes of a model: instances, and if it can batch, powers of two as its batch size, and delays."""
    if is_ensemble(config):
        return []
    counts = tuple(range(bounds.min_instances, bounds.max_instances + 1))
    found = [Axis(model, Kind.INSTANCES, counts, nearest(counts, instances_of(config)))]
    if can_batch(config):
        sizes = doubling(bounds.min_batch, bounds.max_batch)
        found.append(Axis(model, Kind.BATCH, sizes, nearest(sizes, batch_limit(config))))
        if delays:
            every = tuple(sorted({*delays, delay_of(config)}))
            found.append(Axis(model, Kind.DELAY, every, every.index(delay_of(config))))
    return found


def doubling(first: int, last: int) -> tuple[int, ...]:
    """The first number, then twice as much each time, up to the last."""
    found = []
    while first <= last:
        found.append(first)
        first *= 2
    return tuple(found)


def nearest(values: Sequence[int], wanted: int) -> int:
    """The place of the value that is nearest to the wanted one."""
    return min(range(len(values)), key=lambda place: abs(values[place] - wanted))
