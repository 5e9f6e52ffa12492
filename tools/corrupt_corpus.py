"""The valid requests that corruptions are made from: every route of the HTTP port and every RPC of the gRPC port.

Values only; `HttpCase.bytes` and `GrpcCase.bytes` are the bytes on a connection. Sent in order, each is answered well.
All but two of `MODELS` use the fast backend `identity`, because they get many requests.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hpack
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tools.soak_grpc import DATA, END_HEADERS, END_STREAM, FRAME_BYTES, HEADERS, PREFACE, SERVICE, SETTINGS, frame

MODELS = {
    "bench/models": ("floor",),
    "tests/conformance/models": (
        *("int32", "fp32", "bytes", "bool", "fp16", "labels", "pair", "optional", "batched", "dynamic", "raw_bytes"),
        *("decoupled", "parameters"),
    ),
}
REGION_BYTES = 4096
"""Size of the shared memory that requests name. Inputs lie in the first half, outputs in the second."""

Headers = tuple[tuple[str, str], ...]
ENCODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "deflate": zlib.compress,
}
MORE_CHUNKS = 7
"""Number of chunks of a chunked body."""


@dataclass(frozen=True, slots=True)
class HttpCase:
    """An HTTP request. `document` is its JSON, or bytes in place of JSON; `tail` is the binary data after it."""

    name: str
    method: str
    path: str
    document: Any = None
    tail: bytes = b""
    headers: Headers = ()
    encoding: str = ""
    chunked: bool = False

    @property
    def text(self) -> bytes:
        return self.document if isinstance(self.document, bytes) else json.dumps(self.document).encode()

    @property
    def body(self) -> bytes | None:
        """The body as it is sent, compressed but without chunks. None for a request without a body."""
        if self.document is None and not self.tail:
            return None
        body = (b"" if self.document is None else self.text) + self.tail
        return ENCODERS[self.encoding](body) if self.encoding else body

    @property
    def all_headers(self) -> Headers:
        """All headers, with those that the body needs, except Content-Length and Transfer-Encoding."""
        found = [("Host", "localhost"), *self.headers]
        if self.tail:
            found.append(("Inference-Header-Content-Length", str(0 if self.document is None else len(self.text))))
        if self.encoding:
            found.append(("Content-Encoding", self.encoding))
        return tuple(found)

    @property
    def bytes(self) -> bytes:
        return request_bytes(self.method, self.path, self.all_headers, self.body, self.chunked)


def request_bytes(method: str, path: str, headers: Headers, body: bytes | None, chunked: bool) -> bytes:
    """The bytes of a request with valid framing; everything else may be invalid."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if body is not None:
        lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}")
        if chunked:
            body = as_chunks(body)
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + (body or b"")


def as_chunks(body: bytes) -> bytes:
    size = len(body) // MORE_CHUNKS + 1
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


@dataclass(frozen=True, slots=True)
class GrpcCase:
    """A gRPC call. Only a stream has several messages. `encoding` is their compression."""

    name: str
    path: str
    messages: tuple[bytes, ...]
    encoding: str = ""
    metadata: Headers = ()

    @property
    def head(self) -> Headers:
        fields = [(":method", "POST"), (":scheme", "http"), (":path", self.path), (":authority", "localhost")]
        fields += [("te", "trailers"), ("content-type", "application/grpc"), ("grpc-timeout", "30S"), *self.metadata]
        if self.encoding:
            fields.append(("grpc-encoding", self.encoding))
        return tuple(fields)

    def framed(self, messages: Sequence[bytes]) -> bytes:
        """The messages in gRPC's framing, compressed if the call has an encoding."""
        if self.encoding:
            messages = [ENCODERS[self.encoding](message) for message in messages]
        flag = bytes([bool(self.encoding)])
        return b"".join(flag + len(message).to_bytes(4) + message for message in messages)

    @property
    def bytes(self) -> bytes:
        return PREFACE + b"".join(call_frames(self.head, self.framed(self.messages)))


OPENING = frame(SETTINGS, 0, 0, b"\0\4\0\x7f\xff\xff") + frame(8, 0, 0, (1 << 22).to_bytes(4))
"""The client's first frames. They grant large windows, so no answer waits for the client."""


def call_frames(head: Headers, data: bytes) -> list[bytes]:
    """The frames of one complete call."""
    block = hpack.Encoder().encode([(name, value.encode("utf-8", "surrogateescape")) for name, value in head])
    pieces = [data[at : at + FRAME_BYTES] for at in range(0, len(data), FRAME_BYTES)] or [b""]
    ends = [END_STREAM if number == len(pieces) - 1 else 0 for number in range(len(pieces))]
    sent = [frame(DATA, end, 1, piece) for end, piece in zip(ends, pieces, strict=True)]
    return [OPENING, frame(HEADERS, END_HEADERS, 1, block), *sent]


# HTTP.


def _tensor(name: str, datatype: str, shape: Sequence[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(shape)}
    if data is not None:
        tensor["data"] = data
    if parameters:
        tensor["parameters"] = parameters
    return tensor


def _output(name: str = "OUTPUT0", **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


_THREE = np.array([1, -2, 3], "<i4").tobytes()
_STRINGS = b"".join(len(text).to_bytes(4, "little") + text for text in (b"one", b"", b"three\0"))
_SIXTEEN = np.linspace(-1, 1, 16, dtype="<f4").tobytes()


def _infer(name: str, model: str, document: Any, tail: bytes = b"", **more: Any) -> HttpCase:
    return HttpCase(f"infer {name}", "POST", f"/v2/models/{model}/infer", document, tail, **more)


def _json_infers() -> list[HttpCase]:
    numbers = {"inputs": [_tensor("INPUT0", "INT32", [2, 2], [[1, 2], [3, -4]])]}
    flat = {"id": "a", "inputs": [_tensor("INPUT0", "INT32", [3], [1, 2, 3])], "outputs": [_output()]}
    pair = [_tensor("INPUT0", "INT32", [1, 2], [1, 2]), _tensor("INPUT1", "FP32", [1, 3], [1.5, 2, 1e-3])]
    every = {"sequence_id": 7, "sequence_start": True, "sequence_end": True, "priority": 1, "timeout": 10**7}
    parameters = {**every, "binary_data_output": False, "a": "b", "c": 1, "d": 1.5, "e": True}
    one = [_tensor("INPUT0", "INT32", [1], [1])]
    labelled = [_tensor("INPUT0", "FP32", [3], [0.5, 0.25, 1.0])]
    return [
        _infer("json", "int32", flat),
        _infer("json of a version", "int32/versions/1", flat),
        _infer("json in chunks", "int32", flat, chunked=True),
        _infer("json nested", "batched", numbers),
        _infer("json in a batcher", "dynamic", {"inputs": [_tensor("INPUT0", "FP32", [1, 2], [5, 6])]}),
        _infer("json floats", "fp32", {"inputs": [_tensor("INPUT0", "FP32", [3], [1, 2.5, float("nan")])]}),
        _infer("json strings", "bytes", {"inputs": [_tensor("INPUT0", "BYTES", [2], ["a\u20ac", ""])]}),
        _infer("json booleans", "bool", {"inputs": [_tensor("INPUT0", "BOOL", [2], [True, False])]}),
        _infer("json of two", "pair", {"inputs": pair, "outputs": [_output("OUTPUT1"), _output("OUTPUT0")]}),
        _infer("json without the optional", "optional", {"inputs": [_tensor("INPUT0", "INT32", [1, 2], [1, 2])]}),
        _infer("json parameters", "parameters", {"id": "p", "parameters": parameters, "inputs": one}),
        _infer("json forwarded", "parameters", {"inputs": one}, headers=(("X-Mine", "yes"), ("Accept", "*/*"))),
        _infer("json empty", "int32", {"inputs": [_tensor("INPUT0", "INT32", [0], [])]}),
        _infer("classes", "labels", {"inputs": labelled, "outputs": [_output(classification=2)]}),
        _infer(
            "classes binary",
            "labels",
            {"inputs": labelled, "outputs": [_output(classification=1, binary_data=True)]},
        ),
    ]


def _binary_infers() -> list[HttpCase]:
    three = _tensor("INPUT0", "INT32", [3], binary_data_size=12)
    binary = {"inputs": [three], "outputs": [_output(binary_data=True)]}
    all_binary = {"parameters": {"binary_data_output": True}, "inputs": [three]}
    strings = {"inputs": [_tensor("INPUT0", "BYTES", [3], binary_data_size=len(_STRINGS))]}
    halves = [_tensor("INPUT0", "FP16", [8], binary_data_size=16)]
    sixteen = {"inputs": [_tensor("INPUT0", "FP32", [1, 16], binary_data_size=64)], "outputs": [_output()]}
    mixed = [
        _tensor("INPUT0", "INT32", [1, 2], binary_data_size=8),
        _tensor("INPUT1", "FP32", [1, 3], [1.5, 2, 1e-3]),
    ]
    answers = [_output("OUTPUT0"), _output("OUTPUT1", binary_data=True)]
    return [
        _infer("binary", "int32", binary, _THREE),
        _infer("binary in chunks", "int32", binary, _THREE, chunked=True),
        _infer("binary output", "int32", all_binary, _THREE),
        _infer("binary strings", "bytes", strings, _STRINGS),
        _infer("binary halves", "fp16", {"parameters": {"binary_data_output": True}, "inputs": halves}, bytes(16)),
        _infer("binary batch", "floor", sixteen, _SIXTEEN),
        _infer("mixed", "pair", {"inputs": mixed, "outputs": answers}, bytes(8)),
        _infer("raw", "int32", None, _THREE),
        _infer("raw string", "raw_bytes", None, b"any text"),
        *(
            _infer(f"{encoding}", "int32", binary, _THREE, encoding=encoding, headers=(accept,))
            for encoding, accept in (
                ("gzip", ("Accept-Encoding", "deflate;q=0.5, gzip;q=1")),
                ("deflate", ("Accept-Encoding", "deflate")),
            )
        ),
    ]


def _shared_infers() -> list[HttpCase]:
    place: dict[str, Any] = {"shared_memory_region": "corrupt"}
    given = _tensor("INPUT0", "INT32", [3], **place, shared_memory_byte_size=12)
    offset = _tensor("INPUT0", "INT32", [3], **place, shared_memory_byte_size=12, shared_memory_offset=64)
    written = _output(**place, shared_memory_byte_size=64, shared_memory_offset=REGION_BYTES // 2)
    return [
        _infer("from a region", "int32", {"inputs": [given]}),
        _infer("from a region to it", "int32", {"inputs": [offset], "outputs": [written]}),
        _infer("into a region", "int32", {"inputs": [_tensor("INPUT0", "INT32", [1], [1])], "outputs": [written]}),
    ]


def _generates() -> list[HttpCase]:
    asked = {"id": "g", "INPUT0": [1, 2, 3], "parameters": {"a": 1, "b": True}, "d": "e"}
    rows = (
        ("generate", "int32/generate", asked),
        ("generate of a version", "int32/versions/1/generate", {"INPUT0": 5}),
        ("generate text", "bytes/generate", {"INPUT0": "text", "temperature": 0.5, "stream": False}),
        ("generate_stream", "decoupled/generate_stream", {"INPUT0": [1, 2, 3]}),
        ("generate_stream text", "bytes/generate_stream", {"INPUT0": ["a", "b"], "id": "s"}),
    )
    return [HttpCase(name, "POST", f"/v2/models/{path}", document) for name, path, document in rows]


def register(key: str) -> HttpCase:
    body = {"key": key, "offset": 0, "byte_size": REGION_BYTES}
    return HttpCase("shm register", "POST", "/v2/systemsharedmemory/region/corrupt/register", body)


_CONFIG = {
    "name": "optional",
    "backend": "identity",
    "max_batch_size": 2,
    "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [2]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": ["2"]}],
    "instance_group": [{"kind": "KIND_CPU"}],
}


def _administration() -> list[HttpCase]:
    gets = (
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/int32", "/v2/models/int32/versions/1"),
        *("/v2/models/int32/ready", "/v2/models/int32/config", "/v2/models/int32/versions/1/config"),
        *("/v2/models/stats", "/v2/models/int32/stats", "/v2/models/int32/versions/1/stats", "/v2/openapi.json"),
        *("/v2/trace/setting", "/v2/models/int32/trace/setting", "/v2/logging"),
        *("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"),
    )
    tracing = {"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0"}
    logging = {"log_verbose_level": 0, "log_info": True, "log_warning": True, "log_format": "default"}
    posts: Sequence[tuple[str, Any]] = (
        ("/v2/repository/index", {"ready": True}),
        ("/v2/repository/models/optional/load", {"parameters": {"config": json.dumps(_CONFIG)}}),
        ("/v2/repository/models/optional/load", {}),
        ("/v2/repository/models/nobody/unload", {"parameters": {"unload_dependents": False}}),
        ("/v2/trace/setting", tracing),
        ("/v2/models/int32/trace/setting", {"trace_rate": "7", "trace_level": None}),
        ("/v2/logging", logging),
        ("/v2/systemsharedmemory/region/nobody/unregister", b""),
        ("/v2/cudasharedmemory/unregister", b""),
    )
    return [
        *(HttpCase(f"get {path}", "GET", path) for path in gets),
        *(HttpCase(f"post {path}", "POST", path, document) for path, document in posts),
    ]


_HANDLE = {"raw_handle": {"b64": "AAAA" * 21 + "AA=="}, "device_id": 0, "byte_size": 64}
REFUSED = HttpCase("cuda register", "POST", "/v2/cudasharedmemory/region/c/register", _HANDLE)
"""A valid request that is refused if there is no GPU."""


def http_cases(key: str) -> list[HttpCase]:
    """All HTTP requests. `key` names a segment of `REGION_BYTES` bytes."""
    groups = (_json_infers(), _binary_infers(), _shared_infers(), _generates(), _administration())
    return [register(key), *(case for group in groups for case in group), REFUSED]


# gRPC.


def _call(name: str, *messages: Any, **more: Any) -> GrpcCase:
    return GrpcCase(name, f"{SERVICE}/{name.split(' ')[0]}", tuple(m.SerializeToString() for m in messages), **more)


def _asked(model: str, datatype: str, shape: Sequence[int], raw: bytes = b"", **other: Any) -> Any:
    made = pb.ModelInferRequest(model_name=model, **other)
    made.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    if raw:
        made.raw_input_contents.append(raw)
    return made


def _infer_messages() -> dict[str, Any]:
    typed = _asked("int32", "INT32", [3])
    typed.inputs[0].contents.int_contents.extend([1, 2, 3])
    text = _asked("bytes", "BYTES", [2])
    text.inputs[0].contents.bytes_contents.extend([b"a", b""])
    two = _asked("pair", "INT32", [1, 2], bytes(8), id="two")
    two.inputs.add(name="INPUT1", datatype="FP32", shape=[1, 1])
    two.raw_input_contents.append(bytes(4))
    two.outputs.add(name="OUTPUT1")
    told = _asked("parameters", "INT32", [1], bytes(4), id="told", model_version="1")
    told.parameters["sequence_id"].int64_param = 7
    told.parameters["sequence_start"].bool_param = True
    told.parameters["priority"].uint64_param = 1
    told.parameters["timeout"].int64_param = 10**7
    told.parameters["a"].string_param = "b"
    told.parameters["c"].double_param = 1.5
    shared = _asked("int32", "INT32", [3])
    shared.outputs.add(name="OUTPUT0")
    for tensor, at in ((shared.inputs[0], 0), (shared.outputs[0], REGION_BYTES // 2)):
        tensor.parameters["shared_memory_region"].string_param = "corrupt"
        tensor.parameters["shared_memory_offset"].int64_param = at
        tensor.parameters["shared_memory_byte_size"].int64_param = 12
    raw = _asked("floor", "FP32", [1, 16], _SIXTEEN)
    return {"raw": raw, "typed": typed, "text": text, "two": two, "told": told, "shared": shared}


def _classes() -> Any:
    asked = _asked("labels", "FP32", [3], bytes(12))
    asked.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    return asked


def _infer_calls() -> list[GrpcCase]:
    known = _infer_messages()
    several = _asked("decoupled", "INT32", [3], _THREE, id="d")
    several.parameters["triton_enable_empty_final_response"].bool_param = True
    forwarded = (("x-mine", "yes"), ("triton_grpc_error", "true"))
    return [
        *(_call(f"ModelInfer {name}", message) for name, message in known.items()),
        *(_call(f"ModelInfer {name}", known["two"], encoding=name) for name in ("gzip", "deflate")),
        _call("ModelInfer forwarded", known["told"], metadata=forwarded),
        _call("ModelInfer classes", _classes()),
        _call("ModelStreamInfer", known["raw"], several, known["two"]),
        _call("ModelStreamInfer decoupled", several, several, metadata=forwarded),
        _call("ModelStreamInfer gzip", known["text"], several, known["typed"], encoding="gzip"),
    ]


def _calls(key: str) -> list[GrpcCase]:
    load = pb.RepositoryModelLoadRequest(model_name="optional")
    load.parameters["config"].string_param = json.dumps(_CONFIG)
    unload = pb.RepositoryModelUnloadRequest(model_name="nobody")
    unload.parameters["unload_dependents"].bool_param = False
    trace = pb.TraceSettingRequest(model_name="int32")
    trace.settings["trace_rate"].value.append("7")
    log = pb.LogSettingsRequest()
    log.settings["log_verbose_level"].uint32_param = 0
    log.settings["log_info"].bool_param = True
    other = f"{key}_no"
    named = {"name": "int32", "version": "1"}
    return [
        *(_call(name, getattr(pb, f"{name}Request")()) for name in ("ServerLive", "ServerReady", "ServerMetadata")),
        *(
            _call(name, getattr(pb, f"{name}Request")(**named))
            for name in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
        ),
        _call("RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
        _call("RepositoryModelLoad", load),
        _call("RepositoryModelUnload", unload),
        _call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="")),
        _call("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name="nobody")),
        _call("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name="")),
        _call("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest(name="nobody")),
        _call("TraceSetting", trace),
        _call("LogSettings", log),
        GrpcCase("Health", "/grpc.health.v1.Health/Check", (b"\n\x01x",)),
        _call("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="g", key=other, byte_size=64)),
        _call("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(name="c", raw_handle=bytes(64))),
    ]


REFUSED_CALLS = ("SystemSharedMemoryRegister", "CudaSharedMemoryRegister")
"""Valid calls that are refused: the segment does not exist, and there is no GPU."""


def grpc_cases(key: str) -> list[GrpcCase]:
    return [*_infer_calls(), *_calls(key)]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Every valid request, for the shared-memory segment named `key`."""

    key: str
    http: Sequence[HttpCase] = field(init=False)
    grpc: Sequence[GrpcCase] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "http", http_cases(self.key))
        object.__setattr__(self, "grpc", grpc_cases(self.key))

    @property
    def cases(self) -> "Sequence[HttpCase | GrpcCase]":
        return [*self.http, *self.grpc]
