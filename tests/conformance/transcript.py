"""A server's answer as text that is compared line by line: status, the headers of the contract, body.

JSON is unchanged (key order, number text); binary tensors are hexadecimal. A compressed body is inflated: its
compressed size depends on the library. Pure.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from tests.conformance import rawgrpc, rawhttp

# The headers that contract 01 (H15, H43, H140, H141) or HTTP's framing give a meaning.
COMPARED = (
    "content-type",
    "content-length",
    "inference-header-content-length",
    "content-encoding",
    "accept-encoding",
    "transfer-encoding",
    "connection",
    "endpoint-load-metrics",
)
TEXT = ("application/json", "text/plain", "text/event-stream")


@dataclass(frozen=True, slots=True)
class Transcript:
    """`lines` are compared. `refused` tells whether any answer is an error."""

    lines: tuple[str, ...]
    refused: bool

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def of_http(conversation: rawhttp.Conversation) -> Transcript:
    """Each response, then the fate of the connection."""
    lines = [line for response in conversation.responses for line in _response(response)]
    refused = any(r.status >= 400 for r in conversation.responses) or not conversation.responses
    return Transcript((*lines, f"connection {conversation.fate.value}"), refused)


def _response(response: rawhttp.Response) -> Iterable[str]:
    yield f"{response.version} {response.status}"
    coded = response.header("content-encoding") in ("gzip", "deflate")
    for name in COMPARED:
        if (value := response.header(name)) is not None and not (coded and name == "content-length"):
            yield f"{name}: {value}"
    body = _inflated(response.body) if coded else response.body
    kind = response.header("content-type") or ""
    at = int(response.header("inference-header-content-length") or 0)
    at = at or (len(body) if kind.startswith(TEXT) else 0)
    if body[:at]:
        yield body[:at].decode("utf-8", "backslashreplace")
    if body[at:]:
        yield f"bytes {body[at:].hex(' ', 4)}"


def _inflated(body: bytes) -> bytes:
    """The content of a compressed stream, and whether it is truncated or damaged."""
    stream = zlib.decompressobj(47)
    try:
        data = stream.decompress(body)
    except zlib.error as error:
        return f"<no stream: {error}>".encode()
    return data if stream.eof else data + b"<cut off>"


def of_grpc(rpc: str, outcome: rawgrpc.Outcome) -> Transcript:
    """Each message in protobuf text, then the status."""
    lines: list[str] = []
    for message in outcome.messages:
        lines += ["message", *(f"  {line}" for line in rawgrpc.as_text(rpc, message).splitlines())]
    details = f": {outcome.details}" if outcome.details else ""
    refused = outcome.code != "OK" or any("  error_message:" in line for line in lines)
    return Transcript((*lines, f"status {outcome.code}{details}"), refused)
