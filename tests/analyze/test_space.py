"""Axes and candidates, from the configurations of models."""

from typing import Any

import pytest

from halimede.analyze.space import Bounds, Kind, Space, axes_of, changes_of, doubling, members_of
from tests.analyze.simulated import CONFIG


def test_model_that_cannot_batch_has_instances_only() -> None:
    for config in ({"max_batch_size": 0}, {"max_batch_size": 8, "sequence_batching": {}}):
        assert [each.kind for each in axes_of("m", config, Bounds())] == [Kind.INSTANCES]


def test_ensemble_has_no_axis_of_its_own() -> None:
    config = {
        "platform": "ensemble",
        "max_batch_size": 8,
        "ensemble_scheduling": {"step": [{"model_name": "a"}, {"model_name": "b"}, {"model_name": "a"}]},
    }
    assert axes_of("m", config, Bounds()) == []
    assert members_of(config) == ["a", "b"]


def test_axes_begin_at_the_configured_values() -> None:
    config = {**CONFIG, "dynamic_batching": {"max_queue_delay_microseconds": 300}}
    axes = axes_of("m", config, Bounds(max_instances=3), (0, 100))
    assert [(each.kind, each.values, each.start) for each in axes] == [
        (Kind.INSTANCES, (1, 2, 3), 0),
        (Kind.BATCH, (1, 2, 4, 8, 16, 32, 64, 128), 3),
        (Kind.DELAY, (0, 100, 300), 2),
    ]
    space = Space(tuple(axes), {"m": config})
    assert space.size == 3 * 8 * 3
    assert space.setup(space.start) == ()


@pytest.mark.parametrize(
    ("config", "values", "expected"),
    [
        (CONFIG, {Kind.INSTANCES: 1, Kind.BATCH: 8}, {}),
        (CONFIG, {Kind.INSTANCES: 3}, {"instance_group": [{"kind": "KIND_CPU", "count": 3}]}),
        (CONFIG, {Kind.BATCH: 2}, {"max_batch_size": 2}),
        (CONFIG, {Kind.BATCH: 8, Kind.DELAY: 5}, {"dynamic_batching": {"max_queue_delay_microseconds": 5}}),
        ({"max_batch_size": 4}, {Kind.BATCH: 4}, {"dynamic_batching": {}}),
        (
            {"max_batch_size": 8, "dynamic_batching": {"preferred_batch_size": [4, 8]}},
            {Kind.BATCH: 4},
            {"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [4]}},
        ),
    ],
)
def test_only_what_differs_is_changed(config: Any, values: dict[Kind, int], expected: dict[str, Any]) -> None:
    assert changes_of(config, values) == expected


def test_doubling_stays_within_its_ends() -> None:
    assert doubling(1, 8) == (1, 2, 4, 8)
    assert doubling(3, 13) == (3, 6, 12)
    assert doubling(5, 4) == ()
