"""The names in the certificates of clients."""

import asyncio
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import GrpcCall, Unary
from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from halimede.transport.peers import MAX_NAMES, names_in
from halimede.transport.tls import server_context
from tests.transport.certificates import certificates
from tests.transport.grpc_fakes import unary

SUBJECT = ((("countryName", "DE"),), (("organizationName", "Acme, Inc"),), (("commonName", "alice"), ("userId", "7")))


def test_names_are_those_of_rfc_4514() -> None:
    names = names_in(
        {
            "subject": SUBJECT,
            "subjectAltName": (
                ("DNS", "a.example"),
                ("IP Address", "127.0.0.1"),
                ("URI", "spiffe://a"),
                ("email", "a@example.com"),
            ),
        }
    )
    assert names == [
        *("CN=alice+UID=7,O=Acme\\, Inc,C=DE", "CN=alice", "DNS:a.example", "URI:spiffe://a", "email:a@example.com"),
    ]


def test_openssl_writes_the_same_subject(tmp_path: Path) -> None:
    key, file = tmp_path / "key", tmp_path / "pem"
    made = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", file)
    subject = ("-subj", '/C=DE/O=Acme, "Inc"/CN=a\\+b<c>;d')
    subprocess.run(["openssl", "req", "-x509", *map(str, made), *subject], check=True, capture_output=True, timeout=60)
    shown = subprocess.run(
        ["openssl", "x509", "-in", str(file), "-noout", "-subject", "-nameopt", "RFC2253"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    # The standard library has no other way to read a certificate from a file.
    decoded = ssl._ssl._test_decode_cert(str(file))  # type: ignore[attr-defined]
    assert names_in(decoded)[0] == shown.stdout.decode().strip().removeprefix("subject=")


def test_common_name_cannot_look_like_a_whole_subject() -> None:
    names = names_in({"subject": ((("commonName", "alice,O=Acme"),),)})
    assert names == ["CN=alice\\,O=Acme"]


@pytest.mark.parametrize(("value", "escaped"), [(" a ", "\\ a\\ "), ("#a", "\\#a"), (" ", "\\ "), ("a\\", "a\\\\")])
def test_other_characters_are_escaped(value: str, escaped: str) -> None:
    assert names_in({"subject": ((("commonName", value),),)}) == [f"CN={escaped}"]


def test_many_names_are_cut() -> None:
    names = names_in({"subjectAltName": tuple(("DNS", f"{number}.example") for number in range(1000))})
    assert len(names) == MAX_NAMES


def test_certificate_without_names() -> None:
    assert names_in({}) == []


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_client_with_a_certificate(tmp_path: Path, loop_factory: Any) -> None:
    made = certificates(tmp_path)
    seen: list[tuple[str, Sequence[str]]] = []

    def handle(message: Buffer, call: GrpcCall) -> None:
        seen.append((call.peer, call.peer_names()))
        call.send([b""])
        call.finish()

    async def test() -> None:
        context = server_context(
            *(str(made.server.certificate), str(made.server.key), str(made.authority.certificate)), mutual=True
        )
        server = GrpcServer({"/t/Who": Unary(handle)}, GrpcServerOptions(tls=context))
        port = await server.start("127.0.0.1", 0)
        credentials = grpc.ssl_channel_credentials(
            made.authority.certificate.read_bytes(), made.client.key.read_bytes(), made.client.certificate.read_bytes()
        )
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
            assert await unary(channel, "/t/Who", b"") == b""
        await server.stop(0)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(test())
    assert seen == [("127.0.0.1", ("CN=client", "DNS:localhost"))]
