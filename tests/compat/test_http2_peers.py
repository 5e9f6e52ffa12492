"""HTTP/2 clients that do not know gRPC, `nghttp` and `h2load`, against the gRPC transport on a port of 127.0.0.1."""

import asyncio
import re
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import Bidirectional, GrpcCall, Unary
from halimede.transport.grpc.server import GrpcServer
from tests.transport.http2_wire import message, messages

SECONDS = 60.0
GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")

nghttp = pytest.mark.skipif(shutil.which("nghttp") is None, reason="nghttp (nghttp2-client) is not installed")
h2load = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load (nghttp2-client) is not installed")

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
on_both_loops = pytest.mark.parametrize("loop", LOOPS.values(), ids=list(LOOPS))


class Echo:
    """`/t/Echo` answers with the message between `<` and `>`, `/t/Chat` does so for each message, `/t/Fail` answers
    with status 5."""

    def rpcs(self) -> dict[str, Unary | Bidirectional]:
        return {"/t/Echo": Unary(self._echo), "/t/Fail": Unary(self._fail), "/t/Chat": Bidirectional(Chat)}

    def _echo(self, message: Buffer, call: GrpcCall) -> None:
        call.send([b"<", message, b">"])
        call.finish()

    def _fail(self, message: Buffer, call: GrpcCall) -> None:
        call.finish(5, "not here")


class Chat:
    def __init__(self, call: GrpcCall) -> None:
        self._call = call

    def message(self, message: Buffer) -> None:
        self._call.send([b"<", message, b">"])

    def half_closed(self) -> None:
        self._call.finish()

    def held_bytes(self) -> int:
        return 0

    def cancelled(self) -> None: ...


async def run(*command: str) -> bytes:
    """The output of a program, which must end with status 0 and in time."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, err.decode(errors="replace")
    return out


def served(loop: Callable[[], asyncio.AbstractEventLoop], test: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine with the URL of a server."""

    async def serve() -> None:
        server = GrpcServer(Echo().rpcs())
        port = await server.start("127.0.0.1", 0)
        try:
            await test(f"http://127.0.0.1:{port}")
        finally:
            await server.stop(0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(serve())


def posted(folder: Path, raw: bytes) -> str:
    """A file with a request's body."""
    path = folder / "body"
    path.write_bytes(raw)
    return str(path)


@nghttp
@on_both_loops
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--padding=200", "-p", "7"),
        ("--no-dep", "--window-bits=8", "--connection-window-bits=10"),
        ("--encoder-header-table-size=0", "--header-table-size=0"),
        ("--trailer", "checksum: 1"),
        ("--no-content-length",),
        ("-H", "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "-H", "grpc-timeout: 20S"),
    ],
    ids=lambda flags: " ".join(flags)[:20],
)
def test_nghttp_posts_a_message(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], flags: tuple[str, ...]
) -> None:
    payload = bytes(range(256)) * 20
    body = posted(tmp_path, message(payload))

    async def test(url: str) -> None:
        assert messages(await run("nghttp", *GRPC, *flags, "-d", body, f"{url}/t/Echo")) == [b"<" + payload + b">"]

    served(loop, test)


@nghttp
@on_both_loops
def test_nghttp_posts_a_large_message(tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    payload = bytes(20_000_000)
    body = posted(tmp_path, message(payload))

    async def test(url: str) -> None:
        for window in ("16", "30"):
            out = await run("nghttp", *GRPC, "-w", window, "-W", window, "-d", body, f"{url}/t/Echo")
            assert messages(out) == [b"<" + payload + b">"]

    served(loop, test)


@nghttp
@on_both_loops
def test_nghttp_posts_a_stream(tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    payloads = [b"%d" % n * n for n in range(100)]
    body = posted(tmp_path, b"".join(map(message, payloads)))

    async def test(url: str) -> None:
        found = messages(await run("nghttp", *GRPC, "-d", body, f"{url}/t/Chat"))
        assert found == [b"<" + payload + b">" for payload in payloads]

    served(loop, test)


@nghttp
def test_nghttp_sees_status_and_trailers(tmp_path: Path) -> None:
    body = posted(tmp_path, message(b"x"))

    async def test(url: str) -> None:
        async def seen(path: str, *flags: str) -> str:
            return (await run("nghttp", "-nv", "--no-push", *flags, f"{url}{path}")).decode()

        answered = await seen("/t/Echo", *GRPC, "-d", body)
        assert "grpc-status: 0" in answered
        assert answered.index(":status: 200") < answered.index("grpc-status: 0")
        failed = await seen("/t/Fail", *GRPC, "-d", body)
        assert "grpc-status: 5" in failed
        assert "grpc-message: not here" in failed
        assert "grpc-status: 12" in await seen("/t/Nothing", *GRPC, "-d", body)
        assert ":status: 405" in await seen("/t/Echo")
        assert ":status: 415" in await seen("/t/Echo", "-d", body)
        assert "received metadata size exceeds limit" in await seen("/t/Echo", *GRPC, "-d", body, "--continuation")
        assert "PROTOCOL_ERROR" in await seen("/t/Echo", *GRPC, "-d", body, "-H", "connection: close")

    served(uvloop.new_event_loop, test)


@h2load
@on_both_loops
@pytest.mark.parametrize(
    "flags",
    [("-m1",), ("-m50",), ("-m10", "-w8", "-W10"), ("-m10", "--header-table-size=0")],
    ids=lambda flags: " ".join(flags),
)
def test_h2load_with_many_clients_and_streams(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], flags: tuple[str, ...]
) -> None:
    body = posted(tmp_path, message(bytes(2000)))

    async def test(url: str) -> None:
        out = (await run("h2load", "-n2000", "-c10", *flags, *GRPC, "-d", body, f"{url}/t/Echo")).decode()
        assert "2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout" in out
        assert "status codes: 2000 2xx" in out
        (size,) = re.findall(r"traffic:.*\((\d+)\) data", out)
        assert int(size) == 2000 * len(message(bytes(2002)))

    served(loop, test)
