"""Clients that send requests at a rate, streams and sequences, and count what goes wrong. Each answer is checked.

The clients of HTTP follow one rule of RFC 9110 (9.2.2): they send a request again if a connection that they have used
before ends before the answer begins. Requests of sequences are sent once. Event loop.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.deploy.replicas import GOOD, SUMS

SECONDS = 60.0
"""How long a client waits for an answer."""
CLIENTS = 32
"""How many connections share a rate, so that it is kept while an answer takes up to `CLIENTS` / rate."""
STEPS = 15
STEP_SECONDS = 0.1
"""A sequence has `STEPS` requests, one each `STEP_SECONDS`: 1.5 seconds in all."""
ATTEMPTS = 4
END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@dataclass(slots=True)
class Tally:
    """What one kind of clients saw. `resent` are requests whose kept connection had ended; `slowest` is in seconds."""

    answered: int = 0
    resent: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)

    async def count(self, answer: Awaitable[None]) -> bool:
        """Waits for an answer that was checked. Returns whether it was right."""
        began = time.monotonic()
        try:
            await asyncio.wait_for(answer, SECONDS)
        except (OSError, EOFError, AssertionError, TimeoutError, asyncio.InvalidStateError, grpc.RpcError) as error:
            # InvalidStateError: a message for a stream that has ended.
            text = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else repr(error)
            self.failures.append(f"after {time.monotonic() - began:.2f} s: {text}")
            return False
        self.answered += 1
        self.slowest = max(self.slowest, time.monotonic() - began)
        return True


@dataclass(slots=True)
class Load:
    """The clients of one balancer, or of the replicas themselves. `run` sends until `stop` is set."""

    http_port: int
    grpc_target: str
    channel_options: tuple[tuple[str, Any], ...] = ()
    http_rate: float = 0.0
    grpc_rate: float = 0.0
    http_sequences: int = 0
    grpc_sequences: int = 0
    streams: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    tallies: dict[str, Tally] = field(default_factory=dict)
    seconds: float = 0.0
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def run(self) -> None:
        kinds: dict[str, tuple[int, Callable[[Tally], Coroutine[Any, Any, None]]]] = {
            "http": (CLIENTS if self.http_rate else 0, lambda tally: self._http(tally, self.http_rate / CLIENTS)),
            "grpc": (CLIENTS if self.grpc_rate else 0, lambda tally: self._grpc(tally, self.grpc_rate / CLIENTS)),
            "http sequences": (self.http_sequences, self._http_sequences),
            "grpc sequences": (self.grpc_sequences, self._grpc_sequences),
            "streams": (self.streams, self._streams),
        }
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for kind, (clients, client) in kinds.items():
                tally = self.tallies[kind] = Tally()
                for _ in range(clients):
                    group.create_task(client(tally))
        self.seconds = time.monotonic() - began

    @property
    def answered(self) -> int:
        return sum(tally.answered for tally in self.tallies.values())

    def failures(self, *kinds: str) -> list[str]:
        """The failures of some kinds of clients, or of all."""
        return [f"{kind}: {text}" for kind in kinds or self.tallies for text in self.tallies[kind].failures]

    def table(self) -> str:
        rows = [
            f"{kind:16} {tally.answered:8} {len(tally.failures):6} {tally.resent:6} {tally.slowest * 1000:10.0f}"
            for kind, tally in self.tallies.items()
            if tally.answered or tally.failures
        ]
        head = f"{'clients':16} {'answered':>8} {'failed':>6} {'resent':>6} {'slowest ms':>10}"
        return "\n".join(
            [
                head,
                *rows,
                f"{self.answered} answers in {self.seconds:.1f} s: {self.answered / self.seconds:.0f} a second",
            ]
        )

    async def _http(self, tally: Tally, rate: float) -> None:
        """One connection with requests at even distances."""
        client = HttpClient(self.http_port, tally)
        async for number in self._ticks(rate):
            await tally.count(client.echo(number))
        client.close()

    async def _grpc(self, tally: Tally, rate: float) -> None:
        async with self._channel() as channel:
            call = channel.unary_unary(_INFER, None, None)
            async for number in self._ticks(rate):
                await tally.count(_echo(call, number))

    async def _http_sequences(self, tally: Tally) -> None:
        client = HttpClient(self.http_port, tally)
        async for sequence in self._sequences():
            async for step in self._steps():
                if not await tally.count(client.add(sequence, step)):
                    break
        client.close()

    async def _grpc_sequences(self, tally: Tally) -> None:
        async with self._channel() as channel:
            call = channel.unary_unary(_INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString)
            async for sequence in self._sequences():
                async for step in self._steps():
                    if not await tally.count(_add(call, sequence, step)):
                        break

    async def _streams(self, tally: Tally) -> None:
        """Each sequence has a stream of its own."""
        async with self._channel() as channel:
            method = channel.stream_stream(
                _STREAM, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
            )
            async for sequence in self._sequences():
                call = method(None)
                async for step in self._steps():
                    if not await tally.count(_add_in_stream(call, sequence, step)):
                        break
                else:
                    await tally.count(_ended(call))
                call.cancel()

    def _channel(self) -> grpc.aio.Channel:
        options = (("grpc.use_local_subchannel_pool", 1), *self.channel_options)
        return grpc.aio.insecure_channel(self.grpc_target, options=options)

    async def _ticks(self, rate: float) -> AsyncIterator[int]:
        """Numbers at even distances. If a client is late, the next ones follow at once."""
        due = time.monotonic()
        for number in itertools.count():
            if self.stop.is_set():
                return
            yield number % 2**31
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _sequences(self) -> AsyncIterator[int]:
        while not self.stop.is_set():
            yield next(self._ids)

    async def _steps(self) -> AsyncIterator[int]:
        for step in range(STEPS):
            yield step
            await asyncio.sleep(STEP_SECONDS)


class HttpClient:
    """One kept connection."""

    def __init__(self, port: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def echo(self, number: int) -> None:
        """Sends a number to `good`, as binary data."""
        tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}
        wanted = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()
        data = np.int32(number).tobytes()
        fields = f"Inference-Header-Content-Length: {len(head)}\r\n"
        status, body = await self._post(GOOD, fields, head + data, again=True)
        assert status == 200, (status, body)
        assert body.endswith(data), "the answer is that of another request"

    async def add(self, sequence: int, step: int) -> None:
        """Sends a step of a sequence to `sums`. Its value is the number of the step."""
        tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [step]}
        body = json.dumps({"inputs": [tensor], "parameters": _parameters(sequence, step)}).encode()
        status, answer = await self._post(SUMS, f"sequence-id: {sequence}\r\n", body, again=False)
        assert status == 200, (status, answer)
        assert json.loads(answer)["outputs"][0]["data"] == [_sum(step)], answer

    async def _post(self, model: str, fields: str, body: bytes, again: bool) -> tuple[int, bytes]:
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
        for left in reversed(range(ATTEMPTS if again else 1)):
            is_kept = self._streams is not None
            try:
                return await self._exchange(head.encode() + body)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                self.close()
                begun = isinstance(error, asyncio.IncompleteReadError) and error.partial
                if not left or begun or not is_kept:
                    raise
                self._tally.resent += 1
        raise AssertionError("not reached")

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(first.split()[1]), body


def _parameters(sequence: int, step: int) -> dict[str, Any]:
    return {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == STEPS - 1}


def _sum(step: int) -> int:
    return step * (step + 1) // 2


_ECHO = pb.ModelInferRequest(
    model_name=GOOD, inputs=[pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="INT32", shape=[1, 1])]
).SerializeToString()
_RAW_INPUT = b"\x3a\x04"
"""Tag and length of the contents of the only tensor, which are the last field of the message."""


async def _echo(call: Any, number: int) -> None:
    data = np.int32(number).tobytes()
    answer = await call(_ECHO + _RAW_INPUT + data, timeout=SECONDS)
    assert answer.endswith(data), "the answer is that of another request"


def _asked(sequence: int, step: int) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=SUMS, raw_input_contents=[np.int32(step).tobytes()])
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1])
    for name, value in _parameters(sequence, step).items():
        if isinstance(value, bool):
            message.parameters[name].bool_param = value
        else:
            message.parameters[name].int64_param = value
    return message


async def _add(call: Any, sequence: int, step: int) -> None:
    metadata = (("sequence-id", str(sequence)),)
    answer = await call(_asked(sequence, step), metadata=metadata, timeout=SECONDS)
    assert answer.raw_output_contents == [np.int32(_sum(step)).tobytes()], answer


async def _add_in_stream(call: Any, sequence: int, step: int) -> None:
    await call.write(_asked(sequence, step))
    answer = await call.read()
    assert answer is not END, f"the stream has ended: {await call.code()} {await call.details()}"
    assert not answer.error_message, answer.error_message
    assert answer.infer_response.raw_output_contents == [np.int32(_sum(step)).tobytes()], answer


async def _ended(call: Any) -> None:
    await call.done_writing()
    assert await call.read() is END
    assert await call.code() is grpc.StatusCode.OK, await call.details()
