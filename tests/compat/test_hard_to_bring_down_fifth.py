"""Attacks of a fifth round: work that falls to the loop in one turn, because many wait for one answer or begin at once.

Each test has the form of the attack, and checks the longest turn of the event loop, the delay of others, and memory.
"""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.compat.measured import LIMIT, Measured, attack
from tests.compat.serving import write_model
from tests.compat.test_hard_to_bring_down_transport import connection, head
from tests.transport.certificates import certificates
from tests.transport.http2_wire import data, headers, message

MODELS = 190
"""So few that the loop writes an answer about all of them."""
CLIENTS = 500
TURN_SECONDS = 0.03
"""CPU time of a turn. Those who waited for one answer got it in a turn of two seconds, 600 handshakes took 0.3 s."""
ITERATIONS = 500_000
SIZE = 40_000_000
"""Elements of a tensor of 320 MB."""
MORE_BYTES = 64 << 20
"""Memory that may stay after it."""


def write_loop(version: Path) -> None:
    """Writes an ONNX model that runs as many iterations as its input says."""
    version.mkdir(parents=True)
    steps = [helper.make_node("Identity", ["goes"], ["goes_on"]), helper.make_node("Sin", ["before"], ["after"])]
    taken = [("i", TensorProto.INT64, []), ("goes", TensorProto.BOOL, []), ("before", TensorProto.FLOAT, [1])]
    given = [("goes_on", TensorProto.BOOL, []), ("after", TensorProto.FLOAT, [1])]
    values = [[helper.make_tensor_value_info(*one) for one in some] for some in (taken, given)]
    loop = helper.make_node("Loop", ["count", "yes", "one"], ["Y"], body=helper.make_graph(steps, "body", *values))
    save_counting(version, TensorProto.FLOAT, loop)


def write_range(version: Path) -> None:
    """Writes an ONNX model that makes a tensor as large as its input says."""
    version.mkdir(parents=True)
    size = helper.make_node("Range", ["zero", "count", "step"], ["numbers"])
    save_counting(version, TensorProto.INT64, size, helper.make_node("ReduceMax", ["numbers"], ["Y"]))


def save_counting(version: Path, datatype: int, *nodes: onnx.NodeProto) -> None:
    """Saves a model whose nodes make `Y` from the scalar `count`, which is the input `N`."""
    constants = [
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("step", TensorProto.INT64, [], [1]),
    ]
    inputs = [helper.make_tensor_value_info("N", TensorProto.INT64, [1])]
    outputs = [helper.make_tensor_value_info("Y", datatype, [1])]
    graph = helper.make_graph(
        [helper.make_node("Squeeze", ["N"], ["count"]), *nodes], "graph", inputs, outputs, constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, version / "model.onnx")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("fifth")
    models = folder / "models"
    for number in range(MODELS):
        write_model(models, f"uint8_{number}", "UINT8")
    write_loop(models / "loop" / "1")
    write_range(models / "range" / "1")
    server = certificates(folder).server
    flags = (
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={server.certificate}",
        f"--grpc-server-key={server.key}",
    )
    # Its own port of gRPC has TLS.
    with Measured(models, folder / "server.log", *flags) as made:
        yield made.wait_until_live()
        assert made.stop() == 0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("fifth_plain")
    for number in range(MODELS):
        write_model(folder / "models", f"uint8_{number}", "UINT8")
    with Measured(folder / "models", folder / "server.log") as made:
        yield made.wait_until_live()
        assert made.stop() == 0


@pytest.mark.parametrize("rpc", ["ModelStatistics", "RepositoryIndex"])
def test_many_calls_that_share_an_answer(plain: Measured, rpc: str) -> None:
    """Each writes its own copy of the answer, which takes the loop up to 3 ms."""
    streams = range(1, 2 * CLIENTS, 2)
    calls = b"".join(headers(stream, head(rpc)) + data(stream, message(b""), end=True) for stream in streams)

    def send() -> None:
        with ExitStack() as stack:
            for client in [stack.enter_context(connection(plain)) for _ in range(2)]:
                client.sendall(calls)
            time.sleep(3.0)

    attack(plain, send)
    assert plain.longest_turn < TURN_SECONDS


def test_many_handshakes_at_once(serving: Measured) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    hello = sent.read()

    def send() -> list[bytes]:
        with ExitStack() as stack:
            address = "127.0.0.1", serving.grpc_port
            clients = [stack.enter_context(socket.create_connection(address, LIMIT)) for _ in range(CLIENTS)]
            # In two parts, so that the server cannot wait for the second one only.
            for part in (hello[:10], hello[10:]):
                time.sleep(0.5)
                for client in clients:
                    client.sendall(part)
            return [client.recv(3) for client in clients]

    # The beginning of a ServerHello.
    assert set(attack(serving, send).answer) == {b"\x16\x03\x03"}
    assert serving.longest_turn < TURN_SECONDS


@pytest.mark.parametrize(("model", "number"), [("loop", ITERATIONS), ("range", SIZE)])
def test_input_that_says_how_much_a_model_does(serving: Measured, model: str, number: int) -> None:
    """Many requests that take microseconds, then one of the same size."""

    def request(number: int) -> bytes:
        tensor = {"name": "N", "shape": [1], "datatype": "INT64", "data": [number]}
        text = json.dumps({"inputs": [tensor]}).encode()
        head = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: x\r\n" % model.encode()
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(text), text)

    def send() -> None:
        with socket.create_connection(("127.0.0.1", serving.http_port), LIMIT) as client:
            for each in (*[1] * 300, number):
                client.sendall(request(each))
                assert client.recv(4096).startswith(b"HTTP/1.1 200")

    before = serving.memory()
    attack(serving, send)
    assert serving.longest_turn < TURN_SECONDS
    assert serving.memory() < before + MORE_BYTES
