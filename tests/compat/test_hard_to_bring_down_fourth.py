"""Attacks of a fourth round: bytes that are announced and do not come, and questions about all of many models.

Each test has the form of the attack, and checks the longest turn of the event loop, the delay of others, and memory.
"""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from gzip import compress
from multiprocessing.shared_memory import SharedMemory

import pytest

from tests.compat.measured import LIMIT, Measured, attack, post
from tests.compat.serving import write_model
from tests.compat.test_hard_to_bring_down_third import accepts
from tests.compat.test_hard_to_bring_down_transport import connection, head
from tests.transport.http2_wire import data, headers

MIB = 1 << 20
HELD_BYTES = 128 * MIB
"""`--max-buffered-bytes` of the server."""
MODELS = 400
REGIONS = 2000
SCRAPE_TURN_SECONDS = 0.025
"""CPU time of a turn during scrapes. In one turn they would take 40 ms."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("fourth")
    models = folder / "models"
    for name in ("uint8", *[f"more_{number}" for number in range(MODELS)]):
        write_model(models, name, "UINT8")
    flags = f"--max-buffered-bytes={HELD_BYTES}", "--allow-client-shm=true"
    with Measured(models, folder / "server.log", *flags) as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def test_messages_of_which_only_the_start_arrives(serving: Measured) -> None:
    """Each announces 65,280 bytes and brings one."""
    streams = range(1, 2001, 2)
    start = b"".join(headers(n, head("ModelStreamInfer")) + data(n, b"\0\0\0\xff\0x") for n in streams)

    def send() -> None:
        with ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(connection(serving)).sendall(start)
            time.sleep(3.0)
            assert accepts(serving), "what was announced counts"

    assert attack(serving, send).peak < 160 * MIB


@pytest.mark.parametrize(
    "line", [b"GET /v2/models/stats", b"POST /v2/repository/index", b"GET /v2/health/ready"], ids=lambda line: line[4:]
)
def test_many_clients_that_ask_about_many_models(serving: Measured, line: bytes) -> None:
    request = line + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"

    def send() -> None:
        with ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(("127.0.0.1", serving.http_port), LIMIT))
                for _ in range(150)
            ]
            for client in clients:
                client.sendall(request)
            for client in clients:
                assert client.recv(64).startswith(b"HTTP/1.1 200")
            time.sleep(1.0)

    attack(serving, send)


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
def test_scrapes_of_many_models(serving: Measured, accept: str) -> None:
    """A scrape takes longer than a turn of the loop may take."""

    def scrape(client: socket.socket) -> bytes:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: %b\r\n\r\n" % accept.encode())
        return b"".join(iter(lambda: client.recv(1 << 20), b""))

    def send() -> list[bytes]:
        with ExitStack() as stack:
            address = "127.0.0.1", serving.metrics_port
            clients = [stack.enter_context(socket.create_connection(address, LIMIT)) for _ in range(10)]
            return [scrape(client) for client in clients]

    for text in attack(serving, send).answer:
        assert text.count(b"\nnv_inference_count{") == MODELS + 1
    assert serving.longest_turn < SCRAPE_TURN_SECONDS


def test_status_of_many_regions(serving: Measured) -> None:
    segment = SharedMemory(create=True, size=64)
    try:
        body = json.dumps({"key": f"/{segment.name}", "offset": 0, "byte_size": 64}).encode()
        for number in range(REGIONS):
            path = f"/v2/systemsharedmemory/region/{number}{'x' * 200}/register"
            assert post(serving, path, body)[0] == 200

        def send() -> None:
            with ExitStack() as stack:
                for _ in range(10):
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", serving.http_port), LIMIT))
                    client.sendall(b"GET /v2/systemsharedmemory/status HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
                time.sleep(3.0)

        attack(serving, send)
        assert post(serving, "/v2/systemsharedmemory/unregister", b"")[0] == 200
    finally:
        segment.close()
        segment.unlink()


def test_small_compressed_request_while_others_send_large_ones(serving: Measured) -> None:
    count = 30 * MIB
    text = b'{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"UINT8","data":[%b1]}]}'
    large = compress(text % (count, b"1," * (count - 1)))
    small = compress(text % (100_000, b"1," * 99_999))
    fields = b"Host: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(large)
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", serving.http_port), LIMIT))
            client.sendall(b"POST /v2/models/uint8/infer HTTP/1.1\r\n" + fields + large)
        begun = time.monotonic()
        status, _ = post(serving, "/v2/models/uint8/infer", small, Content_Encoding="gzip")
        took = time.monotonic() - begun
    assert (status, took < 10) == (200, True), f"{status} after {took:.1f} s"
