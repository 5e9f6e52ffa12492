"""The reports of perf_analyzer as text (X20 to X25). Pure."""

from collections.abc import Iterator, Sequence

from halimede.perf.model import Model
from halimede.perf.options import NO_LIMIT, Options, Range
from halimede.perf.statistics import ClientStats, Counts, GpuMetrics, Level, ServerStats, mean_us

LATE_PERCENT = 1.0
"""A share of late requests from which the report says so."""
BUSY_PERCENT = 90.0
"""A share of the time that the load processes are busy from which the report says so."""
MAX_GPUS = 16
KINDS = {
    "triton": "TRITON",
    "tfserving": "TENSORFLOW_SERVING",
    "torchserve": "TORCHSERVE",
    "triton_c_api": "TRITON_C_API",
    "openai": "OPENAI",
    "dynamic_grpc": "DYNAMIC_GRPC",
}
"""The kinds of service as reports name them."""


def number(value: float) -> str:
    """A number as C++ prints it: six digits."""
    return f"{value:.6g}"


# ---- before


def settings(options: Options, model: Model) -> str:
    """What will be measured, and how (X20)."""
    return "\n".join([*_settings(options, model), "", ""])


def _settings(o: Options, model: Model) -> Iterator[str]:
    yield "*** Measurement Settings ***"
    if o.kind == "triton" or o.batch_size_given:
        yield f"  Batch size: {o.batch_size}"
    yield f"  Service Kind: {KINDS[o.kind]}"
    if o.warmup_requests:
        yield f"  Sending {o.warmup_requests} warmup request{'s' * (o.warmup_requests > 1)}"
    if o.request_count:
        yield f"  Sending {o.request_count} benchmark request{'s' * (o.request_count > 1)}"
    else:
        yield f'  Using "{o.mode}" mode for stabilization'
        what = "throughput" if o.asynchronous else "latency and throughput"
        by = f"average {what}" if o.percentile == -1 else f"p{o.percentile}{what}"
        yield f"  Stabilizing using {by}"
        if o.mode == "time_windows":
            yield f"  Measurement window: {o.interval} msec"
        else:
            yield f"  Minimum number of samples in each window: {o.window_requests}"
    yield from _limits(o)
    if o.rate is not None:
        yield f"  Using {'poisson' if o.distribution == 'poisson' else 'uniform'} distribution on request generation"
    if o.binary_search:
        yield "  Using Binary Search algorithm"
    yield f"  Using {'asynchronous' if o.asynchronous else 'synchronous'} calls for inference"
    if model.is_decoupled:
        yield "  Detected decoupled model, using the first response for measuring latency"


def _limits(o: Options) -> Iterator[str]:
    levels, rates = o.concurrency or Range(), o.rate or Range()
    if levels.end != 1:
        yield f"  Latency limit: {o.latency_threshold} msec"
        if levels.end != NO_LIMIT:
            yield f"  Concurrency limit: {max(levels.start, levels.end)} concurrent requests"
    if rates.end != 1:
        yield f"  Latency limit: {o.latency_threshold} msec"
        if rates.end != NO_LIMIT:
            yield f"  Request Rate limit: {number(max(rates.start, rates.end))} requests per seconds"


# ---- a level


def heading(is_rate: bool, value: float) -> str:
    if is_rate:
        return f"Request Rate: {number(value)} inference requests per second"
    return f"Request concurrency: {value:g}"


def level_text(level: Level, model: Model, options: Options) -> str:
    """The report of a level (X21, X22)."""
    lines = ["  Client: ", *_client(level, model, options)]
    if level.server is not None:
        lines += ["  Server: ", *_server(level.server, model, 1)]
    if options.collect_metrics and level.window.metrics:
        lines += ["  Server Prometheus Metrics: ", *_metrics(level.window.metrics[0])]
    if level.window.overhead > BUSY_PERCENT:
        lines.append(
            "[WARNING] Perf Analyzer is not able to keep up with the desired load. The results may not be accurate."
        )
    return "\n".join(lines)


def _client(level: Level, model: Model, o: Options) -> Iterator[str]:
    stats = level.client
    yield f"    Request count: {stats.requests}"
    if stats.failed:
        yield f"    Failed request count: {stats.failed}"
    late = 100 * stats.late / stats.requests if stats.requests else 0
    if late > LATE_PERCENT:
        yield f"    Avg send request rate: {level.window.send_rate:.2f} infer/sec"
        yield (
            "    [WARNING] Perf Analyzer was not able to keep up with the desired request rate. "
            f"{late:.2f}% of the requests were delayed. "
        )
    if model.has_sequences:
        yield f"    Sequence count: {stats.sequences} ({number(stats.sequences_per_sec)} seq/sec)"
    yield f"    Throughput: {number(stats.infer_per_sec)} infer/sec"
    if model.is_decoupled:
        yield f"    Response Throughput: {number(stats.responses_per_sec)} infer/sec"
    if o.verbose:
        yield f"    Avg client overhead: {level.window.overhead:.2f}%"
    if o.percentile == -1:
        yield f"    Avg latency: {stats.mean // 1000} usec (standard deviation {stats.deviation_us} usec)"
    for percentile, latency in stats.percentiles.items():
        yield f"    p{percentile} latency: {latency // 1000} usec"
    yield "" if model.is_decoupled else _library(stats, o)


def _library(stats: ClientStats, o: Options) -> str:
    total, send, receive = stats.mean_request // 1000, stats.mean_send // 1000, stats.mean_receive // 1000
    wait = max(0, total - send - receive)
    if o.protocol == "grpc":
        name, parts = "gRPC", ("(un)marshal request/response", "marshal", "unmarshal")
    else:
        name, parts = "HTTP", ("send/recv", "send", "receive")
    if o.verbose:
        detail = f"{parts[1]} {send} usec + response wait {wait} usec + {parts[2]} {receive} usec"
    else:
        detail = f"{parts[0]} {send + receive} usec + response wait {wait} usec"
    return f"    Avg {name} time: {total} usec ({detail})"


def _server(stats: ServerStats, model: Model, depth: int) -> Iterator[str]:
    indent, counts = "  " * depth, stats.counts
    if not counts.successes:
        yield f"{indent}  Request count: 0"
        return
    yield f"{indent}  Inference count: {counts.inferences}"
    yield f"{indent}  Execution count: {counts.executions}"
    if model.is_cached:
        yield f"{indent}  Cache hit count: {counts.hits}"
        yield f"{indent}  Cache miss count: {counts.misses}"
    yield f"{indent}  Successful request count: {counts.successes}"
    average = mean_us(counts.total_ns, counts.successes)
    head = f"{indent}  Avg request latency: {average} usec"
    if stats.composing:
        yield from _ensemble(stats, model, head, average, indent)
        yield f"{indent}Composing models: "
        for (name, version), part in stats.composing.items():
            yield f"{indent}{name}, version: {version}"
            yield from _server(part, model, depth + 1)
    elif model.is_cached:
        yield from _cached(counts, head, average, indent)
    else:
        yield from _plain(counts, head, average)


def _plain(counts: Counts, head: str, average: int) -> Iterator[str]:
    queue, compute = mean_us(counts.queue_ns, counts.queued), mean_us(counts.compute_ns, counts.inputs)
    yield (f"{head} (overhead {max(0, average - queue - compute)} usec + queue {queue} usec + {_compute(counts)})")
    yield ""


def _compute(counts: Counts) -> str:
    return (
        f"compute input {mean_us(counts.input_ns, counts.inputs)} usec + "
        f"compute infer {mean_us(counts.infer_ns, counts.infers)} usec + "
        f"compute output {mean_us(counts.output_ns, counts.outputs)} usec"
    )


def _cached(counts: Counts, head: str, average: int, indent: str) -> Iterator[str]:
    queue = mean_us(counts.queue_ns, counts.queued)
    both = mean_us(counts.hit_ns + counts.miss_ns + counts.compute_ns, counts.inputs + counts.hits)
    yield f"{head} (overhead {max(0, average - queue - both)} usec + queue {queue} usec + cache hit/miss {both} usec)"
    yield f"{indent}{indent}  Average Cache Hit Latency: {mean_us(counts.hit_ns, counts.hits)} usec"
    miss = mean_us(counts.miss_ns, counts.misses)
    yield (
        f"{indent}{indent}  Average Cache Miss Latency: {miss + mean_us(counts.compute_ns, counts.inputs)} usec "
        f"(cache lookup/insertion {miss} usec + {_compute(counts)})"
    )
    yield ""


def _ensemble(stats: ServerStats, model: Model, head: str, average: int, indent: str) -> Iterator[str]:
    queue, compute, hit, miss, both = ensemble_times(stats)
    if not model.is_cached:
        overhead = max(0, average - queue - compute)
        yield f"{head} (overhead {overhead} usec + queue {queue} usec + compute {compute} usec)"
        yield ""
        return
    if model.is_cached_itself:
        yield head
    else:
        overhead = max(0, average - queue - both)
        yield f"{head} (overhead {overhead} usec + queue {queue} usec + cache hit/miss {both} usec)"
    yield f"{indent}{indent}  Average Cache Hit Latency: {hit} usec"
    yield f"{indent}{indent}  Average Cache Miss Latency: {miss + compute} usec "
    yield ""


def ensemble_times(stats: ServerStats) -> tuple[int, int, int, int, int]:
    """Sums of the means of all steps in microseconds: queue, compute, cache hits, misses, and cache with compute."""
    queue = compute = both = 0
    hit = mean_us(stats.counts.hit_ns, stats.counts.hits)
    miss = mean_us(stats.counts.miss_ns, stats.counts.misses)
    for part in stats.composing.values():
        if part.composing:
            deeper = ensemble_times(part)
            queue, compute, both = queue + deeper[0], compute + deeper[1], both + deeper[4]
            hit, miss = hit + deeper[2], miss + deeper[3]
            continue
        counts = part.counts
        queue += mean_us(counts.queue_ns, counts.queued)
        compute += mean_us(counts.compute_ns, counts.inputs)
        hit += mean_us(counts.hit_ns, counts.hits)
        miss += mean_us(counts.miss_ns, counts.misses)
        both += mean_us(counts.compute_ns + counts.hit_ns + counts.miss_ns, counts.inputs + counts.hits)
    return queue, compute, hit, miss, both


def _metrics(metrics: GpuMetrics) -> Iterator[str]:
    parts = (
        ("Avg GPU Utilization", {uuid: f"{number(value * 100)}%" for uuid, value in metrics.utilization.items()}),
        ("Avg GPU Power Usage", {uuid: f"{number(value)} watts" for uuid, value in metrics.power.items()}),
        ("Max GPU Memory Usage", {uuid: f"{value} bytes" for uuid, value in metrics.memory_used.items()}),
        ("Total GPU Memory", {uuid: f"{value} bytes" for uuid, value in metrics.memory_total.items()}),
    )
    if any(len(values) > MAX_GPUS for _, values in parts):
        yield (
            "Too many GPUs on system to print out individual Prometheus metrics, use the CSV output feature to see "
            "metrics."
        )
        return
    for title, values in parts:
        yield f"    {title}:"
        yield from (f"      {uuid} : {value}" for uuid, value in sorted(values.items()))


def pass_text(number_of: int, stats: ClientStats) -> str:
    """A window, with -v."""
    head = f"  Pass [{number_of}] throughput: {number(stats.infer_per_sec)} infer/sec. "
    if stats.percentile != -1:
        return f"{head}p{stats.percentile} latency: {stats.at(stats.percentile) // 1000} usec"
    return f"{head}Avg latency: {stats.mean // 1000} usec (std {stats.deviation_us} usec). "


# ---- after


def summary(levels: Sequence[Level], percentile: int) -> str:
    """One line for each level (X24)."""
    by = "Average" if percentile == -1 else f"p{percentile}"
    lines = [f"Inferences/Second vs. Client {by} Batch Latency"]
    for level in levels:
        name = f"Request Rate: {number(level.value)}" if level.is_rate else f"Concurrency: {level.value:g}"
        lines.append(
            f"{name}, throughput: {number(level.client.infer_per_sec)} infer/sec, latency "
            f"{level.client.stabilizing // 1000} usec"
        )
    return "\n".join(lines) + "\n"
