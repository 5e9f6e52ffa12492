"""Statistics, stability, and the reports that are made of them."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from halimede.perf import auto, report
from halimede.perf.csv_file import composing_files, main_file
from halimede.perf.loads import FAILED, RESPONSES_SHIFT, SEQUENCE_END
from halimede.perf.metrics import gpu_metrics, missing
from halimede.perf.model import Model, Scheduler
from halimede.perf.options import Options
from halimede.perf.statistics import (
    ClientStats,
    Counts,
    GpuMetrics,
    Level,
    Records,
    ServerStats,
    Trend,
    Window,
    client_stats,
    merged,
    merged_metrics,
    server_stats,
    snapshot_of,
    used_version,
)

MS = 1_000_000


def records(rows: Sequence[tuple[int, int, int, int, int, int]]) -> Records:
    """Rows of due, start, sent, first, end (ms) and flags."""
    return np.array([[*(each * MS for each in row[:5]), row[5], 0, n] for n, row in enumerate(rows)], np.int64)


ONE = 1 << RESPONSES_SHIFT


def test_window_counts_what_ends_in_it() -> None:
    rows = records([(0, 0, 0, 9, 10, ONE), (5, 5, 5, 19, 20, ONE), (15, 15, 15, 29, 31, ONE)])
    stats = client_stats(rows, 10 * MS, 30 * MS, 4, -1)
    assert stats.requests == 2
    assert stats.infer_per_sec == pytest.approx(2 * 4 / 0.02)
    assert list(stats.latencies) == [10 * MS, 15 * MS]


def test_latency_counts_from_when_a_request_was_due() -> None:
    stats = client_stats(records([(0, 40, 41, 49, 50, ONE)]), 0, 100 * MS, 1, -1)
    assert stats.mean == 50 * MS
    assert stats.late == 1
    assert (stats.mean_request, stats.mean_send, stats.mean_receive) == (10 * MS, MS, MS)


def test_failed_requests_have_no_latency() -> None:
    rows = records(
        [(0, 0, 0, 1, 2, ONE), (0, 0, 0, 1, 90, FAILED), (0, 0, 0, 1, 4, (3 << RESPONSES_SHIFT) | SEQUENCE_END)]
    )
    stats = client_stats(rows, 0, 100 * MS, 1, -1)
    assert (stats.requests, stats.failed, stats.responses, stats.sequences) == (2, 1, 4, 1)
    assert stats.mean == 3 * MS


def test_percentiles_are_those_of_perf_analyzer() -> None:
    stats = ClientStats(requests=10, duration=1, latencies=np.arange(1, 11, dtype=np.int64), percentile=25)
    # Index p * (n - 1) + 0.5, rounded down.
    assert stats.percentiles == {25: 3, 50: 6, 90: 9, 95: 10, 99: 10}
    assert stats.stabilizing == 3
    assert replace(stats, percentile=-1).stabilizing == 5


def test_windows_merge_to_one() -> None:
    first = client_stats(records([(0, 0, 0, 1, 2, ONE)]), 0, 10 * MS, 1, -1)
    second = client_stats(records([(10, 10, 10, 11, 16, ONE), (10, 10, 10, 11, 18, ONE)]), 10 * MS, 20 * MS, 1, -1)
    servers = ServerStats(Counts(successes=2, total_ns=10))
    whole = merged([Window(first, servers, 10.0, 100.0), Window(second, servers, 20.0, 200.0)])
    assert (whole.client.requests, whole.client.duration) == (3, 20 * MS)
    assert list(whole.client.latencies) == [2 * MS, 6 * MS, 8 * MS]
    assert whole.server is not None
    assert whole.server.counts.successes == 4
    assert (whole.overhead, whole.send_rate) == (15.0, 150.0)


def trend(rates: Sequence[float], latencies: Sequence[float]) -> Trend:
    return Trend(list(rates), list(latencies))


def test_stable_means_that_the_last_three_agree() -> None:
    assert not trend([100, 100], [1, 1]).is_stable(0.1)
    assert trend([50, 100, 105, 109], [9, 1, 1, 1.05]).is_stable(0.1)
    assert not trend([100, 105, 111], [1, 1, 1]).is_stable(0.1)
    assert not trend([100, 100, 100], [1, 1, 1.2]).is_stable(0.1)
    assert trend([100, 100, 100], [1, 1, 1.2]).is_stable(0.1, with_latency=False)
    assert not trend([0, 0, 0], [1, 1, 1]).is_stable(0.1)
    assert trend([1, 1, 1], [1, 5, 1]).is_slow(5)
    assert not trend([1, 1], [5, 5]).is_slow(5)


STATISTICS = {
    "model_stats": [
        {
            "name": "m",
            "version": "2",
            "inference_count": 8,
            "execution_count": 4,
            "inference_stats": {
                "success": {"count": 4, "ns": 4_000_000},
                "queue": {"count": 4, "ns": 400_000},
                "compute_input": {"count": 4, "ns": 40_000},
                "compute_infer": {"count": 4, "ns": 2_000_000},
                "compute_output": {"count": 4, "ns": 80_000},
                "cache_hit": {"count": 1, "ns": 7_000},
                "cache_miss": {"count": 3, "ns": 9_000},
            },
        }
    ]
}


def test_statistics_are_the_difference_of_two_answers() -> None:
    before, after = {("m", "1"): Counts(queued=5)}, snapshot_of(STATISTICS)
    assert used_version(("m", ""), before, after) == ("2", False)
    counts = server_stats(("m", ""), {}, before, after).counts
    assert (counts.inferences, counts.executions, counts.successes) == (8, 4, 4)
    assert (counts.hits, counts.misses, counts.miss_ns, counts.compute_ns) == (1, 3, 9_000, 2_120_000)
    assert server_stats(("m", "2"), {}, after, after).counts == Counts()


def test_steps_of_an_ensemble_are_found_by_their_growth() -> None:
    after = {("e", "1"): Counts(queued=1), ("a", "3"): Counts(queued=4), ("a", "4"): Counts()}
    stats = server_stats(("e", ""), {"e": (("a", ""), ("b", ""))}, {}, after)
    assert list(stats.composing) == [("a", "3"), ("b", "-1")]


def level(rate: float = 0, requests: int = 4, **counts: int) -> Level:
    latencies = np.array([MS, 2 * MS, 2 * MS, 3 * MS], np.int64)
    client = ClientStats(
        requests=requests, duration=2_000 * MS, latencies=latencies, mean_request=1_900_000, mean_send=10_000,
        mean_receive=5_000, responses=8, sequences=2
    )  # fmt: skip
    server = ServerStats(snapshot_of(STATISTICS)["m", "2"] if not counts else Counts(**counts))
    return Level(bool(rate), rate or 4, Window(client, server, 12.0, 2.5))


def test_report_of_a_level() -> None:
    assert report.level_text(level(), Model("m"), Options(model="m")).splitlines() == [
        "  Client: ",
        "    Request count: 4",
        "    Throughput: 2 infer/sec",
        "    Avg latency: 2000 usec (standard deviation 816 usec)",
        "    p50 latency: 2000 usec",
        "    p90 latency: 3000 usec",
        "    p95 latency: 3000 usec",
        "    p99 latency: 3000 usec",
        "    Avg HTTP time: 1900 usec (send/recv 15 usec + response wait 1885 usec)",
        "  Server: ",
        "    Inference count: 8",
        "    Execution count: 4",
        "    Successful request count: 4",
        "    Avg request latency: 1000 usec (overhead 370 usec + queue 100 usec + compute input 10 usec + compute "
        "infer 500 usec + compute output 20 usec)",
    ]


def test_report_says_when_the_load_is_not_kept_up() -> None:
    late = level()
    late = replace(late, window=replace(late.window, client=replace(late.client, late=2), overhead=99.0))
    text = report.level_text(late, Model("m"), Options(model="m"))
    assert "    Avg send request rate: 2.50 infer/sec\n" in text
    assert "keep up with the desired request rate. 50.00% of the requests were delayed. " in text
    assert text.rstrip().endswith("keep up with the desired load. The results may not be accurate.")


def test_report_of_sequences_decoupled_models_caches_and_metrics() -> None:
    sequences = report.level_text(level(), Model("m", scheduler=Scheduler.SEQUENCE), Options())
    assert "    Sequence count: 2 (1 seq/sec)\n" in sequences
    decoupled = report.level_text(level(), Model("m", is_decoupled=True), Options(protocol="grpc"))
    assert "    Response Throughput: 4 infer/sec\n" in decoupled
    assert "Avg gRPC time" not in decoupled
    cached = report.level_text(level(), Model("m", is_cached=True), Options())
    assert "    Cache hit count: 1\n    Cache miss count: 3\n" in cached
    assert "    Average Cache Hit Latency: 7 usec\n" in cached
    metrics = GpuMetrics({"GPU-1": 0.5}, {"GPU-1": 70.0}, {"GPU-1": 5}, {"GPU-1": 9})
    shown = level()
    shown = replace(shown, window=replace(shown.window, metrics=(metrics,)))
    text = report.level_text(shown, Model("m"), Options(collect_metrics=True))
    assert "    Avg GPU Utilization:\n      GPU-1 : 50%\n" in text


def test_summary_has_a_line_for_each_level() -> None:
    assert report.summary([level(), level(rate=2.5)], 95).splitlines() == [
        "Inferences/Second vs. Client p95 Batch Latency",
        "Concurrency: 4, throughput: 2 infer/sec, latency 2000 usec",
        "Request Rate: 2.5, throughput: 2 infer/sec, latency 2000 usec",
    ]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_is_sorted_and_has_the_columns_in_their_order() -> None:
    text, small = main_file([level(requests=8), level(requests=4)], Model("m"), -1, True, False)
    rows = rows_of(text)
    assert [row["Inferences/Second"] for row in rows] == ["2", "4"]
    assert small == 0
    assert dict(rows[0]) == {
        "Concurrency": "4",
        "Inferences/Second": "2",
        "Client Send": "10",
        "Network+Server Send/Recv": "1345",
        "Server Queue": "100",
        "Server Compute Input": "10",
        "Server Compute Infer": "500",
        "Server Compute Output": "20",
        "Client Recv": "5",
        "p50 latency": "2000",
        "p90 latency": "3000",
        "p95 latency": "3000",
        "p99 latency": "3000",
        "Avg latency": "2000",
        "request/response": "15",
        "response wait": "1885",
    }


def test_network_time_is_never_negative() -> None:
    text, small = main_file([level(queued=1, queue_ns=10**12, successes=1)], Model("m"), -1, False, False)
    assert rows_of(text)[0]["Network+Server Send/Recv"] == "0"
    assert small == 1


def test_steps_of_an_ensemble_have_files_of_their_own() -> None:
    whole = level()
    assert whole.server is not None
    stats = ServerStats(whole.server.counts, {("a", "1"): ServerStats(Counts(successes=8, total_ns=80_000_000))})
    files = composing_files([replace(whole, window=replace(whole.window, server=stats))], Model("m"), "out/x.csv")
    ((path, text),) = files.items()
    assert str(path) == "out/a_v1.x.csv"
    # Two requests of the step for each of the whole.
    assert rows_of(text)[0]["Inferences/Second"] == "4"
    assert rows_of(text)[0]["Network+Server Send/Recv"] == "10000"


def test_metrics_of_gpus_are_read_and_merged() -> None:
    text = 'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25\nnv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 7\nother 1\n'
    first = gpu_metrics(text)
    assert missing(first) == ["nv_gpu_power_usage", "nv_gpu_memory_total_bytes"]
    second = GpuMetrics({"GPU-1": 0.75}, {}, {"GPU-1": 5}, {})
    assert merged_metrics([first, second]) == GpuMetrics({"GPU-1": 0.5}, {}, {"GPU-1": 7}, {})


def found(clients: int, rate: int) -> Level:
    client = ClientStats(requests=rate, duration=1_000 * MS, latencies=np.array([clients * MS], np.int64))
    return Level(False, clients, Window(client, None, 50.0, rate))


def test_search_ends_when_more_clients_gain_nothing() -> None:
    levels = [found(1, 100), found(2, 190), found(4, 300), found(8, 306), found(16, 290)]
    assert not auto.is_flat(levels[:4])
    assert auto.is_flat(levels)
    assert auto.best(levels).value == 4


def test_sentence_says_what_was_found() -> None:
    levels = [found(1, 1000), found(2, 1900), found(4, 3012), found(8, 3006), found(16, 2900)]
    assert auto.sentence("m", levels, levels[2]) == (
        "m serves 3,010 inferences/s with 4 clients (p50 4 ms, p99 4 ms); one client alone waits 1 ms, and more "
        "clients only wait longer."
    )
    assert "throughput still grows at 2 clients" in auto.sentence("m", levels[:2], levels[1])
