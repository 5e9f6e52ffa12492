"""Attacks on turns of the loop: many connections that bring one request each, and text that is slow to read.

Each test has the form of the attack, and checks the longest turn of the event loop and the delay of others.
"""

import json
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.compat.measured import LIMIT, Measured, attack, post
from tests.compat.serving import write_model
from tests.compat.test_hard_to_bring_down_transport import head
from tests.transport.http2_wire import PREFACE, data, headers, message, settings

CLIENTS = 500
LONG = 60 << 20
MAX_BYTES = 8 << 20


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("turns")
    for datatype in ("BYTES", "FP32", "BOOL"):
        write_model(folder / "models", datatype.lower(), datatype)
    with Measured(folder / "models", folder / "server.log") as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def text_of(string: bytes) -> bytes:
    start = b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],"data":["'
    return start + string + b'"]}],"parameters":{"binary_data_output":true}}'


def over_http(model: str, body: bytes, *fields: bytes) -> bytes:
    lines = [b"POST /v2/models/%b/infer HTTP/1.1" % model.encode(), b"Host: x", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*lines, *fields, b"", body])


NUMBERS = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [16_000], "data": [1] * 16_000}]}
REQUESTS = {
    "JSON": over_http("fp32", json.dumps(NUMBERS, separators=(",", ":")).encode()),
    "not UTF-8, compressed": over_http("bytes", zlib.compress(text_of(b"\xff" * 32_000)), b"Content-Encoding: deflate"),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_one_request_on_each_of_many_connections(serving: Measured, kind: str) -> None:
    def send() -> None:
        with ExitStack() as stack:
            address = "127.0.0.1", serving.http_port
            clients = [stack.enter_context(socket.create_connection(address, LIMIT)) for _ in range(CLIENTS)]
            for client in clients:
                client.sendall(REQUESTS[kind])
            for client in clients:
                assert client.recv(12) == b"HTTP/1.1 200"

    attack(serving, send)


def test_one_call_on_each_of_many_connections(serving: Measured) -> None:
    request = pb.ModelInferRequest(model_name="bool")
    request.inputs.add(name="INPUT0", datatype="BOOL", shape=[32_000]).contents.bool_contents.extend([True] * 32_000)
    whole = message(request.SerializeToString())
    frames = [headers(1, head("ModelInfer")), data(1, whole[:16_000]), data(1, whole[16_000:], end=True)]
    sent = b"".join([PREFACE, settings(), *frames])

    def send() -> None:
        with ExitStack() as stack:
            address = "127.0.0.1", serving.grpc_port
            clients = [stack.enter_context(socket.create_connection(address, LIMIT)) for _ in range(CLIENTS)]
            # All calls become complete at once.
            for part in (sent[:-1], sent[-1:]):
                time.sleep(0.5)
                for client in clients:
                    client.sendall(part)
            for client in clients:
                taken = 0
                while taken < 32_000:  # the values of the answer
                    part = client.recv(1 << 16)
                    assert part
                    taken += len(part)

    attack(serving, send)


@pytest.mark.parametrize(("size", "status"), [(MAX_BYTES // 2, 200), (LONG, 400)])
def test_long_string_that_is_not_utf8(serving: Measured, size: int, status: int) -> None:
    body = zlib.compress(text_of(b"x" * size + b"\xff"))
    path = "/v2/models/bytes/infer"
    answer, text = attack(serving, lambda: post(serving, path, body, Content_Encoding="deflate")).answer
    assert answer == status
    assert status == 200 or b"or is not UTF-8, has" in text
