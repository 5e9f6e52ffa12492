"""Measures the codecs alone: CPU microseconds to read a request, to write an answer, and to read a header block.

`.venv/bin/python bench/micro_codecs.py [ROUNDS]` prints two tables for `bench/README.md`. Each figure is the best of
many rounds. The header blocks are recorded from a grpcio client (gRPC's C++ core): with constant headers, with
timeouts, and with a `traceparent`.
"""

import asyncio
import contextlib
import json
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import process_time_ns
from typing import Any

import grpc
import hpack
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from halimede.requests import InferRequest, InferResponse
from halimede.tensors import Buffer
from halimede.transport.http1.connection import Http1Connection
from halimede.transport.http1.exchange import JSON, Http1Exchange
from halimede.transport.http1.listener import Http1Listener
from halimede.transport.http2.headers import HeaderDecoder
from halimede.wire.grpc.infer import InferDecoder, InferEncoder
from halimede.wire.http.infer import decode_infer, encode_infer

MOST_INPUT = 1 << 26
MANY, MANY_LARGE = 500, 8
"""Messages in a round, small and large ones."""
LARGE = 3 * 224 * 224
"""FP32 elements of a large tensor: 588 KiB."""
CALLS, WARM_CALLS = 1500, 100
PATH = "/inference.GRPCInferenceService/ModelInfer"
PREFACE_BYTES = 24
HEADERS, SETTINGS, PING = 1, 4, 6
ACK = END_STREAM = 1
END_HEADERS = 4
TRAILERS = b"\x88\0\x0ccontent-type\x10application/grpc\0\x0bgrpc-status\x010"


def best(rounds: int, count: int, work: Callable[[], object]) -> float:
    """CPU microseconds for one of the `count` operations of `work`, in the best of the rounds."""
    took = sys.maxsize
    for _ in range(rounds):
        start = process_time_ns()
        work()
        took = min(took, process_time_ns() - start)
    return took / count / 1000


# Messages.


@dataclass(frozen=True, slots=True)
class Codec:
    """How to read a message and to write an answer. `request_of` turns what `read` returned into a request."""

    name: str
    messages: Sequence[Buffer]
    read: Callable[[Buffer], Any]
    write: Callable[[InferResponse], object]
    request_of: Callable[[Any], InferRequest]


def identities(count: int, new: bool) -> list[dict[str, str]]:
    """The field `id` of each message of a round: none, or a new one of the same length each time."""
    return [{"id": f"{n:06}"} if new else {} for n in range(MANY if count < LARGE else MANY_LARGE)]


def http_message(count: int, identity: dict[str, str], binary: bool) -> tuple[bytes, int]:
    """A request body, and the length of its JSON."""
    values = np.linspace(0, 1, count, dtype=np.float32)
    item: dict[str, Any] = {"name": "INPUT0", "datatype": "FP32", "shape": [1, count]}
    item |= {"parameters": {"binary_data_size": 4 * count}} if binary else {"data": values.tolist()}
    output = {"name": "OUTPUT0", "parameters": {"binary_data": binary}}
    document = {**identity, "inputs": [item], "outputs": [output]}
    head = json.dumps(document, separators=(",", ":")).encode()
    return head + (values.tobytes() if binary else b""), len(head)


def http_codec(name: str, count: int, binary: bool, new_ids: bool = False) -> Codec:
    made = [http_message(count, identity, binary) for identity in identities(count, new_ids)]
    length = made[0][1] if binary else None

    def read(body: Buffer) -> Any:
        return decode_infer("floor", -1, memoryview(body), length, MOST_INPUT)

    form = read(made[0][0])[1]
    return Codec(name, [body for body, _ in made], read, lambda answer: encode_infer(answer, form), lambda had: had[0])


def grpc_message(count: int, identity: dict[str, str]) -> bytes:
    raw = np.linspace(0, 1, count, dtype=np.float32).tobytes()
    request = pb.ModelInferRequest(model_name="floor", raw_input_contents=[raw], **identity)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, count])
    request.outputs.add(name="OUTPUT0")
    return bytes(request.SerializeToString())


def grpc_codec(name: str, count: int, new_ids: bool = False) -> Codec:
    decoder, encoder = InferDecoder(), InferEncoder()
    made = [grpc_message(count, identity) for identity in identities(count, new_ids)]

    def read(message: Buffer) -> InferRequest:
        return decoder.request(decoder.parse(message), -1)

    return Codec(name, made, read, encoder.response, lambda had: had)


def library_codec(name: str, count: int) -> Codec:
    """The protobuf library alone, for comparison: bytes to message object and back, without a request."""
    made = [grpc_message(count, identity) for identity in identities(count, False)]
    raw = np.linspace(0, 1, count, dtype=np.float32).tobytes()
    decoder = InferDecoder()

    def write(answer: InferResponse) -> object:
        message = pb.ModelInferResponse(model_name=answer.model_name, model_version="1", id=answer.id)
        message.outputs.add(name="OUTPUT0", datatype="FP32", shape=[1, count])
        message.raw_output_contents.append(raw)
        return message.SerializeToString()

    def request_of(message: Any) -> InferRequest:
        return decoder.request(decoder.parse(message.SerializeToString()), -1)

    return Codec(name, made, pb.ModelInferRequest.FromString, write, request_of)


def codecs() -> Iterator[Codec]:
    yield http_codec("HTTP, JSON, 16 floats", 16, False)
    yield http_codec("HTTP, binary, 16 floats", 16, True)
    yield http_codec("HTTP, binary, 16 floats, a new id each time", 16, True, True)
    yield grpc_codec("gRPC, 16 floats", 16)
    yield grpc_codec("gRPC, 16 floats, a new id each time", 16, True)
    yield library_codec("(gRPC, 16 floats, by `protobuf` alone)", 16)
    yield http_codec("HTTP, JSON, 588 KiB of floats", LARGE, False)
    yield http_codec("HTTP, binary, 588 KiB", LARGE, True)
    yield grpc_codec("gRPC, 588 KiB", LARGE)
    yield library_codec("(gRPC, 588 KiB, by `protobuf` alone)", LARGE)


def measure(codec: Codec, rounds: int) -> tuple[float, float]:
    """CPU microseconds to read and to write a message, with warm caches."""
    had = [codec.read(message) for message in codec.messages]
    request = codec.request_of(had[0])
    answer = InferResponse(request.id, "floor", 1, list(request.inputs.values()))
    answer.outputs[0].name = "OUTPUT0"
    read, write, messages, count = codec.read, codec.write, codec.messages, len(codec.messages)

    def read_all() -> None:
        for message in messages:
            read(message)

    def write_all() -> None:
        for _ in messages:
            write(answer)

    return best(rounds, count, read_all), best(rounds, count, write_all)


class DiscardingTransport(asyncio.Transport):
    """Drops what is written."""

    def write(self, data: Buffer | memoryview) -> None:
        """Never pauses the writer."""

    def is_closing(self) -> bool:
        return False


def http_head(rounds: int, changing: bool) -> float:
    """CPU microseconds for the head of a request without a body and that of its answer."""

    def handle(exchange: Http1Exchange) -> None:
        exchange.respond(200, JSON, (b"{}",))

    connection = Http1Connection(Http1Listener(handle))
    connection.connection_made(DiscardingTransport())
    draw = random.Random(1)
    lines = b"GET /v2/models/floor/ready HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: x\r\nAccept: */*\r\n"
    heads = [
        lines + (b"traceparent: %b\r\n" % traceparent(draw).encode() if changing else b"") + b"\r\n"
        for _ in range(MANY * 4)
    ]

    def feed() -> None:
        for head in heads:
            connection.get_buffer(-1)[: len(head)] = head
            connection.buffer_updated(len(head))

    return best(rounds, len(heads), feed)


# Header blocks.


def traceparent(draw: random.Random) -> str:
    return f"00-{draw.getrandbits(128):032x}-{draw.getrandbits(64):016x}-01"


class Recorder(threading.Thread):
    """A server that records the header blocks of one connection, and answers every call with trailers only."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.blocks: list[bytes] = []

    def run(self) -> None:
        connection, _ = self._listener.accept()
        self._listener.close()
        with connection, connection.makefile("rb") as client, contextlib.suppress(ConnectionError):
            client.read(PREFACE_BYTES)
            connection.sendall(frame(SETTINGS, 0, 0, b""))
            while head := client.read(9):
                payload = client.read(int.from_bytes(head[:3]))
                connection.sendall(self._answer(head[3], head[4], int.from_bytes(head[5:9]), payload))

    def _answer(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind in (SETTINGS, PING):
            return b"" if flags & ACK else frame(kind, ACK, 0, payload if kind == PING else b"")
        if kind != HEADERS:
            return b""
        assert flags & END_HEADERS
        assert not flags & 0x28, "padded, or with a priority"
        self.blocks.append(payload)
        return frame(HEADERS, END_STREAM | END_HEADERS, stream, TRAILERS)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def recorded(options: Callable[[random.Random], dict[str, Any]]) -> list[bytes]:
    """The header blocks of `CALLS` calls of one client. `options` gives the options of each call."""
    recorder, draw = Recorder(), random.Random(1)
    recorder.start()
    with grpc.insecure_channel(f"127.0.0.1:{recorder.port}") as channel:
        call = channel.unary_unary(PATH, bytes, bytes)
        for _ in range(CALLS):
            with contextlib.suppress(grpc.RpcError):  # there is no answer message; only the request matters
                call(b"", **{"timeout": None, **options(draw)})
    recorder.join(10)
    assert len(recorder.blocks) == CALLS, f"{len(recorder.blocks)} of {CALLS} calls arrived"
    return recorder.blocks


CASES: Sequence[tuple[str, Callable[[random.Random], dict[str, Any]]]] = (
    ("constant headers", lambda draw: {}),
    ("a timeout of 10 s each time", lambda draw: {"timeout": 10}),
    ("a timeout between 50 ms and 60 s", lambda draw: {"timeout": draw.uniform(0.05, 60)}),
    ("a new `traceparent`", lambda draw: {"metadata": [("traceparent", traceparent(draw))]}),
    (
        "timeout and `traceparent`",
        lambda draw: {"timeout": draw.uniform(0.05, 60), "metadata": [("traceparent", traceparent(draw))]},
    ),
)


def is_indexed(block: bytes) -> bool:
    """Whether all fields of a block are indexed (RFC 7541, section 6.1)."""
    at = 0
    while at < len(block):
        if not block[at] & 0x80:
            return False
        longer, at = block[at] == 0xFF, at + 1
        while longer:
            longer, at = bool(block[at] & 0x80), at + 1
    return True


def header_row(name: str, blocks: Sequence[bytes], rounds: int) -> str:
    """A line of the table. Each round uses new decoders that have decoded the first calls already."""
    indexed = 100 * sum(map(is_indexed, blocks[WARM_CALLS:])) / len(blocks[WARM_CALLS:])
    size = sum(map(len, blocks[WARM_CALLS:])) / len(blocks[WARM_CALLS:])
    ours = decoding(blocks, rounds, lambda: HeaderDecoder(lambda head: head, lambda head: True).decode)
    library = decoding(blocks, rounds, lambda: partial(hpack.Decoder().decode, raw=True))
    return f"| {name} | {size:.0f} | {indexed:.0f} % | {ours:.2f} | {library:.2f} |"


def decoding(blocks: Sequence[bytes], rounds: int, new: Callable[[], Callable[[bytes], object]]) -> float:
    took = float("inf")
    for _ in range(rounds):
        decode = new()
        for block in blocks[:WARM_CALLS]:
            decode(block)
        rest = blocks[WARM_CALLS:]
        start = process_time_ns()
        for block in rest:
            decode(block)
        took = min(took, (process_time_ns() - start) / len(rest) / 1000)
    return took


def main(rounds: int) -> None:
    print("| us of CPU per message | read | write |")
    print("|---|---:|---:|")
    print(f"| HTTP head seen before, and that of the answer | {http_head(rounds, False):.2f} | |")
    print(
        f"| HTTP head with a new `traceparent`, and that of the answer | {http_head(rounds, True):.2f} | |", flush=True
    )
    for codec in codecs():
        read, write = measure(codec, rounds)
        print(f"| {codec.name} | {read:.2f} | {write:.2f} |", flush=True)
    print("\n| header block of a grpcio call | bytes | indexed alone | us here | us by `hpack` alone |")
    print("|---|---:|---:|---:|---:|")
    for name, options in CASES:
        print(header_row(name, recorded(options), max(3, rounds // 5)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
