"""gRPC inference messages to values and back.

Pure: two codecs with a small memory of what repeats, and functions; knows no connection, stream or status code. A
request is read at its top level only: raw contents become views of the message, the rest goes to protobuf and, since
clients repeat it, is remembered compiled. Used by one thread at a time; raises the errors of the contract.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from halimede.errors import Internal, Invalid
from halimede.requests import InferRequest, InferResponse, Parameter, Parameters
from halimede.tensors import Buffer, DataType, HostMemory, Shape, Tensor, datatype_named
from halimede.wire.grpc_parts import (
    input_memory,
    no_data,
    output_names,
    read_parameters,
    refuse_duplicates,
)

Message = Sequence[Buffer]
"""A message to send: buffers that follow each other on the wire."""

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def parse(kind: Any, message: Buffer) -> Any:
    """The protobuf message of class `kind`. Raises Internal with gRPC's own words."""
    try:
        return kind.FromString(message)
    except DecodeError:
        _unreadable()


def _unreadable() -> NoReturn:
    raise Internal("Unable to parse request") from None


_STOL = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]*)(?<=[0-9])")


def version_of(text: str) -> int:
    """The model version that a request names, -1 when it names none. Reads as C's `stol` does: leading blanks and a
    sign are fine, what follows the digits is ignored. Raises Invalid (H13)."""
    if not text:
        return -1
    found = _STOL.match(text)
    # Twenty digits are too many already; more would only be slow to read.
    version = int(found[1] + (found[2][:20] or "0")) if found else INT64_MAX + 1
    if not -INT64_MAX - 1 <= version <= INT64_MAX:
        raise Invalid(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise Invalid(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return version


@dataclass(frozen=True, slots=True)
class _Template:
    """What a head without typed contents says, ready to be filled with id, parameters and raw contents."""

    model_name: str
    model_version: str
    inputs: tuple[tuple[str, DataType, Shape], ...]
    outputs: tuple[str, ...]


@dataclass(slots=True)
class InferMessage:
    """A ModelInferRequest whose top level has been read; `model_version` is the client's text.

    `head` is what protobuf reads of it: `whole` the result, or `template` what was remembered of an earlier one.
    `empty_final` (G31) is known once the decoder has made the request of it.
    """

    id: str
    model_name: str
    model_version: str
    head: bytes
    template: _Template | None
    whole: Any
    parameters: Any
    raws: Sequence[Buffer]
    empty_final: bool = False


class InferDecoder:
    """ModelInferRequest to InferRequest, in two steps because the real server looks at the model between them."""

    HEAD_LIMIT = 1024
    TEMPLATES_LIMIT = 256

    def __init__(self) -> None:
        self._templates: dict[bytes, _Template] = {}

    def parse(self, message: Buffer) -> InferMessage:
        """Reads the top level. The result holds views of `message`. Raises Internal when it is no such message."""
        try:
            parts = _scan(memoryview(message))
        except (IndexError, UnicodeDecodeError):
            _unreadable()
        if parts is None:
            whole = parse(pb.ModelInferRequest, message)
            name, version, raws = whole.model_name, whole.model_version, whole.raw_input_contents
            return InferMessage(whole.id, name, version, b"", None, whole, whole.parameters, raws)
        head, request_id, parameters, raws = parts
        values = parse(pb.ModelInferRequest, parameters).parameters if parameters else None
        template = self._templates.get(head) if len(head) <= self.HEAD_LIMIT else None
        if template is not None:
            name, version = template.model_name, template.model_version
            return InferMessage(request_id, name, version, head, template, None, values, raws)
        whole = parse(pb.ModelInferRequest, head)
        return InferMessage(request_id, whole.model_name, whole.model_version, head, None, whole, values, raws)

    def request(self, incoming: InferMessage, version: int) -> InferRequest:
        """The request for `version`, its tensors views of the message. Raises what is wrong with it (G16 to G23)."""
        request = InferRequest(incoming.model_name, version)
        request.id = incoming.id
        if incoming.parameters:
            incoming.empty_final = read_parameters(request, incoming.parameters)
        if incoming.template is not None:
            _fill(request, incoming.template, incoming.raws)
        else:
            _read_tensors(request, incoming.whole, incoming.raws)
            self._remember(incoming, request)
        return request

    def _remember(self, incoming: InferMessage, request: InferRequest) -> None:
        inputs, outputs = incoming.whole.inputs, incoming.whole.outputs
        if not 0 < len(incoming.head) <= self.HEAD_LIMIT or any(t.HasField("contents") for t in inputs):
            return
        if any(t.parameters for t in (*inputs, *outputs)):
            return
        if len(self._templates) >= self.TEMPLATES_LIMIT:
            self._templates.clear()
        tensors = tuple((t.name, t.datatype, t.shape) for t in request.inputs.values())
        self._templates[incoming.head] = _Template(request.model_name, incoming.model_version, tensors, request.outputs)


def _read_tensors(request: InferRequest, whole: Any, raws: Sequence[Buffer]) -> None:
    refuse_duplicates(request, whole.inputs)
    rest = iter(raws)
    for item in whole.inputs:
        memory = input_memory(item, request.model_name, bool(raws), rest)
        datatype = datatype_named(item.datatype)
        request.inputs[item.name] = Tensor(item.name, datatype, tuple(item.shape), memory)
    request.outputs = output_names(whole.outputs)


def _fill(request: InferRequest, template: _Template, raws: Sequence[Buffer]) -> None:
    if len(raws) < len(template.inputs):
        no_data(template.inputs[len(raws)][0], template.model_name)
    inputs = request.inputs
    # Raw contents beyond the inputs are ignored (G20).
    for (name, datatype, shape), raw in zip(template.inputs, raws, strict=False):
        inputs[name] = Tensor(name, datatype, shape, HostMemory(raw))
    request.outputs = template.outputs


_ID_TAG, _PARAMETER_TAG, _RAW_INPUT_TAG, _RAW_OUTPUT_TAG = 0x1A, 0x22, 0x3A, 0x32
_TAKEN_TAGS = (_ID_TAG, _PARAMETER_TAG, _RAW_INPUT_TAG)


def _scan(view: memoryview) -> tuple[bytes, str, bytes, list[memoryview]] | None:
    """Splits a ModelInferRequest into the head that clients repeat, the id, the parameters as a message of their own,
    and views of the raw contents.

    None for a message with anything but length-delimited fields of numbers under 16: no client of the protocol sends
    one. Raises IndexError or UnicodeDecodeError when it is malformed.
    """
    at, end, kept = 0, len(view), 0
    pieces: list[memoryview] = []
    parameters: list[memoryview] = []
    raws: list[memoryview] = []
    request_id = ""
    while at < end:
        tag, size, start = view[at], view[at + 1], at + 2
        if tag & 0x87 != 2:
            return None
        if size > 127:
            size, start = _varint(view, at + 1)
        stop = start + size
        if stop > end:
            raise IndexError
        if tag in _TAKEN_TAGS:
            if tag == _RAW_INPUT_TAG:
                raws.append(view[start:stop])
            elif tag == _ID_TAG:
                request_id = str(view[start:stop], "utf-8")
            else:
                parameters.append(view[at:stop])
            if kept < at:
                pieces.append(view[kept:at])
            kept = stop
        at = stop
    if kept < end:
        pieces.append(view[kept:end])
    return b"".join(pieces), request_id, b"".join(parameters), raws


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends. Raises IndexError when it does not end."""
    value = shift = 0
    while shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError


class InferEncoder:
    """InferResponse to ModelInferResponse, alone or inside a ModelStreamInferResponse."""

    PIECES_LIMIT = 1024
    JOIN_LIMIT = 4096
    """Up to this size one copied buffer is cheaper than a list of them."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, int], bytes] = {}
        self._outputs: dict[tuple[str, DataType, Shape], bytes] = {}

    def response(self, response: InferResponse) -> Message:
        """A ModelInferResponse. Raises Invalid over the size limit (G15), Error where the host cannot read a tensor."""
        pieces, size = self._pieces(response, b"")
        return [b"".join(pieces)] if size <= self.JOIN_LIMIT else pieces

    def stream_response(self, response: InferResponse, final: bool) -> Message:
        """The same in a ModelStreamInferResponse that says whether it is the last of its request (G30)."""
        pieces, size = self._pieces(response, _FINAL_RESPONSE[final])
        pieces.insert(0, prefix(_INFER_RESPONSE_TAG, size))
        return [b"".join(pieces)] if size <= self.JOIN_LIMIT else pieces

    def _pieces(self, response: InferResponse, flags: bytes) -> tuple[list[Buffer], int]:
        """The message in buffers, and its size. Fields stand in the order of their numbers, as protobuf writes them."""
        head: list[bytes] = [self._head(response.model_name, response.model_version)]
        if response.id:
            name = response.id.encode()
            head += (prefix(_ID_TAG, len(name)), name)
        if response.parameters:
            head.append(_parameters(response.parameters))
        if flags:
            head.append(flags)
        head += [self._output(t.name, t.datatype, t.shape) for t in response.outputs]
        pieces: list[Buffer] = [b"".join(head)]
        size = len(pieces[0])
        for tensor in response.outputs:
            view = tensor.memory.host()
            start = prefix(_RAW_OUTPUT_TAG, view.nbytes)
            pieces += (start, view)
            size += len(start) + view.nbytes
        if size > INT32_MAX:
            raise Invalid(f"Response has byte size {size} which exceeds gRPC's byte size limit {INT32_MAX}.")
        return pieces, size

    def _head(self, model: str, version: int) -> bytes:
        if (head := self._heads.get((model, version))) is None:
            head = pb.ModelInferResponse(model_name=model, model_version=str(version)).SerializeToString()
            _keep(self._heads, (model, version), head, self.PIECES_LIMIT)
        return head

    def _output(self, name: str, datatype: DataType, shape: Shape) -> bytes:
        key = (name, datatype, shape)
        if (output := self._outputs.get(key)) is None:
            entry = pb.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype.name, shape=shape)
            output = pb.ModelInferResponse(outputs=[entry]).SerializeToString()
            _keep(self._outputs, key, output, self.PIECES_LIMIT)
        return output


def _keep(memory: dict[Any, bytes], key: object, piece: bytes, limit: int) -> None:
    if len(memory) >= limit:
        memory.clear()
    memory[key] = piece


def prefix(tag: int, size: int) -> bytes:
    """Tag and length before the bytes of a field."""
    if size < 0x80:
        return bytes((tag, size))
    out = [tag]
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


_INFER_RESPONSE_TAG = 0x12


def _parameters(parameters: Parameters) -> bytes:
    message = pb.ModelInferResponse()
    for key, value in parameters.items():
        setattr(message.parameters[key], _parameter_kind(value), value)
    return bytes(message.SerializeToString())


def _parameter_kind(value: Parameter) -> str:
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, int):
        return "int64_param"
    return "string_param" if isinstance(value, str) else "double_param"


_FINAL_RESPONSE = {final: _parameters({"triton_final_response": final}) for final in (False, True)}


def stream_refusal(incoming: InferMessage, text: str) -> Message:
    """What a stream says of a request that never began (G28)."""
    response = pb.ModelInferResponse(id=incoming.id)
    return [pb.ModelStreamInferResponse(error_message=text, infer_response=response).SerializeToString()]


def stream_failure(incoming: InferMessage, text: str, final: bool) -> Message:
    """What a stream says of a request that failed on its way (G28)."""
    response = _flag_only(incoming, final)
    return [pb.ModelStreamInferResponse(error_message=text, infer_response=response).SerializeToString()]


def stream_empty_final(incoming: InferMessage) -> Message:
    """The empty response that only says that no more come (G31)."""
    response = _flag_only(incoming, final=True)
    return [pb.ModelStreamInferResponse(infer_response=response).SerializeToString()]


def _flag_only(incoming: InferMessage, final: bool) -> Any:
    response = pb.ModelInferResponse(
        id=incoming.id, model_name=incoming.model_name, model_version=incoming.model_version
    )
    response.parameters["triton_final_response"].bool_param = final
    return response
