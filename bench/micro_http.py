"""Measures an HTTP inference between the socket and the model: CPU time per request, in process, without a socket.

`.venv/bin/python bench/micro_http.py [ROUNDS]` serves `models/floor` (the model costs nothing) from a real engine. It
hands a connection the bytes of whole requests as a loop would, in the pieces that clients send, and prints
microseconds. The best of many short rounds counts, because other programs only ever add time.
"""

import asyncio
import gc
import json
import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import process_time_ns
from typing import TypeVar

from halimede.engine.engine import Engine
from halimede.errors import Error
from halimede.front.http.service import HttpService
from halimede.options import ServerOptions
from halimede.platform.loops import new_event_loop
from halimede.tensors import Buffer
from halimede.transport.http1.connection import Http1Connection
from halimede.transport.http1.listener import Http1Listener

A = TypeVar("A")

MODELS = Path(__file__).parent / "models"
REQUESTS = 16
"""Requests in a round. Few enough to stay within the budget of inline work of one turn."""
WARM = 64
"""Requests after which a model runs on the loop, also after a slow run."""


class NullTransport(asyncio.Transport):
    """Counts the writes and their bytes. Never pauses the writer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.bytes = 0

    def write(self, data: Buffer | memoryview) -> None:
        self.calls += 1
        self.bytes += len(data)

    def writelines(self, list_of_data: Iterable[Buffer | memoryview]) -> None:
        self.calls += 1
        self.bytes += sum(map(len, list_of_data))

    def pause_reading(self) -> None:
        """Does nothing: the round has already sent everything."""

    def resume_reading(self) -> None:
        """Does nothing: reading never stopped."""

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


def at_once(work: Callable[[], A], done: Callable[[A | Error], None], large: bool = False) -> None:
    """An `Offload` that runs the work at once, so that its CPU time counts."""
    done(work())


def request(body: bytes, head_length: int | None = None) -> bytes:
    """A request as libcurl sends it."""
    lines = [b"POST /v2/models/floor/infer HTTP/1.1", b"Host: 127.0.0.1:8000", b"User-Agent: x", b"Accept: */*"]
    if head_length is not None:
        lines.append(b"Inference-Header-Content-Length: %d" % head_length)
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


def binary(count: int) -> bytes:
    parameters = {"binary_data_size": 4 * count}
    item = {"name": "INPUT0", "datatype": "FP32", "shape": [1, count], "parameters": parameters}
    output = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [item], "outputs": [output]}, separators=(",", ":")).encode()
    return request(head + bytes(4 * count), len(head))


def text(values: Sequence[float]) -> bytes:
    item = {"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    return request(json.dumps({"inputs": [item]}, separators=(",", ":")).encode())


def any_floats(count: int) -> list[float]:
    """Finite floats of random bits, so of all magnitudes."""
    draw = random.Random(1)
    bits = (draw.getrandbits(32) for _ in range(2 * count))
    finite = (value for (value,) in (struct.unpack("f", struct.pack("I", b)) for b in bits) if abs(value) < 3e38)
    return [next(finite) for _ in range(count)]


def near_one(count: int) -> list[float]:
    draw = random.Random(1)
    return [struct.unpack("f", struct.pack("f", draw.gauss(0, 1)))[0] for _ in range(count)]


def rows() -> dict[str, list[bytes]]:
    """The requests, each in the pieces that it arrives in."""
    small, image = binary(16), binary(3 * 224 * 224)
    head = small.index(b"\r\n\r\n") + 4
    image_head = image.index(b"\r\n\r\n") + 4
    return {
        "16 floats": [small],
        "16 floats, head and body apart": [small[:head], small[head:]],
        "16 floats as JSON, any magnitude": [text(any_floats(16))],
        "16 floats as JSON, near one": [text(near_one(16))],
        "1 MB of JSON, any magnitude": [text(any_floats(45_000))],
        "1 MB of JSON, near one": [text(near_one(48_000))],
        "588 KiB": [image[:image_head], image[image_head:]],
    }


class Bench:
    """A connection to a front end over an engine, all on the running loop."""

    def __init__(self, engine: Engine) -> None:
        front = HttpService(engine, at_once, 1 << 26)
        self._transport = NullTransport()
        self._connection = Http1Connection(Http1Listener(front.handle))
        self._connection.connection_made(self._transport)

    def send(self, pieces: Sequence[bytes]) -> None:
        """Hands the pieces to the connection, each in as many reads as its buffer needs."""
        connection = self._connection
        for piece in pieces:
            at = 0
            while at < len(piece):
                room = connection.get_buffer(-1)
                count = min(len(room), len(piece) - at)
                room[:count] = piece[at : at + count] if at or count < len(piece) else piece
                connection.buffer_updated(count)
                at += count

    async def answered(self, count: int) -> bool:
        """Whether `count` answers in all are written already. Waits for them if not."""
        at_once = self._transport.calls == count
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while self._transport.calls < count:
                await asyncio.sleep(0)
        return at_once

    async def best(self, pieces: Sequence[bytes], rounds: int) -> float:
        """CPU microseconds of a request in the best of the rounds. Each round is in its own turn of the loop. A round
        does not count if an answer came only after it, because the model was slow."""
        best = sys.maxsize
        requests = REQUESTS if sum(map(len, pieces)) < 10_000 else 1
        for _ in range(rounds if requests > 1 else max(rounds // 8, 2 * WARM)):
            answers = self._transport.calls + requests
            start = process_time_ns()
            for _ in range(requests):
                self.send(pieces)
            spent = process_time_ns() - start
            if await self.answered(answers):
                best = min(best, spent)
        return best / requests / 1000

    async def warm_up(self, pieces: Sequence[bytes]) -> int:
        """Sends requests until the model runs on the loop. Returns the bytes of one answer."""
        for _ in range(WARM):
            size, answers = self._transport.bytes, self._transport.calls + 1
            self.send(pieces)
            await self.answered(answers)
        return self._transport.bytes - size


@contextmanager
def repository() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(MODELS / "floor", Path(folder, "floor"))
        yield folder


async def main(rounds: int) -> None:
    with repository() as folder:
        engine = Engine(ServerOptions(model_repositories=(folder,)), asyncio.get_running_loop())
        assert await engine.start()
        gc.collect()
        gc.freeze()  # as the server does
        bench = Bench(engine)
        print("| a request | bytes in | bytes out | us of CPU |")
        print("|---|---|---|---|")
        for name, pieces in rows().items():
            out = await bench.warm_up(pieces)
            best = await bench.best(pieces, rounds)
            print(f"| {name} | {sum(map(len, pieces)):,} | {out:,} | {best:,.1f} |", flush=True)
        await engine.stop(5)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
