"""gRPC connections by `grpc.aio`: raw messages in and out, calls turned into the callbacks of a service.

Knows no inference words. Lives on the running event loop: its callbacks come from there. gRPC itself sees to
compression, deadlines and flow control.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from halimede.errors import Unavailable
from halimede.transport.grpc_calls import OK, Bidirectional, Call, Cancel, Message, Metadata, Rpcs, Stream, Unary
from halimede.transport.sockets import listening_socket

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_MESSAGE_LIMIT = 2**31 - 1
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs


@dataclass(frozen=True, slots=True)
class Options:
    """`reuse_port`: several servers may share one port (`--reuse-grpc-port`)."""

    reuse_port: bool = False


class _UnaryCall:
    """One message in, one out. See `Call`."""

    __slots__ = ("_context", "message", "status", "waiter")

    def __init__(self, context: Any) -> None:
        self._context = context
        self.message = b""
        self.status: tuple[int, str] | None = None
        self.waiter: asyncio.Future[None] | None = None

    @property
    def metadata(self) -> Metadata:
        return tuple(self._context.invocation_metadata() or ())

    def send(self, message: Message) -> bool:
        self.message = b"".join(message)
        return True

    def on_writable(self, resume: Callable[[], None]) -> None:
        resume()

    def finish(self, code: int = OK, text: str = "") -> None:
        self.status = (code, text)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class _StreamCall:
    """Messages both ways; those to send wait in a queue for the task that writes them. See `Call`."""

    FULL = 1 << 20
    """Bytes in the queue from which on the call is not writable."""

    __slots__ = ("_context", "_full", "_queue", "_resumes", "_size", "_status", "_wake")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._full = False
        self._resumes: list[Callable[[], None]] = []
        self._status: tuple[int, str] | None = None
        self._wake = asyncio.Event()

    @property
    def metadata(self) -> Metadata:
        return tuple(self._context.invocation_metadata() or ())

    def send(self, message: Message) -> bool:
        joined = b"".join(message)
        self._queue.append(joined)
        self._size += len(joined)
        self._full = self._full or self._size >= self.FULL
        self._wake.set()
        return not self._full

    def on_writable(self, resume: Callable[[], None]) -> None:
        if self._full:
            self._resumes.append(resume)
        else:
            resume()

    def finish(self, code: int = OK, text: str = "") -> None:
        self._status = (code, text)
        self._wake.set()

    async def write_all(self) -> tuple[int, str]:
        """Writes what is sent until the call is finished; returns its status."""
        while True:
            while self._queue:
                message = self._queue.popleft()
                await self._context.write(message)
                self._size -= len(message)
                if self._full and self._size < self.FULL // 2:
                    self._resume()
            if self._status is not None:
                return self._status
            self._wake.clear()
            await self._wake.wait()

    def _resume(self) -> None:
        self._full = False
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            resume()


class GrpcServer:
    """A gRPC server for the RPCs of a service, by path; a path that is not there is answered UNIMPLEMENTED."""

    def __init__(self, rpcs: Rpcs, options: Options | None = None) -> None:
        settings = [
            ("grpc.max_receive_message_length", _MESSAGE_LIMIT),
            ("grpc.max_send_message_length", _MESSAGE_LIMIT),
            ("grpc.so_reuseport", int((options or Options()).reuse_port)),
        ]
        self._server = grpc.aio.server(options=settings)
        self._server.add_generic_rpc_handlers((_Handlers(rpcs),))

    async def start(self, address: str, port: int) -> int:
        """Listens; returns the port (chosen by the system for port 0). Raises Unavailable when it cannot (G39)."""
        host = f"[{address}]" if ":" in address else address
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            listening_socket(address, port).close()  # says what is wrong, in most cases
            raise Unavailable(f"Socket '{address}:{port}' already in use ") from error
        await self._server.start()
        return bound

    async def stop(self, grace: float | None) -> None:
        """Takes no more calls, lets those under way finish for `grace` seconds, then cancels them."""
        await self._server.stop(grace)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Finds the handler of a path. Messages stay bytes: there is no (de)serializer."""

    def __init__(self, rpcs: Rpcs) -> None:
        self._handlers = {path: _method(rpc) for path, rpc in rpcs.items()}
        self._unknown = grpc.stream_stream_rpc_method_handler(_unimplemented)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method, self._unknown)


def _method(rpc: Unary | Bidirectional) -> Any:
    if isinstance(rpc, Unary):
        return grpc.unary_unary_rpc_method_handler(_unary(rpc.handler))
    return grpc.stream_stream_rpc_method_handler(_bidirectional(rpc.open))


async def _unimplemented(requests: object, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "")


def _unary(handler: Callable[[bytes, Call], Cancel | None]) -> Callable[..., Awaitable[bytes]]:
    async def serve(message: bytes, context: Any) -> bytes:
        call = _UnaryCall(context)
        cancel = handler(message, call)
        if call.status is None:
            call.waiter = asyncio.get_running_loop().create_future()
            try:
                await call.waiter
            except asyncio.CancelledError:
                if cancel is not None:
                    cancel()
                raise
        code, text = call.status or (2, "")
        if code:
            await context.abort(_CODES[code], text)
        return call.message

    return serve


def _bidirectional(open_stream: Callable[[Call], Stream]) -> Callable[..., Awaitable[None]]:
    async def serve(requests: object, context: Any) -> None:
        call = _StreamCall(context)
        receiver = open_stream(call)
        reader = asyncio.create_task(_read(context, receiver))
        try:
            code, text = await call.write_all()
        except BaseException:
            receiver.cancelled()
            raise
        finally:
            reader.cancel()
        if code:
            await context.abort(_CODES[code], text)

    return serve


async def _read(context: Any, receiver: Stream) -> None:
    while (message := await context.read()) is not _EOF:
        receiver.message(message)
    receiver.half_closed()
