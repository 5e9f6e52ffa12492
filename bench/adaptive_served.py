#!/usr/bin/env python3
"""Compares adaptive batching with fixed delays, on a running server with clients over HTTP.

    python -m bench.adaptive_served [--seconds 4] [--json FILE]

A Python model whose batch takes 5 ms, and 0.2 ms for each row, is served once for each fixed delay and once with a
latency target. Clients send again as soon as they have their answer, or requests come at random times. The report has
the answers per second, the latency percentiles seen by the client, and the rows of a batch. It takes three minutes, and
needs an otherwise idle machine.
"""

import argparse
import heapq
import json
import random
import select
import socket
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.overload import NAME, PATIENCE, flood, message, write_sleeper
from tools.soak import Server

FIXED_MS, EACH_MS, MAX_BATCH, TARGET_MS = 5.0, 0.2, 16, 30.0
DELAYS_MS = (0.0, 1.0, 5.0, 15.0)
CLIENTS, RATES = (1, 4, 16, 40), (200, 500)
MOST_CONNECTIONS = 128
LEARNING_SECONDS, WARM_SECONDS = 6.0, 0.5
"""Seconds before the measurement: with the adaptive delay, and with a fixed one."""
ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True)
class Served:
    """The figures of one policy under one load."""

    policy: str
    load: str
    per_second: float
    p50_ms: float
    p99_ms: float
    rows: float
    busy: float


def _scheduling(policy: str) -> str:
    if policy == ADAPTIVE:
        value = f'value {{ string_value: "{TARGET_MS * 1000:.0f}" }}'
        return f'dynamic_batching {{ }} parameters {{ key: "LATENCY_TARGET_MICROSECONDS" {value} }}'
    return f"dynamic_batching {{ max_queue_delay_microseconds: {float(policy) * 1000:.0f} }}"


def at_random(port: int, rate: float, seconds: float) -> list[float]:
    """Sends requests at random times with a mean of `rate` per second, independently of answers. Returns for each the
    seconds from when it was due until its answer."""
    lots, took = random.Random(1), []
    poll = select.epoll()
    sockets = [socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(MOST_CONNECTIONS)]
    by_number = {each.fileno(): each for each in sockets}
    for each in sockets:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(each, select.EPOLLIN)
    free = list(by_number)
    due_of: dict[int, float] = {}
    due: list[float] = []
    now = began = time.perf_counter()
    heapq.heappush(due, began)
    while now < began + seconds or due_of:
        wait = max(due[0] - now, 0.0) if due and free else 1.0
        for number, _ in poll.poll(wait):
            if not by_number[number].recv(65536).startswith(b"HTTP/1.1 200 "):
                raise RuntimeError("a request was not served")
            took.append(time.perf_counter() - due_of.pop(number))
            free.append(number)
        now = time.perf_counter()
        while due and due[0] <= now and free:
            number, due_of_this = free.pop(), heapq.heappop(due)
            due_of[number] = due_of_this
            by_number[number].sendall(message(1))
            following = due_of_this + lots.expovariate(rate)
            if following < began + seconds:
                heapq.heappush(due, following)
    for each in sockets:
        each.close()
    return took


def _statistics(port: int) -> tuple[int, int, int]:
    """The counts of inferences and executions, and the nanoseconds of computing."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/{NAME}/stats", timeout=PATIENCE) as answer:
        found = json.load(answer)["model_stats"][0]
    computing = sum(each["compute_infer"]["ns"] for each in found["batch_stats"])
    return found["inference_count"], found["execution_count"], computing


def run(policy: str, seconds: float) -> list[Served]:
    """Starts a server with one policy, and runs all loads on it one after the other."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        write_sleeper(source, f"({FIXED_MS} + {EACH_MS} * len(requests)) / 1000", MAX_BATCH, _scheduling(policy))
        server = Server(Path(folder), {str(source): (NAME,)})
        try:
            server.wait_until_ready()
            for load in (*(f"{clients} clients" for clients in CLIENTS), *(f"{rate}/s at random" for rate in RATES)):
                _serve(server.http, load, LEARNING_SECONDS if policy == ADAPTIVE else WARM_SECONDS)
                before = _statistics(server.http)
                began = time.perf_counter()
                took = sorted(_serve(server.http, load, seconds))
                elapsed = time.perf_counter() - began
                inferences, executions, ns = (b - a for a, b in zip(before, _statistics(server.http), strict=True))
                found.append(
                    Served(
                        policy,
                        load,
                        round(len(took) / elapsed, 1),
                        round(took[len(took) // 2] * 1e3, 2),
                        round(took[int(len(took) * 0.99)] * 1e3, 2),
                        round(inferences / executions, 2),
                        round(ns / 1e9 / elapsed, 3),
                    )
                )
        finally:
            server.stop()
    return found


def _serve(port: int, load: str, seconds: float) -> list[float]:
    number = int(load.split("/")[0].split()[0])
    if "clients" in load:
        return flood(port, number, seconds).served_seconds
    return at_random(port, number, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = [each for policy in (ADAPTIVE, *map(str, DELAYS_MS)) for each in run(policy, options.seconds)]
    print(f"target {TARGET_MS:g} ms\n{'load':16} {'':>10} {'/s':>8} {'p50':>7} {'p99':>7} {'rows':>6} {'busy':>6}")
    for each in sorted(found, key=lambda one: [other.load for other in found].index(one.load)):
        name = each.policy if each.policy == ADAPTIVE else f"{float(each.policy):g} ms"
        print(
            f"{each.load:16} {name:>10} {each.per_second:8.1f} {each.p50_ms:7.2f} {each.p99_ms:7.2f} "
            f"{each.rows:6.2f} {each.busy:6.3f}"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
