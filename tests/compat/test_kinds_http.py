"""Kinds of example clients that only the HTTP clients have (`kinds.KINDS`): greenlets, timeouts, TLS with a proxy."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import tritonclient.http as sync
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException

from tests.compat.kinds import LIMIT, ONE, ONES, SIXTEEN, TIMES, Kinds
from tests.transport.certificates import Certificates, certificates


def tensor(name: str, array: Any, datatype: str = "INT32") -> Any:
    made = sync.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def simple() -> list[Any]:
    return [tensor("INPUT0", SIXTEEN), tensor("INPUT1", ONES)]


def check_sum(result: Any) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), SIXTEEN + ONES)


def test_pending_answer(kinds: Kinds) -> None:
    """The client asks without waiting, and with too short a timeout. Other requests of the same client are answered
    meanwhile."""
    with sync.InferenceServerClient(kinds.serving.http_url, concurrency=2, network_timeout=LIMIT) as client:
        pending = client.async_infer("stalls", [tensor("INPUT0", ONE)], request_id="greenlet")
        for how in ({"block": False}, {"timeout": 0.2}):
            with pytest.raises(InferenceServerException, match="failed to obtain inference response"):
                pending.get_result(**how)
        check_sum(client.async_infer("simple", simple()).get_result(timeout=LIMIT))
        kinds.release("greenlet")
        assert pending.get_result(timeout=LIMIT).as_numpy("OUTPUT0").tolist() == [0]


def test_client_with_a_timeout(kinds: Kinds) -> None:
    """Both clients raise at their timeout. Other requests are served meanwhile and afterwards."""

    def blocking(seconds: float, request: str) -> None:
        with (
            sync.InferenceServerClient(kinds.serving.http_url, network_timeout=seconds) as client,
            pytest.raises(TimeoutError),
        ):
            client.infer("stalls", [tensor("INPUT0", ONE)], request_id=request)

    def of_asyncio(seconds: float, request: str) -> None:
        async def ask() -> None:
            async with aio.InferenceServerClient(kinds.serving.http_url, conn_timeout=seconds) as client:
                with pytest.raises(asyncio.TimeoutError):
                    await client.infer("stalls", [tensor("INPUT0", ONE)], request_id=request)

        asyncio.run(asyncio.wait_for(ask(), 2 * TIMES[-1]))

    for ask in (blocking, of_asyncio):
        for seconds in TIMES:
            request = f"{ask.__name__} {seconds}"
            ask(seconds, request)
            if kinds.began(request):
                break
        kinds.until_stalled(request)
        kinds.release(request)
    with sync.InferenceServerClient(kinds.serving.http_url) as client:
        check_sum(client.infer("simple", simple()))


def test_verbose_client(kinds: Kinds, capsys: pytest.CaptureFixture[str]) -> None:
    """`verbose` prints what was sent and received, with status and headers."""
    with sync.InferenceServerClient(kinds.serving.http_url, verbose=True) as client:
        check_sum(client.infer("simple", simple(), query_params={"a": 1}))
    said = capsys.readouterr().out
    assert "POST /v2/models/simple/infer?a=1" in said
    assert "200" in said


# The server has no TLS on its HTTP port, like the original; what stands before it has.


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def proxy(to: int, made: Certificates) -> Iterator[str]:
    """A proxy that terminates TLS in front of the server's port, as `localhost:port`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server.certificate, made.server.key)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(partial(_forward, to), "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(_close(server), loop).result(LIMIT)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT)
        loop.close()


async def _close(server: asyncio.Server) -> None:
    server.close()
    here = asyncio.current_task()
    for task in asyncio.all_tasks():
        if task is not here:
            task.cancel()


async def _forward(to: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError):
        near, far = await asyncio.open_connection("127.0.0.1", to)
        await asyncio.gather(_copy(reader, far), _copy(near, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()


def test_tls_with_a_proxy(kinds: Kinds, made: Certificates) -> None:
    """With the options of both clients. A server with an untrusted certificate is refused."""
    authority = str(made.authority.certificate)
    trusting = partial(ssl.create_default_context, cafile=authority)
    ways = ({"ssl_options": {"ca_certs": authority}}, {"ssl_context_factory": lambda *_, **__: trusting()})
    with proxy(kinds.serving.http_port, made) as url:
        for options in ways:
            with sync.InferenceServerClient(url, ssl=True, network_timeout=LIMIT, **options) as client:
                check_sum(client.infer("simple", simple()))
        with sync.InferenceServerClient(url, ssl=True) as client, pytest.raises(ssl.SSLError):
            client.is_server_live()

        async def ask() -> None:
            async with aio.InferenceServerClient(url, ssl=True, ssl_context=trusting()) as client:
                check_sum(await client.infer("simple", simple()))

        asyncio.run(asyncio.wait_for(ask(), LIMIT))
