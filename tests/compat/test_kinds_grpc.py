"""The kinds of example clients that only the gRPC client has (`kinds.KINDS`): streams, cancellation, channels, the
stub."""

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as module
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.compat.kinds import LIMIT, ONE, ONES, SIXTEEN, TIMES, Kinds

DEADLINE = ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded")


def tensor(name: str, array: Any, datatype: str = "INT32") -> Any:
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def simple() -> list[Any]:
    return [tensor("INPUT0", SIXTEEN), tensor("INPUT1", ONES)]


def check_sum(result: Any) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), SIXTEEN + ONES)


class Answers:
    """A callback that keeps its arguments."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    def __call__(self, result: Any, error: Any) -> None:
        self._queue.put((result, error))

    def result(self) -> Any:
        result, error = self._queue.get(timeout=LIMIT)
        assert error is None, error
        return result

    def error(self) -> tuple[str, str]:
        result, error = self._queue.get(timeout=LIMIT)
        assert result is None
        return error.status(), error.message()


@pytest.fixture
def client(kinds: Kinds) -> Iterator[Any]:
    with module.InferenceServerClient(kinds.serving.grpc_url) as client:
        yield client


STALLED = [tensor("INPUT0", ONE)]

# Calls that are given up.


@pytest.mark.rows("G34")
def test_pending_call_is_cancelled(client: Any, kinds: Kinds) -> None:
    answers = Answers()
    context = client.async_infer("stalls", STALLED, answers, request_id="context")
    kinds.until_stalled("context")
    context.cancel()
    assert answers.error()[0] == "StatusCode.CANCELLED"
    kinds.until_cancelled("context")
    check_sum(client.infer("simple", simple()))


@pytest.mark.rows("G34")
def test_call_with_a_timeout(client: Any, kinds: Kinds) -> None:

    def blocking(seconds: float, request: str) -> tuple[str, str]:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("stalls", STALLED, client_timeout=seconds, request_id=request)
        return caught.value.status(), caught.value.message()

    def later(seconds: float, request: str) -> tuple[str, str]:
        answers = Answers()
        client.async_infer("stalls", STALLED, answers, client_timeout=seconds, request_id=request)
        return answers.error()

    for ask in (blocking, later):
        for seconds in TIMES:
            request = f"timeout {ask.__name__} {seconds}"
            assert ask(seconds, request) == DEADLINE
            if kinds.began(request):
                break
        kinds.until_cancelled(request)
    check_sum(client.infer("simple", simple(), client_timeout=LIMIT))


@pytest.mark.rows("G34")
def test_stream_with_a_timeout(client: Any, kinds: Kinds) -> None:
    """The timeout ends the stream and its requests. The client can open another one."""
    for seconds in TIMES:
        answers, request = Answers(), f"stream timeout {seconds}"
        client.start_stream(answers, stream_timeout=seconds)
        client.async_stream_infer("stalls", STALLED, request_id=request)
        status, words = answers.error()
        assert status == DEADLINE[0]
        assert DEADLINE[1] in words  # "Stream removed (...)" if the server is faster than the client's timer
        client.stop_stream()
        if kinds.began(request):
            break
    kinds.until_cancelled(request)
    client.start_stream(answers)
    client.async_stream_infer("simple", simple())
    check_sum(answers.result())
    client.stop_stream()


@pytest.mark.rows("G34")
def test_stream_is_cancelled(client: Any, kinds: Kinds) -> None:
    client.start_stream(Answers())
    client.async_stream_infer("stalls", STALLED, request_id="stream")
    kinds.until_stalled("stream")
    client.stop_stream(cancel_requests=True)
    kinds.until_cancelled("stream")


# A model that answers often.


@pytest.mark.rows("G27", "G30", "G31")
@pytest.mark.parametrize("empty", [False, True], ids=["no empty final response", "an empty final response"])
def test_repeated_answers(client: Any, empty: bool) -> None:
    values = np.array([4, 2, 0, 1], np.int32)
    answers = Answers()
    client.start_stream(answers)
    given = {"IN": (values, "INT32"), "DELAY": (np.array([1, 2, 3, 4], np.uint32), "UINT32")}
    given["WAIT"] = (np.array([5], np.uint32), "UINT32")
    asked = [tensor(name, array, kind) for name, (array, kind) in given.items()]
    wanted = [module.InferRequestedOutput(name) for name in ("OUT", "IDX")]
    client.async_stream_infer("repeat", asked, outputs=wanted, request_id="r", enable_empty_final_response=empty)
    for index, value in enumerate(values):
        result = answers.result()
        assert (result.as_numpy("OUT").tolist(), result.as_numpy("IDX").tolist()) == ([value], [index])
        assert not result.get_response().parameters["triton_final_response"].bool_param
    if empty:
        last = answers.result().get_response()
        assert last.parameters["triton_final_response"].bool_param
        assert (last.id, list(last.outputs)) == ("r", [])
    client.async_stream_infer("simple", simple())
    check_sum(answers.result())
    client.stop_stream()


# Channels.


def test_channel_arguments(kinds: Kinds) -> None:
    """An argument that the channel does not know, and a maximum size of answers, which the client enforces itself."""
    args = [("grpc.max_receive_message_length", 4096), ("grpc.primary_user_agent", "own"), ("own.argument", 1)]
    with module.InferenceServerClient(kinds.serving.grpc_url, channel_args=args) as client:
        check_sum(client.infer("simple", simple()))
        with pytest.raises(InferenceServerException) as caught:
            client.infer("echo", [tensor("INPUT0", ONE)], parameters={"long": "x" * 5000})
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        check_sum(client.infer("simple", simple()))


def test_keep_alive_options(kinds: Kinds) -> None:
    """The options of the example, which the default flags permit."""
    options = module.KeepAliveOptions(
        keepalive_time_ms=2**31 - 1,
        keepalive_timeout_ms=20000,
        keepalive_permit_without_calls=False,
        http2_max_pings_without_data=2,
    )
    with module.InferenceServerClient(kinds.serving.grpc_url, keepalive_options=options) as client:
        check_sum(client.infer("simple", simple()))


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_stream(client: Any, algorithm: str) -> None:
    answers = Answers()
    client.start_stream(answers, compression_algorithm=algorithm)
    client.async_stream_infer("simple", simple())
    check_sum(answers.result())
    client.stop_stream()


# The stub that protoc makes.


@pytest.mark.rows("G1", "G16", "G22")
def test_stub_calls_every_rpc(kinds: Kinds) -> None:
    with grpc.insecure_channel(kinds.serving.grpc_url) as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(pb.ServerLiveRequest()).live
        assert stub.ServerReady(pb.ServerReadyRequest()).ready
        assert stub.ModelReady(pb.ModelReadyRequest(name="simple", version="1")).ready
        assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "triton"
        assert stub.ModelMetadata(pb.ModelMetadataRequest(name="simple")).platform == "python"
        assert stub.ModelConfig(pb.ModelConfigRequest(name="simple")).config.max_batch_size == 8
        assert stub.ModelStatistics(pb.ModelStatisticsRequest(name="simple")).model_stats[0].name == "simple"
        assert len(stub.RepositoryIndex(pb.RepositoryIndexRequest()).models) == 6
        assert not stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest()).regions
        assert not stub.CudaSharedMemoryStatus(pb.CudaSharedMemoryStatusRequest()).regions
        assert stub.TraceSetting(pb.TraceSettingRequest()).settings["trace_mode"].value == ["triton"]
        assert stub.LogSettings(pb.LogSettingsRequest()).settings["log_format"].string_param == "default"
        request = pb.ModelInferRequest(model_name="simple", id="stub")
        for number, array in enumerate((SIXTEEN, ONES)):
            request.inputs.add(name=f"INPUT{number}", datatype="INT32", shape=[1, 16])
            request.outputs.add(name=f"OUTPUT{number}")
            request.raw_input_contents.append(array.tobytes())
        answer = stub.ModelInfer(request, timeout=LIMIT)
        assert (answer.id, [each.name for each in answer.outputs]) == ("stub", ["OUTPUT0", "OUTPUT1"])
        assert list(answer.raw_output_contents) == [(SIXTEEN + ONES).tobytes(), (SIXTEEN - ONES).tobytes()]
        [streamed] = stub.ModelStreamInfer(iter([request]), timeout=LIMIT)
        assert streamed.infer_response.raw_output_contents == answer.raw_output_contents


@pytest.mark.rows("G6")
def test_answers_as_json(client: Any) -> None:
    """The official client converts messages to JSON: each field has its own name, and 64-bit numbers are strings."""
    answer = client.infer("simple", simple(), request_id="j").get_response(as_json=True)
    assert answer["outputs"][0] == {"name": "OUTPUT0", "datatype": "INT32", "shape": ["1", "16"]}
    stats = client.get_inference_statistics("simple", as_json=True)["model_stats"][0]
    assert int(stats["inference_stats"]["success"]["count"]) >= 1
    assert client.get_trace_settings(as_json=True)["settings"]["trace_rate"] == {"value": ["1000"]}
    assert client.get_log_settings(as_json=True)["settings"]["log_info"] == {"bool_param": True}
    assert client.get_system_shared_memory_status(as_json=True) == {}
