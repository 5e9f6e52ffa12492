"""TLS of the gRPC port: grpcio's secure channels, mutual authentication, and the agreement on HTTP/2 (G37)."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
import uvloop

from halimede.errors import Invalid
from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from halimede.transport.tls import server_context
from tests.transport.certificates import Certificates, Identity, certificates, encrypted
from tests.transport.grpc_fakes import ANY_SIZE, WAIT, Echo, chat, error_of, run, unary
from tests.transport.http2_wire import PREFACE, Type, frames, settings

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


def context(made: Certificates, mutual: bool = False) -> ssl.SSLContext:
    return server_context(str(made.server.certificate), str(made.server.key), str(made.authority.certificate), mutual)


@asynccontextmanager
async def secured(made: Certificates, mutual: bool = False) -> AsyncIterator[int]:
    """The port of a server with TLS."""
    server = GrpcServer(Echo().rpcs(), GrpcServerOptions(tls=context(made, mutual)))
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        await server.stop(0)


def channel_to(port: int, root: Path, identity: Identity | None = None) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        root.read_bytes(),
        None if identity is None else identity.key.read_bytes(),
        None if identity is None else identity.certificate.read_bytes(),
    )
    return grpc.aio.secure_channel(f"localhost:{port}", credentials, options=list(ANY_SIZE.items()))


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_secure_channel(made: Certificates, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Calls, streams and large messages, which come in records of 16 kB."""
    big = bytes(range(256)) * 80_000

    async def test() -> None:
        async with secured(made) as port, channel_to(port, made.authority.certificate) as channel:
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            assert await unary(channel, "/t/Echo", big) == b"<" + big + b">"
            call = chat(channel, [b"1", big, b"2"])
            assert [await call.read() for _ in range(3)] == [b"1", big, b"2"]
            answers = await asyncio.gather(*(unary(channel, "/t/Echo", b"%d" % n) for n in range(300)))
            assert answers == [b"<%d>" % n for n in range(300)]

    run(test, loop_factory)


def test_secure_channel_that_does_not_know_the_authority(made: Certificates) -> None:
    async def test() -> None:
        async with secured(made) as port, channel_to(port, made.stranger.certificate) as channel:
            code, _ = await error_of(unary(channel, "/t/Echo", b"x"))
            assert code is grpc.StatusCode.UNAVAILABLE

    run(test)


def test_channel_without_tls_is_refused(made: Certificates) -> None:
    async def test() -> None:
        async with secured(made) as port:
            async with grpc.aio.insecure_channel(f"localhost:{port}") as channel:
                code, _ = await error_of(unary(channel, "/t/Echo", b"x"))
                assert code is grpc.StatusCode.UNAVAILABLE
            async with channel_to(port, made.authority.certificate) as channel:
                assert await unary(channel, "/t/Echo", b"x") == b"<x>"

    run(test)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_mutual_tls(made: Certificates, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Only a client with a certificate from the authority is served; the others' failures leave it alone."""
    root = made.authority.certificate

    async def test() -> None:
        async with secured(made, mutual=True) as port, channel_to(port, root, made.client) as channel:
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            for other in (None, made.stranger):
                async with channel_to(port, root, other) as wrong:
                    code, _ = await error_of(unary(wrong, "/t/Echo", b"x"))
                    assert code is grpc.StatusCode.UNAVAILABLE
            assert await unary(channel, "/t/Echo", b"y") == b"<y>"

    run(test, loop_factory)


def test_certificate_of_a_client_is_not_asked_for_without_mutual_tls(made: Certificates) -> None:
    async def test() -> None:
        async with secured(made) as port, channel_to(port, made.authority.certificate, made.stranger) as channel:
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"

    run(test)


# The agreement on HTTP/2


async def first_bytes(port: int, made: Certificates, protocols: list[str], **versions: ssl.TLSVersion) -> bytes:
    """What the server says to a client of TLS that offers these protocols, until it closes or has greeted."""
    client = ssl.create_default_context(cafile=str(made.authority.certificate))
    if protocols:
        client.set_alpn_protocols(protocols)
    for name, version in versions.items():
        setattr(client, name, version)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
    try:
        writer.write(PREFACE + settings())
        return await asyncio.wait_for(reader.read(1000), WAIT)
    finally:
        writer.close()


@pytest.mark.parametrize("protocols", [[], ["http/1.1"], ["h2c"]])
@pytest.mark.parametrize("loop_factory", LOOPS)
def test_client_that_does_not_offer_h2_is_closed(
    made: Certificates, protocols: list[str], loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def test() -> None:
        async with secured(made) as port:
            try:
                said = await first_bytes(port, made, protocols)
            except (ssl.SSLError, ConnectionError):
                said = b""  # some versions of OpenSSL refuse the handshake
            assert said == b""

    run(test, loop_factory)


@pytest.mark.parametrize("protocols", [["h2"], ["http/1.1", "h2"]])
def test_client_that_offers_h2_is_greeted(made: Certificates, protocols: list[str]) -> None:
    async def test() -> None:
        async with secured(made) as port:
            greeting = next(iter(frames(await first_bytes(port, made, protocols))))
            assert greeting.type == Type.SETTINGS

    run(test)


def test_client_of_an_old_tls_is_refused(made: Certificates) -> None:
    """HTTP/2 asks for 1.2 at least (RFC 9113, 9.2)."""

    async def test() -> None:
        async with secured(made) as port:
            assert await first_bytes(port, made, ["h2"], maximum_version=ssl.TLSVersion.TLSv1_2)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await first_bytes(
                    port,
                    made,
                    ["h2"],
                    minimum_version=ssl.TLSVersion.TLSv1,
                    maximum_version=ssl.TLSVersion.TLSv1_1,
                )

    with pytest.warns(DeprecationWarning, match="TLS"):
        run(test)


# Files


@pytest.mark.parametrize("missing", ["certificate", "key", "root"])
@pytest.mark.parametrize("content", [None, b"", b"no PEM at all"])
def test_file_that_cannot_be_used(made: Certificates, tmp_path: Path, missing: str, content: bytes | None) -> None:
    bad = tmp_path / "bad.pem"
    if content is not None:
        bad.write_bytes(content)
    files = {"certificate": made.server.certificate, "key": made.server.key, "root": made.authority.certificate}
    paths = {name: str(path) for name, path in {**files, missing: bad}.items()}
    with pytest.raises(Invalid, match=rf"^cannot use the gRPC server's TLS files: .*'{bad}'"):
        server_context(**paths, mutual=True)


def test_key_of_another_certificate(made: Certificates) -> None:
    with pytest.raises(Invalid):
        server_context(str(made.server.certificate), str(made.client.key), "", mutual=False)


def test_key_that_has_a_password_is_refused_and_not_asked_for(made: Certificates) -> None:
    key = encrypted(made.server.key)
    with pytest.raises(Invalid, match=r"^cannot use the gRPC server's TLS files: the key is encrypted, and its pass"):
        server_context(str(made.server.certificate), str(key), "", False)


def test_files_that_are_not_named() -> None:
    with pytest.raises(Invalid):
        server_context("", "", "", mutual=False)


def test_root_that_is_not_needed(made: Certificates) -> None:
    context = server_context(str(made.server.certificate), str(made.server.key), "", mutual=False)
    assert context.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_clients_that_come_at_once(made: Certificates, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """All of them are served, also beside some who speak no TLS or go at once."""
    trusting = ssl.create_default_context(cafile=str(made.authority.certificate))
    trusting.set_alpn_protocols(["h2"])

    async def greeted(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusting, family=socket.AF_INET)
        writer.write(PREFACE + settings())
        answer = await asyncio.wait_for(reader.readexactly(9), WAIT)
        writer.close()
        return answer

    async def test() -> None:
        async with secured(made) as port:
            for _ in range(2):
                strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
                for each in strangers[::2]:
                    each.sendall(b"GET / HTTP/1.1\r\n\r\n")
                for each in strangers[1::2]:
                    each.close()
                answers = await asyncio.gather(*(greeted(port) for _ in range(30)))
                assert {answer[3] for answer in answers} == {Type.SETTINGS}
                for each in strangers:
                    each.close()

    run(test, loop_factory)
