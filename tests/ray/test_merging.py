"""One answer out of those of several replicas."""

from halimede.engine_port import BatchCounts, Duration, IndexEntry, MetricFamily, ModelCounts, ResponseCounts
from halimede.ray.merging import merged_index, merged_metrics, merged_statistics


def counts(name: str, inferences: int, batches: dict[int, int], last: int = 0, responses: int = 0) -> ModelCounts:
    def duration(count: int) -> Duration:
        return Duration(count, 10 * count)

    return ModelCounts(
        name,
        1,
        last,
        inferences,
        sum(batches.values()),
        {"success": duration(inferences), "fail": Duration()},
        tuple(BatchCounts(size, duration(n), duration(n), duration(n)) for size, n in batches.items()),
        tuple(ResponseCounts(success=duration(inferences)) for _ in range(responses)),
    )


def test_statistics_are_added_up() -> None:
    one, other = counts("a", 3, {1: 1, 2: 1}, last=7, responses=1), counts("a", 6, {2: 1, 4: 1}, last=5, responses=2)
    (both,) = merged_statistics([[one], [other]])
    assert (both.inference_count, both.execution_count, both.last_inference) == (9, 4, 7)
    assert both.inference == {"success": Duration(9, 90), "fail": Duration()}
    assert [(each.batch_size, each.compute_infer) for each in both.batches] == [
        (1, Duration(1, 10)),
        (2, Duration(2, 20)),
        (4, Duration(1, 10)),
    ]
    assert [each.success for each in both.responses] == [Duration(9, 90), Duration(6, 60)]


def test_statistics_of_a_model_that_one_replica_has_stay_as_they_are() -> None:
    one, other = counts("b", 3, {1: 3}), counts("a", 1, {1: 1})
    assert merged_statistics([[one], [other], []]) == [other, one]


def test_version_is_ready_if_a_replica_has_it_ready() -> None:
    unloaded, ready = IndexEntry("a", 1, "UNAVAILABLE", "unloaded"), IndexEntry("a", 1, "READY")
    assert merged_index([[unloaded], [ready]]) == [ready]
    assert merged_index([[ready], [unloaded]]) == [ready]


def test_model_without_versions_is_listed_once_and_with_the_reason() -> None:
    plain, broken, known = IndexEntry("a"), IndexEntry("a", None, "UNAVAILABLE", "no file"), IndexEntry("a", 2, "READY")
    assert merged_index([[plain], [broken]]) == [broken]
    assert merged_index([[plain], [plain]]) == [plain]
    assert merged_index([[plain], [known]]) == [known]


def test_series_of_metrics_name_their_replica() -> None:
    def family(value: float) -> MetricFamily:
        return MetricFamily("count", "How many.", "counter", (({"model": "a"}, value),))

    assert merged_metrics([("r1", [family(1)]), ("r2", [family(2)])]) == [
        MetricFamily(
            "count",
            "How many.",
            "counter",
            (({"model": "a", "replica": "r1"}, 1), ({"model": "a", "replica": "r2"}, 2)),
        )
    ]
