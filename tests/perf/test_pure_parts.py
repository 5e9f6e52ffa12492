"""Models, schedules, sequences and searches: the small pure parts."""

import random
from collections.abc import Mapping
from itertools import islice, pairwise
from typing import Any

import pytest

from halimede.errors import Invalid
from halimede.perf import schedules
from halimede.perf.model import Scheduler, model_of
from halimede.perf.options import Range
from halimede.perf.search import Search, binary, linear
from halimede.perf.sequences import SequencePlan, Sequences

METADATA: Mapping[str, Any] = {
    "name": "m",
    "inputs": [
        {"name": "B", "datatype": "INT32", "shape": ["-1", "4"]},
        {"name": "A", "datatype": "FP32", "shape": [-1, -1]},
    ],
    "outputs": [{"name": "O", "datatype": "BYTES", "shape": [-1, 1]}],
}


def no_config(name: str, version: str) -> Mapping[str, Any]:
    raise AssertionError(name)


def test_model_leaves_out_the_batch_dimension_and_fills_variable_ones() -> None:
    config = {"name": "m", "max_batch_size": 8, "input": [{"name": "A", "optional": True}], "dynamic_batching": {}}
    model = model_of(METADATA, config, "", (), {"A": (7,), "B": (9,)}, no_config)
    assert [info.shape for info in model.inputs.values()] == [(7,), (4,)]
    assert model.inputs["A"].is_optional
    assert model.scheduler is Scheduler.DYNAMIC
    assert model.max_batch_size == 8


def test_ensemble_has_its_steps_and_theirs() -> None:
    def step(name: str) -> dict[str, object]:
        return {"model_name": name, "model_version": -1}

    configs: dict[str, dict[str, Any]] = {
        "inner": {"name": "inner", "platform": "ensemble", "ensemble_scheduling": {"step": [step("z")]}},
        "z": {"name": "z", "sequence_batching": {}, "response_cache": {"enable": True}},
        "a": {"name": "a"},
    }
    whole = {
        "name": "m",
        "platform": "ensemble",
        "ensemble_scheduling": {"step": [step("inner"), step("a"), step("a")]},
    }
    model = model_of(METADATA, whole, "", (), {}, lambda name, version: configs[name])
    assert model.composing == {"m": (("a", ""), ("inner", "")), "inner": (("z", ""),)}
    assert model.scheduler is Scheduler.ENSEMBLE_SEQUENCE
    assert model.is_cached
    assert not model.is_cached_itself


def test_configuration_of_another_model_is_refused() -> None:
    with pytest.raises(Invalid, match="no metadata found for input tensor X"):
        model_of(METADATA, {"name": "m", "input": [{"name": "X"}]}, "", (), {}, no_config)


def test_constant_schedule_does_not_drift() -> None:
    times = list(islice(schedules.constant(3.0), 3_000))
    assert times[0] == 333_333_333
    assert times[-1] == 1000 * schedules.SECOND


def test_poisson_schedule_has_exponential_gaps() -> None:
    times = list(islice(schedules.poisson(1000.0, random.Random(1)), 50_000))
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1e6, rel=0.02)
    # The standard deviation of an exponential distribution is its mean.
    assert variance**0.5 == pytest.approx(mean, rel=0.03)


def test_shares_of_a_schedule_are_the_whole_of_it() -> None:
    parts = [list(islice(schedules.share(schedules.constant(10.0), k, 3), 5)) for k in range(3)]
    assert sorted(parts[0] + parts[1] + parts[2]) == list(islice(schedules.constant(10.0), 15))


def test_gaps_repeat_and_give_a_rate() -> None:
    assert list(islice(schedules.repeated((1, 2)), 5)) == [1, 3, 4, 6, 7]
    assert schedules.rate_of((1_000_000, 3_000_000)) == 500.0


def plan(**given: Any) -> SequencePlan:
    values: dict[str, Any] = {
        "first_id": 1,
        "ids": 0,
        "step": 1,
        "offset": 0,
        "length": 3,
        "variation": 0.0,
        "lengths": [1],
        "has_data": False,
        "is_length_given": False,
    }
    return SequencePlan(**{**values, **given})


def test_sequence_starts_goes_on_and_ends() -> None:
    sequences = Sequences(plan(), random.Random(1))
    turns = [sequences.next(0) for _ in range(4)]
    assert [(turn.sequence_id, turn.starts, turn.ends) for turn in turns] == [
        (1, True, False),
        (1, False, False),
        (1, False, True),
        (2, True, False),
    ]


def test_sequences_of_two_processes_have_different_ids() -> None:
    parts = [Sequences(plan(step=2, offset=k, length=1), random.Random(1)) for k in range(2)]
    assert [[part.next(0).sequence_id for _ in range(3)] for part in parts] == [[1, 3, 5], [2, 4, 6]]


def test_ids_wrap_around_in_their_range() -> None:
    sequences = Sequences(plan(first_id=10, ids=3, length=1), random.Random(1))
    assert [sequences.next(0).sequence_id for _ in range(5)] == [10, 11, 12, 10, 11]


def test_sequence_is_as_long_as_its_data() -> None:
    sequences = Sequences(plan(lengths=[2, 3], has_data=True), random.Random(1))
    turns = [sequences.next(0) for _ in range(5)]
    assert [(turn.stream, turn.step, turn.ends) for turn in turns] == [
        (0, 0, False),
        (0, 1, True),
        (1, 0, False),
        (1, 1, False),
        (1, 2, True),
    ]


def test_length_varies_by_its_share() -> None:
    sequences = Sequences(plan(length=100, variation=20.0), random.Random(3))
    lengths = []
    for _ in range(200):
        count = 1
        while not sequences.next(0).ends:
            count += 1
        lengths.append(count)
    assert 80 <= min(lengths) < 90
    assert 110 < max(lengths) <= 120


def test_sequence_can_be_ended_early() -> None:
    sequences = Sequences(plan(length=9), random.Random(1))
    sequences.next(0)
    assert sequences.is_open(0)
    assert sequences.next(0, ends=True).ends
    assert not sequences.is_open(0)


def visited(search: Search, limit: float) -> list[float]:
    """The levels of a search, of which those up to a limit are good."""
    found = [next(search)]
    try:
        while True:
            found.append(search.send(found[-1] <= limit))
    except StopIteration:
        return found


def test_linear_search_ends_at_the_end_or_when_it_is_too_much() -> None:
    assert visited(linear(Range(1, 5, 2)), 99) == [1, 3, 5]
    assert visited(linear(Range(1, 99, 2)), 4) == [1, 3, 5]
    assert visited(linear(Range(1, 0, 10)), 25) == [1, 11, 21, 31]
    assert visited(linear(Range(8, 1, 1)), 99) == [8]


def test_binary_search_halves_until_the_gap_is_the_step() -> None:
    assert visited(binary(Range(1, 100, 10), whole=True), 40) == [1, 100, 50, 25, 37, 43]
    assert visited(binary(Range(1, 100, 1), whole=True), 0) == [1]
    assert visited(binary(Range(1, 100, 1), whole=True), 100) == [1, 100]
