"""gRPC inference messages to values and back.

Two codecs with a small memory of what repeats, and pure functions. A request is parsed at its top level only: raw
contents become views of the message. The rest goes to protobuf and, because clients repeat it, is remembered in
compiled form. Knows no connection and no status code. One thread at a time.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, NoReturn, TypeVar

from google.protobuf.message import DecodeError

from halimede.errors import Error, Internal, Invalid
from halimede.protocol import inference_pb2 as pb
from halimede.requests import NO_SEQUENCE, InferRequest, InferResponse, Parameter, Parameters, refuse_long_id
from halimede.tensors import (
    Buffer,
    DataType,
    HostMemory,
    RegionReference,
    Shape,
    Tensor,
    are_many,
    datatype_named,
    frame_strings,
    has_many_strings,
    refuse_many_dims,
)
from halimede.wire.grpc.large import LargeMessage, TypedContents
from halimede.wire.grpc.parts import (
    CLASSIFICATION,
    SHARED_MEMORY,
    RememberedParameters,
    input_memory,
    no_data,
    read_outputs,
    read_parameters,
    refuse_duplicates,
)
from halimede.wire.grpc.scan import MessageLayout, MessageScan, scan_message

K = TypeVar("K")
V = TypeVar("V")

Message = Sequence[Buffer]
"""A message to send: buffers that follow each other on the wire."""

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def parse(kind: Any, message: Buffer) -> Any:
    """Parses a protobuf message of class `kind`. Raises Internal with gRPC's text."""
    try:
        return kind.FromString(message)
    except DecodeError:
        _unreadable()


def sendable(text: str) -> str:
    """Returns the part of a text that a message can carry. The name of a directory, or text that came over HTTP, may
    not be UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _unreadable() -> NoReturn:
    raise Internal("Unable to parse request") from None


_STOL = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]*)(?<=[0-9])")


def version_of(text: str) -> int:
    """Returns the model version that a text names, or -1 for an empty text. Parses like C's `stol`: leading blanks and
    a sign are accepted, and what follows the digits is ignored. Raises Invalid (H13)."""
    if not text:
        return -1
    found = _STOL.match(text)
    # Twenty digits are out of range, and `int` of very long text is slow.
    version = int(found[1] + (found[2][:20] or "0")) if found else INT64_MAX + 1
    if not -INT64_MAX - 1 <= version <= INT64_MAX:
        raise Invalid(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise Invalid(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return version


class _Head:
    """What a client repeats of a message: all except the id, the parameters and the raw contents.

    `whole` is the parsed protobuf message while it is still needed. It is None for a remembered head, whose `inputs`
    and `outputs` are complete. A remembered head is shared between requests and never changed. `inputs` have the index
    of their raw contents, or -1 for inputs in shared memory, whose tensors are in `references`. `typed` are the typed
    contents of a large message, by the index of the input. `many_strings`: the lengths of strings take long to check.
    """

    __slots__ = (
        "classes",
        "destinations",
        "in_regions",
        "inputs",
        "many_strings",
        "model_name",
        "model_version",
        "outputs",
        "plain",
        "references",
        "text",
        "typed",
        "version",
        "whole",
    )

    def __init__(self, whole: Any, text: bytes = b"") -> None:
        self.text = text
        self.model_name: str = whole.model_name
        self.model_version: str = whole.model_version
        self.whole = whole
        self.version: int | None = None
        self.inputs: tuple[tuple[int, str, DataType, Shape], ...] = ()
        self.outputs: tuple[str, ...] = ()
        self.plain = True
        self.in_regions = False
        self.references: dict[str, Tensor] = {}
        self.destinations: dict[str, RegionReference] | None = None
        self.classes: dict[str, int] | None = None
        self.typed: dict[int, TypedContents] | None = None
        self.many_strings = any(item.datatype == "BYTES" and are_many(item.shape) for item in whole.inputs)


class InferMessage:
    """A ModelInferRequest whose top level was parsed. Either `settings` are known for its parameters, or `parameters`
    has protobuf's, and `text` their bytes. `empty_final` (G31) is known after the decoder has made the request. `ready`
    is the request of a large message, or what is wrong with it."""

    __slots__ = ("empty_final", "head", "id", "parameters", "raws", "ready", "settings", "text")

    def __init__(
        self,
        id: str,
        head: _Head,
        raws: Sequence[Buffer],
        settings: RememberedParameters | None = None,
        parameters: Any = None,
        text: bytes = b"",
    ) -> None:
        self.id = id
        self.head = head
        self.raws = raws
        self.settings = settings
        self.parameters = parameters
        self.text = text
        self.empty_final = False
        self.ready: InferRequest | Error | None = None

    @property
    def model_name(self) -> str:
        return self.head.model_name

    @property
    def model_version(self) -> str:
        """The version as the client wrote it."""
        return self.head.model_version

    @property
    def version(self) -> int:
        """The version as a number, -1 if the client named none. Raises Invalid."""
        known = self.head.version
        return version_of(self.head.model_version) if known is None else known


class TakesLong(Exception):
    """The message is for `parse_large`, on another thread than the event loop."""


class InferDecoder:
    """Turns ModelInferRequest messages into InferRequests. It takes two steps, because Triton checks the model between
    them."""

    MAX_HEAD_BYTES: ClassVar[int] = 1024
    """Size of a head, or of parameters, that are remembered."""
    MAX_HEADS: ClassVar[int] = 256
    """Number of heads, of parameters and of layouts that are remembered."""
    MAX_UNUSUAL_BYTES: ClassVar[int] = 1 << 12
    """Size of a message with unusual fields that `parse` takes."""

    def __init__(self) -> None:
        self._layouts: dict[int, MessageLayout[tuple[_Head, RememberedParameters | None]]] = {}
        self._heads: dict[bytes, _Head] = {}
        self._settings: dict[bytes, RememberedParameters] = {}
        self._remembered = 0

    def parse(self, message: Buffer) -> InferMessage:
        """Parses the top level of a message. The result has views of `message`. Raises TakesLong if the message is for
        `parse_large`, Internal if it is malformed, and Invalid if it is beyond a limit."""
        layout = self._layouts.get(len(message))
        if layout is None or (known := layout.known.get(layout.key(message))) is None:
            return self._read(message)
        view = memoryview(message)
        raws = [view[raw] for raw in layout.raws]
        return InferMessage(_text(view[layout.id]) if layout.id else "", known[0], raws, known[1])

    def _read(self, message: Buffer) -> InferMessage:
        view = memoryview(message)
        try:
            scan = scan_message(view)
        except IndexError:
            _unreadable()
        # A large message, or an unusual one. Nothing is remembered of it.
        if scan is None:
            if len(message) > self.MAX_UNUSUAL_BYTES:
                raise TakesLong
            return parse_large(message)
        if scan.id:
            refuse_long_id(scan.id.stop - scan.id.start)
        text = scan.parameters
        settings = self._settings.get(text) if text else None
        # The bytes of the parameters are a message with this field only, so protobuf can read them alone.
        values = parse(pb.ModelInferRequest, text).parameters if text and settings is None else None
        request_id = _text(view[scan.id]) if scan.id else ""
        raws = [view[raw] for raw in scan.raws]
        head = self._heads.get(scan.head) if len(scan.head) <= self.MAX_HEAD_BYTES else None
        if head is None:
            head = _Head(parse(pb.ModelInferRequest, scan.head), scan.head)
        # Head and parameters are both known, so messages like this one repeat.
        elif values is None and not head.many_strings:
            self._lay_out(message, scan, (head, settings))
        if head.many_strings:
            raise TakesLong
        return InferMessage(request_id, head, raws, settings, values, text)

    def request(self, incoming: InferMessage, version: int) -> InferRequest:
        """Returns the request for `version`. Its tensors are views of the message. Raises what is wrong with it (G16 to
        G23)."""
        if (ready := incoming.ready) is not None:
            if isinstance(ready, Error):
                raise ready
            ready.version = version
            return ready
        head = incoming.head
        request = InferRequest(head.model_name, version)
        request.id = incoming.id
        if incoming.settings is not None:
            incoming.empty_final = incoming.settings.apply(request)
        elif incoming.parameters:
            incoming.empty_final = read_parameters(request, incoming.parameters)
            self._remember_settings(incoming, request)
        # The head is remembered: names, types and shapes are at hand.
        if head.whole is None:
            _fill(request, head, incoming.raws)
        else:
            _read_tensors(request, head.whole, incoming.raws, head.typed)
            self._remember(head, request)
        return request

    def _remember(self, head: _Head, request: InferRequest) -> None:
        """Remembers a head. Heads with typed contents, or with parameters of tensors other than shared memory and
        classes, are not remembered."""
        inputs, outputs = head.whole.inputs, head.whole.outputs
        # Typed contents are data, and long heads rarely repeat.
        if not 0 < len(head.text) <= self.MAX_HEAD_BYTES or any(t.HasField("contents") for t in inputs):
            return
        known = (*SHARED_MEMORY, CLASSIFICATION)
        if any(key not in known for t in (*inputs, *outputs) for key in t.parameters):
            return
        # Emptied, not evicted one by one: the heads in use are back after one request each.
        if len(self._heads) >= self.MAX_HEADS:
            self._heads.clear()
        head.version = request.version
        head.references = {t.name: t for t in request.inputs.values() if isinstance(t.memory, RegionReference)}
        places = count()
        head.inputs = tuple(
            (-1 if t.name in head.references else next(places), t.name, t.datatype, t.shape)
            for t in request.inputs.values()
        )
        head.outputs = request.outputs
        head.destinations, head.in_regions = request.destinations, request.in_regions
        head.classes = request.classes
        head.plain = not request.in_regions and request.classes is None
        head.whole = None
        self._heads[head.text] = head

    def _remember_settings(self, incoming: InferMessage, request: InferRequest) -> None:
        if 0 < len(incoming.text) <= self.MAX_HEAD_BYTES:
            if len(self._settings) >= self.MAX_HEADS:
                self._settings.clear()
            self._settings[incoming.text] = RememberedParameters(request, incoming.empty_final)

    def _lay_out(self, message: Buffer, scan: MessageScan, known: tuple[_Head, RememberedParameters | None]) -> None:
        """Remembers the layout of a message. It is called for the second message with this head and these parameters,
        because a message that never repeats would only evict others."""
        # The keys of a layout hold nearly whole messages, so their number is bounded over all layouts.
        if self._remembered >= self.MAX_HEADS:
            self._layouts.clear()
            self._remembered = 0
        layout = self._layouts.get(len(message))
        # Of one length only the last layout is kept.
        if layout is None or layout.id != scan.id or layout.raws != scan.raws:
            layout = self._layouts[len(message)] = MessageLayout(len(message), scan.id, scan.raws)
        layout.known[layout.key(message)] = known
        self._remembered += 1


def _text(view: memoryview) -> str:
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError:
        _unreadable()


def parse_large(message: Buffer) -> InferMessage:
    """Parses a message of any size, and makes its request. Any thread; lets others run meanwhile. Raises Internal if
    the message is malformed, and Invalid if it is beyond a limit."""
    large = LargeMessage(memoryview(message))
    whole = parse(pb.ModelInferRequest, large.head)
    refuse_long_id(len(whole.id))
    try:
        for item in large.inputs:
            whole.inputs.add().MergeFromString(item)
    except DecodeError:
        _unreadable()
    head = _Head(whole)
    head.typed = large.contents
    incoming = InferMessage(whole.id, head, large.raws, None, whole.parameters)
    try:
        request = InferDecoder().request(incoming, -1)
        for tensor in request.inputs.values():
            if has_many_strings(tensor):
                frame_strings(tensor)
        incoming.ready = request
    except Error as error:
        # Its traceback would keep the message.
        incoming.ready = error.with_traceback(None)
    return incoming


def _read_tensors(
    request: InferRequest, whole: Any, raws: Sequence[Buffer], typed: Mapping[int, TypedContents] | None
) -> None:
    refuse_duplicates(request, "input", whole.inputs)
    refuse_duplicates(request, "output", whole.outputs)
    rest = iter(raws)
    for index, item in enumerate(whole.inputs):
        contents = typed.get(index) if typed else None
        memory = input_memory(item, request.model_name, bool(raws), rest, contents)
        datatype = datatype_named(item.datatype)
        refuse_many_dims(item.name, len(item.shape))
        request.inputs[item.name] = Tensor(item.name, datatype, tuple(item.shape), memory)
        if isinstance(memory, RegionReference):
            request.in_regions = True
    read_outputs(request, whole.outputs)


def _fill(request: InferRequest, head: _Head, raws: Sequence[Buffer]) -> None:
    request.outputs = head.outputs
    request.form = head.text
    if not head.plain:
        _fill_otherwise(request, head, raws)
        return
    # An input without data (G20).
    if len(raws) < len(head.inputs):
        no_data(head.inputs[len(raws)][1], head.model_name)
    inputs = request.inputs
    # Raw contents beyond the inputs are ignored (G20). Indexing is used because `zip` would cost as much as a tensor.
    for at, name, datatype, shape in head.inputs:
        inputs[name] = Tensor(name, datatype, shape, HostMemory(raws[at]))


def _fill_otherwise(request: InferRequest, head: _Head, raws: Sequence[Buffer]) -> None:
    """Fills a request that uses shared memory or classes. Inputs in shared memory take no raw contents (G20)."""
    for at, name, datatype, shape in head.inputs:
        if at < 0:
            request.inputs[name] = head.references[name]
        elif at < len(raws):
            request.inputs[name] = Tensor(name, datatype, shape, HostMemory(raws[at]))
        else:
            no_data(name, head.model_name)
    request.destinations = head.destinations
    request.in_regions = head.in_regions
    request.classes = head.classes


_ID_TAG, _RAW_OUTPUT_TAG = 0x1A, 0x32


class InferEncoder:
    """Turns an InferResponse into a ModelInferResponse, alone or in a ModelStreamInferResponse."""

    MAX_PIECES: ClassVar[int] = 1024
    """Number of encoded heads, and of encoded outputs, that are remembered."""
    MAX_JOINED_BYTES: ClassVar[int] = 4096
    """Up to this size one joined buffer costs less than a list of buffers."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, int], bytes] = {}
        self._outputs: dict[tuple[str, DataType, Shape, int], tuple[bytes, bytes, int]] = {}

    def response(self, response: InferResponse) -> Message:
        """Returns a ModelInferResponse. Raises Invalid if it exceeds the size limit (G15), and Error if a tensor cannot
        be read on the host."""
        head, contents, size = self._pieces(response, b"")
        return [b"".join(head + contents)] if size <= self.MAX_JOINED_BYTES else [b"".join(head), *contents]

    def stream_response(self, response: InferResponse, final: bool) -> Message:
        """Returns a ModelStreamInferResponse that says whether the response is the last of its request (G30). Raises
        Invalid and Error, as `response` does."""
        head, contents, size = self._pieces(response, _FINAL_RESPONSE[final])
        head.insert(0, prefix(_INFER_RESPONSE_TAG, size))
        return [b"".join(head + contents)] if size <= self.MAX_JOINED_BYTES else [b"".join(head), *contents]

    def _pieces(self, response: InferResponse, flags: bytes) -> tuple[list[Buffer], list[Buffer], int]:
        """Returns what to join, what may be large, and the size of both. Fields are in the order of their numbers, as
        protobuf writes them."""
        named = response.model_name, response.model_version
        head: list[Buffer] = [self._heads.get(named) or self._head(named)]
        if response.id:
            text = response.id.encode()
            head += (prefix(_ID_TAG, len(text)), text)
        if response.parameters:
            # Responses of ensembles outside of a sequence share this object, so its message is made once.
            known = response.parameters is NO_SEQUENCE
            head.append(_NO_SEQUENCE if known else _parameters(response.parameters))
        if flags:
            head.append(flags)
        contents: list[Buffer] = []
        size = sum(map(len, head))
        for tensor in response.outputs:
            memory = tensor.memory
            key = tensor.name, tensor.datatype, tensor.shape, memory.byte_size
            output, start, bytes_of_all = self._outputs.get(key) or self._output(key)
            head.append(output)
            contents += (start, memory.host())
            size += bytes_of_all
        # The limit of protobuf messages, which gRPC shares.
        if size > INT32_MAX:
            raise Invalid(f"Response has byte size {size} which exceeds gRPC's byte size limit {INT32_MAX}.")
        return head, contents, size

    def _head(self, named: tuple[str, int]) -> bytes:
        model, version = named
        message = pb.ModelInferResponse(model_name=model, model_version=str(version))
        return _keep(self._heads, named, bytes(message.SerializeToString()), self.MAX_PIECES)

    def _output(self, key: tuple[str, DataType, Shape, int]) -> tuple[bytes, bytes, int]:
        """Returns the entry of an output, what stands before its contents, and the number of bytes of entry, that, and
        contents."""
        name, datatype, shape, size = key
        entry = pb.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype.name, shape=shape)
        output = bytes(pb.ModelInferResponse(outputs=[entry]).SerializeToString())
        start = prefix(_RAW_OUTPUT_TAG, size)
        return _keep(self._outputs, key, (output, start, len(output) + len(start) + size), self.MAX_PIECES)


def _keep(memory: dict[K, V], key: K, piece: V, limit: int) -> V:
    if len(memory) >= limit:
        memory.clear()
    memory[key] = piece
    return piece


def prefix(tag: int, size: int) -> bytes:
    """Returns tag and length, which stand before the bytes of a field."""
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


_NO_SEQUENCE = _parameters(NO_SEQUENCE)
_FINAL_RESPONSE = {final: _parameters({"triton_final_response": final}) for final in (False, True)}


def stream_refusal(incoming: InferMessage, text: str) -> Message:
    """Returns the message for a request that was refused before its start (G28)."""
    response = pb.ModelInferResponse(id=incoming.id)
    return [pb.ModelStreamInferResponse(error_message=text, infer_response=response).SerializeToString()]


def stream_failure(incoming: InferMessage, text: str, final: bool) -> Message:
    """Returns the message for a request that failed after its start (G28)."""
    response = _flag_only(incoming, final)
    return [pb.ModelStreamInferResponse(error_message=text, infer_response=response).SerializeToString()]


def stream_empty_final(incoming: InferMessage) -> Message:
    """Returns the empty response that says that no more come (G31)."""
    response = _flag_only(incoming, final=True)
    return [pb.ModelStreamInferResponse(infer_response=response).SerializeToString()]


def _flag_only(incoming: InferMessage, final: bool) -> Any:
    response = pb.ModelInferResponse(
        id=incoming.id, model_name=incoming.model_name, model_version=incoming.model_version
    )
    response.parameters["triton_final_response"].bool_param = final
    return response
