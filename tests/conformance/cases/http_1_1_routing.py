"""Contract 1.1, routes, methods and status codes (H1 to H8)."""

from tests.conformance.case import Because, HttpCase, Instead, get, http, infer, one, request, says
from tests.conformance.rawhttp import READ

_NOT_FOUND = (
    "/",
    "/v2/",
    "/v2/foo",
    "//v2/health/live",
    "/V2/health/live",
    "/v2%2Fhealth/live",
    "/v2/models/int32/",
    "/v2/models/int32/infer/",
    "/v2/models/int32/versions/x",
    "/v2/models/int32/versions/-1",
)
_NOT_ALLOWED = (
    ("POST", "/v2/health/live"),
    ("POST", "/v2/health/ready"),
    ("DELETE", "/v2"),
    ("OPTIONS", "/v2"),
    ("PATCH", "/v2"),
    ("PUT", "/v2/models/int32"),
    ("POST", "/v2/models/int32/config"),
    ("POST", "/v2/models/int32/ready"),
    ("POST", "/v2/models/int32/stats"),
    ("POST", "/v2/models/stats"),
)
_INFER = "/v2/models/int32/infer"
_HEAD = "HTTP/1.1 405\ncontent-type: {}\ncontent-length: 30\nconnection open"

CASES: tuple[HttpCase, ...] = (
    http("health live", "H7 H15", get("/v2/health/live")),
    http("health ready, one model failed to load", "H8 H15", get("/v2/health/ready")),
    http("health live with a query", "H1", get("/v2/health/live?x=1")),
    http("absolute URI", "H1", get("http://127.0.0.1/v2/health/live")),
    *(http(f"not found {path}", "H1 H3", get(path)) for path in _NOT_FOUND),
    http("not found, POST with a body", "H3", infer("int32/infer/x", "{}")),
    http("versioned trace", "H4", get("/v2/models/int32/versions/1/trace/setting")),
    *(http(f"not allowed {m} {p}", "H5", request(m, p, b"" if m != "GET" else None)) for m, p in _NOT_ALLOWED),
    *(http(f"not allowed {m} infer", "H5", request(m, _INFER), masks="infer-error-type") for m in ("GET", "PUT")),
    http("not allowed, DELETE with a body", "H5", request("DELETE", _INFER, b"{}"), masks="infer-error-type"),
    http("not allowed, unknown model", "H5 H30", get("/v2/models/nope/infer"), masks="infer-error-type"),
    http(
        "a method that HTTP does not know",
        "H5",
        request("BREW", "/v2"),
        masks="wordless-close",
        instead=Instead(
            Because.PURPOSE, "the parser knows the methods of HTTP and ends at others; 405 there", "connection closed"
        ),
    ),
    *(
        http(
            f"HEAD {path}",
            "H5",
            request("HEAD", path),
            instead=Instead(Because.RIGHT, "it sends a body, which HEAD forbids", _HEAD.format(kind)),
        )
        for path, kind in (("/v2", "application/json"), ("/v2/health/live", "text/plain"))
    ),
    http(
        "a refusal does not cost the connection",
        "H19",
        infer("int32", "{"),
        READ,
        get("/v2/foo"),
        READ,
        infer("int32", one("INT32", [1], [1])),
    ),
    *(
        http(
            f"error code {code} of a model",
            "H6",
            infer("coded", one("INT32", [1], [code])),
            masks="infer-error-type",
        )
        for code in range(8)
    ),
    http("the answer of a model that is served", "H1", infer("slow", one("INT32", [2], [3, 4]))),
    http("model named in another case", "H14", get("/v2/models/INT32")),
    http(
        "model ready, unknown model",
        "H10",
        get("/v2/models/nope/ready"),
        instead=Instead(
            Because.NEWER,
            "2.51 answers 400 (H10)",
            says(404, {"error": "Request for unknown model: 'nope' is not found"}, **{"content-type": "text/plain"}),
        ),
    ),
    http(
        "model ready, unknown version",
        "H10",
        get("/v2/models/versions/versions/1/ready"),
        instead=Instead(
            Because.NEWER,
            "2.51 answers 400 (H10)",
            says(
                404,
                {"error": "Request for unknown model: 'versions' version 1 is not found"},
                **{"content-type": "text/plain"},
            ),
        ),
    ),
)
