"""Contract 1.8, compressed bodies (H140, H141): requests, answers by Accept-Encoding, and bodies that must not be
compressed.

Answers are compared after inflating. The real server reads streams that are cut off or damaged as far as they go, so
that a tensor may have less than was sent. Ours refuses them.
"""

import gzip
import struct
import zlib

from tests.conformance.case import Because, HttpCase, Instead, encoded, http, infer, one, post, refuses

_ONE = encoded(one("INT32", [2], [1, 2]))
_HEAD = encoded(one("INT32", [2], size=8))
_TAIL = struct.pack("<2i", 3, -4)
_RAW = ("Inference-Header-Content-Length", 0)
_PLAIN = one("INT32", [2], [1, 2])
_BINARY = {**_PLAIN, "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
_EMPTY = {**_BINARY, "inputs": [{"name": "INPUT0", "shape": [0], "datatype": "INT32", "data": []}]}


def _raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-15)


def _zip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _zlib(data: bytes) -> bytes:
    return zlib.compress(data)


_STREAMS = {"gzip": _zip, "deflate": _zlib}


def _coded(coding: str, body: bytes, *headers: tuple[str, str | int], model: str = "int32") -> bytes:
    """An inference whose body has that coding, or is declared to have it."""
    return post(f"/v2/models/{model}/infer", body, [("Content-Encoding", coding), *headers])


def _accepting(value: str, body: object = _PLAIN, model: str = "int32") -> bytes:
    return infer(model, body, [("Accept-Encoding", value)])


_UNKNOWN = {
    "br": "br",
    "in capitals": "GZIP",
    "identity in capitals": "Identity",
    "x-gzip": "x-gzip",
    "empty": "",
    "two of them": "gzip, deflate",
}
_BROKEN = {
    "plain text": _ONE,
    "cut off": _zip(_ONE)[:-12],
    "cut off in the checksum": _zip(_ONE)[:-2],
    "cut off in the head": _zip(_ONE)[:5],
    "zlib, cut off in the checksum": zlib.compress(_ONE)[:-2],
    "a wrong checksum": _zip(_ONE)[:-8] + bytes(8),
    "deflate without a head": _raw_deflate(_ONE),
}
_TAKEN = Instead(
    Because.RIGHT,
    "it takes what it could inflate of a broken stream, be it nothing",
    refuses(400, "encountered inconsistent stream state during decompression"),
)
_GZIPPED = (
    "HTTP/1.1 200\ncontent-type: application/json\ncontent-encoding: gzip\n"
    '{"model_name":"int32","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}'
    "\nconnection open"
)
_WEIGHTS = (
    "gzip",
    "deflate",
    "identity",
    "gzip, deflate",
    "deflate, gzip",
    "gzip;q=0.5, deflate;q=1",
    "deflate;q=0.3,gzip;q=0.3",
    "gzip;q=0, deflate;q=0",
    "identity;q=0, gzip;q=0",
    "identity, gzip",
    "gzip, identity",
    "identity;q=0.5, gzip;q=0.8",
    "*",
    "*;q=0, gzip;q=0.1",
    "br",
    "br, gzip",
    "gzip, deflate, br, zstd",
    "GZIP",
    "",
    ",",
    "gzip;q=abc",
    "gzip;q=abc, deflate;q=0.5",
    "gzip;q=-1",
    "gzip;q=2, deflate;q=1.5",
    "gzip;q=1e1, deflate;q=5",
    "gzip;q=.5, deflate;q=.7",
    "gzip;q=0.5, deflate;q=0.6x",
    "gzip; q=0.5, deflate; q=0.7",
    "gzip ;q=0.2, deflate",
    "gzip;level=1;q=0.2, deflate;q=0.5",
    "gzip;q=0.5;x, deflate;q=0.4",
    "deflate;q=0.1 , gzip;q=0.2",
)

CASES: tuple[HttpCase, ...] = (
    *(
        http(f"compression, a {name} body said to be {coding}", "H140", _coded(coding, pack(_ONE)))
        for name, pack in _STREAMS.items()
        for coding in _STREAMS
    ),
    http("compression, identity body", "H140", _coded("identity", _ONE)),
    *(
        http(
            f"compression, {coding} body with a binary tensor",
            "H140 H33",
            _coded(coding, pack(_HEAD + _TAIL), ("Inference-Header-Content-Length", len(_HEAD))),
        )
        for coding, pack in _STREAMS.items()
    ),
    http("compression, gzip body, raw", "H140 H34", _coded("gzip", _zip(_TAIL), _RAW)),
    http("compression, gzip body of nothing", "H140 H34", _coded("gzip", _zip(b""))),
    http("compression, gzip body and more behind it", "H140", _coded("gzip", _zip(_ONE) + b"more")),
    http("compression, gzip body of two members", "H140 H19", _coded("gzip", _zip(_ONE[:20]) + _zip(_ONE[20:]))),
    http("compression, gzip body, both ways", "H140 H141", _coded("gzip", _zip(_ONE), ("Accept-Encoding", "deflate"))),
    http("compression, gzip body, large", "H140 H34", _coded("gzip", _zip(bytes(4 << 20)), _RAW)),
    *(
        http(
            f"compression, body in an unknown coding: {name}",
            "H140",
            _coded(coding, _zip(_ONE)),
            masks="infer-error-type",
        )
        for name, coding in _UNKNOWN.items()
    ),
    http("compression, nothing to inflate", "H140", _coded("gzip", b""), masks="infer-error-type"),
    *(
        http(f"compression, broken body: {name}", "H140", _coded("gzip", body), instead=_TAKEN)
        for name, body in _BROKEN.items()
    ),
    http("compression, gzip body of no JSON", "H140 H19", _coded("gzip", _zip(b"{"))),
    # What comes first (H30).
    http(
        "compression, unknown model, unknown coding", "H30", _coded("br", _ONE, model="nope"), masks="infer-error-type"
    ),
    http(
        "compression, unknown model, broken body", "H30", _coded("gzip", _ONE, model="nope"), masks="infer-error-type"
    ),
    http(
        "compression, decoupled model, unknown coding",
        "H30 H31",
        _coded("br", _ONE, model="decoupled"),
        masks="infer-error-type",
    ),
    http(
        "compression, unknown version, unknown coding",
        "H30 H13",
        _coded("br", _ONE, model="int32/versions/99999999999999999999"),
        masks="infer-error-type",
    ),
    http("compression, unknown coding, no body", "H30 H140", _coded("br", b""), masks="infer-error-type"),
    http(
        "compression, unknown coding, wrong header length",
        "H30 H140",
        _coded("br", _ONE, ("Inference-Header-Content-Length", "x")),
        masks="infer-error-type",
    ),
    http(
        "compression, header length beyond what was inflated",
        "H30 H33 H140",
        _coded("gzip", _zip(_ONE), ("Inference-Header-Content-Length", 1000)),
        masks="infer-error-type",
    ),
    # Answers.
    *(http(f"compression, Accept-Encoding: {value}", "H141", _accepting(value)) for value in _WEIGHTS),
    http(
        "compression, Accept-Encoding with a weight beyond all numbers",
        "H141",
        _accepting("gzip;q=1e999, deflate"),
        instead=Instead(Because.RIGHT, "it ends on a weight that is no double", _GZIPPED, asked=False),
    ),
    *(
        http(f"compression, binary answer in {coding}", "H141 H43", _accepting(coding, _BINARY))
        for coding in ("gzip", "deflate")
    ),
    http("compression, binary answer of no bytes", "H141 H43", _accepting("gzip", _EMPTY)),
    http("compression, error where gzip is accepted", "H141 H19", _accepting("gzip", "{")),
    http(
        "compression, unknown model where gzip is accepted",
        "H141",
        _accepting("gzip", model="nope"),
        masks="infer-error-type",
    ),
    # Nothing but inferences (H140, H141).
    http(
        "compression, index asked for in gzip",
        "H140 H19",
        post("/v2/repository/index", _zip(b'{"ready":true}'), [("Content-Encoding", "gzip")]),
    ),
    http(
        "compression, metadata where gzip is accepted",
        "H141",
        b"GET /v2/models/int32 HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n",
    ),
)
