"""The gRPC user of a soak: calls and streams of the official library, cancelled ones, and broken connections.

What no library does, such as sending half of a frame, is written by hand. The models are `soak.MODELS`. Runs on the
event loop of the client.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import grpc
import grpc.aio
import hpack
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tools.soak_http import LARGE, LARGE_OF_PYTHON, connect
from tools.soak_users import Draw, Kind, WrongAnswerError, check

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # each user has connections of its own
)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, DATA = 4, 1, 0
END_HEADERS, END_STREAM = 4, 1
FRAME_BYTES = 16_384
SERVICE = "/inference.GRPCInferenceService"
LAST = "triton_final_response"
END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # grpc's type stubs lack it


def infer_request(model: str, datatype: str, shape: Iterable[int], data: bytes, **other: Any) -> Any:
    made = pb.ModelInferRequest(model_name=model, **other)
    made.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    made.raw_input_contents.append(data)
    return made


def is_echo(asked: Any, answer: Any) -> bool:
    """Whether an answer has the id, the shapes and the bytes of its request."""
    return bool(
        answer.id == asked.id
        and list(answer.raw_output_contents) == list(asked.raw_input_contents)
        and [list(output.shape) for output in answer.outputs] == [list(tensor.shape) for tensor in asked.inputs]
    )


def check_echo(asked: Any, answer: Any) -> None:
    check(is_echo(asked, answer), asked.model_name, answer)


_THREE = b"\1\0\0\0" * 3
BAD: tuple[tuple[Any, grpc.StatusCode, str], ...] = (
    (infer_request("nobody", "INT32", [3], _THREE), grpc.StatusCode.NOT_FOUND, "unknown model: 'nobody'"),
    (infer_request("int32", "FP32", [3], _THREE), grpc.StatusCode.INVALID_ARGUMENT, "data-type is 'FP32'"),
    (infer_request("int32", "INT32", [4], _THREE), grpc.StatusCode.INVALID_ARGUMENT, "input byte size mismatch"),
    (infer_request("decoupled", "INT32", [3], _THREE), grpc.StatusCode.UNIMPLEMENTED, "decoupled transaction policy"),
    (infer_request("raises", "INT32", [3], _THREE), grpc.StatusCode.INTERNAL, "ValueError: no such luck"),
)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def call_bytes(message: bytes, path: str) -> bytes:
    """All bytes that a client sends for one call on a new connection."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
    ]
    head = hpack.Encoder().encode([*fields, ("content-type", "application/grpc"), ("grpc-timeout", "9S")])
    framed = b"\0" + len(message).to_bytes(4) + message
    pieces = [framed[at : at + FRAME_BYTES] for at in range(0, len(framed), FRAME_BYTES)]
    data = [frame(DATA, END_STREAM if piece is pieces[-1] else 0, 1, piece) for piece in pieces]
    return b"".join([PREFACE, frame(SETTINGS, 0, 0, b""), frame(HEADERS, END_HEADERS, 1, head), *data])


class GrpcUser:
    """Keeps one channel for calls that are answered. Opens a raw connection for each connection that it breaks."""

    def __init__(self, port: int, draw: Draw) -> None:
        self.draw = draw
        self._port = port
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    @property
    def kinds(self) -> dict[str, Kind]:
        return {
            "grpc unary": Kind(40, self._unary),
            "grpc compressed": Kind(3, self._compressed),
            "grpc python": Kind(15, self._python),
            "grpc large": Kind(2, self._large),
            "grpc large python": Kind(1, self._large_python),
            "grpc stream": Kind(6, self._stream),
            "grpc decoupled": Kind(6, self._decoupled),
            "grpc bad": Kind(8, self._bad),
            "grpc bad in a stream": Kind(3, self._bad_in_a_stream),
            "grpc no such call": Kind(2, self._no_such_call),
            "grpc cancelled": Kind(6, self._cancelled),
            "grpc past its deadline": Kind(4, self._past_its_deadline),
            "grpc stream cancelled": Kind(4, self._stream_cancelled),
            "grpc left in the middle": Kind(6, self._leave_in_the_middle),
            "grpc left unanswered": Kind(4, self._leave_unanswered),
            "grpc garbage": Kind(1, self._garbage),
            "grpc new channel": Kind(2, self.renew),
        }

    async def renew(self) -> None:
        await self.close()
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._port}", options=OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(None)
        self._channel = None

    def _request(self, model: str, most: int) -> Any:
        shape = self.draw.shape(most)
        name = f"g{self.draw.randrange(10**6)}"
        return infer_request(model, "FP32", shape, self.draw.tensor(shape[0] * shape[1]), id=name)

    async def _ask(self, asked: Any, **options: Any) -> None:
        check_echo(asked, await self._stub.ModelInfer(asked, **options))

    async def _unary(self) -> None:
        await self._ask(self._request("floor", 2000))

    async def _compressed(self) -> None:
        how = self.draw.choice((grpc.Compression.Gzip, grpc.Compression.Deflate))
        await self._ask(self._request("floor", 2000), compression=how)

    async def _python(self) -> None:
        await self._ask(self._request("echo", 2000))

    async def _large(self) -> None:
        elements = self.draw.randint(LARGE // 16, LARGE)
        await self._ask(infer_request("floor", "FP32", [1, elements], self.draw.tensor(elements)))

    async def _large_python(self) -> None:
        elements = self.draw.randint(LARGE_OF_PYTHON // 16, LARGE_OF_PYTHON)
        await self._ask(infer_request("echo", "FP32", [1, elements], self.draw.tensor(elements)))

    async def _converse(self, asked: Iterable[Any], answered: Callable[[Any], None]) -> None:
        """Sends all requests on one stream, then reads all answers."""
        call = self._stub.ModelStreamInfer()
        for each in asked:
            await call.write(each)
        await call.done_writing()
        while (answer := await call.read()) is not END:
            answered(answer)

    async def _stream(self) -> None:
        """Checks that answers on a stream come in the order of the requests."""
        asked = [self._request("floor", 2000) for _ in range(self.draw.randint(1, 20))]
        came: list[Any] = []
        await self._converse(asked, came.append)
        right = len(came) == len(asked) and all(
            not answer.error_message and is_echo(each, answer.infer_response)
            for each, answer in zip(asked, came, strict=True)
        )
        check(right, "a stream", [each.infer_response.id for each in came])

    async def _decoupled(self) -> None:
        """Checks that each value is answered, in order, and that each request has a final response."""
        values = {str(n): self.draw.integers(50) for n in range(self.draw.randint(1, 4))}
        asked = [self._decoupled_request(each, name) for name, each in values.items()]
        came: defaultdict[str, list[int]] = defaultdict(list)
        ended: list[str] = []

        def answered(answer: Any) -> None:
            check(not answer.error_message, "decoupled", answer.error_message)
            response = answer.infer_response
            for raw in response.raw_output_contents:
                came[response.id].extend(np.frombuffer(raw, np.int32).tolist())
            if response.parameters[LAST].bool_param:
                ended.append(response.id)

        await self._converse(asked, answered)
        check(came == values and sorted(ended) == sorted(values), values, (came, ended))

    def _decoupled_request(self, values: list[int], name: str) -> Any:
        asked = infer_request("decoupled", "INT32", [len(values)], np.array(values, np.int32).tobytes(), id=name)
        asked.parameters["triton_enable_empty_final_response"].bool_param = True
        return asked

    async def _bad(self) -> None:
        asked, code, words = self.draw.choice(BAD)
        try:
            await self._stub.ModelInfer(asked)
        except grpc.aio.AioRpcError as error:
            check(error.code() == code and words in (error.details() or ""), asked.model_name, error)
        else:
            raise WrongAnswerError(f"an answer from {asked.model_name}")

    async def _bad_in_a_stream(self) -> None:
        """Checks that an invalid request gets an error, and that the stream continues."""
        bad, _, words = self.draw.choice([row for row in BAD if row[0].model_name != "decoupled"])
        good = self._request("floor", 100)
        came: list[Any] = []
        await self._converse([bad, good], came.append)
        check(len(came) == 2, "two in a stream", came)
        told, answer = sorted(came, key=lambda each: not each.error_message)
        check(words in told.error_message, bad.model_name, told)
        check_echo(good, answer.infer_response)

    async def _no_such_call(self) -> None:
        assert self._channel is not None
        path, message, code = self.draw.choice(
            (
                ("Nothing", b"", grpc.StatusCode.UNIMPLEMENTED),
                ("ModelInfer", b"\xff\xff\xff", grpc.StatusCode.INTERNAL),
            )
        )
        call = self._channel.unary_unary(f"{SERVICE}/{path}", lambda message: message, lambda answer: answer)(message)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            check(error.code() == code, path, error)
        else:
            raise WrongAnswerError(f"an answer from {path}")

    async def _cancelled(self) -> None:
        """Cancels a call. If the answer was faster, it must be correct."""
        asked = self._request(self.draw.choice(("slow", "floor", "echo")), 20_000)
        call = self._stub.ModelInfer(asked)
        await asyncio.sleep(self.draw.uniform(0, 0.01))
        call.cancel()
        code = await call.code()
        check(code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED), "a cancelled call", code)
        if code is grpc.StatusCode.OK:
            check_echo(asked, await call)

    async def _past_its_deadline(self) -> None:
        asked = self._request(self.draw.choice(("slow", "echo")), 2000)
        call = self._stub.ModelInfer(asked, timeout=self.draw.uniform(0.001, 0.02))
        code = await call.code()
        check(code in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED), "a call with a deadline", code)
        if code is grpc.StatusCode.OK:
            check_echo(asked, await call)

    async def _stream_cancelled(self) -> None:
        """Cancels a stream while answers arrive."""
        values = [self.draw.randint(0, 99) for _ in range(200)]
        call = self._stub.ModelStreamInfer()
        await call.write(self._decoupled_request(values, "left"))
        for expected in values[: self.draw.randint(0, 20)]:
            (raw,) = (await call.read()).infer_response.raw_output_contents
            check(np.frombuffer(raw, np.int32).tolist() == [expected], "the next value", raw)
        call.cancel()
        code = await call.code()
        check(code is grpc.StatusCode.CANCELLED, "a cancelled stream", code)

    def _raw_call(self) -> bytes:
        model = self.draw.choice(("floor", "echo", "slow"))
        return call_bytes(self._request(model, 1500).SerializeToString(), f"{SERVICE}/ModelInfer")

    async def _leave_in_the_middle(self) -> None:
        """Sends a part of a call and closes the connection."""
        connection, data = await connect(self._port), self._raw_call()
        end = self.draw.choice((self.draw.randrange(min(300, len(data))), self.draw.randrange(len(data))))
        for piece in (data[: end // 2], data[end // 2 : end]):
            await connection.send(piece)
            await asyncio.sleep(0)
        await asyncio.sleep(self.draw.choice((0.0, 0.002)))
        await connection.close(self.draw.chance(0.5))

    async def _leave_unanswered(self) -> None:
        """Sends a call and closes the connection before the answer or in the middle of it."""
        connection = await connect(self._port)
        await connection.send(self._raw_call())
        await asyncio.sleep(self.draw.uniform(0, 0.01))
        await connection.reader.read(self.draw.up_to(5000))
        await connection.close(self.draw.chance(0.7))

    async def _garbage(self) -> None:
        """Sends bytes that are not HTTP/2, or a frame that is not allowed. The server must close the connection."""
        connection = await connect(self._port)
        await connection.send(self.draw.choice((b"GET / HTTP/1.1\r\n\r\n" * 2, PREFACE + frame(9, 4, 1, b""))))
        while await connection.reader.read(4096):
            continue
        await connection.close()
