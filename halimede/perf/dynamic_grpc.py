"""Calls of any method of gRPC: its messages in JSON, read with the .proto file that has them (X2). Reads files."""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from halimede.errors import Invalid
from halimede.perf.data import Step, Value, document_of
from halimede.perf.model import Model, TensorInfo
from halimede.perf.options import Options
from halimede.perf.requests import Places, Tensor, Whole, framed_message
from halimede.tensors import BYTES

MESSAGE = TensorInfo("message", BYTES, (1,))
RESPONSE = TensorInfo("response", BYTES, (1,))
MakeMessage = Callable[[Any], bytes]
"""Makes the bytes of a message from its JSON. Raises Invalid."""


def model_of_method(options: Options) -> Model:
    """The method as a model: its messages as the only input."""
    name = options.model or options.grpc_method
    return Model(name, options.version, {"message": MESSAGE}, {"response": RESPONSE}, 1)


def read_calls(options: Options) -> list[list[Step]]:
    """The calls in the files of `--input-data`, one stream: the messages of each, framed. Raises Invalid."""
    make = message_maker(options.proto, options.grpc_method) if options.proto else _without_proto
    steps = []
    for path in options.data_paths:
        for number, entry in enumerate(document_of(Path(path))["data"]):
            if not isinstance(entry, dict) or "message" not in entry:
                raise Invalid(f"missing tensor message ( Location stream id: 0, step id: {number})")
            given = entry["message"]
            messages = [_content(each, make) for each in (given if isinstance(given, list) else [given])]
            call = b"".join(framed_message(each, options.compression) for each in messages)
            steps.append(Step({"message": Value((1,), call)}, {}, {}))
    if not steps:
        raise Invalid("The data of the json file have no request")
    return [steps]


def _content(value: Any, make: MakeMessage) -> bytes:
    """A message: its bytes in base 64, or its fields."""
    if isinstance(value, dict) and set(value) == {"b64"}:
        try:
            return base64.b64decode(str(value["b64"]), validate=True)
        except binascii.Error as error:
            raise Invalid(f"b64 of a message is not base 64: {error}") from None
    return make(value)


def _without_proto(value: Any) -> bytes:
    raise Invalid('messages with fields need --proto, the file that describes them; bytes are {"b64": "..."}')


def message_maker(proto: str, method: str) -> MakeMessage:
    """Makes requests of a method, PACKAGE.SERVICE/METHOD, that a .proto file has. Raises Invalid."""
    pool = DescriptorPool()
    for file in _compiled(Path(proto)).file:
        pool.Add(file)
    service, _, name = method.partition("/")
    try:
        found = pool.FindServiceByName(service).methods_by_name[name]
    except KeyError:
        raise Invalid(f"'{proto}' has no method {method}") from None
    request = GetMessageClass(found.input_type)

    def make(value: Any) -> bytes:
        try:
            return json_format.ParseDict(value, request(), descriptor_pool=pool).SerializeToString()
        except (json_format.ParseError, AttributeError, TypeError) as error:
            raise Invalid(f"a message is no {found.input_type.full_name}: {' '.join(str(error).split())}") from None

    return make


def _compiled(proto: Path) -> FileDescriptorSet:
    """The descriptions of a .proto file and of those that it imports, from its own folder or from protobuf's."""
    try:
        import grpc_tools
        from grpc_tools import protoc
    except ImportError:
        raise Invalid("--proto needs a library: pip install 'halimede[perf]'") from None
    with TemporaryDirectory() as folder:
        made = Path(folder, "descriptors")
        words = [f"-I{proto.parent}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}", "--include_imports"]
        if protoc.main(["protoc", *words, f"--descriptor_set_out={made}", str(proto)]):
            raise Invalid(f"'{proto}' is refused, for the reason above")
        return FileDescriptorSet.FromString(made.read_bytes())


@dataclass(frozen=True, slots=True)
class CallEncoder:
    """Makes requests whose messages are ready."""

    def prepare(self, tensors: Sequence[Tensor], inputs: Places, outputs: Places) -> Whole:
        return Whole(tensors[0].content)
