"""`halimede serve` whose turns of the event loop are measured, and its memory, while it is attacked.

Delays of others are compared with those of the same server without an attack, because the machine may be busy.
"""

import http.client
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from tests.compat.serving import Serving
from tools.turns import Longest

TURN_SECONDS = 0.1
"""Allowed time of a turn of the event loop, in CPU time. A client may hold the loop for 5 ms on a machine at rest; here
others may use the same cores, the server may be pure Python, and the kernel takes long to find pages."""
LIMIT = 120.0
PLAIN_SECONDS = 1.0
DELAY_SECONDS = 0.4
"""Allowed delay of a health request."""
PLAIN_FACTOR = 10
"""Allowed delay in delays without an attack."""
INFER = "/inference.GRPCInferenceService/ModelInfer"


class Measured(Serving):
    """A server. `longest_turn` is the longest turn of its loop since `reset`, in seconds of the loop's own CPU time."""

    def __init__(self, repository: Path, log: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        self._file = log.with_suffix(".turns")
        self._longest = Longest(self._file)
        super().__init__(repository, log, *flags, environment=environment)

    def command(self, repository: Path) -> Sequence[str]:
        _, _, _, *rest = super().command(repository)
        return (*self.program(), str(self._file), "--places", *rest)

    def program(self) -> Sequence[str]:
        return sys.executable, "-m", "tools.turns"

    @property
    def longest_turn(self) -> float:
        return self._longest.ns / 1e9

    def check_turns(self) -> None:
        """Checks that no turn since `reset` was too long. The log says what the loop did."""
        took = self.longest_turn
        turns = [line for line in self.log_text().splitlines() if line.startswith("a turn took")]
        turns.sort(key=lambda line: float(line.split()[3]))
        assert took < TURN_SECONDS, f"the event loop was held for {took:.3f} s; {turns[-2:]}"

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes of memory now, or the most since `reset` (`VmHWM`)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(what):
                return int(line.split()[1]) << 10
        raise AssertionError(f"no {what}")

    def reset(self) -> None:
        """Forgets the longest turn and the most memory so far."""
        self._longest.ns = 0
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


class Health(threading.Thread):
    """Asks for the server's health again and again. `longest` is the longest time to an answer, in seconds."""

    def __init__(self, serving: Measured) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection(serving.http_url, timeout=LIMIT)
        self._ended = threading.Event()
        self.longest = 0.0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self._ended.wait(0.002):
                began = time.monotonic()
                self._connection.request("GET", "/v2/health/live")
                answer = self._connection.getresponse()
                answer.read()
                assert answer.status == 200
                self.longest = max(self.longest, time.monotonic() - began)
        except Exception as error:
            self.failure = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(LIMIT)
        self._connection.close()
        if self.failure is not None:
            raise self.failure


@dataclass
class Attacked:
    answer: Any
    peak: int
    """Bytes of memory that the attack added for a moment."""
    kept: int
    """Bytes that are left of it."""


def attack(serving: Measured, send: Callable[[], Any], turns: bool = True, delay: float = DELAY_SECONDS) -> Attacked:
    """Sends the attack while others ask for the server's health, and checks their longest wait, which may be longer by
    `delay` than without the attack."""
    with Health(serving) as plain:
        time.sleep(PLAIN_SECONDS)
    serving.reset()
    before = serving.memory()
    with Health(serving) as attacked:
        answer = send()
    allowed = delay + PLAIN_FACTOR * plain.longest
    assert attacked.longest < allowed, f"health was delayed by {attacked.longest:.2f} s, without attack {plain.longest}"
    if turns:
        serving.check_turns()
    return Attacked(answer, serving.memory("VmHWM") - before, serving.memory() - before)


def infer(serving: Measured, message: bytes, compression: grpc.Compression | None) -> tuple[str, str]:
    """Status and text of a ModelInfer call with these bytes."""
    with grpc.insecure_channel(serving.grpc_url, [("grpc.max_receive_message_length", -1)]) as channel:
        call = channel.unary_unary(INFER, request_serializer=bytes, response_deserializer=bytes)
        try:
            call(message, timeout=LIMIT, compression=compression)
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
    return "OK", ""


def post(serving: Measured, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(serving.http_url, timeout=LIMIT)
    try:
        connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
