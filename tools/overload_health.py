"""Asks a loaded server for its health, and tells whose time each answer took: the server's, or the machine's.

On a machine with fewer cores than busy processes a question also takes as long as the server's thread, or whoever asks,
waits for a core. Linux tells how long that was (`/proc/PID/task/TID/schedstat`: time on a core, time spent waiting for
one, in nanoseconds). The rest is the server's own: the turn that its event loop was in, and what it waited for itself.
"""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

ASK_EVERY = 0.02
"""Seconds between questions."""
PATIENCE = 20.0
SHOWN = 5
_QUESTION = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, in seconds. `server_ran` and `server_waited` are of the server's event loop: on a core, and ready
    but without one; `asker_waited` is the latter of whoever asked. `fresh`: on a new connection, as probes do."""

    at: float
    fresh: bool
    took: float
    server_ran: float
    server_waited: float
    asker_waited: float

    @property
    def own(self) -> float:
        """The server's part: what is left without the waiting for cores, and no less than it ran meanwhile, since the
        waiting may have begun before the question."""
        return max(self.took - self.server_waited - self.asker_waited, min(self.server_ran, self.took), 0.0)


@dataclass(frozen=True, slots=True)
class Health:
    """In milliseconds: of all answers, of those on a new connection, of the server's part of all, of the rest, which is
    waiting for cores; and the slowest answers with their parts."""

    questions: int
    all_ms: dict[str, float]
    fresh_ms: dict[str, float]
    server_ms: dict[str, float]
    machine_ms: dict[str, float]
    slowest: list[str]


def ask_for_health(port: int, process: int, stop: Connection, answers: Connection) -> None:
    """Asks until it is told to stop, one time on a connection that it keeps, the next on a new one; sends what it
    found. `process` is the server. A process of its own."""
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
    """Of one thread: seconds on a core and seconds waiting for one. Zeros where the system does not tell."""

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
        slowest=[_told(each) for each in sorted(asked, key=lambda each: each.took, reverse=True)[:SHOWN]],
    )


def _told(asked: Asked) -> str:
    return (
        f"{asked.took * 1e3:.1f} ms after {asked.at:.2f} s{' (new connection)' if asked.fresh else ''}: the server ran "
        f"{asked.server_ran * 1e3:.1f} and waited {asked.server_waited * 1e3:.1f} for a core, the asker "
        f"{asked.asker_waited * 1e3:.1f}"
    )


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(seconds) or [0.0]
    at = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items()}
    return {name: round(value * 1e3, 2) for name, value in {**found, "max": ordered[-1]}.items()}
