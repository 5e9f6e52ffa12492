"""The results of a run as one document (`--json`), and the comparison of two such documents. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from halimede.errors import Invalid
from halimede.perf.options import Options
from halimede.perf.statistics import Latencies, Level, ServerStats, mean_us

FORMAT = 1
"""The version of the document's form."""
BUCKETS_PER_DECADE = 20
"""Buckets of the histogram between a latency and ten times that."""
UNKNOWN_NOISE = 0.05
"""The noise that is assumed if there is only one measurement."""

Document = Mapping[str, Any]


def document_of(rounds: Sequence[Sequence[Level]], options: Options, version: str, when: str, cores: int) -> Document:
    """All results. A level has one entry for each round."""
    levels: dict[tuple[bool, float], list[Level]] = {}
    for each in rounds:
        for level in each:
            levels.setdefault((level.is_rate, level.value), []).append(level)
    return {
        "format": FORMAT,
        "tool": f"halimede perf {version}",
        "when": when,
        "cores": cores,
        "model": options.model,
        "url": options.where(),
        "protocol": options.protocol,
        "service_kind": options.kind,
        "batch_size": options.batch_size,
        "levels": [
            {"mode": "request_rate" if is_rate else "concurrency", "value": value, "rounds": list(map(_round, found))}
            for (is_rate, value), found in sorted(levels.items())
        ],
    }


def _round(level: Level) -> dict[str, Any]:
    client = level.client
    return {
        "stable": level.is_stable,
        "throughput": client.infer_per_sec,
        "windows": [window.client.infer_per_sec for window in level.windows],
        "requests": client.requests,
        "failed": client.failed,
        "late": client.late,
        "seconds": client.seconds,
        "latency_us": {
            "mean": client.mean / 1000,
            "standard_deviation": client.deviation_us if client.requests > 1 else None,
            **{f"p{each}": latency / 1000 for each, latency in client.percentiles.items()},
        },
        "client_us": {"send": client.mean_send / 1000, "receive": client.mean_receive / 1000},
        "client_busy_percent": level.window.overhead,
        "server": None if level.server is None else _server(level.server),
        "gpus": [asdict(each) for each in level.window.metrics],
        "histogram_us": histogram(client.latencies),
        "timeline": [list(each) for each in client.timeline],
    }


def _server(stats: ServerStats) -> dict[str, Any]:
    counts = stats.counts
    return {
        "inferences": counts.inferences,
        "executions": counts.executions,
        "requests": counts.successes,
        "latency_us": mean_us(counts.total_ns, counts.successes),
        "queue_us": mean_us(counts.queue_ns, counts.queued),
        "compute_input_us": mean_us(counts.input_ns, counts.inputs),
        "compute_infer_us": mean_us(counts.infer_ns, counts.infers),
        "compute_output_us": mean_us(counts.output_ns, counts.outputs),
        "cache_hits": counts.hits,
        "cache_misses": counts.misses,
        "composing": {f"{name}:{version}": _server(part) for (name, version), part in stats.composing.items()},
    }


def histogram(latencies: Latencies) -> list[list[float]]:
    """Buckets with the upper ends of their latencies in microseconds, and how many latencies each has. Empty ones at
    both ends are left out."""
    if not len(latencies):
        return []
    places = np.ceil(np.log10(np.maximum(latencies, 1) / 1000) * BUCKETS_PER_DECADE).astype(int)
    first = int(places.min())
    counts = np.bincount(places - first)
    return [[10 ** ((first + k) / BUCKETS_PER_DECADE), int(count)] for k, count in enumerate(counts)]


def read_document(path: str) -> Document:
    """A file of `--json`. Raises Invalid."""
    try:
        found = json.loads(Path(path).read_bytes())
        if found["format"] != FORMAT or not isinstance(found["levels"], list):
            raise ValueError(f"its format is {found['format']}, and {FORMAT} is known")
    except OSError as error:
        raise Invalid(f"'{path}' cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid(f"'{path}' is no file of --json: {error}") from None
    return dict(found)


# ---- comparison


def comparison(a: Document, b: Document, names: tuple[str, str]) -> str:
    """A table of the levels that both have, the noise of their rounds, and a verdict. Raises Invalid if they have none
    in common."""
    rows = [row for row in (_compared(level, b) for level in a["levels"]) if row is not None]
    if not rows:
        raise Invalid(f"'{names[0]}' and '{names[1]}' have no level in common")
    lines = [f"A: {_what(a)}  ({names[0]})", f"B: {_what(b)}  ({names[1]})", ""]
    lines.append(
        f"{'level':>16} {'A inf/s':>12} {'B inf/s':>12} {'B/A':>7} {'noise':>7} {'p50 B/A':>8} {'p99 B/A':>8}  verdict"
    )
    for name, rate_a, rate_b, noise, p50, p99 in rows:
        ratio = rate_b / rate_a if rate_a else 0.0
        lines.append(
            f"{name:>16} {rate_a:>12,.1f} {rate_b:>12,.1f} {ratio:>7.3f} {noise:>6.1%} {p50:>8.3f} {p99:>8.3f}  "
            f"{verdict(ratio, noise)}"
        )
    return "\n".join([*lines, "", _whole_verdict(rows)])


Row = tuple[str, float, float, float, float, float]
"""A level's name, both throughputs, their noise, and the ratios of p50 and p99."""


def _compared(level: Mapping[str, Any], b: Document) -> Row | None:
    mode, value = level["mode"], level["value"]
    other = next((each for each in b["levels"] if (each["mode"], each["value"]) == (mode, value)), None)
    if other is None or not level["rounds"] or not other["rounds"]:
        return None
    name = f"{value:g} clients" if mode == "concurrency" else f"{value:g}/s"
    p50, p99 = (_ratio(_latency(level, each), _latency(other, each)) for each in ("p50", "p99"))
    return name, _throughput(level), _throughput(other), max(noise_of(level), noise_of(other)), p50, p99


def _throughput(level: Mapping[str, Any]) -> float:
    return float(median(each["throughput"] for each in level["rounds"]))


def _latency(level: Mapping[str, Any], name: str) -> float:
    return float(median(each["latency_us"][name] for each in level["rounds"]))


def _ratio(a: float, b: float) -> float:
    return b / a if a else 0.0


def noise_of(level: Mapping[str, Any]) -> float:
    """How much the measurements of a level differ among themselves, as a share of their median: those of its rounds, or
    the windows of a single one."""
    rates = [each["throughput"] for each in level["rounds"]]
    if len(rates) == 1:
        rates = level["rounds"][0]["windows"]
    middle = median(rates) if rates else 0
    return (max(rates) - min(rates)) / middle if len(rates) > 1 and middle else UNKNOWN_NOISE


def verdict(ratio: float, noise: float) -> str:
    """What a ratio of throughputs means."""
    if abs(ratio - 1) <= noise:
        return "equal within the noise"
    return f"B is faster by {ratio - 1:.1%}" if ratio > 1 else f"B is slower by {1 - ratio:.1%}"


def _whole_verdict(rows: Sequence[Row]) -> str:
    faster = sum(b / a > 1 + noise for _, a, b, noise, _, _ in rows if a)
    slower = sum(b / a < 1 - noise for _, a, b, noise, _, _ in rows if a)
    if not faster and not slower:
        return "A and B are equal within the noise."
    if not slower:
        return f"B is faster than A at {faster} of {len(rows)} levels, and nowhere slower."
    if not faster:
        return f"B is slower than A at {slower} of {len(rows)} levels, and nowhere faster."
    return f"B is faster than A at {faster} levels, and slower at {slower}."


def _what(document: Document) -> str:
    return f"{document['model']} at {document['url']} over {document['protocol']}, {document['when']}"
