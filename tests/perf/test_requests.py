import json

import numpy as np
import pytest

from halimede.errors import Invalid
from halimede.perf.data import Step, Value, framed
from halimede.perf.model import Model, TensorInfo
from halimede.perf.options import Parameter
from halimede.perf.requests import (
    GrpcEncoder,
    HttpEncoder,
    Place,
    batch_of,
    differs,
    framed_message,
    grpc_outputs,
    outputs_of,
)
from halimede.perf.sequences import Turn
from halimede.protocol import inference_pb2 as pb
from halimede.tensors import BYTES, FP16, FP32

A = TensorInfo("A", FP32, (2,))
MODEL = Model("m", "", {"A": A}, {"O": A}, max_batch_size=8)
STEP = Step({"A": Value((2,), np.array([1, 2], np.float32).tobytes())})
TURN = Turn(7, 0, 0, True, False)


def http(request: bytes) -> tuple[str, dict[str, str], dict[str, object], bytes]:
    """The first line, the fields, the JSON and the binary part of a request, whose lengths must be right."""
    head, _, body = request.partition(b"\r\n\r\n")
    line, *rest = head.decode().split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
    assert int(fields["content-length"]) == len(body)
    size = int(fields.get("inference-header-content-length", len(body)))
    return line, fields, json.loads(body[:size]), body[size:]


def test_http_request_has_its_tensors_behind_the_json() -> None:
    encoder = HttpEncoder(MODEL, "h:8000", (("X-A", "b"),))
    line, fields, document, raw = http(encoder.prepare(batch_of(MODEL, [STEP, STEP]), {}, {}).plain)
    assert line == "POST /v2/models/m/infer HTTP/1.1"
    assert (fields["host"], fields["x-a"]) == ("h:8000", "b")
    assert document == {
        "inputs": [{"name": "A", "shape": [2, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}}],
        "outputs": [{"name": "O", "parameters": {"binary_data": True}}],
    }
    assert raw == np.array([1, 2, 1, 2], np.float32).tobytes()


def test_http_request_of_a_sequence_has_its_parameters() -> None:
    request = HttpEncoder(MODEL, "h", ()).prepare(batch_of(MODEL, [STEP]), {}, {})
    _, _, document, raw = http(request.of(TURN))
    assert document["parameters"] == {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
    assert len(raw) == 8


def test_http_request_in_json_names_its_elements_and_its_version() -> None:
    info = TensorInfo("S", BYTES, (1,))
    model = Model("m", "3", {"A": A, "S": info}, {"O": A})
    step = Step({**STEP.inputs, "S": Value((1,), framed([b"x"]))})
    encoder = HttpEncoder(model, "h", (), binary_in=False, binary_out=False)
    line, fields, document, raw = http(encoder.prepare(batch_of(model, [step]), {}, {}).plain)
    assert line == "POST /v2/models/m/versions/3/infer HTTP/1.1"
    assert fields["content-type"] == "application/json"
    inputs = document["inputs"]
    assert isinstance(inputs, list)
    assert [each["data"] for each in inputs] == [[1.0, 2.0], ["x"]]
    assert raw == b""


def test_json_cannot_have_half_floats() -> None:
    info = TensorInfo("H", FP16, (1,))
    model = Model("m", "", {"H": info}, {})
    with pytest.raises(Invalid, match="which JSON cannot have"):
        HttpEncoder(model, "h", (), binary_in=False).prepare(
            batch_of(model, [Step({"H": Value((1,), bytes(2))})]), {}, {}
        )


def test_shared_tensors_are_named_by_their_place() -> None:
    inputs, outputs = {"A": Place("in", 8, 8)}, {"O": Place("out", 0, 64)}
    _, _, document, raw = http(HttpEncoder(MODEL, "h", ()).prepare(batch_of(MODEL, [STEP]), inputs, outputs).plain)
    assert document["inputs"] == [
        {
            "name": "A",
            "shape": [1, 2],
            "datatype": "FP32",
            "parameters": {
                "shared_memory_region": "in",
                "shared_memory_byte_size": 8,
                "shared_memory_offset": 8,
            },
        }
    ]
    assert raw == b""
    message = _grpc(GrpcEncoder(MODEL, {}).prepare(batch_of(MODEL, [STEP]), inputs, outputs).plain)
    assert message.inputs[0].parameters["shared_memory_offset"].int64_param == 8
    assert message.outputs[0].parameters["shared_memory_region"].string_param == "out"
    assert not message.raw_input_contents


def _grpc(framed_bytes: bytes) -> pb.ModelInferRequest:
    assert framed_bytes[0] == 0
    assert int.from_bytes(framed_bytes[1:5], "big") == len(framed_bytes) - 5
    return pb.ModelInferRequest.FromString(framed_bytes[5:])


def test_grpc_request_has_the_parameters_of_its_sequence_and_of_the_command_line() -> None:
    encoder = GrpcEncoder(MODEL, {"n": Parameter("5", "int"), "t": Parameter("x", "string")})
    request = encoder.prepare(batch_of(MODEL, [STEP]), {}, {})
    plain = _grpc(request.plain)
    assert (plain.model_name, plain.parameters["n"].int64_param) == ("m", 5)
    assert list(plain.raw_input_contents) == [np.array([1, 2], np.float32).tobytes()]
    assert "sequence_id" not in plain.parameters
    turned = _grpc(request.of(TURN))
    assert turned.parameters["sequence_id"].int64_param == 7
    assert turned.parameters["sequence_start"].bool_param
    assert turned.parameters["t"].string_param == "x"


def test_decoupled_model_is_asked_to_mark_its_last_response() -> None:
    model = Model("m", "", {"A": A}, {"O": A}, is_decoupled=True)
    message = _grpc(GrpcEncoder(model, {}).prepare(batch_of(model, [STEP]), {}, {}).plain)
    assert message.parameters["triton_enable_empty_final_response"].bool_param


def test_wrong_parameters_are_refused() -> None:
    for parameter in (Parameter("x", "int"), Parameter("x", "float")):
        with pytest.raises(Invalid):
            GrpcEncoder(MODEL, {"n": parameter}).prepare(batch_of(MODEL, [STEP]), {}, {})


def test_compressed_message_says_so() -> None:
    import gzip

    packed = framed_message(b"x" * 1000, "gzip")
    assert packed[0] == 1
    assert gzip.decompress(packed[5:]) == b"x" * 1000


def test_batch_of_different_shapes_is_refused() -> None:
    with pytest.raises(Invalid, match="can not batch tensors with different shapes together"):
        batch_of(MODEL, [STEP, Step({"A": Value((3,), bytes(12))})])


def test_outputs_of_both_protocols_are_read_and_compared() -> None:
    content = np.array([1, 2], np.float32).tobytes()
    entry = {"name": "O", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    body = json.dumps({"outputs": [entry]}).encode() + content
    assert outputs_of(body) == {"O": ("FP32", content)}
    plain = json.dumps({"outputs": [{"name": "O", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode()
    assert outputs_of(plain) == {"O": ("FP32", content)}
    response = pb.ModelInferResponse(raw_output_contents=[content])
    response.outputs.add(name="O", datatype="FP32", shape=[2])
    assert grpc_outputs(response.SerializeToString(), False) == {"O": ("FP32", content)}
    stream = pb.ModelStreamInferResponse(infer_response=response)
    assert grpc_outputs(stream.SerializeToString(), True) == {"O": ("FP32", content)}
    assert differs({"O": Value((2,), content)}, {"O": ("FP32", content)}) == ""
    assert "size" in differs({"O": Value((2,), content)}, {"O": ("FP32", content[:4])})
    assert "Output doesn't match" in differs({"O": Value((2,), content)}, {"O": ("FP32", bytes(8))})
