#!/usr/bin/env python3
"""Sends more requests than a model can serve, and checks that it serves its capacity and refuses the rest at once.

    python -m tools.overload [--seconds 60] [--connections 200] [--queue 64] [--json FILE]

Starts `halimede serve` with a Python model that sleeps 20 ms for a batch of at most 8, with at most --queue waiting
requests. Each connection sends its next request as soon as it has an answer, so client and server set the rate; the
report has it. Another process probes the health of the server, alternately on a kept connection and on a new one. It
separates the server's part of each answer from waiting for a core (`tools/overload_health.py`).

It passes if all of this holds:
- every answer is the model's own, or Triton's refusal: 503, `[request id: <id_unknown>] Exceeds maximum queue size`;
- at most --queue requests ever waited;
- the model served at least 90 % of its capacity, 8 requests in 20 ms;
- the server's part of every health answer took at most 50 ms, and 99 % of the answers took at most 50 ms in all (the
  report has the slowest with their parts, because client, server and worker share the cores of the machine);
- memory of all server processes, sampled under load, grew by less than 8 MiB in the second half;
- SIGTERM ends the server with status 0.
"""

import argparse
import json
import multiprocessing
import select
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tools.overload_health import Asked, Health, ask_for_health, health_of, spread
from tools.soak import MIB, Server

BATCH, SLEEP_SECONDS = 8, 0.02
CAPACITY = BATCH / SLEEP_SECONDS
LEAST_SHARE, MOST_HEALTH_MS, MOST_GROWTH = 0.9, 50.0, 8 * MIB
LOOK_EVERY = 0.25
"""Seconds between two samples of memory and queue length."""
PATIENCE = 20.0
"""Seconds until a socket operation fails."""
NAME = "sleeper"
REFUSAL = b'{"error":"[request id: <id_unknown>] Exceeds maximum queue size"}'

_MODEL = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(%s)
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in tensors]
"""
_CONFIG = """backend: "python"
max_batch_size: %d
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
%s
"""


@dataclass(slots=True)
class Load:
    """What the client saw. Times are seconds from the last byte sent to the first byte received. `odd` are unexpected
    answers."""

    seconds: float = 0.0
    served: int = 0
    refused: int = 0
    odd: list[str] = field(default_factory=list)
    served_seconds: list[float] = field(default_factory=list)
    refused_seconds: list[float] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.served + self.refused + len(self.odd)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one run, as they are written to a file."""

    connections: int
    queue: int
    seconds: float
    requests_per_second: float
    served_per_second: float
    calm_per_second: float
    """The rate for clients of two batches, measured just before: what the machine can do at the moment."""
    share_of_capacity: float
    most_waiting: int
    refused_ms: dict[str, float]
    served_ms: dict[str, float]
    health: Health
    memory_mib: float
    growth_mib: float
    odd: list[str]
    exit_status: int | None

    def problems(self, least_share: float = LEAST_SHARE, *, alone: bool = True) -> list[str]:
        """Describes the requirements that do not hold. The model must serve `least_share` of its capacity. If other
        programs share the machine (`alone` is False), time spent waiting for its cores does not count."""
        found = [f"neither an answer of the model nor a refusal: {text}" for text in self.odd[:3]]
        if self.most_waiting > self.queue:
            found.append(f"{self.most_waiting} requests waited, at most {self.queue} may")
        if self.share_of_capacity < least_share:
            found.append(f"served {self.share_of_capacity:.1%} of the capacity, less than {least_share:.0%}")
        if alone and self.health.all_ms["p99"] > MOST_HEALTH_MS:
            found.append(f"health answers took {self.health.all_ms['p99']:.1f} ms at the 99th percentile")
        if self.health.server_ms["max"] > MOST_HEALTH_MS:
            found.append(f"the server's part of a health answer took {self.health.server_ms['max']:.1f} ms")
        if self.growth_mib * MIB > MOST_GROWTH:
            found.append(f"memory grew by {self.growth_mib:.1f} MiB in the second half")
        if self.exit_status != 0:
            found.append(f"exit status {self.exit_status} after SIGTERM")
        return found


def write_sleeper(repository: Path, seconds: str, batch: int, scheduling: str) -> None:
    """Writes the model `sleeper`. A batch of at most `batch` requests sleeps for the Python expression `seconds`, which
    may use `requests`. `scheduling` is added to config.pbtxt."""
    version = repository / NAME / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL % seconds)
    (version.parent / "config.pbtxt").write_text(_CONFIG % (batch, scheduling))


def write_model(repository: Path, queue: int) -> None:
    """Writes the model of this tool, with at most `queue` waiting requests."""
    waiting = f"dynamic_batching {{ default_queue_policy {{ max_queue_size: {queue} }} }}"
    write_sleeper(repository, str(SLEEP_SECONDS), BATCH, waiting)


def message(number: int, model: str = NAME) -> bytes:
    """An HTTP request with one INT32 for a model."""
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [number]}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def flood(port: int, connections: int, seconds: float, models: Sequence[str] = (NAME,)) -> Load:
    """Sends requests for `seconds`. Each connection uses one of `models`, and sends again when it has its answer."""
    load = Load()
    poll = select.epoll()
    clients: dict[int, tuple[socket.socket, bytes, bytes]] = {}
    sent: dict[int, float] = {}
    for number in range(connections):
        client = socket.create_connection(("127.0.0.1", port), PATIENCE)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(client, select.EPOLLIN)
        clients[client.fileno()] = client, message(number, models[number % len(models)]), b'"data":[%d]' % number
    began = time.perf_counter()
    end = began + seconds
    for descriptor, (client, request, _) in clients.items():
        sent[descriptor] = time.perf_counter()
        client.sendall(request)
    now = began
    while now < end:
        for descriptor, _ in poll.poll(PATIENCE):
            client, request, wanted = clients[descriptor]
            answer = client.recv(65536)
            now = time.perf_counter()
            _count(load, answer, wanted, now - sent[descriptor])
            if not answer:
                poll.unregister(client)
                continue
            sent[descriptor] = now
            client.sendall(request)
    load.seconds = now - began
    for client, _, _ in clients.values():
        client.close()
    return load


def _count(load: Load, answer: bytes, wanted: bytes, seconds: float) -> None:
    """Counts one answer. It is small enough to arrive in one piece."""
    if answer.startswith(b"HTTP/1.1 200 ") and wanted in answer:
        load.served += 1
        load.served_seconds.append(seconds)
    elif answer.startswith(b"HTTP/1.1 503 ") and answer.endswith(REFUSAL):
        load.refused += 1
        if load.refused % 16 == 0:  # refusals are many, so a sample of their times is enough
            load.refused_seconds.append(seconds)
    else:
        load.odd.append(answer[:500].decode(errors="replace"))


class Watch:
    """Samples the memory of the server and the number of waiting requests under load, in a process of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop, stop = multiprocessing.Pipe()
        self._answers, answers = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=self._run, args=(stop, answers))
        self._process.start()

    def _run(self, stop: Connection, answers: Connection) -> None:
        memory, waiting = [], 0
        while not stop.poll(LOOK_EVERY):
            memory.append(self._server.memory())
            waiting = max(waiting, waiting_requests(self._server.metrics))
        answers.send((memory, waiting))

    def stop(self) -> tuple[list[int], int]:
        self._stop.send(None)
        found: tuple[list[int], int] = self._answers.recv()
        self._process.join()
        return found


def waiting_requests(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("nv_inference_pending_request_count{") and f'"{NAME}"' in line:
                return int(float(line.rsplit(" ", 1)[1]))
    raise RuntimeError(f"/metrics has no nv_inference_pending_request_count of model '{NAME}'")


def run(connections: int, queue: int, seconds: float) -> Report:
    """Starts a server, runs the load, stops the server, and returns the results."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        write_model(source, queue)
        server = Server(Path(folder), {str(source): (NAME,)})
        try:
            server.wait_until_ready()
            flood(server.http, 2 * BATCH, 0.5)  # warms up the worker and the memory of both sides
            calm = flood(server.http, 2 * BATCH, 1.5)
            flood(server.http, connections, 0.5)
            stop, stopped = multiprocessing.Pipe()
            answers, answering = multiprocessing.Pipe()
            given = server.http, server.pid, stopped, answering
            prober = multiprocessing.Process(target=ask_for_health, args=given)
            prober.start()
            watch = Watch(server)
            load = flood(server.http, connections, seconds)
            memory, waiting = watch.stop()
            stop.send(None)
            asked: list[Asked] = answers.recv()
            prober.join()
        finally:
            status, _ = server.stop()
    return _report(load, health_of(asked), memory, waiting, (connections, queue, status), calm)


def _report(
    load: Load, health: Health, memory: list[int], waiting: int, setting: tuple[int, int, int | None], calm: Load
) -> Report:
    connections, queue, status = setting
    later = memory[len(memory) // 2 :]
    parts = later[: len(later) // 2] or [0], later[len(later) // 2 :] or [0]
    return Report(
        connections=connections,
        queue=queue,
        seconds=round(load.seconds, 2),
        requests_per_second=round(load.total / load.seconds, 1),
        served_per_second=round(load.served / load.seconds, 1),
        calm_per_second=round(calm.served / calm.seconds, 1),
        share_of_capacity=round(load.served / load.seconds / CAPACITY, 4),
        most_waiting=waiting,
        refused_ms=spread(load.refused_seconds),
        served_ms=spread(load.served_seconds),
        health=health,
        memory_mib=round(statistics.mean(later or [0]) / MIB, 1),
        growth_mib=round((min(parts[1]) - min(parts[0])) / MIB, 2),
        odd=load.odd[:20],
        exit_status=status,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = run(options.connections, options.queue, options.seconds)
    text = json.dumps(asdict(report), indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    problems = report.problems()
    print("\n".join(problems) or "passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
