"""gRPC messages about clients' shared memory, to queries of the engine port and back (G10).

Pure. Raises Internal for a message that cannot be parsed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from halimede.engine_port import (
    CudaMemoryStatus,
    CudaRegion,
    RegionKind,
    RegisterCudaMemory,
    RegisterSystemMemory,
    SystemMemoryStatus,
    SystemRegion,
    UnregisterMemory,
)
from halimede.protocol import inference_pb2 as pb
from halimede.tensors import Buffer
from halimede.wire.grpc.infer import parse, sendable


def read_system_status(message: Buffer) -> SystemMemoryStatus:
    return SystemMemoryStatus(parse(pb.SystemSharedMemoryStatusRequest, message).name)


def encode_system_status(regions: Sequence[SystemRegion]) -> bytes:
    response = pb.SystemSharedMemoryStatusResponse()
    for r in regions:
        name = sendable(r.name)
        entry = response.regions[name]
        entry.name, entry.key, entry.offset, entry.byte_size = name, sendable(r.key), r.offset, r.byte_size
    return bytes(response.SerializeToString())


def read_system_registration(message: Buffer) -> RegisterSystemMemory:
    asked = parse(pb.SystemSharedMemoryRegisterRequest, message)
    return RegisterSystemMemory(asked.name, asked.key, asked.offset, asked.byte_size)


def read_cuda_status(message: Buffer) -> CudaMemoryStatus:
    return CudaMemoryStatus(parse(pb.CudaSharedMemoryStatusRequest, message).name)


def encode_cuda_status(regions: Sequence[CudaRegion]) -> bytes:
    response = pb.CudaSharedMemoryStatusResponse()
    for r in regions:
        name = sendable(r.name)
        entry = response.regions[name]
        entry.name, entry.device_id, entry.byte_size = name, r.device_id, r.byte_size
    return bytes(response.SerializeToString())


def read_cuda_registration(message: Buffer) -> RegisterCudaMemory:
    asked = parse(pb.CudaSharedMemoryRegisterRequest, message)
    return RegisterCudaMemory(asked.name, asked.raw_handle, asked.device_id, asked.byte_size)


def unregistration(kind: RegionKind) -> Callable[[Buffer], UnregisterMemory]:
    """Returns the reader of the request to unregister regions of one kind."""
    system = kind is RegionKind.SYSTEM
    form: Any = pb.SystemSharedMemoryUnregisterRequest if system else pb.CudaSharedMemoryUnregisterRequest

    def read(message: Buffer) -> UnregisterMemory:
        return UnregisterMemory(kind, parse(form, message).name)

    return read
