"""Sends a corrupted request over its own connection, and judges the answer.

Allowed: any 2xx and 4xx; a 5xx, or a gRPC status that blames the server, with a text of the contract's tables; a closed
connection. Not allowed: silence, an error with another text, bytes that are not an answer. Runs on the event loop of
the client.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import hpack

from tools.corrupt_requests import Corruption

LIMIT = 30.0
"""Seconds until a connection counts as hanging. Long, because the machine may be busy."""
PATIENCE = 0.05
"""Seconds without a byte after which a client that sent broken frames ends its side of the connection."""

_OF_JSON = (
    r"failed to parse the request JSON buffer: ",
    r"(Unable|Failed|failed) to (parse|set|get) .*attempt to (access|get) ",
    r"(Expected JSON object for keyword: 'parameters': |Converting keyword: 'parameters': )*attempt to (access|get) ",
    r"Converting keyword: 'parameters': Unable to parse .*attempt to access ",
    r"Failed to parse 'data' field: shape does not match true shape",
    r"Unable to parse 'data': Shape does not match true shape of 'data' field",
)
_SERVER_ERRORS = {
    500: (
        *_OF_JSON,
        r"Unable to open shared memory region: '",
        r"shared memory size specified with the request for output '",
        r"failed to load '.*', failed to poll from model repository",
        r"unexpected error on creating Triton parameter",
    ),
    501: (
        r"HTTP end point doesn't support models with decoupled transaction policy",
        r"'repository_name' specification is not supported",
        r"(trace|log) file location can not be updated through network protocol",
        r"Unsupported compression type",
    ),
    503: (
        r"Request for unknown model: '.*' version -?\d+ is not at ready state",
        r"invalid argument for --log_format, got: ",
    ),
}
"""Allowed error texts by HTTP status (H6, H19, H90 to H124)."""
_CODES = {
    12: (
        r"ModelInfer RPC doesn't support models with decoupled transaction policy",
        r"'repository_name' specification is not supported",
        r"log file location can not be updated through network protocol",
        r"$",  # no such method
        r"Too many messages$",
        r"Compression algorithm '.*' is not supported$",
    ),
    13: (
        *_SERVER_ERRORS[500],
        r"expected a single response, got \d+",
        r"Unable to parse request$",
        r"Invalid gRPC message flags$",
        r"Unexpected error decompressing data for algorithm (gzip|deflate)$",
        r"invalid value of 'grpc-timeout'$",
        r"Error parsing '.*' metadata: ",
    ),
    8: (r"Received message larger than max \(\d+ vs\. \d+\)$",),
    14: _SERVER_ERRORS[503],
}
"""Allowed error texts by gRPC status (G3 to G28), including those of the gRPC library itself."""
_NEVER = re.compile(rb"Traceback|failed to handle the request|failed to write the response|internal error|Error: ")
"""Texts that no answer may contain, whatever its status."""
_CLIENT_ERRORS = frozenset({400, 403, 404, 405, 413, 415})
_FINE_CODES = frozenset({0, 1, 3, 4, 5, 6})


@dataclass(slots=True)
class Seen:
    """The answers as (status or gRPC code, text), and a description of what is `wrong`; empty if nothing is."""

    answers: list[tuple[int, str]] = field(default_factory=list)
    wrong: str = ""


async def send_corruption(corruption: Corruption, ports: Mapping[str, int], limit: float = LIMIT) -> Seen:
    """Sends a corruption and judges the answer. `ports` has the keys "http" and "grpc".

    Never raises because of what the server does."""
    seen = Seen()
    try:
        async with asyncio.timeout(limit):
            await (_http if corruption.protocol == "http" else _grpc)(corruption, ports[corruption.protocol], seen)
    except TimeoutError:
        seen.wrong = f"neither an answer nor an end within {limit:.0f} s"
    except OSError as error:
        seen.wrong = f"no connection: {error}"
    return seen


async def _received(reader: asyncio.StreamReader, size: int = 1 << 16) -> bytes:
    """The next bytes; empty at the end of the connection, also after a reset."""
    try:
        return await reader.read(size)
    except ConnectionError:
        return b""


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        return


async def _send(writer: asyncio.StreamWriter, pieces: Sequence[bytes]) -> None:
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
    except ConnectionError:
        return  # the server has closed the connection already; its answer can still be read


# HTTP.


async def _http(corruption: Corruption, port: int, seen: Seen) -> None:
    """Sends everything, ends its side, and reads until the server closes the connection, as it then must."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        sending = asyncio.ensure_future(_send_and_end(writer, corruption.pieces))
        came = bytearray()
        while piece := await _received(reader):
            came += piece
        await sending
    finally:
        await _close(writer)
    judge_http(corruption, bytes(came), seen)


async def _send_and_end(writer: asyncio.StreamWriter, pieces: Sequence[bytes]) -> None:
    await _send(writer, pieces)
    try:
        writer.write_eof()
    except OSError:
        return


def judge_http(corruption: Corruption, came: bytes, seen: Seen) -> None:
    """Adds the answers in `came`, everything that was received, to `seen`, and says what is wrong with them."""
    if _NEVER.search(came):
        seen.wrong = f"forbidden text in the answer: {came[-400:]!r}"
    try:
        while came:
            status, body, came = _answer(came, headless=b"HEAD" in corruption.data)
            if status != 100:
                seen.answers.append((status, body))
                seen.wrong = seen.wrong or _wrong_http(status, body)
    except ValueError as error:
        seen.wrong = f"not an HTTP answer: {error}: {came[:200]!r}"
    if corruption.whole and len(seen.answers) != 1 and not seen.wrong and not _may_be_malformed(corruption):
        seen.wrong = f"{len(seen.answers)} answers to one request"


def _may_be_malformed(corruption: Corruption) -> bool:
    """Whether the head may be invalid HTTP. Such a request has no answer, as in Triton."""
    return corruption.family == "http head"


def _answer(came: bytes, headless: bool) -> tuple[int, str, bytes]:
    """Splits off the first answer. Returns its status, its body and the remaining bytes. Raises ValueError."""
    head, found, rest = came.partition(b"\r\n\r\n")
    line, *lines = head.split(b"\r\n")
    if not found or not line.startswith(b"HTTP/1."):
        raise ValueError("no head")
    fields = {name.strip().lower(): value.strip() for name, _, value in (each.partition(b":") for each in lines)}
    status = int(line.split()[1])
    if fields.get(b"transfer-encoding") == b"chunked":
        body, rest = _from_chunks(rest)
    else:
        size = 0 if status == 100 else int(fields[b"content-length"])
        if size > len(rest) and not (headless and (not rest or rest.startswith(b"HTTP/1."))):
            raise ValueError(f"{len(rest)} bytes of {size}")
        if headless and (not rest or rest.startswith(b"HTTP/1.")):
            size = 0
        body, rest = rest[:size], rest[size:]
    return status, body.decode("utf-8", "replace"), rest


def _from_chunks(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        line, found, data = data.partition(b"\r\n")
        if not found:
            raise ValueError("a chunk is missing")
        size = int(line, 16)
        body += data[:size]
        data = data[size + 2 :]
        if not size:
            return body, data


def _is_known(text: str, table: Sequence[str]) -> bool:
    return any(re.match(words, text, re.DOTALL) for words in table)


def _wrong_http(status: int, body: str) -> str:
    if 200 <= status < 300:
        return ""
    text = body
    if body:
        try:
            text = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            return f"{status} without an error: {body[:300]}"
    if status in _CLIENT_ERRORS or _is_known(text, _SERVER_ERRORS.get(status, ())):
        return ""
    return f"{status} {text[:500]}"


# gRPC.


@dataclass(slots=True)
class _Frames:
    """Parses the frames of one connection, and collects the headers, body and end of stream 1."""

    data: bytearray = field(default_factory=bytearray)
    decoder: hpack.Decoder = field(default_factory=hpack.Decoder)
    fields: dict[str, str] = field(default_factory=dict)
    block: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    last: bool = False
    ended: bool = False
    fault: int | None = None
    """The HTTP/2 error code that a stream or the connection ended with."""

    def take(self, piece: bytes) -> None:
        self.data += piece
        while len(self.data) >= 9 and len(self.data) >= 9 + (size := int.from_bytes(self.data[:3])):
            kind, flags, stream = self.data[3], self.data[4], int.from_bytes(self.data[5:9])
            self._on_frame(kind, flags, stream, bytes(self.data[9 : 9 + size]))
            del self.data[: 9 + size]

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (1, 9):
            self._on_block(flags, stream, payload)
        elif kind == 0 and stream == 1:
            self.body += payload
        elif kind == 3:
            self.fault = max(self.fault or 0, int.from_bytes(payload))
        elif kind == 7 and (code := int.from_bytes(payload[4:8])):
            self.fault = code
        self.last |= stream == 1 and kind < 2 and bool(flags & 1)
        self.ended |= (self.last and not self.block) or (stream == 1 and kind == 3)

    def _on_block(self, flags: int, stream: int, part: bytes) -> None:
        """Decodes header blocks of every stream, because all streams share the HPACK state."""
        self.block += part
        if flags & 4:
            fields = [(str(name), str(value)) for name, value in self.decoder.decode(self.block)]
            self.block = b""
            if stream == 1:
                self.fields.update(fields)


_INTERNAL_FAULT = 2
_ANSWERED = frozenset({"grpc fields", "grpc bytes", "grpc framing", "valid"})
"""Families whose calls must end with a gRPC status. The transport may end the others."""


async def _grpc(corruption: Corruption, port: int, seen: Seen) -> None:
    """Sends everything and reads until the call has ended.

    A call with broken frames may not end by itself. So the client ends its side after a pause, and the server must then
    close the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frames = _Frames()
    try:
        sending = asyncio.ensure_future(_send(writer, corruption.pieces))
        while not frames.ended:
            piece = await _next_piece(reader, writer, sending, corruption.whole)
            if not piece:
                break
            frames.take(piece)
        await sending
    except (ValueError, hpack.HPACKError, UnicodeDecodeError) as error:
        seen.wrong = f"not an HTTP/2 answer: {error}"
    finally:
        await _close(writer)
    judge_grpc(corruption, frames.fields, bytes(frames.body), frames.fault, seen)


async def _next_piece(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sending: "asyncio.Future[None]", whole: bool
) -> bytes:
    if whole:
        return await _received(reader)
    try:
        return await asyncio.wait_for(_received(reader), PATIENCE)
    except TimeoutError:
        await sending
        try:
            writer.write_eof()
        except OSError:
            return b""
        return await _received(reader)


def judge_grpc(corruption: Corruption, fields: Mapping[str, str], body: bytes, fault: int | None, seen: Seen) -> None:
    """Adds the answer to `seen`, and says what is wrong with it.

    `fields` are the headers and trailers; `fault` is the HTTP/2 error code that the stream or connection ended with.
    """
    text = unquote(fields.get("grpc-message", ""))
    if _NEVER.search(body) or _NEVER.search(text.encode("utf-8", "replace")):
        seen.wrong = f"forbidden text in the answer: {body[-400:]!r} {text}"
    if fault == _INTERNAL_FAULT:
        seen.wrong = "ended with INTERNAL_ERROR"
    code = fields.get("grpc-status")
    if code is not None:
        seen.answers.append((int(code), text))
        seen.wrong = seen.wrong or _wrong_code(int(code), text)
    elif corruption.family in _ANSWERED and not seen.wrong:
        seen.wrong = f"no status: {dict(fields)}, fault {fault}"


def _wrong_code(code: int, text: str) -> str:
    if code in _FINE_CODES or _is_known(text, _CODES.get(code, ())):
        return ""
    return f"gRPC status {code}: {text[:500]}"
