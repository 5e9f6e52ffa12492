"""Brute search: everything, or what the user lists (X35, X36)."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from halimede.analyze.measurements import Measurement
from halimede.analyze.searches import Plan, Search, climb, finish
from halimede.analyze.space import Setup, variant


def brute(plan: Plan) -> Search:
    """The configuration as it is, then all others: instances ascending, and for each of them batch sizes."""
    space = plan.space
    places = itertools.product(*(range(len(axis.values)) for axis in space.axes))
    yield from _all(plan, [(), *(setup for setup in map(space.setup, places) if setup)])


def manual(plan: Plan, model: str, parameters: Mapping[str, Any]) -> Search:
    """All combinations of the values that the user lists for fields of the configuration."""
    yield from _all(plan, [(), *((variant(model, each),) for each in combinations(parameters))])


def _all(plan: Plan, setups: Sequence[Setup]) -> Search:
    found: list[Measurement] = []
    for setup in dict.fromkeys(setups):
        for batch_size in plan.batch_sizes:
            found += yield from climb(plan, setup, batch_size)
    yield from finish(plan, found, sweeps=False)


def combinations(parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each choice of one value from each list in the parameters. A field that is a list itself needs a list of lists to
    be swept (X36)."""
    if not parameters:
        return
    names = list(parameters)
    for values in itertools.product(*(_choices(name, parameters[name]) for name in names)):
        yield dict(zip(names, values, strict=True))


def _choices(name: str, value: Any) -> list[Any]:
    """The values that a field takes one after the other."""
    if isinstance(value, Mapping):
        return list(combinations(value)) or [{}]
    if not isinstance(value, list):
        return [value]
    if name not in _LISTS:
        return [choice for each in value for choice in _choices("", each)]
    lists = value if value and all(isinstance(each, list) for each in value) else [value]
    return [list(chosen) for each in lists for chosen in itertools.product(*(_choices("", part) for part in each))]


_LISTS = frozenset(
    (
        *("input", "output", "batch_input", "batch_output", "instance_group", "preferred_batch_size", "model_warmup"),
        *("gpus", "dims", "profile", "secondary_devices", "model_operations", "step"),
    )
)
"""Fields of a configuration that are lists."""
