"""Measures the gRPC transport alone: CPU time per call, from a client's bytes to the answer's, with a trivial service.

    python bench/micro_http2.py

The header blocks are like those of gRPC's C++ client: only indexed fields from the second call on. A new deadline
enters the table at each call; a `traceparent` is sent as a literal. `calls at once` is the number of calls in one read,
as happens under load.
"""

import time
from collections.abc import Callable
from typing import Any

import hpack

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import GrpcCall, Unary
from halimede.transport.grpc.server import GrpcServer
from halimede.transport.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    Setting,
    frame,
    settings_frame,
)

HEAD = [
    (":scheme", "http"),
    (":method", "POST"),
    (":authority", "127.0.0.1:8001"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-c++/1.54.0 grpc-c/31.0.0 (linux; chttp2)"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
]


RUNS = 20

Fields = list[tuple[str, str, bool]]
"""Name, value, and whether the field must not enter the table."""

MORE: dict[str, Callable[[int], Fields]] = {
    "constant": lambda n: [],
    "deadline": lambda n: [("grpc-timeout", f"{n}m", False)],
    "traceparent": lambda n: [("traceparent", f"00-{n:032x}-{n:016x}-01", True)],
}
"""The additional header fields of call number n."""


class Loop:
    """The part of an event loop that the transport needs. Collects callbacks and never runs timers."""

    def __init__(self) -> None:
        self.due: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def time(self) -> float:
        return time.monotonic()

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        self.due.append((callback, args))
        return None

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> Any:
        return self

    def cancel(self) -> None:
        pass

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback, args in due:
            callback(*args)


class Transport:
    """Counts the bytes that are written."""

    written, reading = 0, True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: Buffer) -> None:
        self.written += len(data)

    def writelines(self, data: list[Buffer]) -> None:
        self.written += sum(map(len, data))

    def set_write_buffer_limits(self, high: int) -> None:
        pass


def echo(message: Buffer, call: GrpcCall) -> None:
    call.send((message,))
    call.finish()


def feed(connection: Any, loop: Loop, transport: Transport, data: bytes) -> None:
    """Each read is a turn of the loop. What the server puts off to later turns is done before the next read."""
    at = 0
    while at < len(data):
        room = connection.get_buffer(-1)
        step = min(len(room), len(data) - at)
        room[:step] = data[at : at + step]
        connection.buffer_updated(step)
        at += step
        loop.turn()
        while not transport.reading:
            loop.turn()


def per_call(at_once: int, message: bytes, more: Callable[[int], Fields], calls: int) -> float:
    """CPU microseconds per call, the best of `RUNS` runs."""
    best = float("inf")
    for _ in range(RUNS):
        loop, transport = Loop(), Transport()
        server = GrpcServer({HEAD[3][1]: Unary(echo)}, loop=loop)
        connection: Any = server.connect()
        connection.connection_made(transport)
        settings = {Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}
        feed(
            connection,
            loop,
            transport,
            PREFACE + settings_frame(settings) + frame(8, 0, 0, (2**31 - 1 - 65535).to_bytes(4)),
        )
        encoder = hpack.Encoder()
        body = b"\0" + len(message).to_bytes(4) + message
        reads = []
        for first in range(0, calls, at_once):
            pieces = []
            for n in range(first, first + at_once):
                block = encoder.encode([*HEAD, *more(n)], huffman=False)
                pieces.append(frame(HEADERS, END_HEADERS, 2 * n + 1, block))
                pieces.append(frame(DATA, END_STREAM, 2 * n + 1, body))
            reads.append(b"".join(pieces))
        began = time.process_time()
        for read in reads:
            feed(connection, loop, transport, read)
            connection.out.window = 2**31 - 1
        best = min(best, (time.process_time() - began) / calls * 1e6)
        assert transport.written > calls * len(body), "not every call was answered"
    return best


def main() -> None:
    print("| calls at once | message, bytes | head | us of CPU per call |")
    print("|---:|---:|---|---:|")
    rows = [(at_once, 160, head) for head in MORE for at_once in (1, 8, 32)]
    for at_once, size, head in [*rows, (1, 602112, "constant")]:
        count = 64 if size > 100000 else 6400
        print(f"| {at_once} | {size} | {head} | {per_call(at_once, bytes(size), MORE[head], count):.1f} |", flush=True)


if __name__ == "__main__":
    main()
