"""Sequences with clients: over every protocol, through models that call models, and with clients that misbehave.

The models add up their inputs by correlation id, from START on.
"""

import queue
import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.backends import onnx_models
from tests.compat.serving import Serving, write_model

IDLE = 60.0  # seconds that a sequence may wait for its next request: longer than the machine ever stalls
SHORT = 0.6  # the idle time of models whose sequences must end
MANY = 10_000
PATIENCE = 60.0  # seconds

_MODEL = """import os
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        if not pb_utils.get_input_tensor_by_name(request, "READY").as_numpy()[0, 0]:
            return pb_utils.InferenceResponse([])
        if pb_utils.get_input_tensor_by_name(request, "START").as_numpy()[0, 0]:
            self.sums[request.correlation_id()] = 0
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        if given[0, 0] == 666:
            raise ValueError("an evil number")
        if given[0, 0] == 667:
            os._exit(1)
        self.sums[request.correlation_id()] += int(given.sum())
        found = np.array([[self.sums[request.correlation_id()]]], np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", found)])
"""

_CALLING = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        inner = pb_utils.InferenceRequest(
            model_name="sums",
            correlation_id=request.correlation_id(),
            flags=request.flags(),
            inputs=[pb_utils.get_input_tensor_by_name(request, "INPUT0")],
            requested_output_names=["OUTPUT0"],
        )
        answer = inner.exec()
        return pb_utils.InferenceResponse(answer.output_tensors(), answer.error())
"""

_NAMED = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value, name = (pb_utils.get_input_tensor_by_name(request, tensor).as_numpy() for tensor in ("INPUT0", "CORRID"))
        assert name.shape == value.shape and request.correlation_id().encode() == name[0, 0]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value + np.int32(name[0, 0].split(b"-")[1]))])
"""

_CONTROLS = """control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] }
]"""


_ONNX_CONFIG = """
    backend: "onnxruntime" max_batch_size: 4
    input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
    output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 5 ] } ]
    instance_group [ { kind: KIND_CPU count: 1 } ]
    sequence_batching {
      direct { }
      max_sequence_idle_microseconds: 60000000
      control_input [
        { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
        { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } ] },
        { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } ] }
      ]
    }
"""


def _onnx() -> bytes:
    """A graph whose output rows have the values of their input row, and the number of ready rows up to it."""
    nodes = [
        helper.make_node("Cast", ["CORRID"], ["id"], to=TensorProto.FLOAT),
        helper.make_node("CumSum", ["READY", "axis"], ["before"]),
        helper.make_node("Concat", ["INPUT", "START", "READY", "id", "before"], ["OUTPUT"], axis=1),
    ]
    inputs = [onnx_models.value(name, "FP32", ["n", 1]) for name in ("INPUT", "START", "READY")]
    return onnx_models.model(
        nodes,
        [*inputs, onnx_models.value("CORRID", "INT64", ["n", 1])],
        [onnx_models.value("OUTPUT", "FP32", ["n", 5])],
        {"axis": np.array(0, np.int64)},
    )


_ENSEMBLE = """platform: "ensemble"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step [ {
    model_name: "sums" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
} ] }
"""


def _batching(strategy: str, seconds: float) -> str:
    idle = f"max_sequence_idle_microseconds: {int(seconds * 1e6)}"
    return f"sequence_batching {{ {strategy} {idle} {_CONTROLS} }}"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("sequences")
    repository = folder / "models"
    for name, strategy, idle in (
        ("sums", "oldest { max_candidate_sequences: 64 }", IDLE),
        ("rows", "direct { }", IDLE),
        ("many_left", "oldest { max_candidate_sequences: 64 }", SHORT),
        ("rows_left", "direct { }", SHORT),
    ):
        more = _batching(strategy, idle)
        version = write_model(repository, name, "INT32", backend="python", max_batch_size=4, more=more)
        (version / "model.py").write_text(_MODEL)
    calling = write_model(repository, "calling", "INT32", backend="python", max_batch_size=4)
    (calling / "model.py").write_text(_CALLING)
    text = 'control_input [ { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] } ]'
    named = write_model(
        repository, "named", "INT32", backend="python", max_batch_size=4, more=f"sequence_batching {{ {text} }}"
    )
    (named / "model.py").write_text(_NAMED)
    (repository / "onnx" / "1").mkdir(parents=True)
    (repository / "onnx" / "config.pbtxt").write_text(_ONNX_CONFIG)
    (repository / "onnx" / "1" / "model.onnx").write_bytes(_onnx())
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(_ENSEMBLE)
    patience = "--backend-config=python,restart-wait-seconds=30"  # on a busy machine a start takes longer than usual
    with Serving(repository, folder / "server.log", patience) as serving:
        yield serving.wait_until_live()
        assert serving.stop() == 0, serving.log_text()[-3000:]


def _input(kind: Any, value: int) -> Any:
    tensor = kind("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return [tensor]


Ask = Callable[..., int]
"""Model, value, sequence, start, end."""


def _http(serving: Serving) -> Generator[Ask, None, None]:
    with triton_http.InferenceServerClient(serving.http_url) as client:

        def ask(model: str, value: int, sequence: int | str, start: bool = False, end: bool = False) -> int:
            inputs = _input(triton_http.InferInput, value)
            found = client.infer(model, inputs, sequence_id=sequence, sequence_start=start, sequence_end=end)
            return int(found.as_numpy("OUTPUT0")[0, 0])

        yield ask


def _unary(serving: Serving) -> Generator[Ask, None, None]:
    with triton_grpc.InferenceServerClient(serving.grpc_url) as client:

        def ask(model: str, value: int, sequence: int | str, start: bool = False, end: bool = False) -> int:
            inputs = _input(triton_grpc.InferInput, value)
            found = client.infer(
                model, inputs, sequence_id=sequence, sequence_start=start, sequence_end=end, client_timeout=PATIENCE
            )
            return int(found.as_numpy("OUTPUT0")[0, 0])

        yield ask


def _stream(serving: Serving) -> Generator[Ask, None, None]:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with triton_grpc.InferenceServerClient(serving.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))

        def ask(model: str, value: int, sequence: int | str, start: bool = False, end: bool = False) -> int:
            inputs = _input(triton_grpc.InferInput, value)
            client.async_stream_infer(model, inputs, sequence_id=sequence, sequence_start=start, sequence_end=end)
            result, error = answers.get(timeout=PATIENCE)
            if error is not None:
                raise error
            return int(result.as_numpy("OUTPUT0")[0, 0])

        yield ask
        client.stop_stream()


@pytest.fixture(params=[_http, _unary, _stream], ids=["http", "grpc", "stream"])
def ask(request: pytest.FixtureRequest, serving: Serving) -> Iterator[Ask]:
    yield from request.param(serving)


def _sums(ask: Ask, model: str, sequence: int | str, values: Sequence[int]) -> list[int]:
    last = len(values) - 1
    return [ask(model, value, sequence, i == 0, i == last) for i, value in enumerate(values)]


@pytest.mark.rows("S74")
@pytest.mark.parametrize("model", ["sums", "rows", "calling", "ensemble"])
def test_sequence_over_every_protocol_and_through_a_model_that_calls(ask: Ask, model: str) -> None:
    assert _sums(ask, model, 71, [1, 2, 3]) == [1, 3, 6]
    assert _sums(ask, model, "seventy-one", [1, 2, 3]) == [1, 3, 6]
    with pytest.raises(InferenceServerException) as caught:
        ask(model, 1, 71)
    name = "rows" if model == "rows" else "sums"
    assert "must specify the START flag" in str(caught.value)
    assert f"to model '{name}'" in str(caught.value)


@pytest.mark.rows("S59")
def test_model_gets_the_string_id_of_its_sequence(ask: Ask) -> None:
    """In 2.51, a Python model with such a control only answers errors."""
    assert _sums(ask, "named", "grün-7", [1, 2, 3]) == [8, 9, 10]
    with pytest.raises(InferenceServerException, match="data-type is 'UINT64', but model 'named' expects 'BYTES'"):
        ask("named", 1, 7, True, True)


@pytest.mark.rows("S61", "S63")
@pytest.mark.parametrize("model", ["sums", "rows"])
def test_many_sequences_at_once_have_separate_sums(serving: Serving, model: str) -> None:
    chance = random.Random(7)

    def one(sequence: int) -> bool:
        values = [chance.randrange(100) for _ in range(8)]
        with triton_grpc.InferenceServerClient(serving.grpc_url) as client:
            found = []
            for i, value in enumerate(values):
                time.sleep(chance.random() * 0.01)
                answer = client.infer(
                    model,
                    _input(triton_grpc.InferInput, value),
                    sequence_id=sequence,
                    sequence_start=i == 0,
                    sequence_end=i == 7,
                )
                found.append(int(answer.as_numpy("OUTPUT0")[0, 0]))
        return bool(found == np.cumsum(values).tolist())

    with ThreadPoolExecutor(30) as pool:
        assert all(pool.map(one, range(1, 31)))


@pytest.mark.parametrize("model", ["sums", "rows"])
def test_model_that_fails_in_the_middle(serving: Serving, model: str) -> None:
    ask = next(asks := _unary(serving))
    assert ask(model, 1, 5, True) == 1
    assert ask(model, 1, 6, True) == 1
    with pytest.raises(InferenceServerException, match="an evil number"):
        ask(model, 666, 5)
    assert ask(model, 2, 5) == 3
    assert ask(model, 2, 6, end=True) == 3
    with pytest.raises(InferenceServerException, match="is not healthy"):
        ask(model, 667, 5)
    assert _sums(ask, model, 8, [4, 5]) == [4, 9]
    asks.close()


@pytest.mark.rows("S56")
def test_slots_of_a_client_that_dies_are_released(serving: Serving) -> None:
    channel = grpc.insecure_channel(f"{serving.grpc_url}")
    stream: Any = channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        service_pb2.ModelInferRequest.SerializeToString,
        service_pb2.ModelStreamInferResponse.FromString,
    )
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    answers = stream(iter(requests.get, None))
    for sequence in range(1, 5):
        requests.put(_request("rows_left", sequence, start=True))
    assert [next(answers).error_message for _ in range(4)] == [""] * 4
    channel.close()
    ask = next(asks := _unary(serving))
    assert ask("rows_left", 1, 9, True, True) == 1
    asks.close()


def _request(model: str, sequence: int, start: bool = False, timeout: int = 0) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=str(sequence))
    request.parameters["sequence_id"].int64_param = sequence
    request.parameters["sequence_start"].bool_param = start
    if timeout:
        request.parameters["timeout"].int64_param = timeout
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1]).contents.int_contents.append(1)
    return request


@pytest.mark.rows("S57")
def test_sequences_that_are_begun_and_never_ended(serving: Serving) -> None:
    """Each is answered, at the latest at its timeout. Afterwards there is room as before."""
    with grpc.insecure_channel(f"{serving.grpc_url}") as channel:
        stream: Any = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelStreamInferResponse.FromString,
        )
        # Far longer than the 64 that get a slot at once wait for their batch, on a busy machine too.
        timeout = 2_000_000
        requests = [_request("many_left", number, start=True, timeout=timeout) for number in range(100, 100 + MANY)]
        texts = [answer.error_message for answer in stream(iter(requests), timeout=PATIENCE)]
    expired = "timeout of the corresponding sequence has been expired"
    assert len(texts) == MANY
    assert set(texts) == {"", expired}
    assert texts.count("") >= 64
    ask = next(asks := _unary(serving))
    assert ask("many_left", 1, 7, True, True) == 1
    asks.close()


@pytest.mark.rows("S73")
def test_sequences_stay_while_instances_come_and_go(tmp_path: Path) -> None:
    version = write_model(
        tmp_path / "models",
        "sums",
        "INT32",
        backend="python",
        max_batch_size=4,
        more="sequence_batching { oldest { } max_sequence_idle_microseconds: 60000000 " + _CONTROLS + " }",
    )
    (version / "model.py").write_text(_MODEL)
    config = version.parent / "config.pbtxt"
    one = config.read_text()
    flags = ("--model-control-mode=explicit", "--load-model=sums")
    with Serving(tmp_path / "models", tmp_path / "server.log", *flags) as serving:
        ask = next(asks := _unary(serving.wait_until_live()))
        assert ask("sums", 1, 1, True) == 1
        with triton_grpc.InferenceServerClient(serving.grpc_url) as client:
            config.write_text(one.replace("KIND_CPU }", "KIND_CPU count: 2 }"))
            client.load_model("sums")
            assert [ask("sums", 1, 1), ask("sums", 1, 2, True), ask("sums", 1, 3, True)] == [2, 1, 1]
            config.write_text(one)
            client.load_model("sums")
        assert [ask("sums", 1, sequence) for sequence in (1, 2, 3)] == [3, 2, 2]
        assert [ask("sums", 1, sequence, end=True) for sequence in (1, 2, 3)] == [4, 3, 3]
        assert _sums(ask, "sums", 4, [1, 1]) == [1, 2]
        asks.close()


@pytest.mark.rows("S58", "S61")
def test_rows_of_an_onnx_model(serving: Serving) -> None:
    found = []
    with triton_grpc.InferenceServerClient(serving.grpc_url) as client:
        for value, (sequence, flags) in enumerate(
            [(7, "S"), (8, "S"), (9, "S"), (9, ""), (7, "E"), (8, "E"), (9, "E")]
        ):
            tensor = triton_grpc.InferInput("INPUT", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.array([[value]], np.float32))
            start, end = "S" in flags, "E" in flags
            answer = client.infer("onnx", [tensor], sequence_id=sequence, sequence_start=start, sequence_end=end)
            found.append(answer.as_numpy("OUTPUT")[0].tolist())
        sizes = client.get_inference_statistics("onnx").model_stats[0].batch_stats
        assert {each.batch_size: each.compute_infer.count for each in sizes} == {1: 2, 2: 2, 3: 3}
    expected = [[0, 1, 1, 7, 1], [1, 1, 1, 8, 1], [2, 1, 1, 9, 1], [3, 0, 1, 9, 1]]
    assert found == [*expected, [4, 0, 1, 7, 1], [5, 0, 1, 8, 1], [6, 0, 1, 9, 1]]
