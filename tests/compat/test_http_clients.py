"""The official HTTP clients, sync and asyncio, against the running server: every datatype, concurrency, errors."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as sync
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.compat.serving import DATATYPES, MAX_BATCH_SIZE, Serving

Array = npt.NDArray[Any]
LIMIT = 30.0

NUMPY = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
    "BF16": triton_to_np_dtype("BF16"),
}
"""What the client accepts and returns for each datatype. For BF16 this differs between its versions."""
NOT_IN_JSON = ("FP16", "BF16")


def values(datatype: str) -> Array:
    """Six values that the type represents exactly, its limits among them."""
    dtype: np.dtype[Any] = np.dtype(NUMPY[datatype])
    if datatype == "BYTES":
        return np.array([b"", b"a", "zwölf".encode(), b"\x00\x7f", b'"\\\n', b"x" * 300], dtype=np.object_)
    if datatype == "BOOL":
        return np.array([True, False, True, True, False, False])
    if datatype == "BF16":
        return np.array([0.0, -1.5, 2.0**100, 3.140625, -(2.0**-60), 255.0], dtype)
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        return np.array([0.0, -1.5, limits.max, limits.min, limits.tiny, 0.1], dtype)
    whole = np.iinfo(dtype)
    return np.array([whole.min, whole.max, 0, 1, 2, whole.max - 1], dtype)


def client_input(datatype: str, array: Array, *, binary: bool = True, client: Any = sync) -> Any:
    made = client.InferInput("INPUT0", list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def output(*, binary: bool = True, client: Any = sync) -> Any:
    return client.InferRequestedOutput("OUTPUT0", binary_data=binary)


def assert_same(got: Array | None, sent: Array) -> None:
    assert got is not None
    assert got.dtype == sent.dtype
    assert got.shape == sent.shape
    assert got.tolist() == sent.tolist()


@pytest.fixture
def client(server: Serving) -> Iterator[Any]:
    made = sync.InferenceServerClient(server.http_url, concurrency=8, connection_timeout=LIMIT, network_timeout=LIMIT)
    yield made
    made.close()


# Every datatype.


@pytest.mark.rows("H36")
@pytest.mark.parametrize("datatype", DATATYPES)
def test_datatype_as_binary_with_and_without_batching(client: Any, datatype: str) -> None:
    for model, array in (("identity", values(datatype).reshape(2, 3)), ("flat", values(datatype))):
        asked = [client_input(datatype, array)]
        result = client.infer(f"{model}_{datatype.lower()}", asked, outputs=[output()])
        assert_same(result.as_numpy("OUTPUT0"), array)
        assert result.get_output("OUTPUT0")["datatype"] == datatype


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in NOT_IN_JSON])
@pytest.mark.parametrize("binary", [True, False], ids=["answer binary", "answer JSON"])
def test_datatype_as_json(client: Any, datatype: str, binary: bool) -> None:
    array = values(datatype).reshape(3, 2)
    if datatype == "BYTES":
        array = np.array([["", "a", "zwölf"], ['"\\\n', "\u2028", "x" * 300]], dtype=np.object_)
    asked = [client_input(datatype, array, binary=False)]
    result = client.infer(f"identity_{datatype.lower()}", asked, outputs=[output(binary=binary)])
    if datatype == "BYTES":
        array = np.array([[text.encode() for text in row] for row in array], dtype=np.object_)
    got = result.as_numpy("OUTPUT0")
    assert got is not None
    if datatype == "BYTES" and not binary:
        got = np.array(
            [[item if isinstance(item, bytes) else item.encode() for item in row] for row in got], np.object_
        )
    assert_same(got, array)


@pytest.mark.rows("H39")
@pytest.mark.parametrize("datatype", NOT_IN_JSON)
def test_half_floats_as_json_are_refused(client: Any, datatype: str) -> None:
    model, asked = f"identity_{datatype.lower()}", client_input(datatype, values(datatype).reshape(1, 6))
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [asked], outputs=[output(binary=False)])
    assert caught.value.message() == (
        f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
    )
    plain = sync.InferInput("INPUT0", [1, 1], datatype)
    plain._data = [1.0]  # the client itself would refuse BF16
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [plain])
    assert caught.value.message() == (
        f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input INPUT0"
    )


@pytest.mark.parametrize("shape", [(1, 0), (0, 4)])
def test_empty_tensor_comes_back_empty(client: Any, shape: tuple[int, ...]) -> None:
    if shape[0] == 0:
        shape = (0,)
    array = np.empty(shape, np.int32)
    model = "identity_int32" if len(shape) == 2 else "flat_int32"
    result = client.infer(model, [client_input("INT32", array)])
    assert_same(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("count", [1000, 70_000, 3_000_000])
def test_large_tensor_comes_back_whole(client: Any, count: int) -> None:
    array = np.arange(count, dtype=np.uint32).reshape(1, count)
    result = client.infer("identity_uint32", [client_input("UINT32", array)], outputs=[output()])
    got = result.as_numpy("OUTPUT0")
    assert got is not None
    assert np.array_equal(got, array)


def test_large_json_tensor_comes_back_whole(client: Any) -> None:
    array = np.arange(300_000, dtype=np.int32).reshape(1, -1)
    asked = [client_input("INT32", array, binary=False)]
    result = client.infer("identity_int32", asked, outputs=[output(binary=False)])
    got = result.as_numpy("OUTPUT0")
    assert got is not None
    assert np.array_equal(got, array)


# What else a request and an answer carry.


def test_request_id_comes_back(client: Any) -> None:
    asked = [client_input("INT32", np.ones((1, 1), np.int32))]
    assert client.infer("identity_int32", asked, request_id='my "own" id ü').get_response()["id"] == 'my "own" id ü'
    assert "id" not in client.infer("identity_int32", asked).get_response()


def test_answer_names_model_and_version(client: Any) -> None:
    asked = [client_input("INT32", np.ones(1, np.int32))]
    answer = client.infer("flat_int32", asked, model_version="1").get_response()
    assert (answer["model_name"], answer["model_version"]) == ("flat_int32", "1")


def test_parameters_and_headers_of_the_client_are_accepted(client: Any) -> None:
    asked = [client_input("INT32", np.ones(1, np.int32))]
    result = client.infer(
        "flat_int32", asked, headers={"X-Own": "y"}, query_params={"a": "b c"}, parameters={"one": 1, "two": "2"}
    )
    assert_same(result.as_numpy("OUTPUT0"), np.ones(1, np.int32))


def test_body_made_and_parsed_by_the_clients_own_functions(client: Any, server: Serving) -> None:
    """The client offers its encoder and decoder to users who transport the bytes themselves."""
    array = np.arange(4, dtype=np.int64)
    body, head = sync.InferenceServerClient.generate_request_body([client_input("INT64", array)], outputs=[output()])
    answer = client._post(
        request_uri="v2/models/flat_int64/infer",
        request_body=body,
        headers={"Inference-Header-Content-Length": head},
        query_params=None,
    )
    size = int(answer.get("Inference-Header-Content-Length"))
    result = sync.InferenceServerClient.parse_response_body(answer.read(), header_length=size)
    assert_same(result.as_numpy("OUTPUT0"), array)


# Many at once.


def test_requests_of_the_clients_pool_each_get_their_own_answer(client: Any) -> None:
    arrays = [np.full((1 + n % 3, 5), n, np.int32) for n in range(40)]
    asked = [
        client.async_infer("identity_int32", [client_input("INT32", array)], request_id=str(n))
        for n, array in enumerate(arrays)
    ]
    for n, (pending, array) in enumerate(zip(asked, arrays, strict=True)):
        result = pending.get_result(timeout=LIMIT)
        assert result.get_response()["id"] == str(n)
        assert_same(result.as_numpy("OUTPUT0"), array)


def test_clients_of_several_threads_each_get_their_own_answers(server: Serving) -> None:
    def work(thread: int) -> int:
        own = sync.InferenceServerClient(server.http_url, connection_timeout=LIMIT, network_timeout=LIMIT)
        try:
            for n in range(25):
                array = np.array([[f"{thread}-{n}".encode()]], np.object_)
                assert_same(own.infer("identity_bytes", [client_input("BYTES", array)]).as_numpy("OUTPUT0"), array)
        finally:
            own.close()
        return thread

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6), timeout=2 * LIMIT)) == list(range(6))


# Administration.


def test_health(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("identity_fp32")
    assert client.is_model_ready("identity_fp32", "1")
    assert not client.is_model_ready("nope")
    assert not client.is_model_ready("identity_fp32", "2")


def test_server_metadata_lists_the_extensions(client: Any) -> None:
    facts = client.get_server_metadata()
    assert facts["name"] == "triton"
    assert {"binary_tensor_data", "statistics", "model_configuration"} <= set(facts["extensions"])


def test_model_metadata_has_the_batch_dimension(client: Any) -> None:
    assert client.get_model_metadata("identity_bytes") == {
        "name": "identity_bytes",
        "versions": ["1"],
        "platform": "identity",
        "inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [-1, -1]}],
        "outputs": [{"name": "OUTPUT0", "datatype": "BYTES", "shape": [-1, -1]}],
    }
    assert client.get_model_metadata("flat_bf16", "1")["inputs"][0]["shape"] == [-1]


def test_model_config_is_complete(client: Any) -> None:
    config = client.get_model_config("identity_bf16")
    assert config["max_batch_size"] == MAX_BATCH_SIZE
    assert config["input"][0]["data_type"] == "TYPE_BF16"
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert "dynamic_batching" in config
    assert "dynamic_batching" not in client.get_model_config("flat_bf16", "1")


def test_statistics_count_requests(client: Any) -> None:
    def counts() -> tuple[int, int, int]:
        (one,) = client.get_inference_statistics("identity_uint16")["model_stats"]
        return (
            one["inference_count"],
            one["inference_stats"]["success"]["count"],
            one["inference_stats"]["fail"]["count"],
        )

    before = counts()
    for rows in (1, 2, 4):
        client.infer("identity_uint16", [client_input("UINT16", np.ones((rows, 2), np.uint16))])
    after = counts()
    assert (after[0] - before[0], after[1] - before[1], after[2] - before[2]) == (7, 3, 0)
    names = {one["name"] for one in client.get_inference_statistics()["model_stats"]}
    assert {"identity_uint16", "flat_fp64"} <= names


# Errors.

ONE = np.ones((1, 1), np.float32)
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
PREFIX = "[request id: <id_unknown>] "
WRONG: list[Any] = [
    pytest.param("nope", "", "FP32", ONE, "404", "Request for unknown model: 'nope' is not found", id="model"),
    pytest.param(
        *("identity_fp32", "7", "FP32", ONE, "404"),
        "Request for unknown model: 'identity_fp32' version 7 is not found",
        id="version",
    ),
    pytest.param(
        *("identity_fp32", "99999999999999999999", "FP32", ONE, "400"),
        "failed to get model version from specified version string '99999999999999999999' (details: stol), version "
        "should be an integral value > 0",
        id="version number",
    ),
    pytest.param(
        *("identity_fp32", "", "INT32", np.ones((1, 1), np.int32), "400"),
        f"{PREFIX}inference input 'INPUT0' data-type is 'INT32', but model 'identity_fp32' expects 'FP32'",
        id="datatype",
        marks=pytest.mark.rows("H66"),
    ),
    pytest.param(
        *("identity_fp32", "", "FP32", np.ones((MAX_BATCH_SIZE + 1, 1), np.float32), "400"),
        f"{PREFIX}inference request batch-size must be <= {MAX_BATCH_SIZE} for 'identity_fp32'",
        id="batch size",
        marks=pytest.mark.rows("H65"),
    ),
    pytest.param(
        *("identity_fp32", "", "FP32", np.ones((1, 2, 3), np.float32), "400"),
        f"{PREFIX}unexpected shape for input 'INPUT0' for model 'identity_fp32'. Expected [-1,-1], got [1,2,3]. {NOTE}",
        id="shape",
        marks=pytest.mark.rows("H67"),
    ),
    pytest.param(
        *("flat_fp32", "", "FP32", np.ones((1, 2), np.float32), "400"),
        f"{PREFIX}unexpected shape for input 'INPUT0' for model 'flat_fp32'. Expected [-1], got [1,2]. ",
        id="shape without batching",
        marks=pytest.mark.rows("H67"),
    ),
]


@pytest.mark.parametrize(("model", "version", "datatype", "array", "status", "text"), WRONG)
def test_bad_request_raises_tritons_text_and_the_connection_goes_on(
    server: Serving, model: str, version: str, datatype: str, array: Array, status: str, text: str
) -> None:
    own = sync.InferenceServerClient(server.http_url, concurrency=1, network_timeout=LIMIT)
    try:
        with pytest.raises(InferenceServerException) as caught:
            own.infer(model, [client_input(datatype, array)], model_version=version)
        assert (caught.value.status(), caught.value.message()) == (status, text)
        assert_same(own.infer("identity_fp32", [client_input("FP32", ONE)]).as_numpy("OUTPUT0"), ONE)
    finally:
        own.close()


@pytest.mark.rows("H60")
def test_missing_input_is_named(client: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("identity_fp32", [], request_id="r1")
    assert caught.value.message() == (
        "[request id: r1] expected 1 inputs but got 0 inputs for model 'identity_fp32'. Got input(s) [], but missing "
        "required input(s) ['INPUT0']. Please provide all required input(s)."
    )


@pytest.mark.rows("H62")
def test_unknown_input_is_named(client: Any) -> None:
    asked = sync.InferInput("X", [1, 1], "FP32")
    asked.set_data_from_numpy(ONE)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("identity_fp32", [asked])
    assert caught.value.message() == "unexpected inference input 'X' for model 'identity_fp32'"


def test_unknown_output_is_named(client: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("identity_fp32", [client_input("FP32", ONE)], outputs=[sync.InferRequestedOutput("X")])
    assert caught.value.message() == "unexpected inference output 'X' for model 'identity_fp32'"


def test_error_of_a_pending_request_is_raised_for_it_alone(client: Any) -> None:
    good = client.async_infer("identity_fp32", [client_input("FP32", ONE)])
    bad = client.async_infer("nope", [client_input("FP32", ONE)])
    with pytest.raises(InferenceServerException, match="unknown model: 'nope'"):
        bad.get_result(timeout=LIMIT)
    assert_same(good.get_result(timeout=LIMIT).as_numpy("OUTPUT0"), ONE)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda c: c.get_model_metadata("nope"), "Request for unknown model: 'nope' is not found"),
        (lambda c: c.get_model_config("nope"), "Request for unknown model: 'nope' is not found"),
        (lambda c: c.get_inference_statistics("nope"), "requested model 'nope' is not available"),
        (
            lambda c: c.get_inference_statistics("flat_bool", "3"),
            "requested model version is not available for model 'flat_bool'",
        ),
    ],
)
def test_query_of_an_unknown_model_raises_tritons_text(client: Any, ask: Any, text: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(client)
    assert caught.value.message() == text


# The asyncio client.


def with_aio(server: Serving, talk: Any) -> None:
    async def run() -> None:
        async with aio.InferenceServerClient(server.http_url) as client:
            await asyncio.wait_for(talk(client), LIMIT)

    asyncio.run(run())


def test_aio_client_sends_every_datatype(server: Serving) -> None:
    async def talk(client: Any) -> None:
        for datatype in DATATYPES:
            array = values(datatype).reshape(1, 6)
            asked = [client_input(datatype, array, client=aio)]
            result = await client.infer(f"identity_{datatype.lower()}", asked, outputs=[output(client=aio)])
            assert_same(result.as_numpy("OUTPUT0"), array)

    with_aio(server, talk)


def test_aio_client_sends_many_requests_at_once(server: Serving) -> None:
    async def one(client: Any, number: int) -> None:
        array = np.full((2, 2), number, np.int64)
        asked = [client_input("INT64", array, client=aio)]
        result = await client.infer("identity_int64", asked, request_id=str(number))
        assert result.get_response()["id"] == str(number)
        assert_same(result.as_numpy("OUTPUT0"), array)

    async def talk(client: Any) -> None:
        await asyncio.gather(*(one(client, number) for number in range(64)))

    with_aio(server, talk)


def test_aio_client_queries_server_and_models(server: Serving) -> None:
    async def talk(client: Any) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("flat_fp32")
        assert not await client.is_model_ready("nope")
        assert (await client.get_server_metadata())["name"] == "triton"
        assert (await client.get_model_metadata("flat_fp32"))["name"] == "flat_fp32"
        assert (await client.get_model_config("flat_fp32"))["backend"] == "identity"
        assert (await client.get_inference_statistics("flat_fp32"))["model_stats"][0]["name"] == "flat_fp32"

    with_aio(server, talk)


def test_aio_client_raises_tritons_text(server: Serving) -> None:
    async def talk(client: Any) -> None:
        with pytest.raises(InferenceServerException) as caught:
            await client.infer("nope", [client_input("FP32", ONE, client=aio)])
        assert (caught.value.status(), caught.value.message()) == (
            "404",
            "Request for unknown model: 'nope' is not found",
        )
        result = await client.infer("identity_fp32", [client_input("FP32", ONE, client=aio)])
        assert_same(result.as_numpy("OUTPUT0"), ONE)

    with_aio(server, talk)


def test_aio_client_that_gives_up_does_no_harm(server: Serving) -> None:
    async def talk(client: Any) -> None:
        tasks = [
            asyncio.ensure_future(client.infer("identity_fp32", [client_input("FP32", ONE, client=aio)]))
            for _ in range(20)
        ]
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for result in done[1::2]:
            assert not isinstance(result, BaseException)
            assert_same(result.as_numpy("OUTPUT0"), ONE)

    with_aio(server, talk)
