"""The CSV files of `-f` (X27, X28). Pure."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from halimede.perf.model import Identifier, Model
from halimede.perf.report import number
from halimede.perf.statistics import Counts, GpuMetrics, Level

SMALL_SAMPLE = (
    "Server average accounted time was larger than client average wait time due to small sample size. Increase the "
    "measurement interval with `--measurement-interval`."
)
"""What is said on standard error if the server's times add up to more than the client waited."""


def main_file(
    levels: Sequence[Level], model: Model, percentile: int, verbose: bool, with_metrics: bool
) -> tuple[str, int]:
    """The file with one row for each level, and how many rows deserve the remark SMALL_SAMPLE."""
    has_server = levels[0].server is not None
    titles = ["Request Rate" if levels[0].is_rate else "Concurrency", "Inferences/Second"]
    titles += ["Response Throughput"] * model.is_decoupled
    titles.append("Client Send")
    titles += _server_titles(model) if has_server else []
    titles.append("Client Recv")
    titles += [f"p{each} latency" for each in levels[0].client.percentiles]
    if verbose:
        titles += ["Avg latency"] if percentile == -1 else []
        titles += ["request/response", "response wait"]
        titles += (
            ["Avg GPU Utilization", "Avg GPU Power Usage", "Max GPU Memory Usage", "Total GPU Memory"]
            if with_metrics
            else []
        )
    rows, small = [titles], 0
    for level in by_throughput(levels):
        row = list(_row(level, model, percentile, verbose, with_metrics))
        small += level.server is not None and _network_us(level) == 0
        rows.append(row)
    return _text(rows), small


def _row(level: Level, model: Model, percentile: int, verbose: bool, with_metrics: bool) -> Iterator[str]:
    client = level.client
    yield number(level.value) if level.is_rate else f"{level.value:g}"
    yield number(client.infer_per_sec)
    if model.is_decoupled:
        yield number(client.responses_per_sec)
    yield str(client.mean_send // 1000)
    if level.server is not None:
        yield str(_network_us(level))
        yield from _server_values(level.server.counts, model)
    yield str(client.mean_receive // 1000)
    yield from (str(each // 1000) for each in client.percentiles.values())
    if verbose:
        if percentile == -1:
            yield str(client.mean // 1000)
        send, receive = client.mean_send // 1000, client.mean_receive // 1000
        yield str(send + receive)
        yield str(max(0, client.mean_request // 1000 - send - receive))
        if with_metrics:
            yield from _metrics(level.window.metrics[0] if level.window.metrics else GpuMetrics())


def _network_us(level: Level) -> int:
    """What the client waited for and the server does not account for."""
    assert level.server is not None
    client, counts = level.client, level.server.counts
    waited = client.mean - client.mean_send - client.mean_receive
    return max(0, waited - _accounted(counts)) // 1000


def _accounted(counts: Counts) -> int:
    return (
        _mean(counts.queue_ns, counts.queued)
        + _mean(counts.compute_ns, counts.inputs)
        + _mean(counts.hit_ns, counts.hits)
        + _mean(counts.miss_ns, counts.misses)
    )


def _mean(nanoseconds: int, count: int) -> int:
    return nanoseconds // count if count else 0


def _server_titles(model: Model) -> list[str]:
    titles = ["Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Server Compute Infer"]
    titles.append("Server Compute Output")
    return titles + (["Server Cache Hit", "Server Cache Miss"] if model.is_cached else [])


def _server_values(counts: Counts, model: Model) -> Iterator[str]:
    pairs = [
        (counts.queue_ns, counts.queued),
        (counts.input_ns, counts.inputs),
        (counts.infer_ns, counts.infers),
        (counts.output_ns, counts.outputs),
    ]
    if model.is_cached:
        pairs += [(counts.hit_ns, counts.hits), (counts.miss_ns, counts.misses)]
    return (str(_mean(*pair) // 1000) for pair in pairs)


def _metrics(metrics: GpuMetrics) -> Iterator[str]:
    for values in (metrics.utilization, metrics.power, metrics.memory_used, metrics.memory_total):
        yield "".join(f"{uuid}:{number(value)};" for uuid, value in sorted(values.items()))


def by_throughput(levels: Sequence[Level]) -> list[Level]:
    return sorted(levels, key=lambda level: level.client.infer_per_sec)


def composing_files(levels: Sequence[Level], model: Model, name: str) -> dict[PurePath, str]:
    """A file for each model that the model calls, beside the file `name` (X28)."""
    first = levels[0].server
    if first is None:
        return {}
    path = PurePath(name)
    return {
        path.with_name(f"{key[0]}_v{key[1]}.{path.name}"): _composing(by_throughput(levels), model, key)
        for key in first.composing
    }


def _composing(levels: Sequence[Level], model: Model, key: Identifier) -> str:
    first = "Request Rate" if levels[0].is_rate else "Concurrency"
    rows = [[first, "Inferences/Second", "Client Send", *_server_titles(model), "Client Recv"]]
    for level in levels:
        assert level.server is not None
        if key not in level.server.composing:
            continue
        counts, whole = level.server.composing[key].counts, level.server.counts
        share = counts.successes / whole.successes if whole.successes else 0.0
        overhead = max(0, _mean(counts.total_ns, counts.successes) - _accounted(counts)) // 1000
        value = number(level.value) if level.is_rate else f"{level.value:g}"
        rate = number(share * level.client.infer_per_sec)
        rows.append([value, rate, "0", str(overhead), *_server_values(counts, model), "0"])
    return _text(rows)


def _text(rows: Sequence[Sequence[str]]) -> str:
    return "".join(",".join(row) + "\n" for row in rows)
