"""The description of the HTTP API, compared with the route table and with what the codecs write."""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, cast

import pytest

from halimede.engine_port import (
    BatchCounts,
    CudaRegion,
    Duration,
    IndexEntry,
    LogInfo,
    ModelCounts,
    ModelInfo,
    ResponseCounts,
    ServerInfo,
    ServerMetadata,
    SystemRegion,
    TensorInfo,
    TraceInfo,
)
from halimede.front.http.openapi import OPERATIONS, describe
from halimede.tensors import FP32
from halimede.wire.http import admin as http_admin
from halimede.wire.http import metadata as http_facts
from halimede.wire.http import shared_memory as http_shared_memory
from tests.front.http_fakes import Rig

SERVER = ServerInfo("triton", "1.2.3", ("statistics",))


@cache
def document() -> Any:
    return json.loads(describe("triton", "1.2.3"))


def expanded(pattern: str) -> set[str]:
    """Every path that the pattern of a row matches, with {} for a name."""
    if found := re.search(r"\(\?:((?:[^()]|\([^()]*\))*)\)(\?)?", pattern):
        inner, before, after = found[1], pattern[: found.start()], pattern[found.end() :]
        choices = ["", inner] if found[2] else inner.split("|")
        return {path for choice in choices for path in expanded(before + choice + after)}
    plain = re.sub(r"\(\[[^\]]*\]\+\)", "{}", pattern).replace("()", "").replace("\\.", ".")
    assert not set(plain) & set("()[]*+?|\\"), plain
    return {plain}


def test_patterns_are_expanded() -> None:
    assert expanded("/a(?:/([^/]+))?/(?:x|y)()") == {"/a/x", "/a/y", "/a/{}/x", "/a/{}/y"}


def test_every_route_is_described_with_its_methods_and_nothing_else_is() -> None:
    served = {
        (path, method.decode().lower())
        for route in Rig().front.routes
        for path in expanded(route.pattern)
        for method in cast(Iterable[bytes], route.methods)
    }
    described = {(re.sub(r"\{\w+\}", "{}", path), method) for path, method in operations()}
    assert described == served


def test_every_operation_has_the_category_of_its_route() -> None:
    served = {path: route.category for route in Rig().front.routes for path in expanded(route.pattern)}
    assert {re.sub(r"\{\w+\}", "{}", each.path): each.category for each in OPERATIONS} == served


def test_restricted_operations_need_a_key() -> None:
    read = json.loads(describe("triton", "1", {"inference": ("the-key", "secret")}))
    assert read["components"]["securitySchemes"] == {"inference": {"type": "apiKey", "in": "header", "name": "the-key"}}
    assert read["paths"]["/v2/models/{model}/infer"]["post"]["security"] == [{"inference": []}]
    assert "security" not in read["paths"]["/v2"]["get"]
    assert "secret" not in json.dumps(read)
    assert "security" not in json.dumps(document())


def test_every_operation_needs_a_key_of_a_server_with_identities() -> None:
    read = json.loads(describe("triton", "1", {"inference": ("the-key", "secret")}, has_callers=True))
    assert read["components"]["securitySchemes"]["authorization"] == {"type": "http", "scheme": "bearer"}
    assert read["security"] == [{"authorization": []}]
    assert read["paths"]["/v2/models/{model}/infer"]["post"]["security"] == [{"inference": [], "authorization": []}]
    assert "security" not in read["paths"]["/v2"]["get"]


def operations() -> Iterator[tuple[str, str]]:
    for path, members in document()["paths"].items():
        yield from ((path, method) for method in members if method != "parameters")


def test_names_in_paths_are_described() -> None:
    for path, members in document()["paths"].items():
        names = [parameter["name"] for parameter in members.get("parameters", ())]
        assert sorted(names) == sorted(re.findall(r"\{(\w+)\}", path)), path


def test_operations_are_told_apart() -> None:
    summaries = [operation.summary for operation in OPERATIONS]
    assert len(set(summaries)) == len(summaries)


def test_references_lead_somewhere() -> None:
    schemas = document()["components"]["schemas"]
    found = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document())))
    assert found == set(schemas)


def test_description_is_served() -> None:
    rig = Rig()
    rig.port.answers = {ServerMetadata(): SERVER}
    status, fields, body = rig.ask("GET", "/v2/openapi.json").answer
    assert (status, fields) == (200, b"Content-Type: application/json\r\n")
    assert json.loads(body)["info"] == {"title": "triton: inference over HTTP", "version": "1.2.3"}
    assert rig.ask("GET", "/v2/openapixjson").status == 404


_TYPES: dict[str, Any] = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


def check(value: Any, schema: Any, where: str = "") -> None:
    """The part of JSON schema that the description uses. Members that are not described are errors."""
    if "$ref" in schema:
        schema = document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    assert isinstance(value, _TYPES[schema["type"]]), f"{where}: {value}"
    assert value in schema.get("enum", [value]), f"{where}: {value}"
    if schema["type"] == "array":
        for each in value:
            check(each, schema["items"], f"{where}[]")
    if schema["type"] == "object" and "properties" in schema:
        assert set(schema.get("required", ())) <= set(value) <= set(schema["properties"]), f"{where}: {list(value)}"
        for key, each in value.items():
            check(each, schema["properties"][key], f"{where}.{key}")
    elif schema["type"] == "object" and "additionalProperties" in schema:
        for key, each in value.items():
            check(each, schema["additionalProperties"], f"{where}.{key}")


COUNTS = ModelCounts(
    "m",
    1,
    2,
    3,
    4,
    {
        name: Duration()
        for name in (
            *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"),
            *("cache_hit", "cache_miss"),
        )
    },
    (BatchCounts(1, Duration(), Duration(), Duration()),),
    (ResponseCounts(),),
)
TENSORS = (TensorInfo("I", FP32, (-1, 2)),)


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ("ServerMetadata", http_facts.encode_server_metadata(SERVER)),
        ("ModelMetadata", http_facts.encode_model_metadata(ModelInfo("m", (1,), "p", TENSORS, TENSORS))),
        ("Statistics", http_facts.encode_statistics([COUNTS])),
        ("RepositoryIndex", http_admin.write_index([IndexEntry("a"), IndexEntry("b", 1, "UNAVAILABLE", "why")])),
        ("LogSettings", http_admin.write_log_settings(LogInfo("", True, True, True, 0, "default"))),
        ("TraceSettings", http_admin.write_trace_settings(TraceInfo((), 1, 2, 3, "", "triton"))),
        ("SystemRegions", http_shared_memory.encode_system_status([SystemRegion("r", "/k", 0, 8)])),
        ("CudaRegions", http_shared_memory.encode_cuda_status([CudaRegion("r", 0, 8)])),
    ],
)
def test_body_is_as_described(schema: str, written: bytes) -> None:
    check(json.loads(written), {"$ref": schema}, schema)
