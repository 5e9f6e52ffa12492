"""The kinds of example clients for the asyncio client of gRPC (`kinds.KINDS`): streams, timeouts, cancellation."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as forms
import tritonclient.grpc.aio as module
from tritonclient.utils import InferenceServerException

from tests.compat.kinds import LIMIT, ONE, ONES, SIXTEEN, TIMES, Kinds

DEADLINE = ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded")


def tensor(name: str, array: Any, datatype: str = "INT32") -> Any:
    made = forms.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def simple() -> dict[str, Any]:
    return {"model_name": "simple", "inputs": [tensor("INPUT0", SIXTEEN), tensor("INPUT1", ONES)]}


def stalled(request: str) -> dict[str, Any]:
    return {"model_name": "stalls", "inputs": [tensor("INPUT0", ONE)], "request_id": request}


def check_sum(result: Any) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), SIXTEEN + ONES)


def with_client(kinds: Kinds, talk: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        async with module.InferenceServerClient(kinds.serving.grpc_url) as client:
            await asyncio.wait_for(talk(client), LIMIT)

    asyncio.run(run())


async def of(*requests: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for request in requests:
        yield request


async def held_open(*requests: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for request in requests:
        yield request
    await asyncio.Event().wait()


async def until(seen: Callable[[str], None], request: str) -> None:
    await asyncio.to_thread(seen, request)


@pytest.mark.rows("G34")
def test_call_with_a_timeout(kinds: Kinds) -> None:
    async def talk(client: Any) -> None:
        for seconds in TIMES:
            request = f"aio timeout {seconds}"
            with pytest.raises(InferenceServerException) as caught:
                await client.infer(**stalled(request), client_timeout=seconds)
            assert (caught.value.status(), caught.value.message()) == DEADLINE
            if kinds.began(request):
                break
        await until(kinds.until_cancelled, request)
        check_sum(await client.infer(**simple(), client_timeout=LIMIT))

    with_client(kinds, talk)


@pytest.mark.rows("G34")
def test_call_is_cancelled(kinds: Kinds) -> None:
    async def talk(client: Any) -> None:
        call = asyncio.ensure_future(client.infer(**stalled("aio task")))
        await until(kinds.until_stalled, "aio task")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(kinds.until_cancelled, "aio task")
        check_sum(await client.infer(**simple()))

    with_client(kinds, talk)


@pytest.mark.rows("G34")
def test_stream_with_a_timeout(kinds: Kinds) -> None:
    async def talk(client: Any) -> None:
        for seconds in TIMES:
            request = f"aio stream timeout {seconds}"
            stream = client.stream_infer(held_open(stalled(request)), stream_timeout=seconds)
            with pytest.raises(grpc.RpcError) as caught:  # this client hands on the library's own
                await anext(stream)
            assert f"{caught.value.code()}" == DEADLINE[0]
            if kinds.began(request):
                break
        await until(kinds.until_cancelled, request)

    with_client(kinds, talk)


@pytest.mark.rows("G34")
def test_stream_is_cancelled(kinds: Kinds) -> None:
    async def talk(client: Any) -> None:
        stream = client.stream_infer(held_open(stalled("aio stream")))
        waiting = asyncio.ensure_future(anext(stream))
        await until(kinds.until_stalled, "aio stream")
        assert stream.cancel()
        with pytest.raises((asyncio.CancelledError, InferenceServerException)):
            await waiting
        await until(kinds.until_cancelled, "aio stream")

    with_client(kinds, talk)


@pytest.mark.rows("G27")
def test_repeated_answers(kinds: Kinds) -> None:
    values = np.array([3, 1, 2], np.int32)
    delays, wait = np.full(3, 1, np.uint32), np.array([1], np.uint32)
    inputs = [tensor("IN", values), tensor("DELAY", delays, "UINT32"), tensor("WAIT", wait, "UINT32")]

    async def talk(client: Any) -> None:
        got = [pair async for pair in client.stream_infer(of({"model_name": "repeat", "inputs": inputs}, simple()))]
        assert [error for _, error in got] == [None] * 4
        repeated = [result for result, _ in got if result.get_response().model_name == "repeat"]
        assert [int(result.as_numpy("OUT")[0]) for result in repeated] == values.tolist()

    with_client(kinds, talk)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_calls(kinds: Kinds, algorithm: str) -> None:
    async def talk(client: Any) -> None:
        check_sum(await client.infer(**simple(), compression_algorithm=algorithm))
        [(result, error)] = [pair async for pair in client.stream_infer(of(simple()), compression_algorithm=algorithm)]
        assert error is None
        check_sum(result)

    with_client(kinds, talk)
