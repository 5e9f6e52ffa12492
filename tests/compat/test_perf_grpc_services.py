"""`halimede perf` with services of gRPC other than Triton's, played by the test: TensorFlow Serving, and any method."""

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from halimede.protocol import tensorflow_serving_pb2 as pb

LIMIT = 60.0
PREDICT, METADATA = ("/tensorflow.serving.PredictionService/" + name for name in ("Predict", "GetModelMetadata"))
ECHO = "tests.Echo"
PROTO = """syntax = "proto3";
package tests;
import "google/protobuf/duration.proto";
message Question { string text = 1; repeated int32 numbers = 2; google.protobuf.Duration wait = 3; }
message Answer { string text = 1; }
service Echo {
  rpc One(Question) returns (Answer);
  rpc Many(stream Question) returns (stream Answer);
}
"""


class Service(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # it takes none when it runs
    """Keeps what it got: the path, the metadata and the messages of each call. A function by path answers."""

    def __init__(self, answers: Mapping[str, Callable[[Sequence[bytes]], Iterator[bytes]]]) -> None:
        self._answers, self._lock = answers, threading.Lock()
        self.got: list[tuple[str, dict[str, str | bytes], list[bytes]]] = []
        self.server = grpc.server(ThreadPoolExecutor(8), handlers=[self])
        self.url = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        answer = self._answers.get(details.method)
        if answer is None:
            return None

        def handle(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            sent = list(messages)
            with self._lock:
                self.got.append((details.method, dict(context.invocation_metadata()), sent))
            try:
                yield from answer(sent)
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

        return grpc.stream_stream_rpc_method_handler(handle)

    def messages(self, path: str) -> list[list[bytes]]:
        return [messages for each, _, messages in self.got if each == path]


def describe(messages: Sequence[bytes]) -> Iterator[bytes]:
    """A model with a matrix and a text, and a signature whose rank is unknown."""
    asked = pb.GetModelMetadataRequest.FromString(messages[0])
    if asked.model_spec.name != "half":
        raise ValueError(f"Servable not found for request: Latest({asked.model_spec.name})")
    found = pb.Signatures()
    inputs = found.signature_def["serving_default"].inputs
    inputs["x"].dtype = pb.DT_FLOAT
    inputs["text"].dtype = pb.DT_STRING
    for name, sizes in (("x", (-1, 2)), ("text", (-1, 1))):
        for size in sizes:
            inputs[name].tensor_shape.dim.add(size=size)
    y = found.signature_def["serving_default"].outputs["y"]
    y.dtype = pb.DT_FLOAT
    y.tensor_shape.dim.add(size=-1)
    y.tensor_shape.dim.add(size=2)
    found.signature_def["any"].inputs["x"].dtype = pb.DT_INT64
    found.signature_def["any"].inputs["x"].tensor_shape.unknown_rank = True
    answer = pb.GetModelMetadataResponse()
    answer.metadata["signature_def"].value = found.SerializeToString()
    answer.metadata["signature_def"].type_url = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    yield answer.SerializeToString()


def halve(messages: Sequence[bytes]) -> Iterator[bytes]:
    """Half of `x`, in the field for floats, as TensorFlow Serving answers."""
    request = pb.PredictRequest.FromString(messages[0])
    tensor = request.inputs["x"]
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    if request.model_spec.signature_name != "any" and sizes[1:] != [2]:
        raise ValueError(f"wrong shape {sizes}")
    answer = pb.PredictResponse()
    y = answer.outputs["y"]
    y.dtype = pb.DT_FLOAT
    for size in sizes:
        y.tensor_shape.dim.add(size=size)
    y.float_val.extend(np.frombuffer(tensor.tensor_content, "<f4") / 2)
    yield answer.SerializeToString()


def echo(messages: Sequence[bytes]) -> Iterator[bytes]:
    """Two answers to each message, which are its first field."""
    for message in messages:
        yield message[: 2 + message[1]]
        yield b""


def refuse(messages: Sequence[bytes]) -> Iterator[bytes]:
    raise ValueError("it is tired")


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service(
        {METADATA: describe, PREDICT: halve, f"/{ECHO}/One": echo, f"/{ECHO}/Many": echo, f"/{ECHO}/Not": refuse}
    )
    service.server.start()
    yield service
    service.server.stop(None).wait(LIMIT)


def perf(service: Service, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "halimede", "perf", "-u", service.url, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


def write(folder: Path, **document: Any) -> str:
    path = folder / "data.json"
    path.write_text(json.dumps(document))
    return str(path)


TFSERVING = ("-i", "grpc", "--service-kind", "tfserving", "--request-count", "4")


@pytest.mark.rows("X2")
def test_tensorflow_serving_gets_tensors_of_its_signature(service: Service, tmp_path: Path) -> None:
    export = tmp_path / "export.json"
    data = write(tmp_path, data=[{"x": [1, 2], "text": ["a"]}, {"x": [3, 4], "text": ["bc"]}])
    words = ("-m", "half", "-x", "7", "-b", "2", "-H", "X-Who: me", "--input-data", data)
    done = perf(service, *words, *TFSERVING, "--profile-export-file", str(export))
    assert done.returncode == 0, done.stderr
    assert "  Batch size: 2\n  Service Kind: TENSORFLOW_SERVING\n" in done.stdout
    assert "    Request count: 4\n" in done.stdout
    assert "Avg gRPC time" in done.stdout
    assert "  Server: " not in done.stdout
    (asked,) = service.messages(METADATA)
    assert pb.GetModelMetadataRequest.FromString(asked[0]).model_spec.version.value == 7
    for messages in service.messages(PREDICT):
        request = pb.PredictRequest.FromString(messages[0])
        spec = request.model_spec
        assert (spec.name, spec.version.value, spec.signature_name) == ("half", 7, "serving_default")
        x, text = request.inputs["x"], request.inputs["text"]
        assert (x.dtype, [dim.size for dim in x.tensor_shape.dim]) == (pb.DT_FLOAT, [2, 2])
        assert np.frombuffer(x.tensor_content, "<f4").tolist() == [1, 2, 3, 4]
        assert (text.dtype, list(text.string_val)) == (pb.DT_STRING, [b"a", b"bc"])
    assert all(metadata["x-who"] == "me" for _, metadata, _ in service.got)
    (experiment,) = json.loads(export.read_text())["experiments"]
    assert experiment["requests"][0]["response_outputs"] == [{"y": [0.5, 1.0, 1.5, 2.0]}]


def test_tensorflow_serving_without_data_gets_random_ones(service: Service) -> None:
    done = perf(service, "half", *TFSERVING, "-x", "best", "--model-signature-name", "any", "--shape", "x:3,2")
    assert done.returncode == 0, done.stderr
    requests = [pb.PredictRequest.FromString(messages[0]) for messages in service.messages(PREDICT)]
    assert {request.model_spec.version_label for request in requests} == {"best"}
    assert {len(request.inputs["x"].tensor_content) for request in requests} == {6 * 8}


def test_answers_of_tensorflow_serving_are_validated(service: Service, tmp_path: Path) -> None:
    x = {"content": [1, 2], "shape": [1, 2]}
    text = {"content": ["a"], "shape": [1, 1]}
    for y, status in (([0.5, 1], 0), ([0.5, 2], 99)):
        expected = {"y": {"content": y, "shape": [1, 2]}}
        data = write(tmp_path, data=[{"x": x, "text": text}], validation_data=[expected])
        done = perf(service, "-m", "half", "--input-data", data, *TFSERVING)
        assert done.returncode == status, done.stderr
    assert "Output doesn't match expected output" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-m", "none"), "Servable not found for request: Latest(none)"),
        (("-m", "half", "--model-signature-name", "x"), 'Failed to find signature_name "x" in the metadata'),
        (("-m", "half"), "contains dynamic shape, provide shapes"),
        (
            ("-m", "half", "--model-signature-name", "any", "-b", "1"),
            "Can not specify -b flag for saved model with unknown ranked inputs",
        ),
        (("-m", "half", "-b", "1", "--shared-memory", "system"), "--shared-memory with tfserving is not supported"),
    ],
)
def test_what_tensorflow_serving_does_not_have_is_one_line(service: Service, words: Sequence[str], text: str) -> None:
    done = perf(service, *words, *TFSERVING)
    assert done.returncode == 99
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def dynamic(method: str, *words: str) -> Sequence[str]:
    return ("--service-kind", "dynamic_grpc", "--grpc-method", f"{ECHO}/{method}", "--request-count", "4", *words)


@pytest.mark.rows("X2")
@pytest.mark.parametrize("method", ["One", "Many"])
def test_any_method_gets_the_messages_of_the_data(service: Service, tmp_path: Path, method: str) -> None:
    (tmp_path / "echo.proto").write_text(PROTO)
    export = tmp_path / "export.json"
    one = [{"text": "one", "numbers": [1, 2], "wait": "2s"}]
    more = [*one, {"text": "two"}] if method == "Many" else one
    data = write(tmp_path, data=[{"message": one}, {"message": more}])
    words = ("--proto", str(tmp_path / "echo.proto"), "--input-data", data, "--profile-export-file", str(export))
    done = perf(service, *dynamic(method, *words))
    assert done.returncode == 0, done.stderr
    assert "  Service Kind: DYNAMIC_GRPC\n" in done.stdout
    assert "    Request count: 4\n" in done.stdout
    # Field 1 is the text, field 2 are packed numbers, and field 3 is the duration.
    first, second = b"\x0a\x03one\x12\x02\x01\x02\x1a\x02\x08\x02", b"\x0a\x03two"
    wanted = [[first], [first, second] if method == "Many" else [first]] * 2
    assert sorted(service.messages(f"/{ECHO}/{method}")) == sorted(wanted)
    (experiment,) = json.loads(export.read_text())["experiments"]
    counts = sorted(len(request["response_timestamps"]) for request in experiment["requests"])
    assert counts == ([2, 2, 4, 4] if method == "Many" else [2] * 4)
    assert base64.b64decode(experiment["requests"][0]["response_outputs"][0]["response"]) == b"\x0a\x03one"


def test_messages_may_be_bytes(service: Service, tmp_path: Path) -> None:
    content = base64.b64encode(b"\x0a\x01x").decode()
    done = perf(service, *dynamic("One", "--input-data", write(tmp_path, data=[{"message": {"b64": content}}])))
    assert done.returncode == 0, done.stderr
    assert service.messages(f"/{ECHO}/One") == [[b"\x0a\x01x"]] * 4


def test_status_of_a_method_ends_the_run(service: Service, tmp_path: Path) -> None:
    done = perf(service, *dynamic("Not", "--input-data", write(tmp_path, data=[{"message": {"b64": ""}}])))
    assert done.returncode == 99
    assert "Thread [0] had error: it is tired\n" in done.stderr


@pytest.mark.parametrize(
    ("method", "message", "proto", "text"),
    [
        ("One", {"words": "x"}, PROTO, 'a message is no tests.Question: Message type "tests.Question" has no field'),
        ("Three", {"text": "x"}, PROTO, f"has no method {ECHO}/Three"),
        ("One", {"text": "x"}, "message {", "echo.proto' is refused, for the reason above"),
        ("One", {"text": "x"}, "", "messages with fields need --proto"),
        ("One", {"b64": "?"}, PROTO, "b64 of a message is not base 64"),
        ("", {"b64": ""}, "", "Must supply --grpc-method"),
    ],
)
def test_wrong_messages_are_refused(
    service: Service, tmp_path: Path, method: str, message: Any, proto: str, text: str
) -> None:
    words = ["--input-data", write(tmp_path, data=[{"message": message}])]
    if proto:
        (tmp_path / "echo.proto").write_text(proto)
        words += ["--proto", str(tmp_path / "echo.proto")]
    done = perf(service, *dynamic(method, *words))
    assert done.returncode == 99
    assert text in done.stderr
    assert "Traceback" not in done.stderr
