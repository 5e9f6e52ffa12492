"""The heads of gRPC calls: the contents of a request's head, whether its call is accepted, the fields of answers.

Pure. Source: the gRPC-over-HTTP/2 protocol description.
"""

import binascii
from base64 import b64decode
from dataclasses import dataclass

from halimede.transport.grpc.calls import Bidirectional, Metadata, Rpcs, Unary
from halimede.transport.grpc.messages import (
    ENCODINGS,
    IDENTITY,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    MessageFault,
    answer_encoding,
    percent_encoded,
    timeout_seconds,
)
from halimede.transport.http2.headers import Fields, RequestHead, entry_size
from halimede.transport.http2.listener import MAX_HEADER_LIST_BYTES

OK_STATUS: Fields = ((b"grpc-status", b"0"),)
_ACCEPTED = (b"grpc-accept-encoding", ",".join(ENCODINGS).encode())
ANSWER_HEAD: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"), _ACCEPTED)
ENCODED_HEADS = {name: (*ANSWER_HEAD, (b"grpc-encoding", name.encode())) for name in ENCODINGS}
ENCODED_HEADS[IDENTITY] = ANSWER_HEAD


def status_field(code: int) -> tuple[bytes, bytes]:
    return b"grpc-status", b"%d" % code


def text_fields(text: str) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"grpc-message", percent_encoded(text)),) if text else ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is not accepted: an HTTP status, or with 200 a gRPC status and its text."""

    status: int
    code: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class CallHead:
    """What the head of a call says. It is compiled once for all calls with the same head. `answers` is the encoding of
    the answers, `timeout` is in seconds. `memory_bytes` is about how much memory the head takes."""

    rpc: Unary | Bidirectional | None
    metadata: Metadata
    timeout: float | None
    encoding: str
    answers: str
    content_length: int | None
    malformed: bool = False
    refusal: Refusal | None = None
    memory_bytes: int = 0

    @property
    def is_cacheable(self) -> bool:
        """Whether it may be remembered. A refused head is rarely repeated. Binary metadata take many times the memory
        of what was sent, and rarely repeat."""
        if self.malformed or self.refusal is not None:
            return False
        return not any(isinstance(value, bytes) for _, value in self.metadata)


def _refused_head(malformed: bool, refusal: Refusal | None) -> CallHead:
    return CallHead(None, (), None, IDENTITY, IDENTITY, None, malformed, refusal)


_MALFORMED = _refused_head(True, None)
MAX_ECHOED_CHARACTERS = 64
"""Characters of a client's text that are repeated to it in an error."""
METADATA_TOO_LARGE = "received metadata size exceeds limit"
FIELD_BYTES = 96
"""What a field of metadata takes besides its text. On the wire it may take one byte."""


class HeadCompiler:
    """Compiles the heads of requests for the RPCs of a service. `level` is the compression level of answers (G36)."""

    def __init__(self, rpcs: Rpcs, level: str) -> None:
        self._rpcs = {path.encode(): rpc for path, rpc in rpcs.items()}
        self._level = level

    def compile(self, head: RequestHead) -> CallHead:
        """Compiles a head. What costs more than a look at the fields comes last, because a head of a few bytes may
        stand for 64 KiB of fields."""
        if head.malformed:
            return _MALFORMED
        fields = dict(head.fields)
        try:
            # Metadata are decoded only if the call is accepted, because decoding takes most of the time.
            refusal = self._refusal(head, fields)
            metadata = () if refusal else _metadata(head.fields, MAX_HEADER_LIST_BYTES - head.byte_size)
        except MessageFault as fault:
            refusal = Refusal(200, fault.code, fault.text)
        if refusal is not None:
            return _refused_head(False, refusal)
        rpc = self._rpcs[head.path]
        timeout = fields.get(b"grpc-timeout")
        return CallHead(
            rpc,
            metadata,
            None if timeout is None else timeout_seconds(timeout),
            _encoding(fields),
            self._answers(fields) if rpc.compressed else IDENTITY,
            head.content_length,
            memory_bytes=head.byte_size + FIELD_BYTES * len(metadata),
        )

    def _answers(self, fields: dict[bytes, bytes]) -> str:
        """Returns the encoding of answers."""
        if self._level == "none":
            return IDENTITY
        accepted = fields.get(b"grpc-accept-encoding", b"").decode("latin-1").replace(" ", "").split(",")
        return answer_encoding(self._level, accepted)

    def _refusal(self, head: RequestHead, fields: dict[bytes, bytes]) -> Refusal | None:
        """Returns why a call with this head is refused. Raises MessageFault if the reason is a gRPC status."""
        if head.method != b"POST":
            return Refusal(405)
        kind = fields.get(b"content-type", b"")
        # A client that speaks another protocol understands an HTTP status, and no gRPC status.
        if not kind.startswith(b"application/grpc") or kind[16:17] not in (b"", b"+", b"-", b";"):
            return Refusal(415)
        # The server announced this limit in its SETTINGS, but a client need not know them yet.
        if head.byte_size > MAX_HEADER_LIST_BYTES:
            raise MessageFault(RESOURCE_EXHAUSTED, METADATA_TOO_LARGE)
        if head.path not in self._rpcs:
            raise MessageFault(UNIMPLEMENTED, "")
        timeout = fields.get(b"grpc-timeout")
        if timeout is not None and timeout_seconds(timeout) is None:
            raise MessageFault(INTERNAL, "invalid value of 'grpc-timeout'")
        if _encoding(fields) not in ENCODINGS:
            raise MessageFault(
                UNIMPLEMENTED, f"Compression algorithm '{_encoding(fields)[:MAX_ECHOED_CHARACTERS]}' is not supported"
            )
        return None


def _encoding(fields: dict[bytes, bytes]) -> str:
    return fields.get(b"grpc-encoding", b"identity").decode("latin-1")


_NOT_METADATA = frozenset((b"content-type", b"te", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding"))


def _metadata(fields: Fields, room: int) -> Metadata:
    """Returns the metadata. Raises MessageFault for invalid base64, and if joined binary values, as separate fields,
    would exceed `room` bytes of header list."""
    found: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name in _NOT_METADATA:
            continue
        key = name.decode("latin-1")
        if key.endswith("-bin"):
            # Each value becomes an object of its own, though the header list counted one field.
            room -= value.count(b",") * entry_size((name, b""))
            if room < 0:
                raise MessageFault(RESOURCE_EXHAUSTED, METADATA_TOO_LARGE)
            found += [(key, _binary(key, part)) for part in value.split(b",")]
        else:
            found.append((key, value.decode("utf-8", "replace")))
    return tuple(found)


def _binary(key: str, value: bytes) -> bytes:
    try:
        # Clients may leave out the padding.
        return b64decode(value.rstrip(b"=") + b"=" * (-len(value.rstrip(b"=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise MessageFault(
            INTERNAL, f"Error parsing '{key[:MAX_ECHOED_CHARACTERS]}' metadata: illegal base64 encoding"
        ) from None
