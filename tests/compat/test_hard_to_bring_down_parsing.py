"""Attacks with few bytes and many elements: while the server parses them, it answers others, and stays small.

Each test has the form of the attack. Delays are compared with those of the same server without an attack, because the
machine may be busy.
"""

import zlib
from collections.abc import Iterator, Sequence

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.compat.measured import LIMIT, Measured, attack, infer, post, varint
from tests.compat.serving import write_model

MIB = 1 << 20
REPEATS = 20_000_000


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("parsing")
    for datatype in ("BYTES", "INT32"):
        write_model(folder / "models", datatype.lower(), datatype)
    with Measured(folder / "models", folder / "server.log", "--model-control-mode=explicit", "--load-model=*") as made:
        yield made.wait_until_live()
        # An attack has not kept the server from ending.
        assert made.stop() == 0


def gzipped(parts: Iterator[bytes]) -> bytes:
    stream = zlib.compressobj(6, wbits=31)
    return b"".join([*(stream.compress(part) for part in parts), stream.flush()])


# gRPC: an empty field, repeated.


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.NoCompression])
@pytest.mark.parametrize(
    ("field", "tag"), [("inputs", 0x2A), ("outputs", 0x32), ("parameters", 0x22), ("raw_input_contents", 0x3A)]
)
def test_grpc_message_that_repeats_an_empty_field(
    serving: Measured, field: str, tag: int, compression: grpc.Compression
) -> None:
    message = b"\x0a\x05bytes" + bytes((tag, 0)) * REPEATS
    attacked = attack(serving, lambda: infer(serving, message, compression))
    words = "the request has more than 100000 inputs, outputs, parameters and raw contents"
    assert attacked.answer == ("INVALID_ARGUMENT", words)
    # The message itself, twice while it is decompressed and joined.
    assert attacked.peak < 5 * len(message)


@pytest.mark.parametrize("place", ["parameters of an input", "parameters of an output", "shape", "typed strings"])
def test_grpc_message_that_repeats_a_field_within_a_tensor(serving: Measured, place: str) -> None:
    outer, inner = {
        "parameters of an input": (b"\x2a", b"\x22\x00"),
        "parameters of an output": (b"\x32", b"\x12\x00"),
        "shape": (b"\x2a", b"\x18\x01"),
        "typed strings": (b"\x2a", b"\x42\x00"),
    }[place]
    content = inner * REPEATS
    if place == "typed strings":
        content = b"\x2a" + varint(len(content)) + content
    message = b"\x0a\x05bytes" + outer + varint(len(content)) + content
    attacked = attack(serving, lambda: infer(serving, message, grpc.Compression.Gzip))
    assert attacked.answer[0] == "INVALID_ARGUMENT"
    assert attacked.answer[1].startswith("the request has more than")
    assert attacked.peak < 5 * len(message)


def stream(serving: Measured, messages: Sequence[bytes], compression: grpc.Compression) -> tuple[str, str, list[bytes]]:
    """Status, text and answers of a ModelStreamInfer call with these messages."""
    answers: list[bytes] = []
    with grpc.insecure_channel(serving.grpc_url, [("grpc.max_receive_message_length", -1)]) as channel:
        path = "/inference.GRPCInferenceService/ModelStreamInfer"
        call = channel.stream_stream(path, request_serializer=bytes, response_deserializer=bytes)
        try:
            answers += call(iter(messages), timeout=LIMIT, compression=compression)
        except grpc.RpcError as error:
            return error.code().name, error.details() or "", answers
    return "OK", "", answers


def test_grpc_message_that_repeats_an_empty_field_in_a_stream(serving: Measured) -> None:
    message = b"\x0a\x05bytes" + b"\x3a\x00" * REPEATS
    attacked = attack(serving, lambda: stream(serving, [message], grpc.Compression.Gzip))
    words = "the request has more than 100000 inputs, outputs, parameters and raw contents"
    assert attacked.answer == ("INVALID_ARGUMENT", words, [])
    assert attacked.peak < 5 * len(message)


def test_long_names_in_a_stream(serving: Measured) -> None:
    """Each name is 5 MB, and the answers do not repeat them."""
    message = b"\x0a" + varint(5_000_000) + b"x" * 5_000_000
    attacked = attack(serving, lambda: stream(serving, [message] * 8, grpc.Compression.Gzip))
    status, _, answers = attacked.answer
    assert (status, len(answers)) == ("OK", 8)
    assert all(b"Request for unknown model: 'xxx" in answer for answer in answers)
    assert max(map(len, answers)) < 9000


def test_load_of_a_long_name(serving: Measured) -> None:
    """Neither the answer nor the log repeats it."""
    before = serving.log.stat().st_size
    name = "x\x1b[2J\u202e\x9b" + "x" * 5_000_000
    with grpc.insecure_channel(serving.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for each in (name, name[:200]):
            with pytest.raises(grpc.RpcError) as caught:
                stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=each), timeout=LIMIT)
            assert len(caught.value.details() or "") < 1000
    # The short one is not there, which the log says.
    serving.until_logged("x\\u001B[2J\\u202E\\u009Bxxx")
    assert serving.log.stat().st_size - before < 10_000
    new = serving.log.read_bytes()[before:].decode()
    assert all(line.isprintable() for line in new.splitlines())


# JSON: many elements within the limit of bytes.

_FULL = 60 * MIB


def document(model: str, start: bytes, element: bytes, end: bytes) -> bytes:
    count = _FULL // (len(element) + 1)
    joined = (element + b",") * 10_000
    return gzipped(iter([start, *([joined] * (count // 10_000)), element, end]))


_DATA = b'{"inputs":[{"name":"INPUT0","shape":[5],"datatype":"%b","data":['
_INPUT = b'{"name":"INPUT0","shape":[1],"datatype":"INT32","data":[1]}'
_MANY = "the request JSON has more than 100000 elements besides the data of its tensors"
JSON_ATTACKS = {
    "empty strings": ("bytes", _DATA % b"BYTES", b'""', b"]}]}", "unexpected number of string elements"),
    "as many empty strings as the shape": (
        *("bytes", _DATA.replace(b"[5]", b"[20000000]") % b"BYTES"),
        *(b'""', b"]}]}", "exceeds the maximum allowed value"),
    ),
    "lists": ("int32", _DATA % b"INT32", b"[1]", b"]}]}", "Shape does not match true shape of 'data' field"),
    "empty lists": ("int32", _DATA % b"INT32", b"[]", b"]}]}", "shape does not match true shape"),
    "numbers": ("int32", _DATA % b"INT32", b"1", b"]}]}", "Shape does not match true shape of 'data' field"),
    "inputs": ("int32", b'{"inputs":[', b"{}", b"]}", _MANY),
    "outputs": ("int32", b'{"inputs":[%b],"outputs":[' % _INPUT, b"{}", b"]}", _MANY),
    "parameters": ("int32", b'{"inputs":[%b],"parameters":{' % _INPUT, b'"a":1', b"}}", _MANY),
    "dimensions": ("int32", b'{"inputs":[{"name":"INPUT0","data":[],"shape":[', b"1", b"]}]}", "long array"),
    "nothing known": ("int32", b'{"unknown":[', b'""', b"]}", _MANY),
}


@pytest.mark.parametrize("kind", JSON_ATTACKS)
def test_json_with_many_elements(serving: Measured, kind: str) -> None:
    model, start, element, end, words = JSON_ATTACKS[kind]
    body = document(model, start, element, end)
    path = f"/v2/models/{model}/infer"
    attacked = attack(serving, lambda: post(serving, path, body, Content_Encoding="gzip"))
    status, text = attacked.answer
    assert status in (400, 500)
    assert words in text.decode()
    # The document, its parts while they are decompressed, and the tensor.
    assert attacked.peak < 5 * _FULL
    assert attacked.kept < 3 * _FULL


def test_json_with_many_numbers_is_served(serving: Measured) -> None:
    count = 10_000_000
    start = b'{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"INT32","data":[' % count
    end = b'1]}],"parameters":{"binary_data_output":true}}'
    body = b"".join((start, b"1," * (count - 1), end))
    attacked = attack(serving, lambda: post(serving, "/v2/models/int32/infer", body))
    status, answer = attacked.answer
    assert status == 200
    assert answer.endswith(b"\1\0\0\0" * count)


@pytest.mark.parametrize(
    "path", ["/v2/repository/index", "/v2/logging", "/v2/trace/setting", "/v2/models/bytes/generate"]
)
def test_json_with_many_elements_elsewhere(serving: Measured, path: str) -> None:
    body = b'{"x":{"y":[' + b'"",' * (_FULL // 3) + b'""]}}'
    attacked = attack(serving, lambda: post(serving, path, body))
    assert attacked.answer[0] == 400
    assert _MANY in attacked.answer[1].decode()
    assert attacked.peak < 5 * _FULL


# BYTES: the framing of the inputs, and answers as JSON.


@pytest.mark.parametrize("output", ["binary", "json"])
@pytest.mark.parametrize(
    ("element", "count"), [(b"\0\0\0\0", 5_000_000), (b"\4\0\0\0abcd\0\0\0\0", 1_000_000), (b"\0\0\0\1", 4)]
)
def test_many_or_long_strings(serving: Measured, element: bytes, count: int, output: str) -> None:
    if count == 4:
        element += b"x" * (1 << 24)
    strings = 2 * count if len(element) == 12 else count
    tail = b"" if output == "json" else b',"parameters":{"binary_data_output":true}'
    head = b'{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"BYTES","parameters":{"binary_data_size":%d}}]%b}'
    head %= strings, len(element) * count, tail
    body = head + element * count
    length = str(len(head))
    send = lambda: post(serving, "/v2/models/bytes/infer", body, Inference_Header_Content_Length=length)  # noqa: E731
    status, answer = attack(serving, send).answer
    assert status == 200
    if output == "binary":
        assert answer.endswith(element * count)
    else:
        assert answer.count(b'"') > 2 * strings


def test_many_strings_over_grpc(serving: Measured) -> None:
    count = 10_000_000
    inside = b"\x0a\x06INPUT0\x12\x05BYTES\x1a" + varint(len(varint(count))) + varint(count)
    size = varint(4 * count)
    message = b"\x0a\x05bytes\x2a" + varint(len(inside)) + inside + b"\x3a" + size + bytes(4 * count)
    attacked = attack(serving, lambda: infer(serving, message, grpc.Compression.NoCompression))
    assert attacked.answer == ("OK", "")


def test_wrong_framing_is_explained(serving: Measured) -> None:
    head = b'{"inputs":[{"name":"INPUT0","shape":[20000],"datatype":"BYTES","parameters":{"binary_data_size":80001}}]}'
    length = str(len(head))
    body = head + bytes(80_001)
    status, answer = post(serving, "/v2/models/bytes/infer", body, Inference_Header_Content_Length=length)
    words = "unexpected number of string elements 20001 for inference input 'INPUT0' for model 'bytes', expecting 20000"
    assert status == 400
    assert words in answer.decode()


# Long names and texts.


def test_long_request_id(serving: Measured) -> None:
    body = b'{"id":"%b","inputs":[]}' % (b"x" * (1 << 21))
    attacked = attack(serving, lambda: post(serving, "/v2/models/bytes/infer", body))
    assert attacked.answer[0] == 400
    assert "the request id has 2097152 bytes; the largest has 65536" in attacked.answer[1].decode()
    message = b"\x0a\x05bytes\x1a" + varint(_FULL) + b"x" * _FULL
    attacked = attack(serving, lambda: infer(serving, message, grpc.Compression.NoCompression))
    words = f"the request id has {_FULL} bytes; the largest has 65536"
    assert attacked.answer == ("INVALID_ARGUMENT", words)


def test_long_name_over_grpc(serving: Measured) -> None:
    message = b"\x0a" + varint(1 << 22) + b"x" * (1 << 22)
    attacked = attack(serving, lambda: infer(serving, message, grpc.Compression.NoCompression))
    code, text = attacked.answer
    assert code == "NOT_FOUND"
    assert text.endswith("...")
    assert len(text) < 9000


def test_many_dimensions(serving: Measured) -> None:
    dims = ",".join(["9223372036854775807"] * 2000)
    body = b'{"inputs":[{"name":"INPUT0","shape":[%b],"datatype":"INT32","data":[1]}]}' % dims.encode()
    attacked = attack(serving, lambda: post(serving, "/v2/models/int32/infer", body))
    assert attacked.answer[0] == 400
    assert "input 'INPUT0' has 2000 dimensions; the largest number is 1024" in attacked.answer[1].decode()


@pytest.mark.parametrize("rpc", ["TraceSetting", "RepositoryModelLoad", "ModelMetadata"])
def test_administrative_message_that_repeats_an_empty_field(serving: Measured, rpc: str) -> None:
    message = b"\x1a\x00" * REPEATS

    def send() -> tuple[str, str]:
        with grpc.insecure_channel(serving.grpc_url) as channel:
            path = "/inference.GRPCInferenceService/" + rpc
            call = channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
            try:
                call(message, timeout=LIMIT, compression=grpc.Compression.Gzip)
            except grpc.RpcError as error:
                return error.code().name, error.details() or ""
        return "OK", ""

    attacked = attack(serving, send)
    texts = {
        "INVALID_ARGUMENT": "the request has more than 10000 parameters",
        "RESOURCE_EXHAUSTED": "Decompressed message larger than max (65536)",
    }
    code, text = attacked.answer
    assert code == ("INVALID_ARGUMENT" if rpc == "RepositoryModelLoad" else "RESOURCE_EXHAUSTED")
    assert text == texts[code]
    assert attacked.peak < 5 * len(message)


def test_small_compressed_message_that_becomes_large(serving: Measured) -> None:
    size = 300 * MIB
    message = b"\x0a\x05bytes\x3a" + varint(size) + bytes(size)
    attacked = attack(serving, lambda: infer(serving, message, grpc.Compression.Gzip))
    assert attacked.answer == ("RESOURCE_EXHAUSTED", "Decompressed message larger than max (268435456)")
    assert attacked.peak < 3 * size
