"""Attacks by inferences: requests whose memory waits for the garbage collector, parameters, traces of large tensors,
classifications of large batches, and many answers at the end of one batch.

Each test has the form of the attack, and checks the longest turn of the event loop, the delay of others, and memory.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from zlib import compress

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from halimede.engine.classification import MAX_CLASSES
from halimede.requests import MAX_PARAMETER_CHARACTERS, MAX_PARAMETERS
from tests.compat.measured import INFER, LIMIT, Measured, attack, infer, post
from tests.compat.serving import write_model
from tests.compat.test_hard_to_bring_down_transport import Uncollected

MIB = 1 << 20
SIZE = 32 * MIB
"""Bytes of a large tensor."""
RANDOM = os.urandom(SIZE)
ESCAPED = b'{"log_format": "%b"}' % (rb"\u0001" * (SIZE // 6))
ROUNDS = 8
KEPT_BUFFERS = 64 * MIB
"""Bytes of received requests that the server keeps for the next ones."""
BATCH = 64
QUEUE = f"dynamic_batching {{ max_queue_delay_microseconds: 3000000 preferred_batch_size: [ {BATCH} ] }}\n"
ANSWERS = 1024
NUMBERS = 2500
"""So few that the loop writes them as JSON, which takes it 0.3 ms."""
ANSWERS_SECONDS = 0.05
"""CPU time of a turn at the end of a batch of `ANSWERS`. It was 0.16 s."""
WIDE = f"dynamic_batching {{ preferred_batch_size: [ {ANSWERS} ] max_queue_delay_microseconds: 20000000 }}\n"
CACHED = "response_cache { enable: true }\n"

ECHO = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.output(request)]) for request in requests]

    def output(self, request):
        return pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
"""
CALLER = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.output(request)]) for request in requests]

    def output(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        call = pb_utils.InferenceRequest(model_name="echo", requested_output_names=["OUTPUT0"], inputs=[given])
        return pb_utils.Tensor("OUTPUT0", call.exec().output_tensors()[0].as_numpy())
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("sixth")
    models = folder / "models"
    write_model(models, "plain", "UINT8")
    write_model(models, "rows", "UINT8", max_batch_size=BATCH)
    write_model(models, "cached", "UINT8", more=CACHED)
    write_model(models, "wide", "FP32", max_batch_size=ANSWERS, more=WIDE)
    for name, code, size, more in (("echo", ECHO, 0, ""), ("caller", CALLER, 0, ""), ("batched", ECHO, BATCH, QUEUE)):
        version = write_model(models, name, "UINT8", backend="python", max_batch_size=size, more=more)
        (version / "model.py").write_text(code)
    flags = ("--cache-config=local,size=1048576", f"--trace-config=triton,file={folder / 'trace'}")
    with Uncollected(models, folder / "server.log", *flags, "--trace-config=rate=0") as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def raw(serving: Measured, model: str, shape: list[int], body: bytes, coding: str = "", **output: object) -> int:
    """Sends a binary tensor. Returns the status."""
    tensor = {"name": "INPUT0", "shape": shape, "datatype": "UINT8", "parameters": {"binary_data_size": len(body)}}
    wanted = {"name": "OUTPUT0", "parameters": {"binary_data": True, **output}}
    head = json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()
    headers = {"Content_Encoding": coding} if coding else {}
    # Level 0 makes random bytes no larger.
    sent = compress(head + body, 0 if body is RANDOM else 6) if coding else head + body
    length = {"Inference_Header_Content_Length": str(len(head))}
    return post(serving, f"/v2/models/{model}/infer", sent, **length, **headers)[0]


def over_grpc(model: str, shape: list[int], body: bytes) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[body])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=shape)
    return request


def over_compressed_grpc(serving: Measured) -> str:
    with grpc.insecure_channel(serving.grpc_url, [("grpc.max_receive_message_length", -1)]) as channel:
        call = channel.unary_unary(INFER, request_serializer=bytes, response_deserializer=bytes)
        message = over_grpc("plain", [SIZE], bytes(SIZE)).SerializeToString()
        answer = call(message, timeout=LIMIT, compression=grpc.Compression.Gzip)
    return "answered" if len(answer) > SIZE else "too short"


MEMORY: dict[str, tuple[object, Callable[[Measured], object]]] = {
    "cached": (200, lambda serving: raw(serving, "cached", [SIZE], bytes(SIZE))),
    "classified": (200, lambda serving: raw(serving, "rows", [BATCH, SIZE // BATCH], bytes(SIZE), classification=1)),
    "calling": (200, lambda serving: raw(serving, "caller", [SIZE], bytes(SIZE))),
    "compressed": (200, lambda serving: raw(serving, "plain", [SIZE], RANDOM, "deflate")),
    "compressed call": ("answered", over_compressed_grpc),
    "malformed": (400, lambda serving: post(serving, "/v2/models/plain/infer", b"[" + b"1," * (SIZE // 2))[0]),
    "refused": (503, lambda serving: post(serving, "/v2/logging", ESCAPED)[0]),
}
"""The status that each of them gets, and how it is sent."""


@pytest.mark.parametrize("kind", MEMORY)
def test_requests_leave_no_memory(serving: Measured, kind: str) -> None:
    """The collector is off. Each request stayed in memory: 3 GB after six of 512 MiB."""
    status, ask = MEMORY[kind]
    assert ask(serving) == status

    def send() -> list[object]:
        answers = [ask(serving) for _ in range(ROUNDS)]
        time.sleep(0.5)
        return answers

    found = attack(serving, send, turns=kind == "refused")
    assert found.answer == [status] * ROUNDS
    assert found.kept < KEPT_BUFFERS + 2 * SIZE


@pytest.mark.parametrize("kind", ["many", "long"])
def test_parameters_of_a_batch(serving: Measured, kind: str) -> None:
    """The event loop writes those of a whole batch for the Python model: 64 times 20,000 took 0.6 s, and 64 times 15 MB
    took 1.4 s."""
    request = over_grpc("batched", [1, 1], b"x")
    if kind == "many":
        for number in range(MAX_PARAMETERS):
            request.parameters[f"name{number}"].int64_param = number
    else:
        request.parameters["x"].string_param = "\U000e0001" * (MAX_PARAMETER_CHARACTERS - 1)
    message = request.SerializeToString()

    def send() -> list[tuple[str, str]]:
        answers: list[tuple[str, str]] = []
        clients = [
            threading.Thread(target=lambda: answers.append(infer(serving, message, None)), daemon=True)
            for _ in range(BATCH)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        return answers

    assert attack(serving, send).answer == [("OK", "")] * BATCH


@pytest.mark.parametrize("path", ["infer", "generate", "grpc"])
def test_more_parameters_are_refused(serving: Measured, path: str) -> None:
    many = {f"name{number}": number for number in range(MAX_PARAMETERS + 1)}
    long = {"x": "y" * MAX_PARAMETER_CHARACTERS}
    for parameters, word in ((many, "parameters"), (long, "characters")):
        if path == "grpc":
            request = over_grpc("plain", [1], b"x")
            for name, value in parameters.items():
                if isinstance(value, int):
                    request.parameters[name].int64_param = value
                else:
                    request.parameters[name].string_param = str(value)
            status, text = infer(serving, request.SerializeToString(), None)
            assert (status, word in text) == ("INVALID_ARGUMENT", True)
        else:
            tensor = {"name": "INPUT0", "shape": [1], "datatype": "UINT8", "data": [1]}
            given = {"INPUT0": [1]} if path == "generate" else {"inputs": [tensor]}
            body = json.dumps({**given, "parameters": parameters}).encode()
            code, answer = post(serving, f"/v2/models/plain/{path}", body)
            assert (code, word.encode() in answer) == (400, True)


def test_classes_of_a_large_batch(serving: Measured) -> None:
    """64 rows of a million values: 64 MB, or 64 kB compressed, took 5 GB and 50 seconds of a thread."""
    length = 900_000

    def send() -> int:
        return raw(serving, "rows", [BATCH, length], bytes(BATCH * length), "deflate", classification=length)

    found = attack(serving, send)
    assert found.answer == 400
    assert found.peak < 512 * MIB
    rows = MAX_CLASSES // length
    assert raw(serving, "rows", [rows, length], bytes(rows * length), classification=length) == 200


def test_traces_of_large_tensors(serving: Measured) -> None:
    """Anyone may switch them on. Four requests of 64 MiB delayed others by four seconds, took 1.1 GB, and held the
    event loop for 60 ms each."""
    levels = {"trace_level": ["TENSORS"], "trace_rate": "1"}
    assert post(serving, "/v2/trace/setting", json.dumps(levels).encode())[0] == 200

    def send() -> None:
        # Those of one size are written, those of the other have no data in the trace.
        for size in (6 * MIB, 6 * MIB, 64 * MIB):
            assert raw(serving, "plain", [size], bytes(size)) == 200
        assert post(serving, "/v2/trace/setting", b'{"trace_level": ["OFF"]}')[0] == 200
        time.sleep(3.0)

    assert attack(serving, send).peak < 512 * MIB


def test_large_batch_whose_answers_are_json(serving: Measured) -> None:
    text = b'{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}]}' % (
        NUMBERS,
        4 * NUMBERS,
    )
    numbers = np.random.default_rng(0).standard_normal(NUMBERS).astype(np.float32).tobytes()
    head = b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: %d\r\n" % len(text)
    request = head + b"Content-Length: %d\r\n\r\n" % (len(text) + len(numbers)) + text + numbers

    with ExitStack() as stack:
        address = "127.0.0.1", serving.http_port
        clients = [stack.enter_context(socket.create_connection(address, LIMIT)) for _ in range(ANSWERS)]
        # Requests that arrive are work of their own. Here it is about the answers.
        for client in clients[1:]:
            client.sendall(request)
        deadline = time.monotonic() + LIMIT
        while serving.pending("wide") < ANSWERS - 1:
            assert time.monotonic() < deadline, "the requests did not arrive"
            time.sleep(0.1)

        def send() -> set[bytes]:
            """Returns how the answers begin."""
            clients[0].sendall(request)
            return {client.recv(15) for client in clients}

        assert attack(serving, send).answer == {b"HTTP/1.1 200 OK"}
    assert serving.longest_turn < ANSWERS_SECONDS
