"""The gRPC RPCs other than inference. Each is one row: message to question, answer to message.

Holds an engine port and no state. Event-loop thread only; a large message is read on another thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from halimede.engine_port import EnginePort, LoadModel, Query, RegionKind
from halimede.errors import Error, NotFound
from halimede.front.access import Category
from halimede.front.caller_port import ask_of
from halimede.front.grpc.status import finish_with, internal_error
from halimede.front.offload import Offload, is_longer
from halimede.identities.roles import Right
from halimede.tensors import Buffer
from halimede.transport.grpc.calls import MAX_SMALL_MESSAGE_BYTES, GrpcCall, Unary
from halimede.wire.grpc import admin as messages
from halimede.wire.grpc import metadata
from halimede.wire.grpc import shared_memory as regions


@dataclass(frozen=True, slots=True)
class AdminRpc:
    """One RPC. `category` is what restricts it (G13). `read` turns the request message into a query and may raise
    Error. `write` turns the answer into a message. `unknown` is the answer instead of NotFound, None if it is an
    error. `large`: a message may be large, and is then read on another thread. `right` is what a caller must have
    (`--auth`); None: a right of the category, and the question says which."""

    category: Category
    read: Callable[[Buffer], Query[Any]]
    write: Callable[[Any], bytes]
    unknown: Any = None
    large: bool = False
    right: Right | None = None


MAX_LOAD_ON_LOOP_BYTES: Final = 1 << 12
"""Size of a request to load a model that the event loop reads. One of 64 KiB may have thousands of parameters, which
are counted first, and takes 10 ms."""
MAX_WRITTEN_ON_LOOP: Final = 200
"""Models of an answer that the event loop writes, which takes 3 ms."""


def _nothing(answer: None) -> bytes:
    return b""


def _regions(read: Callable[[Buffer], Query[Any]], write: Callable[[Any], bytes] = _nothing) -> AdminRpc:
    """A row of shared memory: a change if its answer is empty."""
    return AdminRpc(Category.SHARED_MEMORY, read, write, right=Right.MEMORY if write is _nothing else Right.REGIONS)


SERVICE = "/inference.GRPCInferenceService/"

ADMIN_RPCS: Mapping[str, AdminRpc] = MappingProxyType(
    {
        "/grpc.health.v1.Health/Check": AdminRpc(Category.HEALTH, metadata.read_health, metadata.encode_health),
        **{
            SERVICE + name: rpc
            for name, rpc in {
                "ServerLive": AdminRpc(Category.HEALTH, metadata.read_server_live, metadata.encode_live),
                "ServerReady": AdminRpc(Category.HEALTH, metadata.read_server_ready, metadata.encode_ready),
                # Clients ask for models that were never there, and take an error for a broken server (G4).
                "ModelReady": AdminRpc(
                    Category.HEALTH, metadata.read_model_ready, metadata.encode_model_ready, unknown=False
                ),
                "ServerMetadata": AdminRpc(
                    Category.METADATA, metadata.read_server_metadata, metadata.encode_server_metadata
                ),
                "ModelMetadata": AdminRpc(
                    Category.METADATA, metadata.read_model_metadata, metadata.encode_model_metadata
                ),
                "ModelConfig": AdminRpc(
                    Category.MODEL_CONFIG, metadata.read_model_config, metadata.encode_model_config
                ),
                "ModelStatistics": AdminRpc(Category.STATISTICS, metadata.read_statistics, metadata.encode_statistics),
                "RepositoryIndex": AdminRpc(Category.MODEL_REPOSITORY, messages.read_index, messages.write_index),
                "RepositoryModelLoad": AdminRpc(
                    Category.MODEL_REPOSITORY, messages.read_load, _nothing, large=True, right=Right.CONTROL
                ),
                "RepositoryModelUnload": AdminRpc(
                    Category.MODEL_REPOSITORY, messages.read_unload, _nothing, right=Right.CONTROL
                ),
                "TraceSetting": AdminRpc(Category.TRACE, messages.read_trace_settings, messages.write_trace_settings),
                "LogSettings": AdminRpc(Category.LOGGING, messages.read_log_settings, messages.write_log_settings),
                "SystemSharedMemoryStatus": _regions(regions.read_system_status, regions.encode_system_status),
                "SystemSharedMemoryRegister": _regions(regions.read_system_registration),
                "SystemSharedMemoryUnregister": _regions(regions.unregistration(RegionKind.SYSTEM)),
                "CudaSharedMemoryStatus": _regions(regions.read_cuda_status, regions.encode_cuda_status),
                "CudaSharedMemoryRegister": _regions(regions.read_cuda_registration),
                "CudaSharedMemoryUnregister": _regions(regions.unregistration(RegionKind.CUDA)),
            }.items()
        },
    }
)
"""The rows, by path."""


def admin_rpcs(port: EnginePort, offload: Offload) -> dict[str, Unary]:
    """Returns the handlers of all rows, by path."""
    return {path: Unary(partial(_handle, port, offload, rpc), small=not rpc.large) for path, rpc in ADMIN_RPCS.items()}


def _handle(port: EnginePort, offload: Offload, rpc: AdminRpc, message: Buffer, call: GrpcCall) -> None:
    if len(message) <= (MAX_LOAD_ON_LOOP_BYTES if rpc.large else MAX_SMALL_MESSAGE_BYTES):
        _ask(port, offload, rpc, partial(rpc.read, message), call)
    else:  # the transport lets it pass only if the row is `large`
        offload(partial(rpc.read, message), lambda query: _ask(port, offload, rpc, partial(_unwrapped, query), call))


def _unwrapped(query: Query[Any] | Error) -> Query[Any]:
    if isinstance(query, Error):
        raise query
    return query


def _ask(port: EnginePort, offload: Offload, rpc: AdminRpc, read: Callable[[], Query[Any]], call: GrpcCall) -> None:
    try:
        query = read()
        # One client must not take all the slots of loads.
        if isinstance(query, LoadModel):
            query = replace(query, client=call.peer)
        ask_of(port, call, query, partial(_answer, offload, rpc, call))
    except Error as error:
        finish_with(call, error)
    except Exception:
        finish_with(call, internal_error("a gRPC handler"))


def _answer(offload: Offload, rpc: AdminRpc, call: GrpcCall, answer: Any) -> None:
    # An answer may be the Error itself, because it may come after `_handle` has returned.
    if isinstance(answer, NotFound) and rpc.unknown is not None:
        answer = rpc.unknown
    elif isinstance(answer, Error):
        finish_with(call, answer)
        return
    # Statistics of a thousand models take 15 ms to write.
    if is_longer(answer, MAX_WRITTEN_ON_LOOP):
        offload(partial(rpc.write, answer), partial(_send, call))
        return
    try:
        message = rpc.write(answer)
    except Exception:
        # If the answer comes later, `_handle` does not catch this any more.
        finish_with(call, internal_error("writing a gRPC answer"))
        return
    _send(call, message)


def _send(call: GrpcCall, message: bytes | Error) -> None:
    if isinstance(message, Error):
        finish_with(call, message)
        return
    call.send([message])
    call.finish()
