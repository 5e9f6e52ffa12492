"""The description of the HTTP API in OpenAPI 3.1, which `/v2/openapi.json` answers. A test compares it with the routes.

Data and pure functions. Any thread.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from halimede.front.access import Category
from halimede.wire.http import json
from halimede.wire.http.schemas import SCHEMAS, Schema, ref

NO_KEYS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `takes` and `gives` name schemas, empty for no body. `states` are the statuses of errors;
    `wordless` those without a body. `events`: the answer is a stream of events, each with what it gives or an error."""

    path: str
    method: str
    tag: str
    summary: str
    takes: str = ""
    gives: str = ""
    states: tuple[int, ...] = (400, 500)
    wordless: tuple[int, ...] = ()
    needs_body: bool = False
    events: bool = False

    @property
    def category(self) -> Category:
        """The group with which it is restricted (H24)."""
        return Category.MODEL_CONFIG if self.path.endswith("/config") else _CATEGORIES.get(self.tag, Category.METADATA)


_CATEGORIES: Final = {
    "health": Category.HEALTH,
    "inference": Category.INFERENCE,
    "statistics": Category.STATISTICS,
    "repository": Category.MODEL_REPOSITORY,
    "trace": Category.TRACE,
    "log": Category.LOGGING,
    "shared memory": Category.SHARED_MEMORY,
}
"""The category of each tag but `metadata`."""


_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = _MODEL + "/versions/{version}"
_CONTROL: Final = (400, 500, 501, 503)


def _of_model(path: str, method: str, tag: str, summary: str, **more: Any) -> tuple[Operation, ...]:
    """Returns an operation for the latest version of a model, and for one that is named."""
    states = more.pop("states", (400, 404, 500, 503))
    return tuple(
        Operation(base + path, method, tag, f"{summary}, {which}", states=states, **more)
        for base, which in ((_MODEL, "latest version"), (_VERSION, "one version"))
    )


def _of_repository(path: str, summary: str, **more: Any) -> tuple[Operation, ...]:
    """Returns an operation without and with the name of a repository. The server refuses the second, except for the
    index."""
    return tuple(
        Operation(base + path, "post", "repository", summary + which, states=_CONTROL, **more)
        for base, which in (("/v2/repository", ""), ("/v2/repository/{repository}", ", the repository named"))
    )


def _regions(kind: str, name: str) -> tuple[Operation, ...]:
    base, tag = f"/v2/{kind}sharedmemory", "shared memory"
    both = ((base, f"all {name} regions"), (f"{base}/region/{{region}}", f"one {name} region"))
    return (
        *(
            Operation(f"{path}/status", "get", tag, f"Status of {what}", gives=f"{name}Regions", states=(404, 500))
            for path, what in both
        ),
        *(
            Operation(
                f"{path}/register", "post", tag, f"Register {what}", takes=f"{name}Registration", states=(400, 500, 501)
            )
            for path, what in both
        ),
        *(
            Operation(f"{path}/unregister", "post", tag, f"Unregister {what}", states=(400, 500, 501))
            for path, what in both
        ),
    )


def _settings(path: str, name: str, summary: str, states: tuple[int, ...]) -> tuple[Operation, ...]:
    return (
        Operation(path, "get", name.lower(), f"What is {summary}", gives=f"{name}Settings", states=(400, 404, 500)),
        Operation(
            path,
            "post",
            name.lower(),
            f"Change what is {summary}",
            takes=f"{name}SettingsChange",
            gives=f"{name}Settings",
            states=states,
            needs_body=True,
        ),
    )


OPERATIONS: Final = (
    Operation("/v2/health/live", "get", "health", "Whether the server runs", states=(503,), wordless=(400,)),
    Operation("/v2/health/ready", "get", "health", "Whether all models serve", states=(503,), wordless=(400,)),
    *_of_model("/ready", "get", "health", "Whether a model serves"),
    Operation("/v2", "get", "metadata", "Name, version and extensions of the server", gives="ServerMetadata"),
    Operation("/v2/openapi.json", "get", "metadata", "This description", gives="OpenApi"),
    *_of_model("", "get", "metadata", "Inputs and outputs of a model", gives="ModelMetadata"),
    *_of_model("/config", "get", "metadata", "Configuration of a model", gives="ModelConfiguration"),
    *_of_model(
        "/infer",
        "post",
        "inference",
        "Inference",
        takes="InferenceRequest",
        gives="InferenceResponse",
        states=(400, 404, 500, 501, 503),
    ),
    *_of_model(
        "/generate",
        "post",
        "inference",
        "One response to a flat object",
        takes="GenerateRequest",
        gives="GenerateResponse",
        states=(400, 404, 500, 501, 503),
        needs_body=True,
    ),
    *_of_model(
        "/generate_stream",
        "post",
        "inference",
        "Responses to a flat object as server-sent events",
        takes="GenerateRequest",
        gives="GenerateResponse",
        states=(400, 404, 500, 501, 503),
        needs_body=True,
        events=True,
    ),
    Operation("/v2/models/stats", "get", "statistics", "Statistics of all models", gives="Statistics"),
    *_of_model("/stats", "get", "statistics", "Statistics of a model", gives="Statistics", states=(400, 500)),
    *_of_repository("/index", "What the repositories hold", takes="RepositoryIndexRequest", gives="RepositoryIndex"),
    *_of_repository("/models/{model}/load", "Load a model, or load it again", takes="LoadRequest"),
    *_of_repository("/models/{model}/unload", "Unload a model", takes="UnloadRequest"),
    *_settings("/v2/trace/setting", "Trace", "traced", (400, 500, 501)),
    *_settings("/v2/models/{model}/trace/setting", "Trace", "traced of a model", (400, 404, 500, 501)),
    *_settings("/v2/logging", "Log", "logged", (500, 501, 503)),
    *_regions("system", "System"),
    *_regions("cuda", "Cuda"),
)

_NAMES: Final = {
    "model": "Name of a model",
    "version": "Number of a version",
    "repository": "Name of a model repository",
    "region": "Name of a shared-memory region",
}
_BINARY: Final = (
    "The body begins with as many bytes of JSON; the binary tensors follow it in the order of the JSON. Without this "
    "header all of it is JSON; with 0 it is the only input of the model."
)
_LENGTH: Final = "Inference-Header-Content-Length"
_EVENTS: Final = "The data of each event is a {} or an Error, as JSON; nothing follows the last one"


_BEARER: Final = "authorization"
"""The name of the scheme of `--auth`. No category has it."""


def describe(
    title: str, version: str, keys: Mapping[str, tuple[str, str]] = NO_KEYS, has_callers: bool = False
) -> bytes:
    """Returns the document as JSON, for a server with this name and version. `keys` are those of the restricted
    categories. Their headers are shown, as errors show them, and the values are not. `has_callers`: each request needs
    a key (`--auth`)."""
    headers = tuple((category, header) for category, (header, _) in sorted(keys.items()))
    return _described(title, version, headers, has_callers)


@lru_cache(maxsize=4)
def _described(title: str, version: str, headers: tuple[tuple[str, str], ...], has_callers: bool) -> bytes:
    schemes = {name: {"type": "apiKey", "in": "header", "name": header} for name, header in headers}
    if has_callers:
        schemes[_BEARER] = {"type": "http", "scheme": "bearer"}
    components: dict[str, Any] = {
        "schemas": {**SCHEMAS, "OpenApi": {"type": "object", "required": ["openapi", "paths"]}},
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": f"{title}: inference over HTTP", "version": version},
        "paths": _paths(schemes.keys()),
        "components": {**components, "securitySchemes": schemes} if schemes else components,
    }
    if has_callers:
        document["security"] = [{_BEARER: []}]
    return json.encode(json.write(document))


def _paths(restricted: Container[str]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, _names_in(operation.path))[operation.method] = _operation(operation)
        if operation.category.value in restricted:
            needed = [name for name in (operation.category.value, _BEARER) if name in restricted]
            paths[operation.path][operation.method]["security"] = [{name: [] for name in needed}]
    return paths


def _names_in(path: str) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
        for name, text in _NAMES.items()
        if f"{{{name}}}" in path
    ]
    return {"parameters": parameters} if parameters else {}


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {"tags": [operation.tag], "summary": operation.summary}
    if operation.takes:
        described["requestBody"] = {
            "required": operation.needs_body or "Request" not in operation.takes or _is_inference(operation),
            "content": _content(operation.takes, _is_inference(operation)),
        }
    if _is_inference(operation):
        described["parameters"] = [
            {"name": _LENGTH, "in": "header", "description": _BINARY, "schema": {"type": "integer", "minimum": 0}}
        ]
    described["responses"] = _responses(operation)
    return described


def _is_inference(operation: Operation) -> bool:
    return operation.takes == "InferenceRequest"


def _responses(operation: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "Done"}}
    if operation.events:
        responses["200"] = {"description": _EVENTS.format(operation.gives), "content": {"text/event-stream": {}}}
    elif operation.gives:
        responses["200"]["content"] = _content(operation.gives, _is_inference(operation))
    responses |= {str(status): {"description": "No"} for status in operation.wordless}
    error = {"description": "What is wrong", "content": _content("Error")}
    return responses | {str(status): error for status in operation.states}


def _content(schema: str, binary: bool = False) -> dict[str, Schema]:
    content: dict[str, Schema] = {"application/json": {"schema": ref(schema)}}
    return {**content, "application/octet-stream": {}} if binary else content
