"""Attacks on the transport of a running server: memory is returned without the garbage collector, and health checks of
others are answered meanwhile. The times are compared with those of the same server before the attack."""

import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from gzip import compress
from pathlib import Path

import pytest
from hpack.hpack import encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from tritonclient.grpc import service_pb2 as pb

from tests.compat.measured import Measured
from tests.compat.serving import write_model
from tests.transport.http2_wire import PREFACE, data, headers, message, settings

WAIT = 60.0
MIB = 1 << 20
ATTACK_SECONDS = 3.0
MAX_DELAY_SECONDS = 0.25
"""Of the slowest health check but a few, besides ten times that of a server at rest. Each attack made it seconds."""
SERVE = "import gc; gc.disable(); from tools.turns import main; main()"


class Uncollected(Measured):
    """A server without a garbage collector, except for its own collections at the start."""

    def program(self) -> Sequence[str]:
        return sys.executable, "-c", SERVE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("attacked")
    write_model(folder / "models", "m", "UINT8")
    with Uncollected(folder / "models", folder / "server.log") as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def resident(server: Measured, what: str = "VmRSS") -> int:
    """MiB."""
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) // 1024
    raise AssertionError(f"no {what}")


def settled(server: Measured, most: int) -> int:
    """MiB, after the server has had time to get below `most`."""
    limit = time.monotonic() + WAIT
    while (size := resident(server)) > most and time.monotonic() < limit:
        time.sleep(0.05)
    return size


def delays(server: Measured, holds: Callable[[], bool]) -> list[float]:
    """The times of health checks on a kept connection while something holds, at least twenty."""
    found: list[float] = []
    with socket.create_connection(("127.0.0.1", server.http_port), WAIT) as connection:
        while holds() or len(found) < 20:
            begun = time.perf_counter()
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            found.append(time.perf_counter() - begun)
            time.sleep(0.005)
    return found


def check_delays(server: Measured, attack: Callable[[], object]) -> None:
    """Runs an attack on another thread, and asks for the server's health meanwhile."""
    plain = delays(server, lambda: False)
    server.reset()
    thread = threading.Thread(target=attack, daemon=True)
    thread.start()
    found = delays(server, thread.is_alive)
    server.check_turns()
    slow = statistics.quantiles(found, n=20)[-1]
    assert slow < MAX_DELAY_SECONDS + 10 * max(plain), f"{slow} s, at rest {max(plain)} s"


def broken_upload(port: int, path: str, size: int) -> None:
    with socket.create_connection(("127.0.0.1", port), WAIT) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {10 * size}\r\n\r\n".encode())
        client.sendall(bytes(size))


@pytest.mark.parametrize("path", ["/nope", "/v2/health/live", "/v2/models/m/infer", "metrics"])
def test_broken_uploads_leave_no_memory(server: Measured, path: str) -> None:
    before = resident(server)
    port, path = (server.metrics_port, "/metrics") if path == "metrics" else (server.http_port, path)
    for _ in range(10):
        broken_upload(port, path, 50 * MIB)
    assert settled(server, before + 100) <= before + 100
    assert server.status("/v2/health/live") == 200


# gRPC by hand.

HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def literal(name: bytes, value: bytes, coded: bool = False) -> bytes:
    text = HUFFMAN.encode(value) if coded else value
    length = encode_integer(len(text), 7)
    length[0] |= 0x80 if coded else 0
    return b"\x00" + bytes(encode_integer(len(name), 7)) + name + bytes(length) + text


def head(rpc: str, *more: bytes) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/inference.GRPCInferenceService/{rpc}",
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join([*(literal(name.encode(), value.encode()) for name, value in fields.items()), *more])


@contextmanager
def connection(server: Measured) -> Iterator[socket.socket]:
    """A gRPC client that reads and discards what the server writes."""
    with socket.create_connection(("127.0.0.1", server.grpc_port), WAIT) as client:
        client.sendall(PREFACE + settings())

        def read() -> None:
            with suppress(OSError):
                while client.recv(MIB):
                    pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield client
        finally:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            reader.join(WAIT)


def flood(server: Measured, frames_of: Callable[[int], bytes]) -> None:
    """Sends the frames of one stream after the other, at 5 MB/s at most."""
    begun, sent, stream = time.monotonic(), 0, 1
    with connection(server) as client, suppress(OSError):
        while (passed := time.monotonic() - begun) < ATTACK_SECONDS:
            raw = frames_of(stream)
            client.sendall(raw)
            sent, stream = sent + len(raw), stream + 2
            time.sleep(max(0.0, sent / 5e6 - passed))


@pytest.mark.parametrize("prefix", [b"", b"\x3f\xe1\x1f"], ids=["", "after a table size update"])
def test_huffman_coded_values(server: Measured, prefix: bytes) -> None:
    block = prefix + head("ServerLive", literal(b"x", b"0" * 59_000, True))
    check_delays(server, lambda: flood(server, lambda stream: headers(stream, block, end=True)))


def test_many_short_metadata(server: Measured) -> None:
    block = head("ServerLive", *(literal(b"%d" % number, b"") for number in range(400)))
    check_delays(server, lambda: flood(server, lambda stream: headers(stream, block, end=True)))


def infer(size: int) -> bytes:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[size])
    request.raw_input_contents.append(bytes(size))
    return message(request.SerializeToString())


def test_compressed_messages_in_a_queue(server: Measured) -> None:
    packed = message(compress(bytes(250_000)), compressed=1)

    def attack() -> None:
        with connection(server) as client:
            stream = head("ModelStreamInfer", literal(b"grpc-encoding", b"gzip"))
            client.sendall(headers(1, stream) + data(1, packed * 40) * 100)
            time.sleep(ATTACK_SECONDS)

    check_delays(server, attack)


def test_pipelined_requests_without_end(server: Measured) -> None:
    def attack() -> None:
        with socket.create_connection(("127.0.0.1", server.http_port), WAIT) as client:
            client.settimeout(0.2)
            begun = time.monotonic()
            while time.monotonic() - begun < ATTACK_SECONDS:
                with suppress(TimeoutError):
                    client.sendall(b"GET /v2/health/live HTTP/1.1\r\n\r\n" * 1000)
                with suppress(TimeoutError):
                    client.recv(MIB)

    check_delays(server, attack)


def test_unfinished_heads_take_little_memory(server: Measured) -> None:
    fields = b"".join(b"%x:b\r\n" % number for number in range(130_000))[:MIB]
    before = resident(server)
    clients = [socket.create_connection(("127.0.0.1", server.http_port), WAIT) for _ in range(60)]
    try:
        for client in clients:
            with suppress(OSError):
                client.sendall(b"GET / HTTP/1.1\r\n" + fields)
        assert clients[0].recv(100).startswith(b"HTTP/1.1 431 Request Header Fields Too Large")
        assert settled(server, before + 60) <= before + 60
    finally:
        for client in clients:
            client.close()


def test_answers_of_streams_that_are_not_read_leave_no_memory(server: Measured) -> None:
    before = resident(server)
    with connection(server) as client:
        for stream in range(1, 61, 2):
            parts = infer(MIB)
            client.sendall(headers(stream, head("ModelStreamInfer")))
            for at in range(0, 3 * len(parts), 16_000):
                client.sendall(data(stream, (parts * 3)[at : at + 16_000]))
        server.until(lambda: resident(server) > before + 50, "took no messages")
    assert settled(server, before + 60) <= before + 60
    assert server.status("/v2/health/live") == 200


def test_large_administrative_message_is_refused(server: Measured) -> None:
    with socket.create_connection(("127.0.0.1", server.grpc_port), WAIT) as client:
        client.sendall(PREFACE + settings() + headers(1, head("TraceSetting")))
        client.sendall(data(1, struct.pack(">BI", 0, 3 * MIB) + bytes(1000)))
        received = b""
        while b"Received message larger than max" not in received:
            more = client.recv(MIB)
            assert more, "closed without an answer"
            received += more


def test_bad_prefaces_are_logged_once_a_second(server: Measured) -> None:
    begun = time.monotonic()
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", server.grpc_port), WAIT) as client, suppress(OSError):
            client.sendall(b"GET / HTTP/1.1\r\nHost: \x1b[31m\xe2\x80\xae\xc2\x9b\r\n\r\n")
            client.recv(MIB)
    seconds = time.monotonic() - begun
    server.until_logged("bad connection preface")
    lines = [line for line in server.log_text().splitlines() if "bad connection preface" in line]
    assert len(lines) <= seconds + 2
    assert all(character.isprintable() for line in lines for character in line)
