"""What a server did between two looks at it."""

from typing import Any

import pytest

from halimede.top.rates import ModelRates, rates
from halimede.top.sample import Sample, Snapshot, machine_of, models_of

MS = 1_000_000


def entry(name: str = "m", **more: Any) -> dict[str, Any]:
    return {"name": name, "version": "1", "inference_stats": {}, **more}


def counted(
    success: int, fail: int, inferences: int, executions: int, hits: int = 0, misses: int = 0
) -> dict[str, Any]:
    """A request takes 10 ms, of which it waits 4 and computes 1 + 2 + 3."""
    ran = success - hits
    phases = {
        "success": {"count": success, "ns": success * 10 * MS},
        "fail": {"count": fail, "ns": fail * MS},
        "queue": {"count": success, "ns": success * 4 * MS},
        "compute_input": {"count": ran, "ns": ran * MS},
        "compute_infer": {"count": ran, "ns": ran * 2 * MS},
        "compute_output": {"count": ran, "ns": ran * 3 * MS},
        "cache_hit": {"count": hits, "ns": hits},
        "cache_miss": {"count": misses, "ns": misses},
    }
    return entry(inference_count=inferences, execution_count=executions, inference_stats=phases)


def snapshot(at: float, *entries: dict[str, Any], metrics: tuple[Sample, ...] = (), instances: int = 0) -> Snapshot:
    asked = {("m", "1"): instances} if instances else {}
    return Snapshot(at, models=models_of({"model_stats": list(entries)}, metrics, asked))


def only(before: Snapshot, after: Snapshot) -> ModelRates:
    (found,) = rates(before, after)
    return found


def test_rates_are_per_second_and_times_are_means() -> None:
    found = only(snapshot(10.0, counted(100, 5, 300, 50)), snapshot(12.0, counted(300, 9, 1100, 150)))
    assert (found.requests, found.failures, found.inferences, found.executions) == (100.0, 2.0, 400.0, 50.0)
    assert (found.batch, found.latency_ms, found.queue_ms, found.compute_ms) == (8.0, 10.0, 4.0, 6.0)
    assert (found.total_requests, found.total_failures) == (300, 9)


def test_idle_model_has_no_times() -> None:
    found = only(snapshot(1.0, counted(3, 0, 3, 3)), snapshot(2.0, counted(3, 0, 3, 3)))
    assert (found.requests, found.batch, found.latency_ms, found.queue_ms, found.compute_ms) == (0.0, *(None,) * 4)
    assert (found.cache_hits, found.pending, found.instances, found.utilization) == (None,) * 4


def test_smaller_counts_mean_a_restart() -> None:
    found = only(snapshot(1.0, counted(1000, 0, 1000, 1000)), snapshot(2.0, counted(4, 0, 4, 4)))
    assert (found.requests, found.latency_ms) == (4.0, 10.0)


def test_new_model_starts_from_zero() -> None:
    assert only(snapshot(1.0), snapshot(2.0, counted(7, 0, 7, 7))).requests == 7.0


def test_cache_hits_are_a_share() -> None:
    found = only(snapshot(1.0, counted(0, 0, 0, 0)), snapshot(2.0, counted(4, 0, 1, 1, hits=3, misses=1)))
    assert found.cache_hits == 0.75


def test_queue_time_above_the_latency_is_dropped() -> None:
    after = counted(1, 0, 1, 1)
    after["inference_stats"]["queue"]["ns"] = 10**18
    assert only(snapshot(1.0, counted(0, 0, 0, 0)), snapshot(2.0, after)).queue_ms is None


def test_metrics_add_gauges_to_statistics() -> None:
    def gauges(busy_seconds: float) -> tuple[Sample, ...]:
        values = {
            "nv_inference_pending_request_count": 7,
            "halimede_queue_oldest_seconds": 0.5,
            "halimede_instances": 4,
            "halimede_instances_busy": 3,
            "halimede_instance_busy_seconds_total": busy_seconds,
            "nv_inference_request_summary_us": float("nan"),
        }
        samples = [Sample(name, {"model": "m", "version": "1"}, value) for name, value in values.items()]
        p99 = Sample("nv_inference_request_summary_us", {"model": "m", "version": "1", "quantile": "0.99"}, 2500)
        return (*samples, p99, Sample("nv_inference_pending_request_count", {"model": "n", "version": "1"}, 1))

    idle = counted(0, 0, 0, 0)
    found = only(snapshot(1.0, idle, metrics=gauges(10)), snapshot(2.0, idle, metrics=gauges(12)))
    assert (found.pending, found.oldest_seconds, found.instances, found.instances_busy) == (7, 0.5, 4, 3)
    assert (found.utilization, found.p99_ms) == (0.5, 2.5)


def test_instances_come_from_the_configuration_without_metrics() -> None:
    found = only(snapshot(1.0, entry()), snapshot(2.0, entry(), instances=3))
    assert (found.instances, found.instances_busy) == (3, None)


def test_busiest_is_first() -> None:
    before = snapshot(1.0)
    after = snapshot(
        2.0, entry("b"), entry("a"), {**counted(5, 0, 5, 5), "name": "z"}, {**counted(9, 0, 9, 9), "name": "y"}
    )
    assert [each.name for each in rates(before, after)] == ["y", "z", "a", "b"]


@pytest.mark.parametrize("document", [None, [], {}, {"model_stats": 3}, {"model_stats": [{}]}, {"model_stats": [3]}])
def test_malformed_statistics_are_an_error(document: object) -> None:
    with pytest.raises(ValueError, match="these are no statistics"):
        models_of(document, (), {})


def test_machine_is_read_from_metrics() -> None:
    samples = [Sample("nv_cpu_utilization", {}, 0.5), Sample("nv_gpu_utilization", {"gpu_uuid": "GPU-1"}, 0.25)]
    machine = machine_of(samples)
    assert (machine.cpu, machine.memory_used, machine.gpus) == (0.5, None, (("GPU-1", 0.25),))
