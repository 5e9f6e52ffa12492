"""The page `/docs`: an OpenAPI document for readers, with a line for curl for each operation.

Reads only the document, and only the part of OpenAPI and JSON schema that ours uses. Pure. Any thread.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from halimede.wire.html import Html, element, join, page, table

Schema = Mapping[str, Any]

_HERE: Final = "here.invalid"
"""Stands for the server's address until a request for the page says which one its client uses."""
_METHODS: Final = ("get", "post")
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


def docs_page(document: bytes, host: str) -> bytes:
    """Returns the page of an OpenAPI document in JSON. `host` is the server's address for the reader: letters, digits
    and `.:[]-` only."""
    return _page(document).replace(_HERE.encode(), host.encode())


@lru_cache(maxsize=4)
def _page(document: bytes) -> bytes:
    read = json.loads(document)
    groups = _groups(read)
    schemas: Mapping[str, Schema] = read["components"]["schemas"]
    schemes: Mapping[str, Schema] = read["components"].get("securitySchemes", {})
    links = [(f"#{_anchor(tag)}", tag.capitalize()) for tag in groups]
    links = [*links, ("#schemas", "Schemas"), ("/v2/openapi.json", "openapi.json"), ("/", "Start page")]
    sections = (
        element(
            "section",
            element("h2", tag.capitalize(), id=_anchor(tag)),
            *(_operation(*each, schemas, schemes, read.get("security", ())) for each in operations),
        )
        for tag, operations in groups.items()
    )
    return page(
        read["info"]["title"],
        element("h1", read["info"]["title"]),
        element("p", f"Version {read['info']['version']}. OpenAPI {read['openapi']}.", class_="dim"),
        element("ul", *(element("li", element("a", text, href=to)) for to, text in links), class_="links"),
        *sections,
        element("h2", "Schemas", id="schemas"),
        *(_schema(name, schema) for name, schema in schemas.items()),
    )


def _groups(document: Schema) -> dict[str, list[tuple[str, str, Schema, list[Schema]]]]:
    """The operations by tag: path, method, operation and parameters, in the order of the document."""
    groups: dict[str, list[tuple[str, str, Schema, list[Schema]]]] = {}
    for path, members in document["paths"].items():
        for method in (each for each in _METHODS if each in members):
            operation = members[method]
            parameters = [*members.get("parameters", ()), *operation.get("parameters", ())]
            groups.setdefault(operation["tags"][0], []).append((path, method, operation, parameters))
    return groups


def _anchor(text: str) -> str:
    return re.sub(r"\W+", "-", text.lower()).strip("-")


# Operations.


def _operation(
    path: str,
    method: str,
    operation: Schema,
    parameters: list[Schema],
    schemas: Mapping[str, Schema],
    schemes: Mapping[str, Schema],
    security: Sequence[Mapping[str, object]],
) -> Html:
    keys = [_header_of(schemes[name]) for each in operation.get("security", security) for name in each]
    summary = element(
        "summary",
        element("span", method.upper(), class_=f"method {method}"),
        element("code", path),
        element("span", f"{operation['summary']}{' (needs a key)' if keys else ''}", class_="dim"),
    )
    content = [
        *(element("p", "Restricted: it needs the header ", element("code", key), " with the key.") for key, _ in keys),
        *_parameters(parameters),
        *_body(operation.get("requestBody")),
        *_responses(operation["responses"]),
        element("h4", "Example"),
        element("pre", element("code", _curl(path, method, operation, schemas, keys))),
    ]
    return element("details", summary, element("div", *content), id=_anchor(f"{method} {path}"))


def _header_of(scheme: Schema) -> tuple[str, str]:
    """Returns the header of a scheme, and the form of its value."""
    return ("Authorization", "Bearer KEY") if scheme["type"] == "http" else (scheme["name"], "KEY")


def _parameters(parameters: list[Schema]) -> Iterator[Html]:
    if parameters:
        yield element("h4", "Parameters")
        yield table(
            ("Name", "In", "Type", ""),
            (
                (
                    element("code", each["name"]),
                    f"{each['in']}, required" if each.get("required") else each["in"],
                    _type(each["schema"]),
                    _words(each.get("description", "")),
                )
                for each in parameters
            ),
        )


def _body(body: Schema | None) -> Iterator[Html]:
    if body is not None:
        yield element("h4", "Request body" if body.get("required") else "Request body, optional")
        yield element("p", *_content(body["content"]))


def _responses(responses: Schema) -> Iterator[Html]:
    # Most operations have several errors of one kind.
    alike: dict[tuple[str, str], list[str]] = {}
    for status, response in responses.items():
        alike.setdefault(_response(response), []).append(status)
    yield element("h4", "Responses")
    yield table(("Status", "Body", ""), ((", ".join(statuses), *row) for row, statuses in alike.items()))


def _response(response: Schema) -> tuple[str, str]:
    content = response.get("content")
    return join(_content(content)) if content else element("span", "none", class_="dim"), response["description"]


def _content(content: Schema) -> Iterator[str]:
    for number, (kind, each) in enumerate(content.items()):
        yield " or " if number else ""
        if "schema" in each:
            yield _type(each["schema"])
            yield " as "
        yield element("code", kind)


# Examples.


def _curl(
    path: str, method: str, operation: Schema, schemas: Mapping[str, Schema], keys: Sequence[tuple[str, str]]
) -> str:
    """A command for a shell. Names in capital letters stand for the reader's own."""
    done = operation["responses"]["200"].get("content", {})
    # Without a body the status is the answer.
    words = ["curl -i" if not done else "curl -N" if "text/event-stream" in done else "curl"]
    sent = _example(operation.get("requestBody"), schemas)
    if method == "post" and sent is None:
        words.append("-X POST")
    words.append(f"http://{_HERE}" + _PARAMETER.sub(lambda name: _EXAMPLES.get(name[1], name[1].upper()), path))
    words += [f"-H {shlex.quote(f'{key}: {form}')}" for key, form in keys]
    if sent is not None:
        words.append(f"-d {shlex.quote(json.dumps(sent))}")
    return " ".join(words)


_EXAMPLES: Final = {"version": "1"}
"""The values of parameters that are not names."""


def _example(body: Schema | None, schemas: Mapping[str, Schema]) -> Any:
    """The example of a body's schema; None if the operation takes none."""
    if body is None:
        return None
    schema = body["content"]["application/json"]["schema"]
    examples = schemas[_referred(schema)].get("examples", [{}])
    return examples[0]


# Schemas.


def _schema(name: str, schema: Schema) -> Html:
    parts: list[Html] = [element("h3", element("code", name), id=f"schema-{name}")]
    if "description" in schema:
        parts.append(element("p", _words(schema["description"])))
    inner = _object_in(schema)
    parts.append(_members(inner) if inner is not None else element("p", _type(schema)))
    if inner is not schema and inner is not None:
        parts.insert(1, element("p", "An array of objects:", class_="dim"))
    return element("section", *parts)


def _object_in(schema: Schema) -> Schema | None:
    """The object with named members that a schema is, or that its items or its members are."""
    if "properties" in schema or "patternProperties" in schema:
        return schema
    inner = schema.get("items") or schema.get("additionalProperties")
    return _object_in(inner) if inner else None


def _members(schema: Schema) -> Html:
    required = schema.get("required", ())
    rows = [(name, each, "required" if name in required else "") for name, each in schema.get("properties", {}).items()]
    rows += [(pattern, each, "any such name") for pattern, each in schema.get("patternProperties", {}).items()]
    more = schema.get("additionalProperties")
    if more:
        rows.append(("...", more, "any other name"))
    return table(("Name", "Type", ""), ((element("code", name), _described(each), note) for name, each, note in rows))


def _described(schema: Schema) -> Html:
    """The type of a member, with the members of an object that has no name of its own."""
    inner = _object_in(schema)
    parts: list[str] = [_type(schema)]
    if "description" in schema:
        parts += [". " if parts[0] else "", _words(schema["description"])]
    return join([*parts, _members(inner)] if inner is not None else parts)


def _type(schema: Schema) -> Html:
    """A few words for a schema."""
    if "$ref" in schema:
        name = _referred(schema)
        return element("a", name, href=f"#schema-{name}")
    if "enum" in schema:
        return join(_alternatives([element("code", value) for value in schema["enum"]]))
    kinds = schema.get("type", [])
    return join(_alternatives([_kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds)]))


def _kind(kind: str, schema: Schema) -> str:
    if kind == "array":
        return join(("array of ", _type(schema["items"]))) if "items" in schema else kind
    if kind == "object" and "properties" not in schema and schema.get("additionalProperties"):
        return join(("object of ", _type(schema["additionalProperties"])))
    if kind == "string" and "contentEncoding" in schema:
        return f"string ({schema['contentEncoding']})"
    if kind == "integer" and "minimum" in schema:
        return f"integer from {schema['minimum']}"
    return kind


def _alternatives(words: list[str]) -> Iterator[str]:
    for number, word in enumerate(words):
        yield "" if not number else " or " if number == len(words) - 1 else ", "
        yield word


def _referred(schema: Schema) -> str:
    return str(schema["$ref"].rpartition("/")[2])


def _words(text: str) -> Html:
    """Text with `code` in backticks."""
    return join(element("code", part) if number % 2 else part for number, part in enumerate(text.split("`")))
