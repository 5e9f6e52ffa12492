"""HTTP itself: keep-alive, pipelining, chunked uploads, Expect, and bytes that are not HTTP. Few of the cases have a
row (H16)."""

from tests.conformance.case import Because, HttpCase, Instead, get, http, infer, one, post, refuses, request, says
from tests.conformance.rawhttp import END, READ

_PATH = "/v2/models/int32/infer"
_BODY = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"INT32","data":[1]}]}'
_LIVE = get("/v2/health/live")
_OUTPUT = {"name": "OUTPUT0", "datatype": "INT32", "shape": [1], "data": [1]}
_OK = says(200, {"model_name": "int32", "model_version": "1", "outputs": [_OUTPUT]})
_RAW = "Inference-Header-Content-Length: 0\r\n"


def _lying(length: str) -> bytes:
    return f"POST {_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode() + _BODY


def _chunked(*parts: bytes, ending: bytes = b"0\r\n\r\n", headers: str = "") -> bytes:
    head = f"POST {_PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{headers}\r\n".encode()
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + ending


def _both(*fields: str, body: bytes) -> bytes:
    lines = (f"POST {_PATH} HTTP/1.1", "Host: x", *fields)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body


def _line(text: bytes) -> bytes:
    return b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n" + text + b"\r\n\r\n"


def _expecting(path: str) -> bytes:
    return post(path, _BODY, [("Expect", "100-continue")])[: -len(_BODY)]


_NO_HTTP = {
    "a word": b"hello\r\n\r\n",
    "NULs": b"\0\0\0\0\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40,
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method in small letters": request("get", "/v2"),
    "a space in the path": get("/v2/models/a b"),
    "a header without a colon": _line(b"nocolon"),
    "an empty header name": _line(b": c"),
    "a folded header": _line(b"A: b\r\n c"),
    "a header of 1 MB": _line(b"X: " + b"y" * 1_000_000),
    "a path of 100 kB": get("/v2/" + "a" * 100_000),
    "Content-Length -1": _lying("-1"),
    "Content-Length abc": _lying("abc"),
    "Content-Length 1e3": _lying("1e3"),
    "Content-Length +72": _lying(f"+{len(_BODY)}"),
    "Content-Length with a comma": _lying(f"{len(_BODY)}, {len(_BODY)}"),
    "Content-Length beyond 64 bits": _lying("18446744073709551616"),
    "a chunk size that is no number": _chunked(ending=b"zz\r\n" + _BODY),
    "a chunk longer than it says": _chunked(ending=b"%x\r\n%s0\r\n\r\n" % (len(_BODY), _BODY)),
}
_CUT_OFF = {
    "in the headers": b"GET /v2/health/live HTTP/1.1\r\nHos",
    "in the body": _lying(str(len(_BODY) + 10)),
    "in a chunk": _chunked(ending=b"%x\r\n%s" % (len(_BODY) + 10, _BODY)),
}
_MANY = tuple((f"X-{i}", "y") for i in range(10_000))
_TOO_MANY_HEADERS = "the request has more than 512 header fields"
_TOO_MANY_CHUNKS = "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."

CASES: tuple[HttpCase, ...] = (
    http("three requests, one after the other", "", _LIVE, READ, post(_PATH, _BODY), READ, get("/v2/foo")),
    http(
        "three requests at once",
        "",
        _LIVE + post(_PATH, _BODY) + get("/v2/foo"),
        answers=3,
        instead=Instead(
            Because.RIGHT,
            "it answers only the first of several pipelined requests",
            "HTTP/1.1 200\ncontent-type: text/plain\ncontent-length: 0\n"
            + _OK.replace("connection open", "HTTP/1.1 404\ncontent-type: text/plain\ncontent-length: 21\n")
            + '{"error":"Not Found"}\nconnection open',
            asked=False,
        ),
    ),
    http("a slow model and then health, at once", "", infer("slow", one("INT32", [1], [1])) + _LIVE, answers=2),
    http("Connection: close, no body", "", get("/v2/health/live", [("Connection", "close")])),
    http("Connection: close, inference", "", post(_PATH, _BODY, [("Connection", "Close")])),
    http("Connection: close, not found", "", get("/v2/foo", [("Connection", "close")])),
    http("Connection: keep-alive", "", get("/v2/health/live", [("Connection", "keep-alive")])),
    http("HTTP/1.0, inference", "", request("POST", _PATH, _BODY, version="HTTP/1.0")),
    http(
        "HTTP/1.0 with keep-alive",
        "",
        request("POST", _PATH, _BODY, [("Connection", "keep-alive")], version="HTTP/1.0"),
    ),
    http("no Host", "", b"GET /v2/health/live HTTP/1.1\r\n\r\n"),
    http("header names in small letters", "", _lying(str(len(_BODY))).replace(b"Content-L", b"content-l")),
    http("500 headers", "", get("/v2/health/live", _MANY[:500])),
    http("500 headers, inference", "", post(_PATH, _BODY, _MANY[:500])),
    http(
        "10,000 headers",
        "",
        get("/v2/health/live", _MANY),
        masks="announced-close",
        instead=Instead(Because.PURPOSE, "it takes any number", refuses(431, _TOO_MANY_HEADERS, "closed")),
    ),
    http("GET with a body", "", request("GET", "/v2/health/live", b"hello")),
    http("POST without a body", "H34", request("POST", _PATH)),
    http("the sending half closed after the request", "", post(_PATH, _BODY), END),
    http("the sending half closed, slow model", "", infer("slow", one("INT32", [1], [1])), END),
    http("Expect, body afterwards", "", _expecting(_PATH), READ, _BODY),
    http("Expect, body at once", "", _expecting(_PATH) + _BODY, answers=2),
    http("Expect, unknown path", "", _expecting("/v2/foo"), READ, _BODY),
    http("chunked", "", _chunked(_BODY)),
    http("chunked, byte by byte", "", _chunked(*(_BODY[i : i + 1] for i in range(len(_BODY))))),
    http("chunked, no chunk", "H34", _chunked()),
    http(
        "chunked, raw request",
        "H34",
        _chunked(b"\1\0\0\0", b"\2\0", b"\0\0", headers=_RAW),
    ),
    http("chunked, then a request at once", "", _chunked(_BODY) + _LIVE, answers=2),
    http(
        "chunked, with an extension and a trailer",
        "",
        _chunked(ending=b"%x;a=b\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(_BODY), _BODY)),
        instead=Instead(Because.RIGHT, "it closes on chunk extensions, which RFC 9112 lets a client send", _OK),
    ),
    http(
        "65,537 chunks",
        "H16",
        _chunked(*([b" "] * 65_537), _BODY),
        masks="announced-close",
        instead=Instead(Because.NEWER, "2.51 counts no chunks (H16)", refuses(400, _TOO_MANY_CHUNKS, "closed")),
    ),
    http(
        "a request in packets of one byte",
        "",
        *(bytes([byte]) for byte in post(_PATH, _BODY)),
        instead=Instead(Because.RIGHT, "it may lose the path and answer 404", _OK, asked=False),
    ),
    *(
        http(
            f"chunks beside a Content-Length, {order}",
            "",
            _both(*fields, body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(_BODY), _BODY)),
            instead=Instead(
                Because.PURPOSE,
                "RFC 9112, 6.1: the connection must be closed after such a request",
                says(
                    200,
                    {"model_name": "int32", "model_version": "1", "outputs": [_OUTPUT]},
                    "closed",
                    connection="close",
                ),
            ),
        )
        for order, fields in {
            "the length first": (f"Content-Length: {len(_BODY)}", "Transfer-Encoding: chunked"),
            "the chunks first": ("Transfer-Encoding: chunked", f"Content-Length: {len(_BODY)}"),
        }.items()
    ),
    http(
        "a body of a stated length that is announced as chunks",
        "",
        _both(f"Content-Length: {len(_BODY)}", "Transfer-Encoding: chunked", body=_BODY),
        masks="wordless-close",
    ),
    http("Content-Length too small", "H19", _lying(str(len(_BODY) - 5))),
    http(
        "Content-Length given twice, equal",
        "",
        _lying(f"{len(_BODY)}\r\nContent-Length: {len(_BODY)}"),
        masks="wordless-close",
        instead=Instead(
            Because.PURPOSE,
            "two lengths are how requests are smuggled, and RFC 9110, 8.6 lets a server refuse them",
            "connection closed",
        ),
    ),
    *(http(f"no HTTP: {name}", "", data, masks="wordless-close") for name, data in _NO_HTTP.items()),
    *(http(f"cut off {name}", "", data, END, masks="wordless-close") for name, data in _CUT_OFF.items()),
)
