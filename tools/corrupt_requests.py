"""Makes corruption number N of a seed: a valid request, the changes to it, and the resulting bytes.

Pure: the same seed, number and corpus give the same bytes, so a failure can be repeated. Any thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tools.corrupt_corpus import (
    OPENING,
    Corpus,
    GrpcCase,
    HttpCase,
    call_frames,
    request_bytes,
)
from tools.corrupt_mutations import NUMBERS, Draw, mutate_bytes, mutate_json, mutate_message
from tools.soak_grpc import PREFACE, frame


@dataclass(frozen=True, slots=True)
class Corruption:
    """One corrupted request. If it is `whole`, its framing is valid and it must be answered; otherwise the server may
    close the connection. `cuts` are the offsets at which the bytes are split into separate writes."""

    number: int
    family: str
    case: str
    how: str
    protocol: str
    data: bytes
    whole: bool
    cuts: tuple[int, ...] = ()

    @property
    def pieces(self) -> list[bytes]:
        return [self.data[a:b] for a, b in zip((0, *self.cuts), (*self.cuts, len(self.data)), strict=True)]

    def __str__(self) -> str:
        return f"number {self.number}, {self.family}, {self.case} ({self.how})"


Made = tuple[bytes, str]
"""The bytes, and a description of the changes."""

# HTTP with valid framing.

_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "get", "M-SEARCH")
_PATHS = (
    "/",
    "*",
    "/v2/",
    "/v2/models//infer",
    "/v2/models/%2e%2e/infer",
    "/v2/models/int32/versions/-1/infer",
    "//v2",
)
_HEADERS: Mapping[str, Sequence[str]] = {
    "Inference-Header-Content-Length": ("0", "1", "-1", "9" * 20, "x", "", "12 ", "0x10", "2147483648", "1e1"),
    "Content-Encoding": ("gzip", "deflate", "identity", "br", "gzip, gzip", "", "x" * 500),
    "Accept-Encoding": ("gzip", "deflate;q=0", "*;q=x", "gzip;q=1e400", ";;;", ",,,", "identity;q=0"),
    "Content-Type": ("application/json", "application/octet-stream", "\xff", ""),
    "Expect": ("100-continue", "x"),
    "Connection": ("close", "keep-alive", "upgrade", "Upgrade, HTTP2-Settings"),
    "Upgrade": ("h2c", "websocket"),
    "X-Mine": ("a", "\xe9", "", "y" * 3000),
    "sequence_id": ("1",),
    "triton_x": ("1",),
    "X-Name with blanks": ("1",),
    "Host": ("", "a" * 300, "localhost"),
    "endpoint-load-metrics-format": ("json", "text", "x"),
}


def _http_document(draw: Draw, corpus: Corpus) -> tuple[HttpCase, Made]:
    """Changes the JSON. The framing stays valid, also the header with the length of the JSON."""
    case = draw.choice([one for one in corpus.http if one.document is not None and one.document != b""])
    text, how = mutate_json(draw, case.document)
    return case, (replace(case, document=text).bytes, how)


def _http_body(draw: Draw, corpus: Corpus) -> tuple[HttpCase, Made]:
    """Changes the bytes of the body. The headers stay those of the valid request."""
    case = draw.choice([one for one in corpus.http if one.body])
    body, how = mutate_bytes(draw, case.body or b"")
    if draw.chance(0.1):
        other = draw.choice([one for one in corpus.http if one.body])
        body, how = other.body or b"", f"the body of {other.name}"
    return case, (request_bytes(case.method, case.path, case.all_headers, body, case.chunked), how)


def _http_head(draw: Draw, corpus: Corpus) -> tuple[HttpCase, Made]:
    """Changes the method, the path or headers."""
    case = draw.choice(corpus.http)
    method, path, headers, body = case.method, case.path, list(case.all_headers), case.body
    names = []
    for _ in range(draw.few()):
        what = draw.choice(("method", "path", "other path", "header", "header", "header gone", "swapped", "no body"))
        names.append(what)
        if what == "method":
            method = draw.choice(_METHODS)
        elif what == "path":
            path = _other_path(draw, path)
        elif what == "other path":
            path = draw.choice([one.path for one in corpus.http])
        elif what == "header":
            name = draw.choice(list(_HEADERS))
            headers.insert(draw.randint(0, len(headers)), (name, draw.choice(_HEADERS[name])))
        elif what == "header gone" and headers:
            headers.pop(draw.randrange(len(headers)))
        elif what == "swapped" and headers:
            a, b = draw.choice(headers), draw.choice(headers)
            headers += [(a[0], b[1]), (b[0], a[1])]
        elif what == "no body":
            body = None if body is None else b""
    return case, (request_bytes(method, path, tuple(headers), body, case.chunked), ", ".join(names))


def _other_path(draw: Draw, path: str) -> str:
    if draw.chance(0.2):
        return draw.choice(_PATHS)
    parts = path.split("/")
    number = str(draw.choice([n for n in NUMBERS if isinstance(n, int)]))
    new = draw.choice((number, "versions/" + number, "", "..", "%00", "%ff", "nobody", "?x=1", "a" * 3000, "stats"))
    at = draw.randrange(len(parts))
    parts[at : at + draw.randrange(2)] = [new]
    return "/".join(parts)


# gRPC with valid framing.


def _with_messages(case: GrpcCase, messages: Sequence[bytes]) -> bytes:
    return PREFACE + b"".join(call_frames(case.head, case.framed(messages)))


def _change_one(draw: Draw, case: GrpcCase, change: Callable[[Draw, bytes], Made]) -> Made:
    messages = list(case.messages)
    at = draw.randrange(len(messages))
    messages[at], how = change(draw, messages[at])
    return _with_messages(case, messages), how


def _grpc_fields(draw: Draw, corpus: Corpus) -> tuple[GrpcCase, Made]:
    case = draw.choice([one for one in corpus.grpc if any(one.messages)])
    return case, _change_one(draw, case, mutate_message)


def _grpc_bytes(draw: Draw, corpus: Corpus) -> tuple[GrpcCase, Made]:
    case = draw.choice(corpus.grpc)
    if draw.chance(0.15):
        other = draw.choice(corpus.grpc)
        return case, (_with_messages(case, other.messages), f"the messages of {other.name}")
    return case, _change_one(draw, case, mutate_bytes)


_FIELDS: Sequence[tuple[str, str]] = (
    *((":method", value) for value in ("GET", "", "PUT")),
    *((":path", value) for value in ("", "/", "/x", "/inference.GRPCInferenceService/", "*", "/a" * 2000)),
    *((":scheme", value) for value in ("", "ftp")),
    *((":status", "200"), (":nothing", "x"), ("te", "x"), ("connection", "close"), ("Upper", "x"), ("", "x")),
    *(("content-type", value) for value in ("", "text/plain", "application/grpc+json", "application/grpc-web")),
    *(("grpc-timeout", value) for value in ("1n", "0S", "", "x", "-1S", "9" * 9 + "S", "99999999H", "1", "1s", "200m")),
    *(("grpc-encoding", value) for value in ("gzip", "deflate", "identity", "snappy", "")),
    *(("grpc-accept-encoding", value) for value in ("gzip", ",,,", "x" * 300)),
    *(("x-mine", value) for value in ("a", "\0", "\r\n", "é", "y" * 5000)),
    *(("x-bin", value) for value in ("AAA=", "!!!", "")),
    *(("sequence_id", "1"), ("triton_grpc_error", "x"), ("content-length", "5"), ("content-length", "x")),
)


def _grpc_head(draw: Draw, corpus: Corpus) -> tuple[GrpcCase, Made]:
    case = draw.choice(corpus.grpc)
    head: list[tuple[str, str]] = list(case.head)
    names = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        name, value = draw.choice(_FIELDS)
        what = draw.choice(("set", "set", "added", "gone", "twice", "shuffled"))
        if what == "set":
            head = [(known, value if known == name else old) for known, old in head]
        elif what == "added":
            head.insert(draw.randint(0, len(head)), (name, value))
        elif what == "gone" and head:
            name = head.pop(draw.randrange(len(head)))[0]
        elif what == "twice" and head:
            head.append(draw.choice(head))
        else:
            draw.shuffle(head)
        names.append(f"{name} {what}")
    return case, (_with_head(head, case), ", ".join(names))


def _with_head(head: Sequence[tuple[str, str]], case: GrpcCase) -> bytes:
    return PREFACE + b"".join(call_frames(tuple(head), case.framed(case.messages)))


def _grpc_framing(draw: Draw, corpus: Corpus) -> tuple[GrpcCase, Made]:
    """Changes the gRPC framing of the messages: flag, length or any byte, compressed ones included."""
    case = draw.choice(corpus.grpc)
    data = case.framed(case.messages)
    if draw.chance(0.5):
        flag, size = draw.choice((0, 1, 2, 255)), draw.choice((0, 1, len(data), 2**31 - 1, 2**32 - 1))
        data, how = bytes([flag]) + size.to_bytes(4) + data[5:], f"flag {flag}, length {size}"
    else:
        data, how = mutate_bytes(draw, data)
    return case, (PREFACE + b"".join(call_frames(case.head, data)), how)


# Broken framing.


def _http_stream(draw: Draw, corpus: Corpus) -> tuple[HttpCase, Made]:
    case = draw.choice(corpus.http)
    data = case.bytes
    if draw.chance(0.2):
        data += draw.choice(corpus.http).bytes
    return case, mutate_bytes(draw, data)


def _http_head_bytes(draw: Draw, corpus: Corpus) -> tuple[HttpCase, Made]:
    """Changes bytes of the head or of the chunked body only, where parsers are most sensitive."""
    case = draw.choice([one for one in corpus.http if one.body])
    if case.chunked and draw.chance(0.7):
        head, _, body = case.bytes.partition(b"\r\n\r\n")
        body, how = mutate_bytes(draw, body)
        return case, (head + b"\r\n\r\n" + body, f"chunks: {how}")
    head, _, body = case.bytes.partition(b"\r\n\r\n")
    head, how = mutate_bytes(draw, head)
    return case, (head + b"\r\n\r\n" + body, how)


def _h2_bytes(draw: Draw, corpus: Corpus) -> tuple[GrpcCase, Made]:
    case = draw.choice(corpus.grpc)
    data, how = mutate_bytes(draw, case.bytes.removeprefix(PREFACE) if draw.chance(0.9) else case.bytes)
    return case, (data if data.startswith(PREFACE[:3]) else PREFACE + data, how)


def _h2_frames(draw: Draw, corpus: Corpus) -> tuple[GrpcCase, Made]:
    """Removes, repeats, reorders, splits and inserts frames, or changes their headers."""
    case = draw.choice(corpus.grpc)
    frames = call_frames(case.head, case.framed(case.messages))
    names = []
    for _ in range(draw.few()):
        at = draw.randrange(len(frames)) if frames else 0
        what = (
            draw.choice(("gone", "twice", "swapped", "head", "head", "split", "more", "more", "many"))
            if frames
            else "more"
        )
        names.append(what)
        if what == "gone":
            del frames[at]
        elif what == "twice":
            frames.insert(at, frames[at])
        elif what == "many":
            frames[at:at] = [frames[at]] * draw.choice((50, 500))
        elif what == "swapped":
            draw.shuffle(frames)
        elif what == "head":
            frames[at] = _other_head(draw, frames[at])
        elif what == "split":
            frames[at : at + 1] = _split(draw, frames[at])
        else:
            frames.insert(at, _any_frame(draw))
    return case, (PREFACE + b"".join(frames), ", ".join(names))


def _other_head(draw: Draw, data: bytes) -> bytes:
    kind, flags, stream = data[3], data[4], int.from_bytes(data[5:9])
    what = draw.randrange(4)
    if what == 0:
        kind = draw.choice((*range(11), 255))
    elif what == 1:
        flags = draw.choice((0, 1, 4, 5, 8, 0x20, 0xFF, flags ^ 1, flags ^ 4))
    elif what == 2:
        stream = draw.choice((0, 1, 2, 3, 5, 2**31 - 1, 2**31, 2**32 - 1))
    else:
        return draw.choice((0, 1, 4, 16_385, 2**24 - 1)).to_bytes(3) + data[3:]
    return frame(kind, flags, stream, data[9:])


def _split(draw: Draw, data: bytes) -> list[bytes]:
    """Splits a frame in two. That is valid for DATA, and for HEADERS only if the second is a CONTINUATION."""
    kind, flags, stream, payload = data[3], data[4], int.from_bytes(data[5:9]), data[9:]
    at = draw.randint(0, len(payload))
    second = draw.choice((kind, 9))
    return [frame(kind, flags & ~5, stream, payload[:at]), frame(second, flags, stream, payload[at:])]


def _any_frame(draw: Draw) -> bytes:
    number = draw.choice((0, 1, 5, 100, 16_384, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)).to_bytes(4)
    stream = draw.choice((0, 1, 1, 3, 5))
    return draw.choice(
        (
            frame(8, 0, stream, number),
            frame(3, 0, stream, number),
            frame(6, draw.choice((0, 1)), 0, draw.randbytes(8)),
            frame(4, draw.choice((0, 0, 1)), 0, draw.choice((1, 2, 3, 4, 5, 6, 99)).to_bytes(2) + number),
            frame(2, 0, stream, number + b"\x0f"),
            frame(7, 0, 0, bytes(4) + number),
            frame(0, draw.choice((0, 1, 8)), stream, draw.randbytes(draw.randrange(30))),
            frame(1, draw.choice((0, 4, 5, 0x2C)), stream, draw.randbytes(draw.randrange(30))),
            frame(9, draw.choice((0, 4)), stream, draw.randbytes(draw.randrange(30))),
            frame(draw.randrange(256), draw.randrange(256), stream, draw.randbytes(draw.randrange(60))),
            OPENING,
        )
    )


Family = Callable[[Draw, Corpus], tuple[HttpCase | GrpcCase, Made]]
FAMILIES: Mapping[str, tuple[int, Family, bool]] = {
    "http json": (24, _http_document, True),
    "http body": (12, _http_body, True),
    "http head": (10, _http_head, True),
    "http stream": (8, _http_stream, False),
    "http head bytes": (8, _http_head_bytes, False),
    "grpc fields": (14, _grpc_fields, True),
    "grpc bytes": (6, _grpc_bytes, True),
    "grpc head": (5, _grpc_head, True),
    "grpc framing": (4, _grpc_framing, True),
    "http2 frames": (5, _h2_frames, False),
    "http2 bytes": (4, _h2_bytes, False),
}
"""By name: the weight of the family, the function that makes a corruption, and whether its framing stays valid."""
_NAMES = list(FAMILIES)
_WEIGHTS = [weight for weight, _, _ in FAMILIES.values()]


def corruption(seed: int, number: int, corpus: Corpus) -> Corruption:
    """The corruption with that number."""
    draw = Draw(f"{seed}-{number}")
    family = draw.choices(_NAMES, _WEIGHTS)[0]
    _, make, whole = FAMILIES[family]
    case, (data, how) = make(draw, corpus)
    protocol = "http" if isinstance(case, HttpCase) else "grpc"
    cuts = sorted(draw.randint(0, len(data)) for _ in range(draw.choice((0, 0, 1, 3, 8))))
    return Corruption(number, family, case.name, how, protocol, data, whole, tuple(cuts))


def as_it_is(number: int, case: HttpCase | GrpcCase) -> Corruption:
    """A valid request, unchanged."""
    protocol = "http" if isinstance(case, HttpCase) else "grpc"
    return Corruption(number, "valid", case.name, "as it is", protocol, case.bytes, True)
