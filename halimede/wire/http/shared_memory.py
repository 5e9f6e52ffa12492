"""Shared-memory regions over HTTP: the bodies that register them, and their status as JSON (H91 to H96).

Pure. Any thread. Raises Invalid for a missing field, and Internal, with the text of Triton's JSON library, for a wrong
type.
"""

import binascii
from collections.abc import Sequence
from typing import Any

from halimede.engine_port import CudaRegion, RegisterCudaMemory, RegisterSystemMemory, SystemRegion
from halimede.errors import Error, Internal, Invalid
from halimede.tensors import Buffer
from halimede.wire.http import json
from halimede.wire.http.json_data import UINT64_MAX
from halimede.wire.http.json_slices import read_small

_HANDLE_BYTES = 64
"""Size of a cudaIpcMemHandle_t."""


def read_system_registration(region: str, body: Buffer) -> RegisterSystemMemory:
    """Reads a request to register a system region (H91). Raises Error."""
    if not region:
        raise Invalid("'region name' is necessary to register system shared memory region")
    members = _members(body)
    if "key" not in members:
        raise Invalid("Shared memory register request has no 'key' field")
    key = _string(members, "key")
    offset = _unsigned(members, "offset") if "offset" in members else 0
    if "byte_size" not in members:
        raise Invalid("Shared memory register request has no 'byte_size' field")
    return RegisterSystemMemory(region, key, offset, _unsigned(members, "byte_size"))


def read_cuda_registration(region: str, body: Buffer) -> RegisterCudaMemory:
    """Reads a request to register a CUDA region (H95). Raises Error."""
    if not region:
        raise Invalid("'region name' is necessary to register cuda shared memory region")
    members = _members(body)
    if "raw_handle" not in members:
        raise Invalid("Shared memory register request has no 'raw_handle' field")
    inner = members["raw_handle"]
    text = _string(inner if isinstance(inner, dict) else {}, "b64")
    device_id = _unsigned(members, "device_id")
    byte_size = _unsigned(members, "byte_size")
    return RegisterCudaMemory(region, _handle(text), device_id, byte_size)


def _handle(text: str) -> bytes:
    try:
        handle = binascii.a2b_base64(text)
    except ValueError:
        # Malformed base64 and a wrong length have the same error.
        handle = b""
    if len(handle) != _HANDLE_BYTES:
        raise Invalid("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return handle


def encode_system_status(regions: Sequence[SystemRegion]) -> bytes:
    """Writes the status of system regions (H93)."""
    return _encode(
        [{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in regions],
    )


def encode_cuda_status(regions: Sequence[CudaRegion]) -> bytes:
    """Writes the status of CUDA regions (H96)."""
    return _encode([{"name": r.name, "device_id": r.device_id, "byte_size": r.byte_size} for r in regions])


def _encode(value: list[dict[str, Any]]) -> bytes:
    return json.encode(json.write(value))


def _members(body: Buffer) -> dict[str, Any]:
    """Returns the members of a JSON object. Any other document counts as an empty object, as in Triton."""
    document = read_small(body)
    return document if isinstance(document, dict) else {}


def _string(members: dict[str, Any], key: str) -> str:
    value = _member(members, key)
    if isinstance(value, str):
        return value
    raise _not_a("string")


def _unsigned(members: dict[str, Any], key: str) -> int:
    value = _member(members, key)
    if type(value) is int and 0 <= value <= UINT64_MAX:
        return value
    raise _not_a("unsigned-integer")


def _member(members: dict[str, Any], key: str) -> Any:
    if key not in members:
        raise Internal(f"attempt to access non-existing object member '{key}'")
    return members[key]


def _not_a(kind: str) -> Error:
    return Internal(f"attempt to access JSON non-{kind} as {kind}")
