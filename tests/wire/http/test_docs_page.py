"""The page of an OpenAPI document, for documents of a few lines. `tests/compat/test_pages.py` reads that of ours."""

import json
import shlex
from html import unescape
from typing import Any

from halimede.wire.http.docs_page import docs_page
from tests.wire.test_html import HOSTILE, Reader

NAME = {"name": "model", "in": "path", "required": True, "description": "Its `name`", "schema": {"type": "string"}}


def document(operation: dict[str, Any], method: str = "get", **schemas: Any) -> bytes:
    described = {"tags": ["a tag"], "summary": "What it does", "responses": {"200": {"description": "Done"}}}
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": HOSTILE, "version": "7"},
            "paths": {"/v2/{model}": {"parameters": [NAME], method: {**described, **operation}}},
            "components": {"schemas": schemas},
        }
    ).encode()


def sent(schema: str, **more: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}, **more}


def example(page: bytes) -> list[str]:
    """The words of the command in the page, as a shell takes them apart."""
    return shlex.split(unescape(page.decode().partition("<pre><code>")[2].partition("</code>")[0]))


def test_operation_is_shown_with_parameters_and_responses() -> None:
    page = Reader(docs_page(document({}), "h:1").decode())
    for text in ("GET/v2/{model}What it does", "modelpath, requiredstringIts name", "200noneDone", "A tag", HOSTILE):
        assert text in page.text
    assert not {"img", "script"} & set(page.elements)


def test_restricted_operation_shows_its_header() -> None:
    read = json.loads(document({"security": [{"inference": []}]}))
    read["components"]["securitySchemes"] = {"inference": {"type": "apiKey", "in": "header", "name": "the-key"}}
    page = docs_page(json.dumps(read).encode(), "h")
    assert "What it does (needs a key)" in Reader(page.decode()).text
    assert example(page) == ["curl", "-i", "http://h/v2/MODEL", "-H", "the-key: KEY"]
    assert "needs a key" not in Reader(docs_page(document({}), "h").decode()).text


def test_operation_of_a_server_with_identities_shows_how_to_send_a_key() -> None:
    read = json.loads(document({}))
    read["security"] = [{"authorization": []}]
    read["components"]["securitySchemes"] = {"authorization": {"type": "http", "scheme": "bearer"}}
    page = docs_page(json.dumps(read).encode(), "h")
    assert example(page) == ["curl", "-i", "http://h/v2/MODEL", "-H", "Authorization: Bearer KEY"]


def test_operation_without_a_body_shows_its_status() -> None:
    assert example(docs_page(document({}), "[::1]:8000")) == ["curl", "-i", "http://[::1]:8000/v2/MODEL"]
    assert example(docs_page(document({}, "post"), "h")) == ["curl", "-i", "-X", "POST", "http://h/v2/MODEL"]


def test_example_of_a_body_is_that_of_its_schema() -> None:
    body = {"text": "it's"}
    responses = {"200": {"description": "Done", **sent("S")}}
    operation = {"requestBody": sent("S", required=True), "responses": responses}
    page = docs_page(document(operation, "post", S={"type": "object", "examples": [body]}), "h")
    assert example(page) == ["curl", "http://h/v2/MODEL", "-d", json.dumps(body)]
    assert "Request bodyS as application/json" in Reader(page.decode()).text


def test_stream_is_shown_as_it_comes() -> None:
    responses = {"200": {"description": "Events", "content": {"text/event-stream": {}}}}
    assert example(docs_page(document({"responses": responses}), "h"))[:2] == ["curl", "-N"]


def test_schemas_are_shown_with_their_members() -> None:
    inner = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer", "minimum": 0}}}
    schemas: dict[str, Any] = {
        "Outer": {
            "type": "object",
            "description": "Has `code` in it.",
            "required": ["one"],
            "properties": {
                "one": {"$ref": "#/components/schemas/Other"},
                "many": {"type": "array", "items": inner},
                "word": {"type": "string", "enum": ["a", "b", "c"]},
                "maybe": {"type": ["string", "null"]},
            },
            "patternProperties": {"^file:": {"type": "string", "contentEncoding": "base64"}},
            "additionalProperties": {"type": "boolean"},
        },
        "Other": {"type": "array", "items": {"type": "string"}},
    }
    page = Reader(docs_page(document({}, "get", **schemas), "h").decode())
    for text in (
        "Has code in it.",
        "oneOtherrequired",
        "manyarray of object",
        "xinteger from 0required",
        "worda, b or c",
        "maybestring or null",
        "^file:string (base64)any such name",
        "...booleanany other name",
        "array of string",
    ):
        assert text in page.text
    targets = {value for name, value in page.attributes if name == "id"}
    assert {"schema-Outer", "schema-Other"} <= targets
    assert all(value[1:] in targets for name, value in page.attributes if name == "href" and value and value[0] == "#")
