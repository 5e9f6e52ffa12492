"""The messages about shared memory over gRPC, and what an inference says of it, read and remembered."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

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
from halimede.errors import Invalid
from halimede.front.grpc.admin import ADMIN_RPCS, SERVICE
from halimede.requests import InferRequest, InferResponse
from halimede.tensors import INT32, HostMemory, RegionReference, Tensor
from halimede.wire.grpc.infer import InferDecoder, InferEncoder

READ: list[tuple[str, Any, object]] = [
    ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="r"), SystemMemoryStatus("r")),
    ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(), SystemMemoryStatus()),
    (
        "SystemSharedMemoryRegister",
        pb.SystemSharedMemoryRegisterRequest(name="r", key="/k", offset=2**64 - 1, byte_size=8),
        RegisterSystemMemory("r", "/k", 2**64 - 1, 8),
    ),
    (
        "SystemSharedMemoryUnregister",
        pb.SystemSharedMemoryUnregisterRequest(name="r"),
        UnregisterMemory(RegionKind.SYSTEM, "r"),
    ),
    ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name="r"), CudaMemoryStatus("r")),
    (
        "CudaSharedMemoryRegister",
        pb.CudaSharedMemoryRegisterRequest(name="r", raw_handle=b"\0h", device_id=-1, byte_size=8),
        RegisterCudaMemory("r", b"\0h", -1, 8),
    ),
    ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest(), UnregisterMemory(RegionKind.CUDA)),
]


@pytest.mark.parametrize(("rpc", "message", "query"), READ)
def test_question_is_read(rpc: str, message: Any, query: object) -> None:
    assert ADMIN_RPCS[SERVICE + rpc].read(message.SerializeToString()) == query


def test_status_is_written_by_name() -> None:
    written = ADMIN_RPCS[SERVICE + "SystemSharedMemoryStatus"].write(
        [SystemRegion("a", "/k", 4096, 8), SystemRegion("", "k", 0, 1)]
    )
    found = pb.SystemSharedMemoryStatusResponse.FromString(written).regions
    assert {key: (r.name, r.key, r.offset, r.byte_size) for key, r in found.items()} == {
        "a": ("a", "/k", 4096, 8),
        "": ("", "k", 0, 1),
    }
    devices = pb.CudaSharedMemoryStatusResponse.FromString(
        ADMIN_RPCS[SERVICE + "CudaSharedMemoryStatus"].write([CudaRegion("c", 3, 8)])
    ).regions
    assert {key: (r.name, r.device_id, r.byte_size) for key, r in devices.items()} == {"c": ("c", 3, 8)}


def test_status_tells_names_that_are_not_utf8_as_well_as_it_can() -> None:
    written = ADMIN_RPCS[SERVICE + "SystemSharedMemoryStatus"].write(
        [SystemRegion("a", "/k", 0, 1), SystemRegion("b\udcff", "/k\udcff", 0, 8)]
    )
    found = pb.SystemSharedMemoryStatusResponse.FromString(written).regions
    assert {key: (r.name, r.key) for key, r in found.items()} == {"a": ("a", "/k"), "b?": ("b?", "/k?")}
    devices = pb.CudaSharedMemoryStatusResponse.FromString(
        ADMIN_RPCS[SERVICE + "CudaSharedMemoryStatus"].write([CudaRegion("c\udcff", 3, 8)])
    ).regions
    assert {key: r.name for key, r in devices.items()} == {"c?": "c?"}


@pytest.mark.parametrize("rpc", ["SystemSharedMemoryRegister", "CudaSharedMemoryUnregister"])
def test_answer_without_content(rpc: str) -> None:
    assert ADMIN_RPCS[SERVICE + rpc].write(None) == b""


# Inferences.


def place(parameters: Any, region: str, byte_size: int, offset: int | None = None) -> None:
    parameters["shared_memory_region"].string_param = region
    parameters["shared_memory_byte_size"].int64_param = byte_size
    if offset is not None:
        parameters["shared_memory_offset"].int64_param = offset


def message(*raws: bytes) -> Any:
    """Three inputs, the second in shared memory, and two outputs, the first there."""
    asked = pb.ModelInferRequest(model_name="m", id="q", raw_input_contents=raws)
    for name in ("A", "B", "C"):
        asked.inputs.add(name=name, datatype="INT32", shape=[1])
    place(asked.inputs[1].parameters, "r", 4, 8)
    place(asked.outputs.add(name="X").parameters, "s", 16)
    asked.outputs.add(name="Y")
    return asked


def read(decoder: InferDecoder, asked: Any) -> InferRequest:
    incoming = decoder.parse(asked.SerializeToString())
    return decoder.request(incoming, incoming.version)


@pytest.mark.rows("G20")
def test_input_in_shared_memory_takes_no_raw_contents() -> None:
    decoder = InferDecoder()
    for turn in range(4):  # read, remembered, laid out, taken from the layout
        request = read(decoder, message(b"aaa%d" % turn, b"cccc"))
        assert list(request.inputs) == ["A", "B", "C"]
        assert bytes(request.inputs["A"].memory.host()) == b"aaa%d" % turn
        assert request.inputs["B"].memory == RegionReference("r", 8, 4)
        assert bytes(request.inputs["C"].memory.host()) == b"cccc"
        assert (request.outputs, request.destinations) == (("X", "Y"), {"X": RegionReference("s", 0, 16)})
        assert request.in_regions


def test_raw_contents_that_are_missing_beside_shared_memory() -> None:
    decoder = InferDecoder()
    read(decoder, message(b"aaaa", b"cccc"))
    for _ in range(3):
        with pytest.raises(Invalid, match="unable to find data for input tensor 'C' for model 'm' in request"):
            read(decoder, message(b"aaaa"))
    assert bytes(read(decoder, message(b"aaaa", b"cccc")).inputs["C"].memory.host()) == b"cccc"


def test_all_inputs_in_shared_memory() -> None:
    asked = pb.ModelInferRequest(model_name="m")
    place(asked.inputs.add(name="A", datatype="INT32", shape=[1]).parameters, "r", -1, -2)
    decoder = InferDecoder()
    for _ in range(4):
        request = read(decoder, asked)
        assert request.inputs["A"].memory == RegionReference("r", 2**64 - 2, 2**64 - 1)
        assert (request.in_regions, request.destinations) == (True, None)


REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"


@pytest.mark.rows("G23")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({OFFSET: ("int64_param", 8)}, f"'{OFFSET}' can not be specified without '{REGION}' parameter for tensor 'A'"),
        ({SIZE: ("string_param", "8")}, f"'{SIZE}' can not be specified without '{REGION}' parameter for tensor 'A'"),
        ({REGION: ("string_param", "r")}, f"'{SIZE}' must be specified along with '{REGION}' parameter for tensor 'A'"),
        (
            {REGION: ("int64_param", 1)},
            f"invalid value type for '{REGION}' parameter for tensor 'A', expected string_param.",
        ),
        (
            {REGION: ("string_param", "r"), SIZE: ("string_param", "r")},
            f"invalid value type for '{SIZE}' parameter for tensor 'A', expected int64_param.",
        ),
        (
            {REGION: ("string_param", "r"), SIZE: ("int64_param", 8), OFFSET: ("bool_param", True)},
            f"invalid value type for '{OFFSET}' parameter for tensor 'A', expected int64_param.",
        ),
    ],
)
def test_parameters_of_a_place_that_are_wrong(given: dict[str, tuple[str, Any]], text: str) -> None:
    wrong_input, wrong_output = (pb.ModelInferRequest(model_name="m") for _ in range(2))
    wrong_output.inputs.add(name="I", datatype="INT32", shape=[1])
    wrong_output.raw_input_contents.append(b"aaaa")
    for asked, tensor in (
        (wrong_input, wrong_input.inputs.add(name="A", datatype="INT32", shape=[1])),
        (wrong_output, wrong_output.outputs.add(name="A")),
    ):
        for key, (kind, value) in given.items():
            setattr(tensor.parameters[key], kind, value)
        decoder = InferDecoder()
        for _ in range(3):
            with pytest.raises(Invalid) as caught:
                read(decoder, asked)
            assert caught.value.message == text


def test_input_in_shared_memory_and_contents() -> None:
    asked = message(b"aaaa", b"cccc")
    asked.inputs[1].contents.int_contents.append(1)
    with pytest.raises(Invalid) as caught:
        read(InferDecoder(), asked)
    assert caught.value.message == (
        "unexpected 'content' provided when using shared memory for input tensor 'B' for model 'm'"
    )


def test_places_are_told_apart_when_remembered() -> None:
    decoder = InferDecoder()
    asked = pb.ModelInferRequest(model_name="m")
    parameters = asked.inputs.add(name="A", datatype="INT32", shape=[1]).parameters
    for _ in range(4):
        for region, offset in (("r", 0), ("s", 0), ("r", 4)):
            place(parameters, region, 4, offset)
            assert read(decoder, asked).inputs["A"].memory == RegionReference(region, offset, 4)


@pytest.mark.rows("G22")
def test_output_in_shared_memory_has_an_empty_raw_entry() -> None:
    outputs = [Tensor(name, INT32, (1,), HostMemory(data)) for name, data in (("X", b""), ("Y", b"yyyy"))]
    encoder = InferEncoder()
    written = b"".join(bytes(part) for part in encoder.response(InferResponse("q", "m", 1, outputs)))
    found = pb.ModelInferResponse.FromString(written)
    assert list(found.raw_output_contents) == [b"", b"yyyy"]
    assert [list(output.parameters) for output in found.outputs] == [[], []]
