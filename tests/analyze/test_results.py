"""What comes out: rankings, names, tables, checkpoints, and the answer in words."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from halimede.analyze import answer
from halimede.analyze.checkpoint import Checkpoints, Record
from halimede.analyze.fields import INFERENCE_FIELDS
from halimede.analyze.measurements import Measurement, Member, merged
from halimede.analyze.names import Names
from halimede.analyze.ranking import Goal, Limits
from halimede.analyze.space import Candidate, Load, Setup, variant
from halimede.analyze.tables import Row, check_fields, csv_text
from halimede.errors import Invalid
from tests.analyze.simulated import CONFIG, figures

BIG: Setup = (variant("m", {"max_batch_size": 32}),)
TWO: Setup = (variant("m", {"instance_group": [{"kind": "KIND_CPU", "count": 2}]}),)


def measured(setup: Setup, clients: float, rate: float, p99: float, final: bool = False, **more: Any) -> Measurement:
    shown = figures(rate, p99, **more.pop("figures", {}))
    return Measurement(Candidate(setup, Load(clients), final), shown, {"m": Member(4, 0.9, 0.01)}, seconds=1.0, **more)


def record_of(*found: Measurement, goal: Goal | None = None) -> Record:
    record = Record(Names("m"), {"m": CONFIG}, list(found), goal or Goal(), "adaptive", "grpc")
    for each in found:
        record.names.of(each.candidate.setup)
    return record


# ---- ranking


def test_gain_is_the_weighted_difference_as_a_share_of_the_mean() -> None:
    a, b = measured((), 1, 150, 10), measured(BIG, 1, 50, 30)
    assert Goal().gain(a, b) == pytest.approx(1.0)
    both = Goal({"perf_throughput": 3, "perf_latency_p99": 1})
    assert both.gain(a, b) == pytest.approx((3 * 1.0 + 1 * 1.0) / 4)
    assert both.gain(b, a) == -both.gain(a, b)


def test_what_meets_the_constraints_goes_before_what_is_faster() -> None:
    goal = Goal(constraints={"perf_latency_p99": Limits(most=20), "perf_throughput": Limits(least=10)})
    slow, fast, tiny = measured((), 1, 50, 15), measured((), 2, 500, 25), measured(BIG, 1, 5, 1)
    assert goal.sorted([fast, tiny, slow]) == [slow, fast, tiny]
    assert goal.broken(fast) == {"perf_latency_p99": pytest.approx(0.25)}
    assert goal.broken(tiny) == {"perf_throughput": pytest.approx(0.5)}


def test_lowest_load_is_chosen_among_equal_ones() -> None:
    found = [measured((), 4, 100, 10), measured((), 8, 102, 20), measured(BIG, 8, 101, 20)]
    assert [(each.candidate.setup, each.candidate.load.value) for each in Goal().top(found, 5)] == [((), 4), (BIG, 8)]


# ---- names and tables


def test_equal_configurations_have_one_name() -> None:
    names = Names("m")
    assert [names.of(each) for each in ((), BIG, TWO, BIG)] == [
        "m_config_default",
        "m_config_0",
        "m_config_1",
        "m_config_0",
    ]
    assert names.find("m_config_1") == TWO
    assert names.find("x") is None


def test_table_has_the_columns_of_model_analyzer() -> None:
    goal = Goal(constraints={"perf_latency_p99": Limits(most=20)})
    record = record_of(measured(TWO, 4, 1234.56, 10), measured((), 8, 100, 30), goal=goal)
    rows = list(
        csv.reader(io.StringIO(csv_text([Row(record, each) for each in record.measurements], INFERENCE_FIELDS)))
    )
    assert rows == [
        [
            "Model",
            "Batch",
            "Concurrency",
            "Model Config Path",
            "Instance Group",
            "Max Batch Size",
            "Satisfies Constraints",
            "Throughput (infer/sec)",
            "p99 Latency (ms)",
        ],
        ["m", "1", "4", "m_config_0", "2:CPU", "8", "Yes", "1234.6", "10"],
        ["m", "1", "8", "m_config_default", "1:CPU", "8", "No", "100", "30"],
    ]


def test_no_rows_are_no_table() -> None:
    assert csv_text([], INFERENCE_FIELDS) == ""


def test_unknown_columns_are_named() -> None:
    check_fields(INFERENCE_FIELDS)
    with pytest.raises(Invalid, match="unknown column 'speed'"):
        check_fields(["speed"])


# ---- checkpoints


def test_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    goal = Goal({"perf_latency_p99": 2}, {"perf_latency_p99": Limits(most=20)})
    record = record_of(measured((), 1, 10, 1), measured(BIG, 2, 20, 2, final=True, cores=1.5), goal=goal)
    first = Checkpoints(tmp_path / "c")
    first.check()
    first.start()
    first.records["m"] = record
    first.save()
    assert (tmp_path / "c" / "0.ckpt").exists()
    second = Checkpoints(tmp_path / "c")
    found = second.records["m"]
    assert (found.measurements, found.goal, found.configs) == (record.measurements, goal, record.configs)
    assert found.names.of(BIG) == "m_config_0"
    assert found.find(Candidate(BIG, Load(2), True)) == record.measurements[1]
    assert found.find(Candidate(BIG, Load(2))) is None
    second.start()
    second.save()
    assert (tmp_path / "c" / "1.ckpt").exists()


@pytest.mark.parametrize("content", ["{", "{}", '{"format": 99, "models": {}}', '{"format": 1, "models": {"m": {}}}'])
def test_file_that_is_no_checkpoint_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "3.ckpt").write_text(content)
    with pytest.raises(Invalid, match=r"3.ckpt' is no checkpoint of halimede analyze"):
        Checkpoints(tmp_path)


def test_checkpoint_is_json(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.start()
    checkpoints.records["m"] = record_of(measured((), 1, 10, 1))
    checkpoints.save()
    assert json.loads((tmp_path / "0.ckpt").read_bytes())["format"] == 1


# ---- the answer


def answered(*found: Measurement, goal: Goal | None = None, cores: int = 2) -> answer.Answer:
    best = answer.answer_of(record_of(*found, goal=goal), cores)
    assert best is not None
    return best


def test_nothing_measured_is_no_answer() -> None:
    assert answer.answer_of(record_of(), 2) is None


def test_final_measurements_decide() -> None:
    found = answered(measured((), 1, 900, 1), measured((), 1, 100, 1, final=True), measured(BIG, 1, 200, 1, final=True))
    assert found.best.candidate.setup == BIG
    assert found.default is not None
    assert found.default.throughput == 100


def test_configuration_without_a_final_measurement_counts_as_it_was_measured() -> None:
    found = answered(measured((), 1, 50, 1), measured(BIG, 1, 900, 1), measured(BIG, 1, 200, 1, final=True))
    assert found.best.throughput == 200
    assert found.default is not None
    assert found.default.throughput == 50


def test_of_equal_configurations_the_one_that_takes_least_is_the_answer() -> None:
    assert (
        answered(measured(TWO, 1, 102, 1), measured(BIG, 1, 100, 1), measured((), 1, 50, 1)).best.candidate.setup == BIG
    )
    assert answered(measured(BIG, 1, 101, 1), measured((), 1, 100, 1)).is_default


def test_frontier_is_what_nothing_beats_in_both() -> None:
    a, b, c, d = (measured((), k, rate, p99) for k, rate, p99 in ((1, 10, 1), (2, 20, 3), (3, 15, 4), (4, 30, 9)))
    assert answer.frontier([d, c, b, a]) == [a, b, d]


def test_constraint_that_binds_is_named() -> None:
    goal = Goal(constraints={"perf_latency_p99": Limits(most=10)})
    found = answered(measured((), 4, 100, 8), measured((), 8, 150, 14.2), goal=goal)
    assert answer.why(found) == "the constraint on perf_latency_p99 binds: with 8 it is 14.2 ms"
    nothing = answered(measured((), 1, 100, 18), goal=goal)
    assert answer.why(nothing).startswith("no configuration meets the constraint on perf_latency_p99")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"cores": 1.5, "overhead": 0.4}, "the 2 cores of the machine are busy"),
        ({"cores": 0.5, "overhead": 0.2}, "the instances of m are busy 90% of the time"),
    ],
)
def test_limit_without_a_constraint_is_named(more: dict[str, Any], expected: str) -> None:
    found = answered(measured((), 4, 100, 8, **more), measured((), 8, 101, 16))
    assert answer.why(found) == f"with 8 throughput changes by +1%; {expected}"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "unknown, because the server is on another machine, or not ours to see"),
        (
            {"cores": 1.6, "overhead": 0.4},
            "the server uses 1.6 of 2 cores, the clients 0.4: another one gives at most 62.5 ",
        ),
        (
            {"cores": 0.5, "overhead": 0.1},
            "the server uses 0.5 of 2 cores, the clients 0.1: another one would not help",
        ),
        (
            {"cores": 1.0, "overhead": 0.1, "others": 0.8},
            "the server uses 1.0 of 2 cores, the clients 0.1, other programs 0.8: unknown while they run",
        ),
    ],
)
def test_what_another_core_gives(more: dict[str, Any], expected: str) -> None:
    assert answer.more_cores(answered(measured((), 4, 100, 8, **more))).startswith(expected)


def test_memory_is_compared_with_that_of_the_default() -> None:
    found = answered(
        measured(BIG, 4, 200, 8, figures={"cpu_used_ram": 312.0}),
        measured((), 1, 100, 8, figures={"cpu_used_ram": 250.0}),
    )
    assert answer.memory(found) == "the server uses 312 MB, and 250 MB as it was"


def test_text_of_the_answer_keeps_the_comments_of_the_repository() -> None:
    found = answered(measured(BIG, 4, 200, 8), measured((), 1, 100, 8))
    text = "# why\nname: 'm'\nmax_batch_size: 8 # few\n"
    assert answer.texts(found, {"m": text}) == {"m": "# why\nname: 'm'\nmax_batch_size: 32 # few\n"}
    assert "max_batch_size: 32" in answer.texts(found, {})["m"]


def test_two_measurements_of_a_candidate_are_merged_by_their_lengths() -> None:
    a, b = measured(BIG, 1, 100, 10, cores=1.0), measured(BIG, 1, 200, 20, cores=2.0)
    found = merged(a, b)
    assert (found.throughput, found.figures["perf_latency_p99"], found.cores, found.seconds) == (150, 15, 1.5, 2.0)
    assert found.noise == pytest.approx(100 / 150)
