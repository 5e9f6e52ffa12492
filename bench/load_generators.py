"""`halimede perf` beside the real perf_analyzer, on both servers: throughput, latencies, the clients' CPU time.

    python -m bench.load_generators [--rounds 5] [--seconds 1] [--row NAME ...] [--json FILE] [--third]

A round runs both clients in turn, with equal options, on Halimede and on the real Triton. `fixed` waits 5 ms for each
request, so the server is the limit and both clients must agree. `slow` waits 5 ms for each batch: how large the batches
are depends on how soon a client asks again. `floor` costs nothing: there the clients and the server share the cores,
and a cheaper client leaves more to the server.

`--third` also measures the throughput of h2load (Debian's nghttp2-client) in the rows of HTTP. It shows which client is
right if the two differ.

The CPU time of a client is that of one request: the time of a run less that of a short run, by the difference of their
requests. So the start of the program does not count.
"""

import argparse
import csv
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.versus import MODELS, ORACLE, HungError, Server, is_complete, prefer_main_thread, settle

LIMIT = 120.0
TRIES = 3
SERVERS = {
    "halimede": f"{sys.executable} -m halimede serve --model-repository={{repo}} --http-address=127.0.0.1 "
    "--grpc-address=127.0.0.1 --http-port={http} --grpc-port={grpc} --metrics-port={metrics}",
    "triton": f"{ORACLE} serve {{repo}} {{http}} {{grpc}} {{metrics}} --exit-on-error=false",
}
CLIENTS: Mapping[str, Sequence[str]] = {
    "perf_analyzer": (str(ORACLE), "perf"),
    "halimede perf": (sys.executable, "-m", "halimede", "perf"),
}
COLUMNS = {
    "throughput": "Inferences/Second",
    "p50": "p50 latency",
    "p99": "p99 latency",
    "server_queue": "Server Queue",
    "server_compute": "Server Compute Infer",
}
"""The figures that come from the CSV file. Times are in microseconds."""


@dataclass(frozen=True, slots=True)
class Row:
    model: str
    protocol: str
    load: str
    clients: int

    @property
    def few(self) -> int:
        """The requests of a short run. A client refuses a number below the requests of a second, and perf_analyzer
        fails if its run is over within milliseconds."""
        if "rate" in self.load:
            return 2 * RATE
        return self.clients * (100 if self.model == "floor" else 2)


RATE = 150
ROWS = {
    **{f"fixed-{p}-8": Row("fixed", p, "--concurrency-range 8", 8) for p in ("http", "grpc")},
    "fixed-grpc-rate": Row("fixed", "grpc", f"--request-rate-range {RATE} --request-distribution poisson", 4),
    **{f"slow-{p}-8": Row("slow", p, "--concurrency-range 8", 8) for p in ("http", "grpc")},
    **{f"floor-{p}-{c}": Row("floor", p, f"--concurrency-range {c}", c) for p in ("http", "grpc") for c in (1, 8, 32)},
}
Figures = dict[str, float]


def measure(client: str, server: Server, row: Row, seconds: float) -> Figures:
    """One run of a client. Raises RuntimeError if it fails, HungError if it never ends."""
    short_cpu, short_count, _ = _run(client, server, row, ["--request-count", str(row.few)])
    cpu, count, figures = _run(client, server, row, ["-p", str(int(seconds * 1000)), "-s", "999", "-r", "3"])
    return {**figures, "client_cpu": (cpu - short_cpu) / max(count - short_count, 1) * 1e6}


def _run(client: str, server: Server, row: Row, more: Sequence[str]) -> tuple[float, int, Figures]:
    """CPU seconds of the client, requests that the server answered, and the client's figures."""
    words = [*CLIENTS[client], "-m", row.model, "-i", row.protocol, "-u"]
    words += [f"127.0.0.1:{server.http if row.protocol == 'http' else server.grpc}", "--shape", "INPUT0:16"]
    for _ in range(TRIES):
        before = server.served(row.model)
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "table.csv"
            try:
                cpu = _cpu_of([*words, *row.load.split(), *more, "-f", str(table)], row.clients, table)
            except HungError:
                continue
            with table.open() as lines:
                read = next(csv.DictReader(lines))
        return cpu, server.served(row.model) - before, {name: float(read[column]) for name, column in COLUMNS.items()}
    raise HungError(f"{client} never ends")


def _cpu_of(command: Sequence[str], clients: int, table: Path) -> float:
    """Runs a client to its end. Returns the CPU seconds of all its processes."""
    before = os.times()
    with tempfile.TemporaryFile("w+") as said, subprocess.Popen(command, stdout=said, stderr=said) as load:
        if command[0] == str(ORACLE):
            prefer_main_thread(load.pid, clients)
        try:
            load.wait(LIMIT)
        except subprocess.TimeoutExpired:
            load.kill()
            raise HungError("it does not end") from None
        if load.returncode or not is_complete(table):
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {said.read()[-500:]}")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def summarise(rounds: Mapping[str, Sequence[Figures]]) -> dict[str, Figures]:
    """The medians of both clients, and those of the rounds' ratios, ours by the real one's."""
    real, ours = rounds["perf_analyzer"], rounds["halimede perf"]
    found = {
        client: {name: statistics.median(each[name] for each in runs) for name in runs[0]}
        for client, runs in rounds.items()
    }
    found["ratio"] = {
        name: round(statistics.median(b[name] / max(a[name], 1e-9) for a, b in zip(real, ours, strict=True)), 3)
        for name in real[0]
    }
    return found


def show(server: str, name: str, found: Mapping[str, Figures]) -> None:
    real, ours, ratio = found["perf_analyzer"], found["halimede perf"], found["ratio"]
    cells = [f"{real[key]:,.0f} / {ours[key]:,.0f} ({ratio[key]:.2f})" for key in (*COLUMNS, "client_cpu")]
    print(f"| {server} | {name} | " + " | ".join(cells) + " |", flush=True)


def third(server: Server, row: Row, seconds: float) -> float:
    """Requests a second that h2load counts, over HTTP/1.1."""
    head = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": [0.5] * 16}]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as body:
        json.dump(head, body)
        body.flush()
        url = f"http://127.0.0.1:{server.http}/v2/models/{row.model}/infer"
        load = ["-c", str(row.clients), "-D", str(max(2, round(3 * seconds)))]
        command = ["h2load", "--h1", *load, "-d", body.name, url]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT).stdout
    found = re.search(r"finished in \S+, (\S+) req/s.*\n.* (\d+) failed", said)
    if found is None or int(found[2]):
        raise RuntimeError(f"{' '.join(command)}: {said[-500:]}")
    return float(found[1])


def copy_models(repository: Path) -> None:
    """`fixed` is `slow` without batches."""
    for name, source in (("slow", "slow"), ("fixed", "slow"), ("floor", "floor")):
        shutil.copytree(MODELS / source, repository / name, ignore=shutil.ignore_patterns("__pycache__"))
    config = repository / "fixed" / "config.pbtxt"
    config.write_text(config.read_text().replace("dynamic_batching { }", ""))


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of a window (of three)")
    parser.add_argument("--row", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="NAME", help=" ".join(ROWS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--third", action="store_true", help="measure with h2load too")
    options = parser.parse_args(words)
    subprocess.run([str(ORACLE), "install"], check=True, stdout=subprocess.DEVNULL)
    document: dict[str, object] = {"cores": os.cpu_count(), "rounds": options.rounds, "seconds": options.seconds}
    print(f"cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}; cells: perf_analyzer / halimede perf (ratio)")
    print("| server | row | " + " | ".join((*COLUMNS, "client_cpu")) + " |")
    print("|---|---|" + "---:|" * (len(COLUMNS) + 1))
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        for name, command in SERVERS.items():
            repository = Path(folder) / name / "models"
            copy_models(repository)
            server = Server(name, command, repository, {"slow", "fixed", "floor"})
            try:
                settle([server])
                for row in options.row:
                    rounds: dict[str, list[Figures]] = {client: [] for client in CLIENTS}
                    for number in range(options.rounds):
                        for client in sorted(CLIENTS, reverse=bool(number % 2)):
                            rounds[client].append(measure(client, server, ROWS[row], options.seconds))
                    found = summarise(rounds)
                    show(name, row, found)
                    document[f"{name} {row}"] = {"rounds": rounds, **found}
                    if options.third and ROWS[row].protocol == "http":
                        rates = [third(server, ROWS[row], options.seconds) for _ in range(options.rounds)]
                        print(f"h2load: {statistics.median(rates):,.0f} requests a second", flush=True)
                    if options.json is not None:
                        options.json.write_text(json.dumps(document, indent=1) + "\n")
            finally:
                server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
