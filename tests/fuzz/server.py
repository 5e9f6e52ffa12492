"""Targets that are a whole server in this process: both front ends over a real engine, without sockets.

A client sends the input, and then ends its side. Each request must be answered, and nothing may be left of it in the
engine. The models are in service all the time, and no request can change that.
"""

import asyncio
import tempfile
from functools import cache
from pathlib import Path

from tritonclient.grpc import service_pb2 as pb

from halimede.engine.engine import Engine
from halimede.front.grpc.service import GrpcService
from halimede.front.http.service import HttpService
from halimede.options import ServerOptions
from halimede.platform.offload import OffloadPool
from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from halimede.transport.http1.connection import Http1Connection
from halimede.transport.http1.listener import Http1Listener
from tests.engine.engines import options_for
from tests.fuzz.programs import call_block, http2_frames
from tests.fuzz.targets import no_internal_error
from tests.transport.http1_fakes import FakeTransport

SECONDS = 5.0
"""Time for the answers to an input."""
MODEL = """
backend: "identity"
max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_%s dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_%s dims: [ -1 ] }
instance_group { kind: KIND_CPU }
"""
CALLS = tuple(
    call_block("/inference.GRPCInferenceService/" + name)
    for name in (
        *("ModelInfer", "ModelStreamInfer", "ServerLive", "ModelReady", "ModelMetadata", "ModelConfig"),
        *("ModelStatistics", "RepositoryIndex", "TraceSetting", "LogSettings", "SystemSharedMemoryStatus"),
        *(
            "SystemSharedMemoryRegister",
            "SystemSharedMemoryUnregister",
            "CudaSharedMemoryStatus",
            "RepositoryModelLoad",
        ),
    )
)


def _message(model: str, datatype: str, content: bytes) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype=datatype, shape=[2])
    request.raw_input_contents.append(content)
    return bytes(request.SerializeToString())


MESSAGES = (_message("int32", "INT32", bytes(8)), _message("bytes", "BYTES", b"\1\0\0\0x" * 2), b"", b"\x0a\x05int32")


class _Transport(FakeTransport):
    """The transport of a client that reads all answers at once."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever buffered."""

    def is_reading(self) -> bool:
        return self.reading


class Server:
    """Both front ends over an engine. One for all inputs, because its start takes long."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = self.loop.run_until_complete(self._start())
        self.offload = OffloadPool(self.loop)
        front = HttpService(self.engine, self.offload, 1 << 20)
        self.http = Http1Listener(front.handle, self.loop.call_later)
        service = GrpcService(self.engine, offload=self.offload)
        self.grpc: GrpcServer = self.loop.run_until_complete(self._grpc(service))

    async def _start(self) -> Engine:
        models = {name: MODEL % (kind, kind) for name, kind in (("int32", "INT32"), ("bytes", "STRING"))}
        folder = Path(tempfile.mkdtemp(prefix="halimede-fuzz-"))
        options: ServerOptions = options_for(folder, models, allow_client_shm=True)
        engine = Engine(options, asyncio.get_running_loop())
        assert await engine.start()
        return engine

    async def _grpc(self, service: GrpcService) -> GrpcServer:
        return GrpcServer(service.rpcs, GrpcServerOptions(), asyncio.get_running_loop())

    async def send(self, protocol: asyncio.BufferedProtocol, data: bytes, ends: bool) -> bytes:
        """Sends the input and returns the answers."""
        transport = _Transport()
        protocol.connection_made(transport)
        loop, at = self.loop, 0
        limit = loop.time() + SECONDS
        while at < len(data) and not transport.ended:
            if not transport.reading:
                assert loop.time() < limit, "it does not read on"
                await asyncio.sleep(0.0005)
                continue
            room = memoryview(protocol.get_buffer(-1))
            part = data[at : at + len(room)]
            room[: len(part)] = part
            protocol.buffer_updated(len(part))
            at += len(part)
            await asyncio.sleep(0)
        if not transport.ended and ends and not protocol.eof_received():
            transport.close()
        while ends and not transport.ended:
            assert loop.time() < limit, "a request is not answered"
            await asyncio.sleep(0.0005)
        for _ in range(3):
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        while self.engine._inferences:
            assert loop.time() < limit, "an inference stays"
            await asyncio.sleep(0.0005)
        assert transport.misused == []
        return transport.written


@cache
def server() -> Server:
    return Server()


def server_http(data: bytes) -> None:
    running = server()
    with no_internal_error():
        running.loop.run_until_complete(running.send(Http1Connection(running.http), data, True))
    assert not running.http.connections


def server_grpc(data: bytes) -> None:
    running, frames = server(), http2_frames(data, CALLS, MESSAGES)
    with no_internal_error():
        running.loop.run_until_complete(running.send(running.grpc.connect(), frames, False))
    assert not running.grpc._listener.connections
