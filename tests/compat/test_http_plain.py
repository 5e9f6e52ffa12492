"""Plain HTTP with the standard library, like curl: exact bytes, a connection that goes on after mistakes, uploads."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from tests.compat.serving import Serving

LIMIT = 30.0
INFER = "/v2/models/flat_int32/infer"
BODY = b'{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT32","data":[1,2]}]}'
ANSWER = (
    b'{"model_name":"flat_int32","model_version":"1",'
    b'"outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}'
)


@pytest.fixture
def connection(server: Serving) -> Iterator[HTTPConnection]:
    """One connection, kept between the requests of a test."""
    made = HTTPConnection("127.0.0.1", server.http_port, timeout=LIMIT)
    made.connect()
    yield made
    made.close()


def ask(connection: HTTPConnection, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    first = connection.sock
    connection.request(method, path, body or None, {name.replace("_", "-"): text for name, text in headers.items()})
    answer: HTTPResponse = connection.getresponse()
    content = answer.read()
    assert connection.sock is first, "the connection was closed"
    return answer.status, content


def test_json_is_answered_with_json(server: Serving) -> None:
    asked = urllib.request.Request(f"http://{server.http_url}{INFER}", data=BODY)
    with urllib.request.urlopen(asked, timeout=LIMIT) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["Inference-Header-Content-Length"] is None
        assert answer.read() == ANSWER


def test_error_is_json_with_its_status(server: Serving) -> None:
    asked = urllib.request.Request(f"http://{server.http_url}/v2/models/nope/infer", data=BODY)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked, timeout=LIMIT)
    with caught.value as error:
        assert error.code == 404
        assert json.loads(error.read()) == {"error": "Request for unknown model: 'nope' is not found"}


@pytest.mark.rows("H34")
def test_raw_body_is_the_single_input(connection: HTTPConnection) -> None:
    connection.request("POST", INFER, b"\1\0\0\0\2\0\0\0", {"Inference-Header-Content-Length": "0"})
    answer = connection.getresponse()
    content, size = answer.read(), int(answer.headers["Inference-Header-Content-Length"])
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert json.loads(content[:size])["outputs"][0]["shape"] == [2]
    assert content[size:] == b"\1\0\0\0\2\0\0\0"


@pytest.mark.rows("H42")
def test_listed_output_decides_for_itself(connection: HTTPConnection) -> None:
    """`binary_data_output` only applies to requests that list no outputs."""
    listed = BODY[:-1] + b',"parameters":{"binary_data_output":true},"outputs":[{"name":"OUTPUT0"}]}'
    assert ask(connection, "POST", INFER, listed) == (200, ANSWER)
    unlisted = BODY[:-1] + b',"parameters":{"binary_data_output":true}}'
    status, content = ask(connection, "POST", INFER, unlisted)
    assert status == 200
    assert content.endswith(b'"parameters":{"binary_data_size":8}}]}\1\0\0\0\2\0\0\0')


def test_chunked_upload_is_answered(connection: HTTPConnection) -> None:
    parts = (BODY[at : at + 7] for at in range(0, len(BODY), 7))
    connection.request("POST", INFER, parts, encode_chunked=True)
    assert connection.getresponse().read() == ANSWER


def test_connection_goes_on_after_mistakes(connection: HTTPConnection) -> None:
    for body in (b"{", b"{}", b"[]", BODY[:-1], BODY.replace(b"[2]", b"[3]"), BODY.replace(b"INT32", b"FP32")):
        status, content = ask(connection, "POST", INFER, body)
        assert status in (400, 500)
        assert list(json.loads(content)) == ["error"]
        assert ask(connection, "POST", INFER, BODY) == (200, ANSWER)


def test_connection_goes_on_after_wrong_paths_and_methods(connection: HTTPConnection) -> None:
    for method, path, status in (
        ("GET", "/v2/foo", 404),
        ("POST", "/v2/foo", 404),
        ("GET", "/v2/", 404),
        ("GET", INFER, 405),
        ("DELETE", "/v2", 405),
        ("HEAD", "/v2", 405),
        ("POST", "/v2/health/live", 405),
        ("POST", "/v2/models/flat_int32/versions/1/trace/setting", 404),
    ):
        assert ask(connection, method, path, b"some body")[0] == status
    assert ask(connection, "POST", INFER, BODY) == (200, ANSWER)


@pytest.mark.parametrize(("count", "status"), [(500, b"200 OK"), (10_000, b"431 Request Header Fields Too Large")])
def test_many_headers(server: Serving, count: int, status: bytes) -> None:
    """Written by hand: the standard library sends headers slowly."""
    head = b"".join(b"X-%d: y\r\n" % number for number in range(count))
    sent = b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
        INFER.encode(),
        head,
        len(BODY),
        BODY,
    )
    with socket.create_connection(("127.0.0.1", server.http_port), LIMIT) as sock:
        sock.sendall(sent)
        got = b"".join(iter(lambda: sock.recv(65536), b""))
    assert got.startswith(b"HTTP/1.1 %b\r\n" % status)
    assert got.endswith(ANSWER) == (status == b"200 OK")


@pytest.mark.rows("H16")
def test_too_many_chunks_are_refused_and_closed(server: Serving) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
    with socket.create_connection(("127.0.0.1", server.http_port), LIMIT) as sock:
        sock.sendall(head + b"1\r\nx\r\n" * 65_537)
        got = b"".join(iter(lambda: sock.recv(65536), b""))
    assert got.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert got.endswith(
        b'{"error":"Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."}'
    )


def test_model_name_that_is_not_utf8_is_not_found(connection: HTTPConnection) -> None:
    status, content = ask(connection, "POST", "/v2/models/%FF%00/infer", BODY)
    assert (status, content) == (404, b'{"error":"Request for unknown model: \'%FF%00\' is not found"}')
