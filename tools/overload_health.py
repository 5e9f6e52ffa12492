"""Probes the health of a server under load, and splits the time of each answer into the server's and the machine's.

On a machine with fewer cores than busy processes, an answer also takes the time for which the server's thread or the
prober wait for a core. Linux reports that time in `/proc/PID/task/TID/schedstat`: nanoseconds on a core, and
nanoseconds ready without one. The rest is the server's own: the current turn of its event loop, and its own waiting.
"""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

ASK_EVERY = 0.02
"""Seconds between two probes."""
PATIENCE = 20.0
"""Seconds until a socket operation fails."""
SHOWN = 5
"""Slowest answers in a report."""
_QUESTION = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """One probe; times are in seconds. `server_ran` is the time of the server's event loop on a core, `server_waited`
    its time ready without a core, `asker_waited` that of the prober. `fresh`: on a new connection, as kubelet does."""

    at: float
    fresh: bool
    took: float
    server_ran: float
    server_waited: float
    asker_waited: float

    @property
    def own(self) -> float:
        """The server's part: the time without waiting for cores, but at least the time that the server ran.

        The waiting may have begun before the probe, so the difference alone can be too small."""
        return max(self.took - self.server_waited - self.asker_waited, min(self.server_ran, self.took), 0.0)


@dataclass(frozen=True, slots=True)
class Health:
    """Percentiles in milliseconds: of all answers (`all_ms`), of those on a new connection (`fresh_ms`), of the
    server's part (`server_ms`) and of waiting for cores (`machine_ms`). `slowest` describes the slowest answers."""

    questions: int
    all_ms: dict[str, float]
    fresh_ms: dict[str, float]
    server_ms: dict[str, float]
    machine_ms: dict[str, float]
    slowest: list[str]


def ask_for_health(port: int, process: int, stop: Connection, answers: Connection) -> None:
    """Probes until `stop` has a message, alternately on a kept connection and on a new one. Then sends its list of
    `Asked` to `answers`. `process` is the pid of the server. Runs in a process of its own."""
    asked: list[Asked] = []
    server, own = _Waits(f"{process}/task/{process}"), _Waits("thread-self")
    began = time.perf_counter()
    kept = socket.create_connection(("127.0.0.1", port), PATIENCE)
    while not stop.poll(ASK_EVERY):
        fresh = len(asked) % 2 == 1
        ran, waited, starved = *server.seconds(), own.seconds()[1]
        start = time.perf_counter()
        client = socket.create_connection(("127.0.0.1", port), PATIENCE) if fresh else kept
        client.sendall(_QUESTION)
        well = client.recv(4096).startswith(b"HTTP/1.1 200 ")
        took = time.perf_counter() - start
        ran_by, waited_by, starved_by = *server.seconds(), own.seconds()[1]
        if fresh:
            client.close()
        if not well:
            break
        asked.append(Asked(start - began, fresh, took, ran_by - ran, waited_by - waited, starved_by - starved))
    answers.send(asked)


class _Waits:
    """Reads the seconds that a thread was on a core, and ready without one. Zeros if the system has no schedstat."""

    def __init__(self, thread: str) -> None:
        self._path = Path("/proc") / thread / "schedstat"

    def seconds(self) -> tuple[float, float]:
        try:
            ran, waited, _ = self._path.read_text().split()
        except OSError:
            return 0.0, 0.0
        return int(ran) / 1e9, int(waited) / 1e9


def health_of(asked: Sequence[Asked]) -> Health:
    return Health(
        questions=len(asked),
        all_ms=spread([each.took for each in asked]),
        fresh_ms=spread([each.took for each in asked if each.fresh]),
        server_ms=spread([each.own for each in asked]),
        machine_ms=spread([each.took - each.own for each in asked]),
        slowest=[_described(each) for each in sorted(asked, key=lambda each: each.took, reverse=True)[:SHOWN]],
    )


def _described(asked: Asked) -> str:
    return (
        f"{asked.took * 1e3:.1f} ms after {asked.at:.2f} s{' (new connection)' if asked.fresh else ''}: the server ran "
        f"{asked.server_ran * 1e3:.1f} ms and waited {asked.server_waited * 1e3:.1f} ms for a core, the prober waited "
        f"{asked.asker_waited * 1e3:.1f} ms"
    )


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles and the maximum, in milliseconds."""
    ordered = sorted(seconds) or [0.0]
    at = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items()}
    return {name: round(value * 1e3, 2) for name, value in {**found, "max": ordered[-1]}.items()}
