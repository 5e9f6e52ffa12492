"""One answer out of those of all replicas. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from halimede.engine_port import (
    RESPONSE_FIELDS,
    BatchCounts,
    Duration,
    IndexEntry,
    MetricFamily,
    ModelCounts,
    ResponseCounts,
)

_ORDER = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE", "")
"""The states of a model version; an earlier one says more about the cluster."""


def merged_statistics(parts: Iterable[Sequence[ModelCounts]]) -> list[ModelCounts]:
    """Returns the statistics of each model version, added up. They shrink when a replica leaves, because its counts
    leave with it."""
    found: dict[tuple[str, int], ModelCounts] = {}
    for counts in (each for part in parts for each in part):
        key = counts.name, counts.version
        found[key] = _both(found[key], counts) if key in found else counts
    return [found[key] for key in sorted(found)]


def _both(one: ModelCounts, other: ModelCounts) -> ModelCounts:
    return ModelCounts(
        one.name,
        one.version,
        max(one.last_inference, other.last_inference),
        one.inference_count + other.inference_count,
        one.execution_count + other.execution_count,
        {name: _sum(one.inference[name], other.inference[name]) for name in one.inference},
        _batches(one.batches, other.batches),
        _responses(one.responses, other.responses),
    )


def _sum(one: Duration, other: Duration) -> Duration:
    return Duration(one.count + other.count, one.ns + other.ns)


def _batches(one: Sequence[BatchCounts], other: Sequence[BatchCounts]) -> tuple[BatchCounts, ...]:
    found = {each.batch_size: each for each in one}
    for each in other:
        before = found.get(each.batch_size)
        found[each.batch_size] = (
            each
            if before is None
            else BatchCounts(
                each.batch_size,
                _sum(before.compute_input, each.compute_input),
                _sum(before.compute_infer, each.compute_infer),
                _sum(before.compute_output, each.compute_output),
            )
        )
    return tuple(found[size] for size in sorted(found))


def _responses(one: Sequence[ResponseCounts], other: Sequence[ResponseCounts]) -> tuple[ResponseCounts, ...]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    both = [
        ResponseCounts(**{name: _sum(getattr(a, name), getattr(b, name)) for name in RESPONSE_FIELDS})
        for a, b in zip(longer, shorter, strict=False)
    ]
    return (*both, *longer[len(shorter) :])


def merged_index(parts: Iterable[Sequence[IndexEntry]]) -> list[IndexEntry]:
    """Returns the repository index of the cluster: a version has the best state that it has in a replica.

    An entry without a version is kept only if no replica knows versions of the model.
    """
    found: dict[tuple[str, int], IndexEntry] = {}
    for entry in (each for part in parts for each in part):
        key = entry.name, -1 if entry.version is None else entry.version
        before = found.get(key)
        if before is None or _rank(entry) < _rank(before):
            found[key] = entry
    known = {name for name, version in found if version != -1}
    return [found[key] for key in sorted(found) if key[1] != -1 or key[0] not in known]


def _rank(entry: IndexEntry) -> tuple[int, bool]:
    state = _ORDER.index(entry.state) if entry.state in _ORDER else len(_ORDER)
    return state, not entry.reason


def merged_metrics(parts: Iterable[tuple[str, Sequence[MetricFamily]]]) -> list[MetricFamily]:
    """Returns the metrics of all replicas, given with their names. Each series gets a label `replica`."""
    found: dict[str, tuple[MetricFamily, list[tuple[Mapping[str, str], Any]]]] = {}
    for replica, families in parts:
        for family in families:
            _, series = found.setdefault(family.name, (family, []))
            series += (({**labels, "replica": replica}, value) for labels, value in family.series)
    return [MetricFamily(family.name, family.help, family.kind, tuple(series)) for family, series in found.values()]
