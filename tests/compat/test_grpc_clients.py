"""The official gRPC client in all its forms, against a running server. `identity_<datatype>` batches (input INPUT0
[-1], output OUTPUT0); `flat_<datatype>` does not."""

import asyncio
import queue
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as client_module
import tritonclient.grpc.aio as aio_client_module
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

WAIT = 20

ARRAYS: dict[str, npt.NDArray[Any]] = {
    "BOOL": np.array([[True, False, True], [False, True, False]]),
    "UINT8": np.array([[0, 1, 255]], np.uint8),
    "UINT16": np.array([[0, 1, 65535]], np.uint16),
    "UINT32": np.array([[0, 1, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 1, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 0, 127]], np.int8),
    "INT16": np.array([[-32768, 0, 32767]], np.int16),
    "INT32": np.array([[-(2**31), 0, 2**31 - 1], [1, 2, 3]], np.int32),
    "INT64": np.array([[-(2**63), 0, 2**63 - 1]], np.int64),
    "FP16": np.array([[0.5, -1, np.inf]], np.float16),
    # Older clients take float32 for it, newer ones the bfloat16 of ml_dtypes.
    "BF16": np.array([[0.5, -1, np.inf]], triton_to_np_dtype("BF16")),
    "FP32": np.array([[0.1, -1, np.nan], [1, 2, 3]], np.float32),
    "FP64": np.array([[0.1, -1, np.inf]], np.float64),
    "BYTES": np.array([[b"one", b"", "zwölf".encode()]], object),
}


class Server(Protocol):
    @property
    def grpc_url(self) -> str: ...


def input_of(array: npt.NDArray[Any], datatype: str) -> Any:
    tensor = client_module.InferInput("INPUT0", list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


FP32 = ARRAYS["FP32"]
ANSWERED = np.testing.assert_array_equal


def check_fp32(result: Any) -> None:
    ANSWERED(result.as_numpy("OUTPUT0"), FP32)


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with client_module.InferenceServerClient(server.grpc_url) as client:
        yield client


@pytest.fixture
def stub(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def status_of(caught: pytest.ExceptionInfo[InferenceServerException]) -> tuple[str, str]:
    return caught.value.status(), caught.value.message()


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("identity_fp32")
    assert client.is_model_ready("identity_fp32", "1")
    assert not client.is_model_ready("nope")
    assert not client.is_model_ready("identity_fp32", "99")
    assert "statistics" in client.get_server_metadata().extensions
    facts = client.get_model_metadata("identity_fp32")
    assert (facts.name, list(facts.versions)) == ("identity_fp32", ["1"])
    (tensor,) = facts.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("INPUT0", "FP32", [-1, -1])


def test_model_config(client: Any) -> None:
    config = client.get_model_config("identity_fp32").config
    assert (config.name, config.max_batch_size, config.input[0].name) == ("identity_fp32", 64, "INPUT0")
    assert client.get_model_config("flat_fp32", as_json=True)["config"]["output"][0]["name"] == "OUTPUT0"


def test_model_statistics_count_inferences(client: Any) -> None:
    def counts() -> tuple[int, int]:
        (stats,) = client.get_inference_statistics("identity_uint16").model_stats
        return stats.inference_count, stats.inference_stats.success.count

    inferences, successes = counts()
    client.infer("identity_uint16", [input_of(np.zeros((3, 2), np.uint16), "UINT16")])
    assert counts() == (inferences + 3, successes + 1)
    assert len(client.get_inference_statistics().model_stats) > 1


@pytest.mark.parametrize("datatype", ARRAYS)
def test_infer_every_datatype(client: Any, datatype: str) -> None:
    array = ARRAYS[datatype]
    result = client.infer(f"identity_{datatype.lower()}", [input_of(array, datatype)])
    ANSWERED(result.as_numpy("OUTPUT0"), array)
    flat = client.infer(f"flat_{datatype.lower()}", [input_of(array.reshape(-1), datatype)])
    ANSWERED(flat.as_numpy("OUTPUT0"), array.reshape(-1))
    assert result.get_output("OUTPUT0").datatype == datatype


def test_infer_answer_fields(client: Any) -> None:
    outputs = [client_module.InferRequestedOutput("OUTPUT0")]
    result = client.infer(
        "identity_fp32", [input_of(FP32, "FP32")], model_version="1", outputs=outputs, request_id="it's me"
    )
    answer = result.get_response()
    assert (answer.model_name, answer.model_version, answer.id) == ("identity_fp32", "1", "it's me")
    assert [list(t.shape) for t in answer.outputs] == [[2, 3]]
    check_fp32(result)


def test_infer_with_parameters_priority_and_timeout(client: Any) -> None:
    result = client.infer(
        "identity_fp32",
        [input_of(FP32, "FP32")],
        priority=1,
        timeout=1_000_000,
        parameters={"text": "t", "whole": 1, "flag": True},
    )
    check_fp32(result)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_infer_compressed(client: Any, algorithm: str) -> None:
    result = client.infer("identity_fp32", [input_of(FP32, "FP32")], compression_algorithm=algorithm)
    check_fp32(result)


def test_infer_empty_tensor(client: Any) -> None:
    result = client.infer("flat_int32", [input_of(np.zeros((0,), np.int32), "INT32")])
    assert result.as_numpy("OUTPUT0").shape == (0,)


def test_infer_large_tensor(client: Any) -> None:
    array = np.arange(4_000_000, dtype=np.float32).reshape(1, -1)
    ANSWERED(client.infer("identity_fp32", [input_of(array, "FP32")]).as_numpy("OUTPUT0"), array)


def test_infer_by_many_threads(client: Any) -> None:
    def one(n: int) -> bool:
        array = np.full((1 + n % 4, 8), n, np.int32)
        result = client.infer("identity_int32", [input_of(array, "INT32")], request_id=str(n))
        return result.get_response().id == str(n) and np.array_equal(result.as_numpy("OUTPUT0"), array)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(200)))


def test_async_infer(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for n in range(20):
        array = np.full((1, 4), n, np.float32)
        client.async_infer(
            "identity_fp32", [input_of(array, "FP32")], lambda result, error: answers.put((result, error))
        )
    got = [answers.get(timeout=WAIT) for _ in range(20)]
    assert [error for _, error in got] == [None] * 20
    assert sorted(result.as_numpy("OUTPUT0")[0, 0] for result, _ in got) == list(range(20))


def test_async_infer_error(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.async_infer("nope", [input_of(FP32, "FP32")], lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=WAIT)
    assert result is None
    assert error.message() == "Request for unknown model: 'nope' is not found"


def test_asyncio_client(server: Server) -> None:
    async def test() -> None:
        async with aio_client_module.InferenceServerClient(server.grpc_url) as client:
            assert await client.is_server_live()
            calls = [client.infer("identity_fp32", [input_of(FP32, "FP32")], request_id=str(n)) for n in range(20)]
            for n, result in enumerate(await asyncio.gather(*calls)):
                assert result.get_response().id == str(n)
                check_fp32(result)
            with pytest.raises(InferenceServerException) as caught:
                await client.infer("nope", [input_of(FP32, "FP32")])
            assert status_of(caught) == ("StatusCode.NOT_FOUND", "Request for unknown model: 'nope' is not found")

    asyncio.run(asyncio.wait_for(test(), WAIT))


def test_asyncio_stream(server: Server) -> None:
    async def requests() -> Any:
        for n in range(10):
            yield {
                "model_name": "identity_fp32",
                "inputs": [input_of(np.full((1, 2), n, np.float32), "FP32")],
                "request_id": str(n),
            }

    async def test() -> None:
        async with aio_client_module.InferenceServerClient(server.grpc_url) as client:
            got = [answer async for answer in client.stream_infer(requests())]
            assert [error for _, error in got] == [None] * 10
            assert [int(result.as_numpy("OUTPUT0")[0, 0]) for result, _ in got] == list(range(10))

    asyncio.run(asyncio.wait_for(test(), WAIT))


class StreamUser:
    """A client's stream, and the answers on it."""

    def __init__(self, client: Any, **how: Any) -> None:
        self.answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client = client
        client.start_stream(lambda result, error: self.answers.put((result, error)), **how)

    def send(self, model: str, array: npt.NDArray[Any], datatype: str, **how: Any) -> None:
        self.client.async_stream_infer(model, [input_of(array, datatype)], **how)

    def answer(self) -> tuple[Any, Any]:
        return self.answers.get(timeout=WAIT)


@pytest.fixture
def open_stream(client: Any) -> Iterator[Callable[..., StreamUser]]:
    yield lambda **how: StreamUser(client, **how)
    client.stop_stream()


def test_stream_answers_in_order_over_several_models(open_stream: Callable[..., StreamUser]) -> None:
    stream = open_stream()
    for n in range(50):
        datatype = ("FP32", "INT32", "INT64")[n % 3]
        array = np.full((1, 3), n, ARRAYS[datatype].dtype)
        stream.send(f"identity_{datatype.lower()}", array, datatype, request_id=str(n))
    for n in range(50):
        result, error = stream.answer()
        assert error is None
        answer = result.get_response()
        assert (answer.id, int(result.as_numpy("OUTPUT0")[0, 0])) == (str(n), n)
        assert answer.parameters["triton_final_response"].bool_param


def test_stream_goes_on_after_errors(open_stream: Callable[..., StreamUser]) -> None:
    stream = open_stream()
    stream.send("nope", FP32, "FP32", request_id="a")
    stream.send("identity_int32", FP32, "FP32", request_id="b")
    stream.send("identity_fp32", FP32, "FP32", request_id="c", model_version="abc")
    stream.send("identity_fp32", FP32, "FP32", request_id="d")
    errors = [stream.answer()[1].message() for _ in range(3)]
    assert errors == [
        "Request for unknown model: 'nope' is not found",
        "[request id: b] inference input 'INPUT0' data-type is 'FP32', but model 'identity_int32' expects 'INT32'",
        "failed to get model version from specified version string 'abc' (details: stol), "
        "version should be an integral value > 0",
    ]
    check_fp32(stream.answer()[0])


def test_stream_with_status_errors_takes_refusals_too(open_stream: Callable[..., StreamUser]) -> None:
    stream = open_stream(headers={"triton_grpc_error": "true"})
    stream.send("nope", FP32, "FP32")
    assert stream.answer()[1].message() == "Request for unknown model: 'nope' is not found"
    stream.send("identity_fp32", FP32, "FP32")
    check_fp32(stream.answer()[0])


def test_server_serves_on_after_a_cancelled_stream(client: Any) -> None:
    for _ in range(10):
        stream = StreamUser(client)
        stream.send("identity_fp32", FP32, "FP32")
        client.stop_stream(cancel_requests=True)
    check_fp32(client.infer("identity_fp32", [input_of(FP32, "FP32")]))


UNKNOWN_ID = "[request id: <id_unknown>] "


@pytest.mark.parametrize(
    ("model", "version", "array", "datatype", "status", "text"),
    [
        ("nope", "", FP32, "FP32", "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        (
            "identity_fp32", "99", FP32, "FP32", "NOT_FOUND",
            "Request for unknown model: 'identity_fp32' version 99 is not found",
        ),
        (
            "identity_fp32", "abc", FP32, "FP32", "INVALID_ARGUMENT",
            "failed to get model version from specified version string 'abc' (details: stol), "
            "version should be an integral value > 0",
        ),
        (
            "identity_fp32", "-1", FP32, "FP32", "INVALID_ARGUMENT",
            "invalid model version specified '-1' , version should be an integral value > 0",
        ),
        (
            "identity_int32", "", FP32, "FP32", "INVALID_ARGUMENT",
            UNKNOWN_ID + "inference input 'INPUT0' data-type is 'FP32', but model 'identity_int32' expects 'INT32'",
        ),
        (
            "identity_fp32", "", np.zeros((65, 1), np.float32), "FP32", "INVALID_ARGUMENT",
            UNKNOWN_ID + "inference request batch-size must be <= 64 for 'identity_fp32'",
        ),
    ],
)  # fmt: skip
def test_infer_errors(
    client: Any, model: str, version: str, array: npt.NDArray[Any], datatype: str, status: str, text: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [input_of(array, datatype)], model_version=version)
    assert status_of(caught) == (f"StatusCode.{status}", text)


def test_infer_unknown_output(client: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("identity_fp32", [input_of(FP32, "FP32")], outputs=[client_module.InferRequestedOutput("OTHER")])
    assert status_of(caught) == (
        "StatusCode.INVALID_ARGUMENT",
        "unexpected inference output 'OTHER' for model 'identity_fp32'",
    )


TYPED: list[tuple[str, str, list[Any], bytes]] = [
    ("BOOL", "bool_contents", [True, False], b"\1\0"),
    ("INT8", "int_contents", [300, -1], b"\x2c\xff"),
    ("INT16", "int_contents", [70000], struct.pack("<h", 4464)),
    ("INT32", "int_contents", [-5, 5], struct.pack("<2i", -5, 5)),
    ("INT64", "int64_contents", [-(2**63)], struct.pack("<q", -(2**63))),
    ("UINT8", "uint_contents", [300], b"\x2c"),
    ("UINT16", "uint_contents", [70000], struct.pack("<H", 4464)),
    ("UINT32", "uint_contents", [2**32 - 1], b"\xff" * 4),
    ("UINT64", "uint64_contents", [2**64 - 1], b"\xff" * 8),
    ("FP32", "fp32_contents", [1.5], struct.pack("<f", 1.5)),
    ("FP64", "fp64_contents", [0.1], struct.pack("<d", 0.1)),
    ("BYTES", "bytes_contents", [b"ab", b""], b"\2\0\0\0ab\0\0\0\0"),
]


@pytest.mark.rows("G21", "G22")
@pytest.mark.parametrize(("datatype", "field", "values", "data"), TYPED)
def test_infer_typed_contents(stub: Any, datatype: str, field: str, values: list[Any], data: bytes) -> None:
    request = pb.ModelInferRequest(model_name=f"flat_{datatype.lower()}")
    tensor = request.inputs.add(name="INPUT0", datatype=datatype, shape=[len(values)])
    getattr(tensor.contents, field).extend(values)
    answer = stub.ModelInfer(request, timeout=WAIT)
    assert list(answer.raw_output_contents) == [data]
    assert not answer.outputs[0].HasField("contents")


@pytest.mark.rows("G20", "H48", "H69", "H70")
@pytest.mark.parametrize(
    ("model", "shape", "datatype", "raws", "contents", "text"),
    [
        (
            "flat_int32", [2], "INT32", [], None,
            "unable to find data for input tensor 'INPUT0' for model 'flat_int32' in request.",
        ),
        (
            "flat_int32", [2], "INT32", [b"12345678"], [1, 2],
            "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'flat_int32'",
        ),
        (
            "flat_int32", [2], "INT32", [b"123"], None,
            UNKNOWN_ID + "input byte size mismatch for input 'INPUT0' for model 'flat_int32'. Expected 8, got 3",
        ),
        (
            "flat_int32", [2], "INT32", [], [1],
            UNKNOWN_ID + "input byte size mismatch for input 'INPUT0' for model 'flat_int32'. Expected 8, got 4",
        ),
        (
            "flat_int32", [2], "int32", [b"12345678"], None,
            UNKNOWN_ID + "inference input 'INPUT0' data-type is '<invalid>', but model 'flat_int32' expects 'INT32'",
        ),
        (
            "flat_int32", [-1], "INT32", [b"12345678"], None,
            UNKNOWN_ID + "All input dimensions should be specified for input 'INPUT0' for model 'flat_int32', got [-1]",
        ),
        (
            "flat_bytes", [2], "BYTES", [b"\1\0\0\0a"], None,
            UNKNOWN_ID + "expected 2 string elements for inference input 'INPUT0' for model 'flat_bytes', got 1",
        ),
        (
            "flat_bytes", [1], "BYTES", [b"\1\0\0\0a\1\0\0\0b"], None,
            UNKNOWN_ID + "unexpected number of string elements 2 for inference input 'INPUT0' for model 'flat_bytes', "
            "expecting 1",
        ),
        (
            "flat_bytes", [1], "BYTES", [b"\1\0"], None,
            UNKNOWN_ID + "incomplete string length indicator for inference input 'INPUT0' for model 'flat_bytes', "
            "expecting 4 bytes but only 2 bytes available. Please make sure the string length indicator is in one "
            "buffer.",
        ),
    ],
)  # fmt: skip
def test_infer_bad_data(
    stub: Any, model: str, shape: list[int], datatype: str, raws: list[bytes], contents: list[int] | None, text: str
) -> None:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=raws)
    tensor = request.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    if contents is not None:
        tensor.contents.int_contents.extend(contents)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request, timeout=WAIT)
    error: Any = caught.value
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, text)


def test_infer_same_input_twice(stub: Any) -> None:
    request = pb.ModelInferRequest(model_name="flat_int32", id="7", raw_input_contents=[b"1234", b"5678"])
    for _ in range(2):
        request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request, timeout=WAIT)
    error: Any = caught.value
    assert error.details() == "[request id: 7] input 'INPUT0' already exists in request"


def test_bytes_that_are_no_message(server: Server) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        raw: Any = channel.unary_unary
        for rpc in ("ModelInfer", "ModelReady", "ServerLive"):
            with pytest.raises(grpc.RpcError) as caught:
                raw(f"/inference.GRPCInferenceService/{rpc}")(b"\xff\xff\xff", timeout=WAIT)
            error: Any = caught.value
            assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "Unable to parse request")


def test_unknown_method(server: Server) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        raw: Any = channel.unary_unary
        for path in ("/inference.GRPCInferenceService/Nothing", "/other.Service/ModelInfer"):
            with pytest.raises(grpc.RpcError) as caught:
                raw(path)(b"", timeout=WAIT)
            error: Any = caught.value
            assert (error.code(), error.details()) == (grpc.StatusCode.UNIMPLEMENTED, "")
