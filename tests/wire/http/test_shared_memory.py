"""The bodies about shared memory over HTTP, and what an inference's head says of it."""

import base64
import json
from typing import Any

import pytest

from halimede.engine_port import CudaRegion, RegisterCudaMemory, RegisterSystemMemory, SystemRegion
from halimede.errors import Error, Internal, Invalid
from halimede.requests import InferResponse
from halimede.tensors import INT32, HostMemory, RegionReference, Tensor
from halimede.wire.http.infer import decode_infer, encode_infer
from halimede.wire.http.shared_memory import (
    encode_cuda_status,
    encode_system_status,
    read_cuda_registration,
    read_system_registration,
)

HANDLE = bytes(range(64))
UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NO_OBJECT = (b"5", b"[]", b'"x"', b"null")


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_system_registration() -> None:
    full = body({"key": "/k", "offset": 4096, "byte_size": 2**64 - 1, "more": 1})
    assert read_system_registration("r", full) == RegisterSystemMemory("r", "/k", 4096, 2**64 - 1)
    assert read_system_registration("r", body({"key": "", "byte_size": 0})) == RegisterSystemMemory("r", "", 0, 0)


@pytest.mark.parametrize("text", [b"{}", *NO_OBJECT])
def test_system_registration_without_a_key(text: bytes) -> None:
    with pytest.raises(Invalid, match="Shared memory register request has no 'key' field"):
        read_system_registration("r", text)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ({"key": "/k"}, Invalid, "Shared memory register request has no 'byte_size' field"),
        ({"key": 5}, Internal, "attempt to access JSON non-string as string"),
        *(
            (
                {"key": "/k", "byte_size": 8, field: wrong},
                Internal,
                UNSIGNED,
            )
            for field in ("offset", "byte_size")
            for wrong in (-1, "8", 1.5, None, True, 2**64, [8])
        ),
    ],
)
def test_system_registration_wrong(value: Any, kind: type[Error], text: str) -> None:
    with pytest.raises(Error) as caught:
        read_system_registration("r", body(value))
    assert (type(caught.value), caught.value.message) == (kind, text)


def test_registration_with_malformed_json() -> None:
    for read in (read_system_registration, read_cuda_registration):
        with pytest.raises(Internal, match=r"failed to parse the request JSON buffer: The document is empty\. at 0"):
            read("r", b"")


def test_registration_without_a_name() -> None:
    with pytest.raises(Invalid, match="'region name' is necessary to register system shared memory region"):
        read_system_registration("", b"")
    with pytest.raises(Invalid, match="'region name' is necessary to register cuda shared memory region"):
        read_cuda_registration("", b"")


def test_cuda_registration() -> None:
    text = base64.b64encode(HANDLE).decode()
    asked = body({"raw_handle": {"b64": text}, "device_id": 1, "byte_size": 8})
    assert read_cuda_registration("r", asked) == RegisterCudaMemory("r", HANDLE, 1, 8)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ({}, Invalid, "Shared memory register request has no 'raw_handle' field"),
        ({"raw_handle": 5}, Internal, "attempt to access non-existing object member 'b64'"),
        ({"raw_handle": {"b64": 5}}, Internal, "attempt to access JSON non-string as string"),
        ({"raw_handle": {"b64": ""}}, Internal, "attempt to access non-existing object member 'device_id'"),
        (
            {"raw_handle": {"b64": ""}, "device_id": 0},
            Internal,
            "attempt to access non-existing object member 'byte_size'",
        ),
        *(
            (
                {"raw_handle": {"b64": handle}, "device_id": 0, "byte_size": 8},
                Invalid,
                "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
            )
            for handle in ("", "AAAA", "!!", "A", "é", base64.b64encode(bytes(65)).decode())
        ),
    ],
)
def test_cuda_registration_wrong(value: Any, kind: type[Error], text: str) -> None:
    with pytest.raises(Error) as caught:
        read_cuda_registration("r", body(value))
    assert (type(caught.value), caught.value.message) == (kind, text)


def test_status() -> None:
    regions = [SystemRegion("a", "/k", 1, 2), SystemRegion('"', "k", 0, 2**64 - 1)]
    assert encode_system_status(regions) == (
        b'[{"name":"a","key":"/k","offset":1,"byte_size":2},'
        b'{"name":"\\"","key":"k","offset":0,"byte_size":18446744073709551615}]'
    )
    assert encode_cuda_status([CudaRegion("c", 3, 8)]) == b'[{"name":"c","device_id":3,"byte_size":8}]'
    assert encode_system_status([]) == encode_cuda_status([]) == b"[]"


# Inferences.


def asking(given: dict[str, Any], wanted: dict[str, Any]) -> bytes:
    tensor = {"name": "IN", "datatype": "INT32", "shape": [2], "parameters": given}
    return body({"inputs": [tensor], "outputs": [{"name": "OUT", "parameters": wanted}, {"name": "OTHER"}]})


def test_inference_in_shared_memory() -> None:
    text = asking(
        {"shared_memory_region": "a", "shared_memory_byte_size": 8, "shared_memory_offset": 4},
        {"shared_memory_region": "b", "shared_memory_byte_size": 16},
    )
    for _ in range(2):  # read, then remembered
        request, form = decode_infer("m", -1, memoryview(text), len(text), 1 << 20)
        assert request.in_regions
        assert request.inputs["IN"].memory == RegionReference("a", 4, 8)
        assert request.destinations == {"OUT": RegionReference("b", 0, 16)}
        assert request.outputs == ("OUT", "OTHER")
    outputs = [Tensor(name, INT32, (2,), HostMemory(data)) for name, data in (("OUT", b""), ("OTHER", bytes(8)))]
    [answer], header = encode_infer(InferResponse("", "m", 1, outputs), form)
    assert header is None
    assert json.loads(bytes(answer))["outputs"] == [
        {"name": "OUT", "datatype": "INT32", "shape": [2]},
        {"name": "OTHER", "datatype": "INT32", "shape": [2], "data": [0, 0]},
    ]


def test_inference_with_one_input_in_shared_memory_and_one_behind_the_json() -> None:
    inputs = [
        {"name": "A", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}},
        {"name": "B", "datatype": "INT32", "shape": [1], "parameters": {"shared_memory_region": "r"}},
        {"name": "C", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}},
    ]
    head = body({"inputs": inputs})
    request, _ = decode_infer("m", -1, memoryview(head + b"aaaacccc"), len(head), 1 << 20)
    assert bytes(request.inputs["A"].memory.host()) == b"aaaa"
    assert request.inputs["B"].memory == RegionReference("r", 0, 0)
    assert bytes(request.inputs["C"].memory.host()) == b"cccc"
    assert request.destinations is None
    assert request.in_regions


def test_inference_elsewhere_is_not_in_regions() -> None:
    text = body({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]})
    request, _ = decode_infer("m", -1, memoryview(text), None, 1 << 20)
    assert (request.in_regions, request.destinations) == (False, None)


@pytest.mark.parametrize(
    ("wanted", "kind", "text"),
    [
        ({"binary_data": True}, Invalid, "Output can't set both 'shared_memory_region' and 'binary_data'"),
        (
            {"binary_data": 5},
            Internal,
            "Unable to set 'binary_data': attempt to access JSON non-boolean as boolean",
        ),
        ({"classification": 0}, Invalid, "Output can't set both 'shared_memory_region' and 'classification'"),
        (
            {"shared_memory_offset": -1, "shared_memory_byte_size": "x"},
            Internal,
            f"Unable to parse 'shared_memory_offset': {UNSIGNED}",
        ),
        (
            {"shared_memory_byte_size": 2**64},
            Internal,
            f"Unable to parse 'shared_memory_byte_size': {UNSIGNED}",
        ),
        (
            {"shared_memory_region": 5},
            Internal,
            "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string",
        ),
    ],
)
def test_output_in_shared_memory_wrong(wanted: dict[str, Any], kind: type[Error], text: str) -> None:
    document = asking({"shared_memory_region": "a"}, {"shared_memory_region": "b", **wanted})
    with pytest.raises(Error) as caught:
        decode_infer("m", -1, memoryview(document), None, 1 << 20)
    assert (type(caught.value), caught.value.message) == (kind, text)
