"""The bytes of the requests, made before the clock starts. Pure.

Only what differs between the requests of a sequence (its id and its flags) is added while they are sent.
"""

import gzip
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from halimede.errors import Invalid
from halimede.perf.data import Step, Value, elements
from halimede.perf.model import Model, TensorInfo
from halimede.perf.options import Parameter
from halimede.perf.sequences import Turn
from halimede.protocol import inference_pb2 as pb
from halimede.tensors import BF16, BYTES, FP16, datatype_named


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a shared-memory region."""

    region: str
    offset: int
    size: int


Places = Mapping[str, Place]
"""Where tensors are, by name."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input of a request, with all of its batch."""

    info: TensorInfo
    shape: tuple[int, ...]
    content: bytes


def batch_of(model: Model, steps: Sequence[Step]) -> list[Tensor]:
    """The inputs of a request with these steps as its batch. Raises Invalid if they do not go together."""
    first, found = steps[0], []
    for name, value in first.inputs.items():
        values = [step.inputs[name] for step in steps if name in step.inputs]
        if len(values) != len(steps) or any(each.shape != value.shape for each in values):
            raise Invalid(
                f"can not batch tensors with different shapes together (input '{name}' expected shape "
                f"{list(value.shape)} and received another)"
            )
        shape = (len(steps), *value.shape) if model.max_batch_size else value.shape
        found.append(Tensor(model.inputs[name], shape, b"".join(each.content for each in values)))
    return found


class Prepared(Protocol):
    """A request that is ready to be sent."""

    @property
    def plain(self) -> bytes:
        """Its bytes, if it belongs to no sequence."""
        ...

    def of(self, turn: Turn) -> bytes:
        """Its bytes as a request of a sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A request that is always the same."""

    plain: bytes

    def of(self, turn: Turn) -> bytes:
        return self.plain


# ---- HTTP


class HttpRequest:
    """A request of the HTTP protocol. `head` ends before the lengths; `members` are those of its JSON after
    `parameters`."""

    __slots__ = ("_head", "_members", "_parameters", "_raw", "plain")

    def __init__(self, head: bytes, parameters: Mapping[str, Any], members: bytes, raw: bytes) -> None:
        self._head, self._parameters, self._members, self._raw = head, parameters, members, raw
        self.plain = self._bytes(parameters)

    def of(self, turn: Turn) -> bytes:
        return self._bytes(
            {
                **self._parameters,
                "sequence_id": turn.sequence_id,
                "sequence_start": turn.starts,
                "sequence_end": turn.ends,
            }
        )

    def _bytes(self, parameters: Mapping[str, Any]) -> bytes:
        start = b'{"parameters":%b,' % json.dumps(parameters, separators=(",", ":")).encode() if parameters else b"{"
        size = len(start) + len(self._members)
        lengths = b"Content-Length: %d\r\n\r\n" % (size + len(self._raw))
        if self._raw:
            lengths = b"Inference-Header-Content-Length: %d\r\n" % size + lengths
        return b"".join((self._head, lengths, start, self._members, self._raw))


@dataclass(frozen=True, slots=True)
class HttpEncoder:
    """Makes requests of the HTTP protocol. `binary_in` and `binary_out` are the formats of tensors (X13)."""

    model: Model
    authority: str
    headers: Sequence[tuple[str, str]]
    binary_in: bool = True
    binary_out: bool = True

    def prepare(self, tensors: Sequence[Tensor], inputs: Places, outputs: Places) -> HttpRequest:
        described, raw = [], []
        for tensor in tensors:
            entry, content = self._input(tensor, inputs.get(tensor.info.name))
            described.append(entry)
            raw.append(content)
        members = {"inputs": described, "outputs": [self._output(name, outputs) for name in self.model.outputs]}
        text = json.dumps(members, separators=(",", ":")).encode()
        return HttpRequest(self._head(any(raw)), {}, text[1:], b"".join(raw))

    def _head(self, is_binary: bool) -> bytes:
        target = f"/v2/models/{self.model.name}"
        if self.model.version:
            target += f"/versions/{self.model.version}"
        kind = "application/octet-stream" if is_binary else "application/json"
        fields = [("Host", self.authority), ("Accept", "*/*"), *self.headers, ("Content-Type", kind)]
        lines = [f"POST {target}/infer HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")

    def _input(self, tensor: Tensor, place: Place | None) -> tuple[dict[str, Any], bytes]:
        info = tensor.info
        entry: dict[str, Any] = {"name": info.name, "shape": list(tensor.shape), "datatype": info.datatype.name}
        if place is not None:
            entry["parameters"] = _shared(place)
            return entry, b""
        if self.binary_in:
            entry["parameters"] = {"binary_data_size": len(tensor.content)}
            return entry, tensor.content
        entry["data"] = json_data(tensor)
        return entry, b""

    def _output(self, name: str, outputs: Places) -> dict[str, Any]:
        place = outputs.get(name)
        return {"name": name, "parameters": {"binary_data": self.binary_out} if place is None else _shared(place)}


def _shared(place: Place) -> dict[str, Any]:
    return {
        "shared_memory_region": place.region,
        "shared_memory_byte_size": place.size,
        **({"shared_memory_offset": place.offset} if place.offset else {}),
    }


def json_data(tensor: Tensor) -> list[Any]:
    """The elements for JSON. Raises Invalid for datatypes that JSON cannot have."""
    datatype = tensor.info.datatype
    if datatype is BYTES:
        return [text.decode("utf-8", "replace") for text in unframed(tensor.content)]
    if datatype in (FP16, BF16):
        raise Invalid(f"input {tensor.info.name} has the datatype {datatype}, which JSON cannot have")
    found: list[Any] = np.frombuffer(tensor.content, datatype.numpy).tolist()
    return found


def unframed(content: bytes) -> list[bytes]:
    """The elements of BYTES."""
    found, at = [], 0
    while at + 4 <= len(content):
        (size,) = struct.unpack_from("<I", content, at)
        found.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return found


# ---- gRPC


COMPRESSORS = {
    "none": None,
    "gzip": lambda data: gzip.compress(data, 6),
    "deflate": zlib.compress,
}


def framed_message(message: bytes, compression: str = "none") -> bytes:
    """A message with its five-byte prefix."""
    compress = COMPRESSORS[compression]
    if compress is None:
        return b"\0" + len(message).to_bytes(4, "big") + message
    packed = compress(message)
    return b"\1" + len(packed).to_bytes(4, "big") + packed


class GrpcRequest:
    """A ModelInferRequest in three parts: what comes before the parameters, the parameters, and the rest. A message may
    be put together of parts, and the parts are in the order of its fields."""

    __slots__ = ("_compression", "_parameters", "_rest", "_start", "plain")

    def __init__(self, start: bytes, parameters: Mapping[str, Parameter], rest: bytes, compression: str) -> None:
        self._start, self._rest, self._compression = start, rest, compression
        self._parameters = pb.ModelInferRequest()
        for name, each in parameters.items():
            _set(self._parameters, name, each)
        self.plain = self._bytes(self._parameters)

    def of(self, turn: Turn) -> bytes:
        message = pb.ModelInferRequest()
        message.CopyFrom(self._parameters)
        message.parameters["sequence_id"].int64_param = turn.sequence_id
        message.parameters["sequence_start"].bool_param = turn.starts
        message.parameters["sequence_end"].bool_param = turn.ends
        return self._bytes(message)

    def _bytes(self, parameters: pb.ModelInferRequest) -> bytes:
        return framed_message(self._start + parameters.SerializeToString() + self._rest, self._compression)


def _set(message: Any, name: str, parameter: Parameter) -> None:
    value = message.parameters[name]
    try:
        if parameter.kind == "bool":
            value.bool_param = parameter.value.lower() == "true"
        elif parameter.kind == "int":
            value.int64_param = int(parameter.value)
        elif parameter.kind == "string":
            value.string_param = parameter.value
        else:
            raise Invalid(f"Unsupported type for the parameter '{name}': {parameter.kind}; it is bool, int or string")
    except ValueError:
        raise Invalid(f"the value of the parameter '{name}' is no int: {parameter.value}") from None


EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
"""The parameter with which the server marks the last response, if need be by an empty one."""


@dataclass(frozen=True, slots=True)
class GrpcEncoder:
    """Makes requests of the gRPC protocol, as messages with their prefix."""

    model: Model
    parameters: Mapping[str, Parameter]
    compression: str = "none"

    def prepare(self, tensors: Sequence[Tensor], inputs: Places, outputs: Places) -> GrpcRequest:
        rest = pb.ModelInferRequest()
        for tensor in tensors:
            entry = rest.inputs.add(name=tensor.info.name, datatype=tensor.info.datatype.name, shape=tensor.shape)
            place = inputs.get(tensor.info.name)
            if place is None:
                rest.raw_input_contents.append(tensor.content)
            else:
                _share(entry, place)
        for name in self.model.outputs:
            output = rest.outputs.add(name=name)
            if name in outputs:
                _share(output, outputs[name])
        start = pb.ModelInferRequest(model_name=self.model.name, model_version=self.model.version)
        parameters = dict(self.parameters)
        if self.model.is_decoupled:
            parameters[EMPTY_FINAL_RESPONSE] = Parameter("true", "bool")
        return GrpcRequest(start.SerializeToString(), parameters, rest.SerializeToString(), self.compression)


def _share(entry: Any, place: Place) -> None:
    entry.parameters["shared_memory_region"].string_param = place.region
    entry.parameters["shared_memory_byte_size"].int64_param = place.size
    if place.offset:
        entry.parameters["shared_memory_offset"].int64_param = place.offset


class Encoder(Protocol):
    """Makes requests of one protocol."""

    def prepare(self, tensors: Sequence[Tensor], inputs: Places, outputs: Places) -> Prepared: ...


# ---- answers


def outputs_of(body: bytes, head_length: int | None = None) -> dict[str, tuple[str, bytes]]:
    """The outputs of an answer over HTTP, with their datatypes. The length of its JSON is found by its end if it is not
    given."""
    size = json_end(body) if head_length is None else head_length
    found, at = {}, size
    for output in json.loads(body[:size]).get("outputs", ()):
        name, datatype = str(output["name"]), str(output["datatype"])
        binary = output.get("parameters", {}).get("binary_data_size")
        if binary is None:
            content = elements(output.get("data", []), TensorInfo(name, datatype_named(datatype), ()))
        else:
            content = body[at : at + int(binary)]
            at += int(binary)
        found[name] = datatype, content
    return found


def json_end(body: bytes) -> int:
    """Where the JSON at the beginning of a body ends."""
    text = body.decode("latin-1")
    return json.JSONDecoder().raw_decode(text)[1]


def grpc_outputs(message: bytes, streams: bool) -> dict[str, tuple[str, bytes]]:
    """The outputs of a response over gRPC, with their datatypes."""
    if streams:
        response = pb.ModelStreamInferResponse.FromString(message).infer_response
    else:
        response = pb.ModelInferResponse.FromString(message)
    contents = [*response.raw_output_contents, *([b""] * len(response.outputs))]
    return {
        output.name: (output.datatype, content) for output, content in zip(response.outputs, contents, strict=False)
    }


def differs(expected: Mapping[str, Value], outputs: Mapping[str, tuple[str, bytes]]) -> str:
    """Why outputs are not what the data say they must be; empty if they are (X11)."""
    for name, value in expected.items():
        _, content = outputs.get(name, ("", b""))
        if len(content) != len(value.content):
            return "Output size doesn't match expected size"
        if content != value.content:
            return "Output doesn't match expected output"
    return ""
