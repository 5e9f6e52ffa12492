"""Attacks on what the first ones left: shared memory, sizes below a limit, many small things, many connections.

Each test has the form of the attack, and checks the longest turn of the event loop, the delay of others, and memory.
"""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.compat.measured import LIMIT, Measured, attack, infer, post
from tests.compat.serving import write_held_model, write_model
from tests.compat.test_hard_to_bring_down_transport import connection, head
from tests.transport.http2_wire import data, headers, message

MIB = 1 << 20
HELD_BYTES = 128 * MIB
"""`--max-buffered-bytes` of the server."""
REGION_BYTES = 256 * MIB
SMALL_BYTES = 32_000
"""Size of JSON that the event loop still reads."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("again")
    for name, datatype in (("bytes", "BYTES"), ("int32", "INT32"), ("loaded", "INT32")):
        write_model(folder / "models", name, datatype)
    write_held_model(folder / "models")
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true")
    with Measured(
        folder / "models",
        folder / "server.log",
        *flags,
        f"--max-buffered-bytes={HELD_BYTES}",
        "--unread-timeout-secs=600",
    ) as made:
        yield made.wait_until_live()
        (folder / "models" / "held" / "go").touch()
        assert made.stop() == 0


# Shared memory.


@pytest.fixture(scope="module")
def region(serving: Measured) -> Iterator[str]:
    memory = SharedMemory(create=True, size=REGION_BYTES)
    body = json.dumps({"key": f"/{memory.name}", "offset": 0, "byte_size": REGION_BYTES}).encode()
    assert post(serving, "/v2/systemsharedmemory/region/r/register", body)[0] == 200
    try:
        yield "r"
    finally:
        memory.close()
        memory.unlink()


def in_region(model: str, datatype: str, elements: int, size: int, output: dict[str, Any]) -> tuple[str, bytes]:
    place = {"shared_memory_region": "r", "shared_memory_byte_size": size}
    tensor = {"name": "INPUT0", "shape": [elements], "datatype": datatype, "parameters": place}
    document = {"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": output}]}
    return f"/v2/models/{model}/infer", json.dumps(document).encode()


def test_many_strings_in_shared_memory(serving: Measured, region: str) -> None:
    count = 4 * MIB
    path, body = in_region("bytes", "BYTES", count, 4 * count, {"binary_data": True})
    attacked = attack(serving, lambda: post(serving, path, body))
    status, answer = attacked.answer
    assert status == 200
    assert answer.endswith(bytes(4 * count))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_large_input_in_shared_memory_that_is_sent_back(serving: Measured, region: str, protocol: str) -> None:
    size = REGION_BYTES // 2
    if protocol == "http":
        path, body = in_region("int32", "INT32", size // 4, size, {"binary_data": True})
        assert attack(serving, lambda: post(serving, path, body)[0]).answer == 200
        return
    request = pb.ModelInferRequest(model_name="int32")
    tensor = request.inputs.add(name="INPUT0", datatype="INT32", shape=[size // 4])
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = size
    text = request.SerializeToString()
    assert attack(serving, lambda: infer(serving, text, grpc.Compression.NoCompression)).answer == ("OK", "")


# As large as the event loop takes.

_DATA = b'{"inputs":[{"name":"INPUT0","shape":[5],"datatype":"%b","data":['
SMALL: dict[str, tuple[str, bytes, Sequence[bytes], bytes]] = {
    "lists": ("/v2/models/int32/infer", _DATA % b"INT32", [b"[1]"], b"]}]}"),
    "nested lists": ("/v2/models/int32/infer", _DATA % b"INT32", [b"[[[[1]]]]"], b"]}]}"),
    "strings": ("/v2/models/bytes/infer", _DATA % b"BYTES", [b'""'], b"]}]}"),
    "parameters": (
        "/v2/models/int32/infer",
        b'{"inputs":[],"parameters":{',
        [b'"%d":1' % n for n in range(4000)],
        b"}}",
    ),
    "equal keys": ("/v2/models/int32/infer", b'{"inputs":[],"parameters":{', [b'"a":1'], b"}}"),
    "generate": ("/v2/models/bytes/generate", b'{"INPUT0":[', [b'""'], b"]}"),
    "trace levels": ("/v2/trace/setting", b'{"trace_level":[', [b'"OFF"'], b"]}"),
}


@pytest.mark.parametrize("kind", SMALL)
def test_json_as_large_as_the_loop_takes(serving: Measured, kind: str) -> None:
    path, start, elements, end = SMALL[kind]
    if len(elements) == 1:
        elements = [*elements] * (SMALL_BYTES // (len(elements[0]) + 1))
    body = start + b",".join(elements)[:SMALL_BYTES].rpartition(b",")[0] + end
    attack(serving, lambda: [post(serving, path, body)[0] for _ in range(20)])


def test_load_with_many_parameters(serving: Measured) -> None:
    parameter = b"\x0a\x09file:%04d\x12\x00"
    text = b"\x12\x01x" + b"".join(b"\x1a\x0d" + parameter % number for number in range(4200))

    def send() -> None:
        with grpc.insecure_channel(serving.grpc_url) as channel:
            path = "/inference.GRPCInferenceService/RepositoryModelLoad"
            call = channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
            for _ in range(10):
                with pytest.raises(grpc.RpcError, match="invalid value type for load parameter"):
                    call(text, timeout=LIMIT)

    attack(serving, send)


_TENSOR = {"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}
_ZEROS = {"INPUT0": {"data_type": "TYPE_INT32", "dims": [1], "zero_data": True}}
HUGE: dict[str, tuple[dict[str, Any], str]] = {
    "instances": ({"instance_group": [{"count": 2**31 - 1}]}, "--max-instances"),
    "groups": ({"instance_group": [{"count": 1}] * 50_000}, "failed to poll from model repository"),
    "warm-up samples": (
        {"model_warmup": [{"name": "w", "batch_size": 1, "count": 2**31 - 1, "inputs": _ZEROS}]},
        "--max-warmup-samples",
    ),
    "warm-up requests": (
        {"max_batch_size": 1 << 30, "model_warmup": [{"name": "w", "batch_size": 2**31 - 1, "inputs": _ZEROS}]},
        "--max-warmup-samples",
    ),
    "parameters": (
        {"parameters": {str(number): {"string_value": ""} for number in range(50_000)}},
        "failed to poll from model repository",
    ),
    "dimensions": ({"input": [{**_TENSOR, "dims": [1] * 200_000}]}, "failed to poll from model repository"),
}
"""Changes of a configuration that ask for much, and what the refusal says. Of the text itself the log says why."""


@pytest.mark.parametrize("kind", HUGE)
def test_loads_of_a_huge_configuration(serving: Measured, kind: str) -> None:
    change, named = HUGE[kind]
    config = {
        "backend": "identity",
        "input": [_TENSOR],
        "output": [{**_TENSOR, "name": "OUTPUT0"}],
        **change,
    }
    body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
    path = "/v2/repository/models/loaded/load"

    def send() -> tuple[int, bytes]:
        # Clients that do not wait.
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", serving.http_port), LIMIT) as client:
                client.sendall(b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body))
        return post(serving, path, body)

    attacked = attack(serving, send)
    status, answer = attacked.answer
    assert (status in (400, 500), named.encode() in answer) == (True, True), answer[:300]
    assert attacked.peak < HELD_BYTES
    assert post(serving, "/v2/repository/models/loaded/unload", b"{}")[0] == 200
    assert post(serving, path, b"{}")[0] == 200


# Many small things.


def test_many_streams_that_end_at_once(serving: Measured) -> None:
    opened = b"".join(headers(stream, head("ModelStreamInfer")) for stream in range(1, 2001, 2))

    def send() -> None:
        with ExitStack() as stack:
            for _ in range(10):
                stack.enter_context(connection(serving)).sendall(opened)
            time.sleep(2.0)

    attacked = attack(serving, send)
    assert attacked.peak < 64 * MIB


@pytest.mark.parametrize("missing", [pytest.param(1, id="messages"), pytest.param(0, id="calls with whole messages")])
def test_small_messages_that_never_end_are_bounded(serving: Measured, missing: int) -> None:
    begun = message(bytes(60_000), size=60_000 + missing)

    def send() -> int:
        with ExitStack() as stack:
            for _ in range(10):
                client = stack.enter_context(connection(serving))
                # The server stops reading from this client, or ends it.
                client.settimeout(1.0)
                with suppress(OSError):
                    for stream in range(1, 2001, 2):
                        frames = [data(stream, begun[at : at + 15_000]) for at in range(0, len(begun), 15_000)]
                        client.sendall(headers(stream, head("ModelInfer")) + b"".join(frames))
            return serving.memory()

    before = serving.memory()
    held = attack(serving, send).answer
    # Each connection may bring 4 MiB, and a window of a stream, before it is counted.
    assert held - before < 2 * HELD_BYTES
    assert post(serving, "/v2/models/int32/infer", b"{}")[0] in (500, 503)
    serving.until(lambda: post(serving, "/v2/models/int32/infer", b"{}")[0] == 500, "still holds the messages")


def test_many_requests_of_streams_for_a_model_that_is_busy(serving: Measured) -> None:
    request = pb.ModelInferRequest(model_name="held")
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    request.raw_input_contents.append(bytes(4))
    batch = message(request.SerializeToString()) * 200

    def send() -> None:
        with connection(serving) as client:
            client.settimeout(2.0)
            with suppress(OSError):
                for stream in range(1, 41, 2):
                    client.sendall(headers(stream, head("ModelStreamInfer")))
                    for _ in range(50):
                        client.sendall(data(stream, batch))
                        time.sleep(0.002)
            time.sleep(2.0)

    attacked = attack(serving, send)
    # 200,000 requests would take half a gigabyte and more.
    assert attacked.peak < 3 * HELD_BYTES
    assert serving.status("/v2/health/live") == 200


def test_slow_readers_are_bounded(serving: Measured) -> None:
    size = 4 * MIB
    text = b'{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"INT32","parameters":{"binary_data_size":%d}}],' % (
        *(size // 4, size),
    )
    text += b'"parameters":{"binary_data_output":true}}'
    fields = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(text), len(text) + size)
    request = b"POST /v2/models/int32/infer HTTP/1.1\r\n" + fields + text + bytes(size)

    def send() -> int:
        clients: list[socket.socket] = []
        try:
            for _ in range(60):
                client = socket.create_connection(("127.0.0.1", serving.http_port), LIMIT)
                clients.append(client)
                client.settimeout(1.0)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                with suppress(OSError):
                    client.sendall(request)
            time.sleep(1.0)
            return serving.memory()
        finally:
            for client in clients:
                client.close()

    before = serving.memory()
    assert attack(serving, send).answer - before < 2 * HELD_BYTES


def test_two_thousand_connections(serving: Measured) -> None:
    def send() -> int:
        clients = [socket.create_connection(("127.0.0.1", serving.http_port), LIMIT) for _ in range(2000)]
        try:
            for client in clients[::20]:
                client.sendall(b"GET /v2/health/live HTTP/1.1\r\n\r\n")
            return sum(client.recv(100).startswith(b"HTTP/1.1 200") for client in clients[::20])
        finally:
            for client in clients:
                client.close()

    attacked = attack(serving, send)
    assert attacked.answer == 100
    assert attacked.peak < 32 * MIB
