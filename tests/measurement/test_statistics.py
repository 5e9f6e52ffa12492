import pytest

from halimede.engine_port import BatchCounts, Duration, Histogram, ResponseCounts
from halimede.errors import Cancelled, Internal
from halimede.measurement import statistics as module
from halimede.measurement.latencies import Buckets, Latencies, Recent
from halimede.measurement.statistics import RESPONSES_KEPT, Statistics
from halimede.requests import InferResponse
from halimede.scheduling.flow import Flow
from halimede.scheduling.inference import Inference
from halimede.scheduling.runner_config import Reason
from halimede.tensors import INT32, HostMemory, Tensor
from tests.fakes import inference

PHASES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


@pytest.fixture(autouse=True)
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time_ns", lambda: 1_700_000_000_123_999_999)


def done(rows: int, *times: int) -> Inference:
    one = inference(batch_size=rows)
    one.times = list(times)
    return one


def test_statistics_of_a_model_that_was_never_asked() -> None:
    """Contract H119."""
    counts = Statistics().read("m", 2)
    assert (counts.name, counts.version, counts.last_inference) == ("m", 2, 0)
    assert (counts.inference_count, counts.execution_count, counts.batches) == (0, 0, ())
    assert list(counts.inference) == list(PHASES)
    assert set(counts.inference.values()) == {Duration()}


def test_successes_add_their_phases() -> None:
    statistics = Statistics()
    statistics.executed(3, 10, 20, 30)
    statistics.succeeded(done(1, 100, 110, 200, 210, 230, 260), 300)
    statistics.succeeded(done(2, 150, 160, 200, 210, 230, 260), 310)
    counts = statistics.read("m", 1)
    assert (counts.inference_count, counts.execution_count) == (3, 1)
    assert counts.last_inference == 1_700_000_000_123
    assert {phase: counts.inference[phase] for phase in PHASES[:6]} == {
        "success": Duration(2, 200 + 160),
        "fail": Duration(),
        "queue": Duration(2, 90 + 40),
        "compute_input": Duration(2, 20),
        "compute_infer": Duration(2, 40),
        "compute_output": Duration(2, 60),
    }


@pytest.mark.parametrize("rows", [0, 4])
def test_batch_of_one_request_counts_as_its_execution_and_its_success(rows: int) -> None:
    now, told = 10**9, []
    for together in (True, False):
        recent, first = Recent.begin(), Buckets((100.0,))
        statistics = Statistics(Latencies(recent, first))
        for start in (now, now + 5_000):
            one = done(rows, *(start + ns for ns in (0, 1_000, 3_000, 6_000, 10_000, 15_000)))
            if together:
                statistics.served(one, rows or 1, start + 20_000)
            else:
                statistics.executed(rows or 1, 3_000, 4_000, 5_000)
                statistics.succeeded(one, start + 20_000)
        phases = (recent.request, recent.queue, recent.compute_input, recent.compute_infer, recent.compute_output)
        quantiles = [phase.read((0.5,), now + 30_000) for phase in phases]
        told.append((statistics.read("m", 1), quantiles, statistics.totals))
    assert told[0] == told[1]
    counts, quantiles, _ = told[0]
    assert (counts.inference_count, counts.execution_count) == (2 * (rows or 1), 2)
    assert quantiles == [(20.0,), (2.0,), (3.0,), (4.0,), (5.0,)]


@pytest.mark.rows("S72")
def test_each_run_of_a_request_is_an_inference_and_their_time_is_the_requests() -> None:
    statistics = Statistics()
    one = done(1, 100, 110, 200, 210, 230, 260)
    statistics.ran(one)
    one.times[1:] = [300, 330, 340, 360, 390]
    statistics.succeeded(one, 400)
    counts = statistics.read("m", 1)
    assert counts.inference_count == 2
    assert {phase: counts.inference[phase] for phase in PHASES[:6]} == {
        "success": Duration(2, 300),
        "fail": Duration(),
        "queue": Duration(2, 90 + 30),
        "compute_input": Duration(2, 20),
        "compute_infer": Duration(2, 40),
        "compute_output": Duration(2, 60),
    }


def test_executions_are_counted_by_batch_size_in_ascending_order() -> None:
    statistics = Statistics()
    for rows, factor in ((8, 1), (1, 10), (8, 100)):
        statistics.executed(rows, factor, 2 * factor, 3 * factor)
    counts = statistics.read("m", 1)
    assert counts.execution_count == 3
    assert counts.batches == (
        BatchCounts(1, Duration(1, 10), Duration(1, 20), Duration(1, 30)),
        BatchCounts(8, Duration(2, 101), Duration(2, 202), Duration(2, 303)),
    )


def test_failures_are_counted_with_their_reasons_and_are_no_inferences() -> None:
    """Contract H119, M2."""
    statistics = Statistics()
    for reason in (Reason.REJECTED, Reason.BACKEND, Reason.BACKEND):
        statistics.failed(done(4, 100, 0, 0, 0, 0, 0), 150, reason)
    counts = statistics.read("m", 1)
    assert counts.inference["fail"] == Duration(3, 150)
    assert (counts.inference_count, counts.inference["success"], counts.inference["queue"]) == (
        0,
        Duration(),
        Duration(),
    )
    assert statistics.failures == {Reason.REJECTED: 1, Reason.CANCELED: 0, Reason.BACKEND: 2, Reason.OTHER: 0}


def test_statistics_that_were_read_do_not_change_any_more() -> None:
    statistics = Statistics()
    before = statistics.read("m", 1)
    statistics.executed(1, 1, 1, 1)
    statistics.succeeded(done(1, 1, 2, 3, 4, 5, 6), 7)
    assert (before.execution_count, before.inference["success"]) == (0, Duration())


def test_responses_are_told_apart_by_their_number() -> None:
    """Contract H119, for decoupled models."""
    statistics = Statistics()
    outputs = [Tensor("OUTPUT0", INT32, (1,), HostMemory(bytes(4)))]
    for index, answer, ns in [
        (0, InferResponse("", "m", 1, outputs), 10),
        (0, InferResponse("", "m", 1, outputs), 20),
        (1, InferResponse("", "m", 1, []), 3),
        (1, None, 4),
        (2, Internal("broke"), 5),
        (2, Cancelled("gone"), 6),
    ]:
        statistics.responded(index, answer, ns)
    first, second, third = statistics.read("m", 1).responses
    assert first == ResponseCounts(compute_infer=Duration(2, 30), compute_output=Duration(2), success=Duration(2, 30))
    assert second == ResponseCounts(empty_response=Duration(2, 7))
    assert third == ResponseCounts(fail=Duration(1, 5), cancel=Duration(1, 6))


def test_responses_without_end_take_no_more_memory() -> None:
    statistics = Statistics()
    for index in range(RESPONSES_KEPT + 5):
        statistics.responded(index, None, 1)
    assert len(statistics.read("m", 1).responses) == RESPONSES_KEPT


def test_answer_of_a_cache_is_a_success_that_was_not_computed() -> None:
    """Contract K4."""
    statistics = Statistics()
    statistics.succeeded(done(2, 100, 110, 200, 210, 230, 260), 300)
    statistics.succeeded(done(2, 400, 410, 0, 0, 0, 0), 450)
    counts = statistics.read("m", 1)
    assert (counts.inference_count, counts.execution_count) == (2, 0)
    assert [counts.inference[phase] for phase in PHASES] == [
        Duration(2, 200 + 50),
        Duration(),
        Duration(2, 90),
        Duration(1, 10),
        Duration(1, 20),
        Duration(1, 30),
        Duration(1, 40),
        Duration(),
    ]


def test_miss_counts_its_lookup_and_its_insertion_which_is_part_of_the_request() -> None:
    """Contract K5, M5."""
    statistics = Statistics()
    statistics.succeeded(done(1, 100, 110, 200, 210, 230, 260), 300)
    statistics.missed(7, 5)
    counts = statistics.read("m", 1)
    assert counts.inference["cache_miss"] == Duration(1, 12)
    assert counts.inference["success"] == Duration(1, 205)


def counted(rows: int) -> Statistics:
    """The statistics of a version that ran one batch of so many rows and failed once."""
    statistics = Statistics()
    statistics.executed(rows, 1, 2, 3)
    statistics.succeeded(done(rows, 100, 110, 200, 210, 230, 260), 300)
    statistics.failed(done(1, 100, 0, 0, 0, 0, 0), 150, Reason.OTHER)
    return statistics


def test_totals_are_the_integers_of_the_statistics() -> None:
    statistics = counted(3)
    counts, totals = statistics.read("m", 1), statistics.totals
    assert (totals.inference_count, totals.execution_count) == (counts.inference_count, counts.execution_count)
    assert (totals.inference, totals.batches) == (counts.inference, counts.batches)
    assert totals.failures == statistics.failures


@pytest.mark.rows("M26")
@pytest.mark.parametrize("lives", [1, 2, 20])
def test_totals_go_on_where_a_version_takes_the_place_of_another(lives: int) -> None:
    statistics = counted(1)
    for _ in range(lives):
        following = counted(2)
        following.follow(statistics)
        statistics.succeeded(done(1, 100, 110, 200, 210, 230, 260), 300)  # what had begun there
        statistics = following
    assert statistics.read("m", 1).inference["success"] == Duration(1, 200), "the statistics begin anew"
    totals = statistics.totals
    assert totals.inference["success"] == Duration(1 + 2 * lives, 200 * (1 + 2 * lives))
    assert (totals.inference_count, totals.execution_count) == (1 + 3 * lives, 1 + lives)
    assert totals.failures[Reason.OTHER] == 1 + lives
    assert [(each.batch_size, each.compute_infer) for each in totals.batches] == [
        (1, Duration(1, 2)),
        (2, Duration(lives, 2 * lives)),
    ]


def test_latencies_are_observed_where_they_were_asked_for() -> None:
    latencies = Latencies(Recent.begin(), Buckets((100.0,)))
    statistics, now = Statistics(latencies), 10**9
    times = (now, now + 10_000, now + 30_000, now + 60_000, now + 100_000, now + 150_000)
    statistics.succeeded(done(1, *times), now + 200_000)
    statistics.succeeded(done(1, now, now, 0, 0, 0, 0), now + 70_000)
    recent = latencies.recent
    assert recent is not None
    assert [part.read((0.0, 1.0), now + 200_000) for part in (recent.request, recent.queue, recent.cache_hit)] == [
        (70.0, 200.0),
        (0.0, 20.0),
        (70.0, 70.0),
    ]
    phases = (recent.compute_input, recent.compute_infer, recent.compute_output)
    assert [phase.read((0.5,), now + 200_000) for phase in phases] == [(30.0,), (40.0,), (50.0,)]
    assert latencies.first_response is not None
    assert latencies.first_response.read().counts == (2, 2)


def test_first_response_of_many_is_observed_when_it_comes() -> None:
    latencies = Latencies(None, Buckets((1.0,)))
    statistics = Statistics(latencies)
    statistics.responded(0, InferResponse("", "m", 1, []), 5, 2_000_000)
    statistics.responded(1, InferResponse("", "m", 1, []), 5, 9_000_000)
    statistics.responded(0, None, 5, 9_000_000)
    streamed = done(1, 0, 1, 2, 3, 4, 5)
    streamed.flow = Flow(streamed.reply, 0)
    statistics.succeeded(streamed, 10_000_000)
    assert latencies.first_response is not None
    assert latencies.first_response.read() == Histogram((1.0, float("inf")), (0, 1), 2.0)
