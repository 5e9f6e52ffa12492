"""What the fuzzer calls: each target takes bytes, and raises if the code under test does what it must not.

If there are two ways to a result, a target compares them: a whole read with single bytes, a first look with a
remembered one, our decoder with a library's. An Error of the vocabulary is an answer. Any other exception is a finding,
and so is a record in the log of an internal error. A target has no state that a later input could see.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf.message import DecodeError
from hpack import Decoder
from hpack.exceptions import HPACKDecodingError, HPACKError
from hpack.huffman_table import decode_huffman

from halimede.config import message as configurations
from halimede.config.draft import Draft, read_override
from halimede.errors import Error
from halimede.protocol import inference_pb2 as pb
from halimede.requests import InferRequest
from halimede.tensors import Memory, RegionReference, are_short_strings, framing_of, join_bytes, split_bytes
from halimede.transport.grpc.messages import MessageFault, MessageReader
from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from halimede.transport.http1.exchange import Http1Exchange
from halimede.transport.http2 import huffman
from halimede.transport.http2.frames import ConnectionFault
from halimede.transport.http2.headers import HeaderDecoder
from halimede.wire.grpc import admin as grpc_admin
from halimede.wire.grpc import shared_memory as grpc_regions
from halimede.wire.grpc.infer import InferDecoder, TakesLong, parse_large
from halimede.wire.http import admin as http_admin
from halimede.wire.http import shared_memory as http_regions
from halimede.wire.http.infer import decode_infer, decode_large
from tests.fuzz.programs import http2_frames, protobuf_message
from tests.transport.http1_fakes import Client, echo
from tests.transport.http2_bench import Clock, Service, Transport

Target = Callable[[bytes], None]
LIMIT = 1 << 16


class InternalError(AssertionError):
    """The code under test has logged an internal error."""


class _Raising(logging.Handler):
    """Keeps records of internal errors: they are logged with an exception."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


@contextmanager
def no_internal_error() -> Iterator[None]:
    handler = _Raising()
    logger = logging.getLogger("halimede")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    if handler.found:
        raise InternalError(handler.found[0])


def outcome(work: Callable[[], Any]) -> Any:
    """The result, or the kind and text of its Error."""
    try:
        return work()
    except Error as error:
        return type(error), error.message


# Transports.


def _http1(data: bytes, size: int | None) -> tuple[list[tuple[bytes, bytes, bytes]], bytes]:
    taken: list[tuple[bytes, bytes, bytes]] = []

    def handler(exchange: Http1Exchange) -> None:
        taken.append((exchange.method, exchange.target, bytes(exchange.body)))
        echo(exchange)

    client = Client(handler)
    client.send(data, size)
    client.end()
    return taken, client.transport.written


def http1(data: bytes) -> None:
    """However the bytes are split, they are the same requests with the same answers. So no request is smuggled."""
    with no_internal_error():
        whole = _http1(data, None)
        # Again: the heads of a connection are remembered by its listener, but each run has its own.
        assert _http1(data, 1) == whole
        assert _http1(data, 7) == whole


def _http2(data: bytes, size: int) -> tuple[list[Any], bool]:
    clock, service = Clock(), Service()
    server = GrpcServer(service.rpcs(), GrpcServerOptions(), clock, clock.time)
    connection, transport = server.connect(), Transport(clock)
    transport.begin(connection)
    at = 0
    while at < len(data) and not transport.closing:
        if not transport.reading:
            clock.run()
            assert transport.reading or transport.closing, "it never reads on"
            continue
        room = connection.get_buffer(-1)
        part = data[at : at + min(size, len(room))]
        room[: len(part)] = part
        connection.buffer_updated(len(part))
        at += len(part)
        clock.run()
    clock.run()
    closing = transport.closing
    transport.lose()
    assert transport.misused == []
    assert service.wrong == []
    assert not any(call.cancels > 1 for call in service.opened)
    return [(call.path, call.messages, call.half_closes, call.metadata) for call in service.opened], closing


def http2(data: bytes) -> None:
    """However the frames are split, they are the same calls. What the connection holds ends with it."""
    sent = http2_frames(data)
    with no_internal_error():
        whole = _http2(sent, 1 << 20)
        assert _http2(sent, 13) == whole


def hpack(data: bytes) -> None:
    """The decoder agrees with the library's. Blocks are separated by a byte that says how long the next one is."""
    ours = HeaderDecoder(lambda head: head, lambda head: True)
    theirs = Decoder(max_header_list_size=1 << 16)
    theirs.max_allowed_table_size = 4096
    at = 0
    while at < len(data):
        block = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
        try:
            head = ours.decode(block)
        except ConnectionFault:
            return
        try:
            fields = theirs.decode(block, raw=True)
        except HPACKError as error:
            raise AssertionError(f"the library refuses the block: {error!r}") from error
        if not head.malformed:
            regular = [(bytes(name), bytes(value)) for name, value in fields if not bytes(name).startswith(b":")]
            assert list(head.fields) == regular


def huffman_code(data: bytes) -> None:
    """The decoder agrees with the library's."""
    ours: bytes | None = None
    theirs: bytes | None = None
    with suppress(HPACKDecodingError):
        ours = huffman.decode(data)
    with suppress(HPACKDecodingError):
        theirs = decode_huffman(data)
    assert ours == theirs


def grpc_frames(data: bytes) -> None:
    """However a body is split, it has the same messages."""

    def read(size: int) -> list[tuple[int, bytes]] | tuple[int, str]:
        reader = MessageReader(1 << 20)
        view = memoryview(data)
        try:
            for at in range(0, len(view), size):
                part = view[at : at + size]
                while len(part):
                    part = part[reader.feed(part, 3) :]
                    if len(reader.messages) >= 3:
                        kept.extend((flag, bytes(each)) for flag, each in reader.messages)
                        reader.messages.clear()
        except MessageFault as fault:
            return fault.code, fault.text
        kept.extend((flag, bytes(each)) for flag, each in reader.messages)
        return kept

    kept: list[tuple[int, bytes]] = []
    whole = read(max(len(data), 1))
    kept = []
    assert read(1) == whole


# Messages.


def _shown(request: InferRequest) -> tuple[Any, ...]:
    """What a request says, in values that can be compared."""
    inputs = [
        (name, str(each.datatype), tuple(each.shape), _contents(each.memory)) for name, each in request.inputs.items()
    ]
    said = [request.id, request.model_name, request.outputs, request.classes, request.correlation_id, request.priority]
    return inputs, str(said), str(request.parameters), str(request.destinations)


def _contents(memory: Memory) -> object:
    return memory if isinstance(memory, RegionReference) else bytes(memory.host())


def grpc_infer(data: bytes) -> None:
    """The quick reader, the one that remembers, and the one for large messages agree, and so does protobuf."""
    message = protobuf_message(data)
    decoder = InferDecoder()

    def quick() -> tuple[Any, ...]:
        return _shown(decoder.request(decoder.parse(message), -1))

    def large() -> tuple[Any, ...]:
        return _shown(InferDecoder().request(parse_large(message), -1))

    try:
        first = outcome(quick)
        assert outcome(quick) == first
        assert outcome(quick) == first
    except TakesLong:
        outcome(large)
        return
    assert outcome(large) == first
    try:
        pb.ModelInferRequest.FromString(message)
    except DecodeError:
        assert isinstance(first[0], type), "protobuf refuses it"


def grpc_administration(data: bytes) -> None:
    message = protobuf_message(data)
    for read in (
        grpc_admin.read_load,
        grpc_admin.read_unload,
        grpc_admin.read_index,
        grpc_admin.read_log_settings,
        grpc_admin.read_trace_settings,
        grpc_regions.read_system_registration,
        grpc_regions.read_cuda_registration,
    ):
        outcome(lambda read=read: read(message))  # type: ignore[misc]  # a bound argument


def http_infer(data: bytes) -> None:
    """The reader that remembers heads agrees with itself, and with the one for large documents. The first two bytes say
    how long the JSON is; all of the rest if they are 255."""
    length, body = int.from_bytes(data[:2]), memoryview(data[2:])
    head = None if length == 0xFFFF else min(length, len(body))

    def read(reader: Callable[..., Any]) -> tuple[Any, ...]:
        request, form = reader("int32", -1, body, head, LIMIT)
        raw = None if request.raw is None else bytes(request.raw.host())
        return _shown(request), raw, str(form.listed), form.binary

    first = outcome(lambda: read(decode_infer))
    assert outcome(lambda: read(decode_infer)) == first
    assert outcome(lambda: read(decode_large)) == first


def http_administration(data: bytes) -> None:
    outcome(lambda: http_admin.read_load("", "m", data, LIMIT))
    outcome(lambda: http_admin.read_unload("", "m", data, LIMIT))
    outcome(lambda: http_admin.read_index(data, LIMIT))
    outcome(lambda: http_admin.read_log_settings(data, LIMIT))
    outcome(lambda: http_admin.read_trace_settings("m", data, LIMIT))
    outcome(lambda: http_regions.read_system_registration("r", data))
    outcome(lambda: http_regions.read_cuda_registration("r", data))


def strings(data: bytes) -> None:
    """The ways to check the lengths of strings agree. The first byte is the number of strings."""
    count, view = (data[0] if data else 0), data[1:]
    framing = framing_of(view)
    if are_short_strings(view, count):
        assert (framing.whole, framing.left) == (count, 0)
    found = outcome(lambda: split_bytes(view, framing.whole))
    if framing.left:
        assert isinstance(found, tuple), "a string that is not whole"
    else:
        assert isinstance(found, list)
        assert join_bytes(found) == view


# Configurations.


def _finish(draft: Draft) -> None:
    config = draft.finish(gpus=(), default_instance_count=1)
    # What is printed can be read again.
    assert config.json, "no text"


def configuration_json(data: bytes) -> None:
    """A configuration that comes with a load."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    outcome(lambda: _finish(read_override(text, Path("/nowhere/m"))))


def configuration_text(data: bytes) -> None:
    """A config.pbtxt."""
    from google.protobuf import text_format

    try:
        message = text_format.Parse(data.decode(), configurations.empty())
    except (text_format.ParseError, ValueError):
        return
    outcome(lambda: _finish(Draft(Path("/nowhere/m/config.pbtxt"), message)))


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        target.__name__: target
        for target in (
            http1,
            http2,
            hpack,
            huffman_code,
            grpc_frames,
            grpc_infer,
            grpc_administration,
            http_infer,
            http_administration,
            strings,
            configuration_json,
            configuration_text,
        )
    }
)
"""The parsers, by name."""
