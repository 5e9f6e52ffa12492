"""Restricted APIs and forwarded headers, against the real server with the same flags (H24, H25, G13, G14); and the
server's name."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import servers
from tests.conformance.case import Because, Case, Instead, get, grpc, http, infer, one, refuses, request
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair, Result, compare

# Health is left open: it says when a server is up.
_NAMES = "metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"
_PATTERN = "x-.*|sequence_id|triton_"
_FLAGS = (
    f"--http-restricted-api={_NAMES}:key=v=1",
    f"--grpc-restricted-protocol={_NAMES}:key=v=1",
    f"--http-header-forward-pattern={_PATTERN}",
    f"--grpc-header-forward-pattern={_PATTERN}",
    "--id=a name of its own",
)
_HEALTH_FLAGS = (
    "--http-restricted-api=health:key=v",
    "--grpc-restricted-protocol=health:key=v",
    "--http-header-forward-pattern=(?-i)MY_HEADER.*",
    "--grpc-header-forward-pattern=(?-i)X-|^x-a$",
)
_KEY = (("key", "v=1"),)
_META = (("triton-grpc-protocol-key", "v=1"),)

_REQUEST = one("INT32", [1], [1])
_PATHS = {
    "/v2": "GET",
    "/v2/models/parameters": "GET",
    "/v2/models/parameters/infer": "POST",
    "/v2/models/nope/generate": "POST",
    "/v2/models/nope/generate_stream": "POST",
    "/v2/systemsharedmemory/status": "GET",
    "/v2/cudasharedmemory/region/x/register": "POST",
    "/v2/models/parameters/config": "GET",
    "/v2/repository/index": "POST",
    "/v2/repository/models/x/load": "POST",
    "/v2/models/stats": "GET",
    "/v2/models/parameters/stats": "GET",
    "/v2/trace/setting": "GET",
    "/v2/models/nope/trace/setting": "GET",
    "/v2/logging": "GET",
}
_RPCS = (
    *("ServerMetadata", "ModelMetadata", "ModelInfer", "ModelStreamInfer", "ModelConfig", "ModelStatistics"),
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"),
    *(f"{kind}SharedMemory{action}" for kind in ("System", "Cuda") for action in ("Status", "Register", "Unregister")),
)
_FORWARDED = {
    "a name that matches": [("x-a", "1")],
    "in capitals": [("X-A", "1")],
    "two of them, by case": [("x-a", "1"), ("X-A", "2")],
    "two of one": [("x-a", "1"), ("x-a", "2")],
    "within a name": [("y-x-a", "1")],
    "spaces": [("x-a", "1 , 2")],
    "beyond ASCII": [("x-a", "\u00c3\u00bc")],  # two bytes of UTF-8
    "none": [("y", "1")],
}
_RESERVED = "Header '{}' is reserved for Triton usage and cannot be forwarded."
_NO_CHECK = "2.51 forwards it"
_INPUT = 'model_name: "parameters" inputs { name: "INPUT0" datatype: "INT32" shape: [1] contents { int_contents: 1 } }'

_HEALTH = ("/v2/health/live", "/v2/health/ready", "/v2/models/parameters/ready", "/v2/models/nope/ready")
_HEALTH_RPCS = ("ServerLive", "ServerReady", "ModelReady", "/grpc.health.v1.Health/Check")

CASES: tuple[Case, ...] = (
    http("server metadata of a server with an id", "H9", get("/v2", _KEY), masks="version length"),
    grpc("server metadata of a server with an id", "H9 G1", "ServerMetadata", "", metadata=_META, masks="version"),
    http("restricted API, live", "H24", get("/v2/health/live")),
    http("restricted API, unknown path", "H24", get("/v2/nope")),
    *(http(f"restricted API {path}", "H24", request(method, path)) for path, method in _PATHS.items()),
    http("restricted API, wrong method", "H24", request("DELETE", "/v2/logging")),
    http("restricted API, wrong method, key", "H24 H5", request("DELETE", "/v2/logging", headers=_KEY)),
    http("restricted API, key", "H24", get("/v2/logging", _KEY)),
    *(
        http(f"restricted API, {what}", "H24", get("/v2/logging", headers))
        for what, headers in {
            "key in capitals": [("KEY", "v=1")],
            "another value": [("key", "V=1")],
            "right value first": [("key", "v=1"), ("key", "x")],
            "right value last": [("key", "x"), ("key", "v=1")],
        }.items()
    ),
    *(
        http(f"forwarded header, {what}", "H25", infer("parameters", _REQUEST, [*_KEY, *headers]))
        for what, headers in _FORWARDED.items()
    ),
    http(
        "forwarded header over a parameter",
        "H25",
        infer("parameters", {**_REQUEST, "parameters": {"x-a": 5}}, [*_KEY, ("x-a", "1")]),
    ),
    *(
        http(
            f"forwarded header {name}",
            "H25",
            infer("parameters", _REQUEST, [*_KEY, (name, "1")]),
            instead=Instead(Because.NEWER, _NO_CHECK, refuses(400, _RESERVED.format(name))),
        )
        for name in ("sequence_id", "triton_x")
    ),
    http("forwarded header, malformed body first", "H30", infer("parameters", "{", [*_KEY, ("sequence_id", "1")])),
    http(
        "forwarded header, unknown model first",
        "H30",
        infer("nope", _REQUEST, [*_KEY, ("sequence_id", "1")]),
        masks="infer-error-type",
    ),
    *(grpc(f"restricted protocol {rpc}", "G13", rpc, "") for rpc in _RPCS),
    grpc("restricted protocol, one that is not", "G13", "ServerLive", ""),
    grpc("restricted protocol, health check", "G13 G2", "/grpc.health.v1.Health/Check", b""),
    grpc("restricted protocol, key", "G13", "LogSettings", "", metadata=_META),
    grpc("restricted protocol, another value", "G13", "LogSettings", "", metadata=((_META[0][0], "x"),)),
    grpc("restricted protocol, no prefix", "G13", "LogSettings", "", metadata=_KEY),
    *(
        grpc(f"{rpc}, forwarded metadata, {what}", "G14", rpc, _INPUT, metadata=(*_META, *metadata))
        for rpc in ("ModelInfer", "ModelStreamInfer")
        for what, metadata in {
            "a key that matches": (("x-a", "1"),),
            "two of one": (("x-a", "1"), ("x-a", "2")),
            "within a key": (("y-x-a", "1"),),
            "none": (),
        }.items()
    ),
    grpc("forwarded metadata, every request of a stream", "G14", "ModelStreamInfer", _INPUT, _INPUT, metadata=(
        *_META, ("x-a", "1"),
    )),
    grpc(
        "forwarded metadata over a parameter",
        "G14",
        "ModelInfer",
        _INPUT + ' parameters { key: "x-a" value { int64_param: 1 } }',
        metadata=(*_META, ("x-a", "1")),
    ),
    grpc(
        "forwarded metadata sequence_id",
        "G14",
        "ModelInfer",
        _INPUT,
        metadata=(*_META, ("sequence_id", "1")),
        instead=Instead(
            Because.NEWER, _NO_CHECK, f"status INVALID_ARGUMENT: {_RESERVED.format('sequence_id')}"
        ),
    ),
    grpc(
        "forwarded metadata triton_x on a stream",
        "G14 G28",
        "ModelStreamInfer",
        _INPUT,
        metadata=(*_META, ("triton_x", "1")),
        instead=Instead(
            Because.NEWER,
            _NO_CHECK,
            "\n".join(
                [
                    "message",
                    "  error_message: " + json.dumps(_RESERVED.format("triton_x")).replace("'", "\\'"),
                    "  infer_response {",
                    "  }",
                    "status OK",
                ]
            ),
        ),
    ),
    grpc("forwarded metadata, unknown model first", "G14", "ModelInfer", 'model_name: "nope"', metadata=(
        *_META, ("sequence_id", "1"),
    )),
)  # fmt: skip


HEALTH_CASES: tuple[Case, ...] = (
    *(http(f"restricted health {path}", "H24 H7 H8 H10", get(path)) for path in _HEALTH[:3]),
    *(http(f"restricted health, key, {path}", "H24", get(path, (("key", "v"),))) for path in _HEALTH[:3]),
    http("restricted health, unknown model", "H24", get(_HEALTH[3])),
    http("restricted health, wrong method", "H24", request("POST", "/v2/health/live", b"")),
    http("restricted health, metadata", "H24", get("/v2/models/parameters")),
    *(grpc(f"restricted health {rpc}", "G13 G2", rpc, b"") for rpc in _HEALTH_RPCS),
    *(
        grpc(f"restricted health, key, {rpc}", "G13 G2", rpc, b"", metadata=(("triton-grpc-protocol-key", "v"),))
        for rpc in _HEALTH_RPCS[:2] + _HEALTH_RPCS[3:]
    ),
    grpc("restricted health, ModelMetadata", "G13", "ModelMetadata", 'name: "parameters"'),
    *(
        http(f"forwarded header, case counts, {name}", "H25 C25", infer("parameters", _REQUEST, [(name, "1")]))
        for name in ("MY_HEADER", "MY_HEADER_2", "A-MY_HEADER", "my_header", "My_Header")
    ),
    *(
        grpc(f"forwarded metadata, case counts, {name}", "G14 C25", "ModelInfer", _INPUT, metadata=((name, "1"),))
        for name in ("x-a", "x-ab", "y-x-a")
    ),
)


@pytest.fixture(scope="module")
def guarded(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers with the flags, over one model that returns its parameters."""
    yield from _served(tmp_path_factory.mktemp("access"), _FLAGS)


@pytest.fixture(scope="module")
def hidden(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers with the flags, and health queries restricted too."""
    yield from _served(tmp_path_factory.mktemp("hidden"), _HEALTH_FLAGS)


def _served(folder: Path, flags: tuple[str, ...]) -> Iterator[Pair]:
    repo = servers.copy_models(folder / "models" / "parameters", servers.MODELS / "parameters").parent
    with pair_of(repo, folder, *flags) as both:
        yield both


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=pytest.mark.rows(*c.rows)) for c in CASES])
def test_access_as_the_real_server(case: Case, guarded: Pair, results: list[Result]) -> None:
    result = compare(case, guarded)
    results.append(result)
    assert result.ours == result.wanted
    assert not result.stale, "the real server answers like this by now: the mark is out of date"


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=pytest.mark.rows(*c.rows)) for c in HEALTH_CASES])
def test_restricted_health_as_the_real_server(case: Case, hidden: Pair, results: list[Result]) -> None:
    result = compare(case, hidden)
    results.append(result)
    assert result.ours == result.wanted
