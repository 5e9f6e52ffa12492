"""The HTTP user of a soak: valid requests, invalid ones, and connections that end at any point.

Requests are written by hand, because no library sends half of one. The models are `soak.MODELS`. Runs on the event loop
of the client.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from tools.soak_users import Draw, Kind, check

RESET = struct.pack("ii", 1, 0)
READ_LIMIT = 1 << 20
LARGE = 4 << 20
"""Most FP32 elements of a large tensor: 16 MiB."""
LARGE_OF_PYTHON = 1 << 19
"""Most FP32 elements of a large tensor for a Python model: 2 MiB."""


class Answer(NamedTuple):
    status: int
    header_length: int | None
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


class Asked(NamedTuple):
    """A binary request, and the id, shape and bytes that its answer must have."""

    request: bytes
    data: bytes
    id: str
    shape: list[int]


def request(path: str, body: bytes | None = None, header_length: int | None = None) -> bytes:
    """A complete request: a POST if there is a body, else a GET."""
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: localhost"]
    if header_length is not None:
        lines.append(f"Inference-Header-Content-Length: {header_length}")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def binary_request(draw: Draw, model: str, shape: list[int]) -> Asked:
    """A request for a model that returns its FP32 input, with binary tensors both ways."""
    data, name = draw.tensor(shape[0] * shape[1]), f"r{draw.randrange(10**6)}"
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": len(data)}}
    output = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    head = json.dumps({"id": name, "inputs": [tensor], "outputs": [output]}).encode()
    return Asked(request(f"/v2/models/{model}/infer", head + data, len(head)), data, name, shape)


def check_binary(asked: Asked, answer: Answer) -> None:
    check(answer.status == 200, asked.shape, answer)
    length = answer.header_length or 0
    facts = json.loads(answer.body[:length])
    check(facts["id"] == asked.id and facts["outputs"][0]["shape"] == asked.shape, (asked.id, asked.shape), facts)
    check(answer.body[length:] == asked.data, asked.shape, "other bytes")


def json_request(model: str, datatype: str, data: Sequence[Any], **other: object) -> bytes:
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [len(data)], "data": data, **other}
    return request(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())


_NOBODY = json_request("nobody", "INT32", [1])
BAD: Sequence[tuple[bytes, int, str]] = (
    (_NOBODY, 404, "Request for unknown model: 'nobody' is not found"),
    (json_request("int32", "FP32", [1]), 400, "data-type is 'FP32', but model 'int32' expects 'INT32'"),
    (json_request("int32", "INT32", [1, 2, 3], shape=[4]), 500, "shape does not match true shape"),
    (json_request("int32", "INT32", [1], name="OTHER"), 400, "unexpected inference input 'OTHER' for model 'int32'"),
    (json_request("raises", "INT32", [1]), 500, "ValueError: no such luck"),
    (json_request("decoupled", "INT32", [1]), 501, "decoupled transaction policy"),
    (request("/v2/models/int32/infer", b'{"inputs":'), 500, "failed to parse the request JSON buffer"),
    (request("/v2/models/int32/infer", b"[]"), 500, "Unable to parse 'inputs'"),
    (request("/v2/models/int32/infer", b"{}" * 9, 10_000), 400, "inference header size should be in range (0, 18)"),
    (request("/v2/models/int32/infer"), 405, "Method Not Allowed"),
    (request("/v2/nowhere"), 404, "Not Found"),
)
GARBAGE = (
    b"\0\1\2\3\r\n\r\n",
    b"GET\r\n\r\n",
    b"POST /v2 HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    b"\x16\x03\x01\x02\0",
)
FACTS = (
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/int32",
    "/v2/models/floor/config",
    "/v2/models/stats",
)


class Connection:
    """One HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        head = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = fields.get("inference-header-content-length")
        body = await self.reader.readexactly(int(fields["content-length"]))
        return Answer(int(status.split()[1]), None if length is None else int(length), body)

    async def ended(self) -> bool:
        """Whether the server closes the connection without sending another byte."""
        try:
            return not await self.reader.read(1)
        except ConnectionError:
            return True

    async def close(self, reset: bool = False) -> None:
        if reset:
            sock: socket.socket = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.writer.transport.abort()
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def connect(port: int) -> Connection:
    return Connection(*await asyncio.open_connection("127.0.0.1", port, limit=READ_LIMIT))


class HttpUser:
    """Keeps one connection for requests that are answered. Opens another for each connection that it breaks."""

    def __init__(self, port: int, draw: Draw) -> None:
        self.draw = draw
        self._port = port
        self._connection: Connection | None = None

    @property
    def kinds(self) -> dict[str, Kind]:
        return {
            "http binary": Kind(40, self._binary),
            "http json": Kind(15, self._json),
            "http strings": Kind(5, self._strings),
            "http python": Kind(15, self._python),
            "http pipelined": Kind(4, self._pipelined),
            "http in pieces": Kind(4, self._in_pieces),
            "http large": Kind(2, self._large),
            "http large python": Kind(1, self._large_python),
            "http bad": Kind(10, self._bad),
            "http garbage": Kind(2, self._garbage),
            "http facts": Kind(4, self._facts),
            "http left in the middle": Kind(8, self._leave_in_the_middle),
            "http left unanswered": Kind(8, self._leave_unanswered),
            "http new connection": Kind(3, self.renew),
        }

    async def renew(self) -> None:
        await self.close()
        self._connection = await connect(self._port)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close(self.draw.chance(0.5))
        self._connection = None

    async def _ask(self, data: bytes) -> Answer:
        assert self._connection is not None
        await self._connection.send(data)
        return await self._connection.answer()

    async def _ask_binary(self, model: str, shape: list[int]) -> None:
        asked = binary_request(self.draw, model, shape)
        check_binary(asked, await self._ask(asked.request))

    async def _binary(self) -> None:
        await self._ask_binary("floor", self.draw.shape(2000))

    async def _python(self) -> None:
        await self._ask_binary("echo", self.draw.shape(2000))

    async def _large(self) -> None:
        await self._ask_binary("floor", [1, self.draw.randint(LARGE // 16, LARGE)])

    async def _large_python(self) -> None:
        await self._ask_binary("echo", [1, self.draw.randint(LARGE_OF_PYTHON // 16, LARGE_OF_PYTHON)])

    async def _json(self) -> None:
        data = self.draw.integers(3000)
        answer = await self._ask(json_request("int32", "INT32", data))
        check(answer.status == 200 and json.loads(answer.body)["outputs"][0]["data"] == data, data, answer)

    async def _strings(self) -> None:
        data = [chr(self.draw.randint(32, 0x2FFF)) * self.draw.up_to(100) for _ in range(self.draw.up_to(100))]
        answer = await self._ask(json_request("bytes", "BYTES", data))
        check(answer.status == 200 and json.loads(answer.body)["outputs"][0]["data"] == data, data, answer)

    async def _pipelined(self) -> None:
        """Sends several requests at once. Their answers must come in the same order."""
        assert self._connection is not None
        models = self.draw.choices(("floor", "echo"), k=self.draw.randint(2, 8))
        several = [binary_request(self.draw, model, self.draw.shape(500)) for model in models]
        await self._connection.send(b"".join(asked.request for asked in several))
        for asked in several:
            check_binary(asked, await self._connection.answer())

    async def _in_pieces(self) -> None:
        assert self._connection is not None
        asked = binary_request(self.draw, "floor", self.draw.shape(20_000))
        for piece in self._cut(asked.request):
            await self._connection.send(piece)
            await asyncio.sleep(0)
        check_binary(asked, await self._connection.answer())

    def _cut(self, data: bytes) -> list[bytes]:
        places = sorted(self.draw.sample(range(1, len(data)), min(len(data) - 1, self.draw.randint(1, 8))))
        return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]

    async def _bad(self) -> None:
        data, status, words = self.draw.choice(BAD)
        answer = await self._ask(data)
        check(answer.status == status and words in answer.error, data, answer)

    async def _garbage(self) -> None:
        connection = await connect(self._port)
        data = self.draw.choice(GARBAGE)
        await connection.send(data)
        connection.writer.write_eof()
        answer = await connection.answer()
        check(answer.status == 400 and answer.error != "", data, answer)
        check(await connection.ended(), data, "more than the refusal")
        await connection.close()

    async def _facts(self) -> None:
        path = self.draw.choice(FACTS)
        answer = await self._ask(request(path))
        check(answer.status == 200, path, answer)

    def _any_request(self) -> bytes:
        model = self.draw.choice(("floor", "echo", "slow"))
        most = LARGE // 8 if self.draw.chance(0.05) else 20_000
        return binary_request(self.draw, model, self.draw.shape(most)).request

    async def _leave_in_the_middle(self) -> None:
        """Sends a part of a request and closes the connection."""
        connection, data = await connect(self._port), self._any_request()
        await connection.send(
            data[: self.draw.choice((self.draw.randrange(min(300, len(data))), self.draw.randrange(len(data))))]
        )
        await asyncio.sleep(self.draw.choice((0.0, 0.002)))
        await connection.close(self.draw.chance(0.5))

    async def _leave_unanswered(self) -> None:
        """Sends a request and closes the connection before the answer or in the middle of it."""
        connection = await connect(self._port)
        await connection.send(self._any_request())
        if self.draw.chance(0.5):
            await asyncio.sleep(self.draw.uniform(0, 0.01))
        else:
            got = await connection.reader.read(self.draw.up_to(100_000))
            check(got != b"" and got[:5] == b"HTTP/"[: len(got)], "an inference", got)
        await connection.close(self.draw.chance(0.7))
