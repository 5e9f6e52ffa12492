"""Contract 1.1, every route with every method that it does not accept (H5), and unknown paths (H1, H3)."""

from tests.conformance.case import HttpCase, get, http, request

_REGION, _CONTROL = "/v2/{}sharedmemory/region/data/{}", "/v2/repository/models/int32/{}"
_ROUTES = {
    "GET": (
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats"),
        *(f"/v2/models/int32{end}" for end in ("", "/config", "/ready", "/stats")),
        *(f"/v2/models/int32/versions/1{end}" for end in ("", "/config", "/ready", "/stats")),
        *(f"/v2/{kind}sharedmemory/status" for kind in ("system", "cuda")),
        *(_REGION.format(kind, "status") for kind in ("system", "cuda")),
    ),
    "POST": (
        *(_REGION.format(kind, what) for kind in ("system", "cuda") for what in ("register", "unregister")),
        *(f"/v2/{kind}sharedmemory/unregister" for kind in ("system", "cuda")),
        *("/v2/repository/index", "/v2/repository/r/index"),
        *(_CONTROL.format(what) for what in ("load", "unload")),
    ),
    "GET POST": ("/v2/logging", "/v2/trace/setting", "/v2/models/int32/trace/setting"),
}
_INFERS = ("/v2/models/int32/infer", "/v2/models/int32/versions/1/infer")
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")

_BESIDE = (
    *("/v1/models/int32", "/metrics", "/v2/infer", "/v2/models", "/v2/models/", "/v2;x", "/v2/health", "/v2/health/x"),
    *("/v2/models//infer", "/v2/models/int32/foo", "/v2/models/int32/INFER", "/v2/models/int32/trace"),
    *("/v2/models/int32/versions", "/v2/models/int32/versions/", "/v2/models/int32/versions//infer"),
    *("/v2/models/int32/versions/1/foo", "/v2/models/int32/versions/1x/infer", "/v2/models/stats/"),
    *("/v2/logging/", "/v2/trace", "/v2/trace/setting/", "/v2/systemsharedmemory", "/v2/cudasharedmemory/"),
    *("/v2/systemsharedmemory/region/x", "/v2/systemsharedmemory/region/x/y/status", "/v2/systemsharedmemory/x"),
    *("/v2/repository/", "/v2/repository/models", "/v2/repository/models/x", "/v2/repository/a/b/index"),
    *("/v2/repository/models/x/y/load", "/v2/health/l%69ve", "/v2/health/live%20", "/v2/models/int32/%69nfer"),
)
_NAMES = ("a%20b", "%00", "%2e%2e", "..", ".", "infer", "versions", "a:b", "%C3%A9", "~", "a" * 300)


def _wrong(method: str, path: str, masks: str = "") -> HttpCase:
    body = None if method == "GET" else b""
    return http(f"wrong method, {method} {path}", "H5 H15", request(method, path, body), masks=masks)


CASES: tuple[HttpCase, ...] = (
    *(
        _wrong(method, path)
        for allowed, paths in _ROUTES.items()
        for path in paths
        for method in _METHODS
        if method not in allowed.split()
    ),
    *(_wrong(method, path, "infer-error-type") for path in _INFERS for method in _METHODS if method != "POST"),
    *(http(f"beside the routes, {path}", "H1 H3", get(path)) for path in _BESIDE),
    *(http(f"beside the routes, POST {path}", "H1 H3", request("POST", path, b"{}")) for path in _BESIDE),
    *(http(f"a model named {name[:20]}", "H1 H14", get(f"/v2/models/{name}")) for name in _NAMES),
    http("a path with a fragment", "H1", get("/v2/health/live#x")),
    http("a route within a query", "H1", get("/v2?/health/live"), masks="version length"),
    http("an inference with a query", "H1", get("/v2/models/int32/ready?x=1&y=2/infer")),
)
