"""What is said of a server whose answers make no sense."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from halimede.errors import Unavailable
from halimede.http_client import Refused, fetch_json

LIMIT = 10.0
DEEP = b"[" * 100_000


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The URL of a server that gives its one client these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                client.sendall(answer)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(LIMIT)


@pytest.mark.parametrize(
    "rest",
    [b"Transfer-Encoding: chunked\r\n\r\nff\r\n{", b"\r\n" + DEEP, b"\r\n[]", b"\r\n<html>"],
    ids=["cut off", "deep", "list", "HTML"],
)
def test_refusal_without_a_message_has_its_status(rest: bytes) -> None:
    with (
        answering(b"HTTP/1.1 503 Not Now\r\n" + rest) as url,
        pytest.raises(Refused, match=f"^{url} says: 503 Not Now$"),
    ):
        fetch_json(url, "/v2", LIMIT)


@pytest.mark.parametrize("body", [b"{", DEEP], ids=["cut off", "deep"])
def test_answer_without_json_is_an_error(body: bytes) -> None:
    said = "is no inference server: /v2 is answered without JSON"
    with answering(b"HTTP/1.1 200 OK\r\n\r\n" + body) as url, pytest.raises(Unavailable, match=said):
        fetch_json(url, "/v2", LIMIT)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64", "it speaks HTTP/2, as a gRPC port does$"),
        (b"+PONG\r\n", r"BadStatusLine\('\+PONG"),
    ],
    ids=["gRPC", "Redis"],
)
def test_port_of_another_protocol_is_an_error(answer: bytes, what: str) -> None:
    with answering(answer) as url, pytest.raises(Unavailable, match=f"^{url} is not answered as HTTP has it: {what}"):
        fetch_json(url, "/v2", LIMIT)
