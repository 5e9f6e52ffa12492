"""Ensembles of Python models with real clients: streams of decoupled members, clients that leave, slow readers. Nothing
may be left running."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving

LIMIT = 20.0
_COUNTING = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for i in range(int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])):
                if request.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([i], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_ADDING = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() + 100)]
            )
            for request in requests
        ]
"""
_PICKY = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("not this one")
"""
_ASKING = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy()) for r in requests]

    def _answer(self, value):
        if value[0]:
            inputs = [pb_utils.Tensor("INPUT0", value - 1)]
            call = pb_utils.InferenceRequest(model_name="ring", requested_output_names=["OUTPUT0"], inputs=inputs)
            return call.exec()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)])
"""
_TENSORS = """
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
"""
_STEP = """step {{ model_name: "{}" model_version: -1
  input_map {{ key: "INPUT0" value: "{}" }} output_map {{ key: "OUTPUT0" value: "{}" }} }}
"""


def _write(repository: Path) -> None:
    python = f'backend: "python"\n{_TENSORS}instance_group {{ kind: KIND_CPU }}\n'
    steps = _STEP.format("counting", "INPUT0", "x") + _STEP.format("adding", "x", "OUTPUT0")
    fails = _STEP.format("adding", "INPUT0", "x") + _STEP.format("picky", "x", "OUTPUT0")
    ring = _STEP.format("asking", "INPUT0", "x") + _STEP.format("adding", "x", "OUTPUT0")
    for name, config, code in (
        ("asking", python, _ASKING),
        ("ring", f'platform: "ensemble"\n{_TENSORS}ensemble_scheduling {{ {ring} }}\n', ""),
        ("counting", python + "model_transaction_policy { decoupled: true }\n", _COUNTING),
        ("adding", python, _ADDING),
        ("picky", python, _PICKY),
        ("fails", f'platform: "ensemble"\n{_TENSORS}ensemble_scheduling {{ {fails} }}\n', ""),
        ("both", f'platform: "ensemble"\n{_TENSORS}ensemble_scheduling {{ {steps} }}\n', ""),
        ("few", f'platform: "ensemble"\n{_TENSORS}ensemble_scheduling {{ {steps} max_inflight_requests: 2 }}\n', ""),
    ):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if code:
            (repository / name / "1" / "model.py").write_text(code)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("ensembles")
    _write(folder / "models")
    with Serving(folder / "models", folder / "server.log") as serving:
        serving.wait_until_live()
        yield serving
        assert serving.stop() == 0


@pytest.fixture(scope="module")
def client(serving: Serving) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(serving.grpc_url) as found:
        yield found


def _input(count: int) -> list[Any]:
    tensor = grpcclient.InferInput("INPUT0", [1], "INT32")
    tensor.set_data_from_numpy(np.array([count], np.int32))
    return [tensor]


def _begin(client: grpcclient.InferenceServerClient) -> Queue[tuple[Any, Any]]:
    said: Queue[tuple[Any, Any]] = Queue()
    client.start_stream(lambda result, error: said.put((result, error)))
    return said


def _until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


def _done(client: grpcclient.InferenceServerClient, model: str) -> int:
    counts = client.get_inference_statistics(model).model_stats[0].inference_stats
    return int(counts.success.count + counts.fail.count)


@pytest.mark.rows("S89", "S90", "S96")
@pytest.mark.parametrize("model", ["both", "few"])
def test_stream_of_a_decoupled_member_comes_whole_and_in_order(
    client: grpcclient.InferenceServerClient, model: str
) -> None:
    said = _begin(client)
    for name in ("a", "b"):
        client.async_stream_infer(model, _input(300), request_id=name, enable_empty_final_response=True)
    heard: dict[str, list[int]] = {"a": [], "b": []}
    left = {"a", "b"}
    while left:
        result, error = said.get(timeout=LIMIT)
        assert error is None
        response = result.get_response()
        if response.outputs:
            heard[response.id] += result.as_numpy("OUTPUT0").tolist()
        if response.parameters["triton_final_response"].bool_param:
            left.remove(response.id)
    client.stop_stream()
    assert heard == {name: list(range(100, 400)) for name in ("a", "b")}


@pytest.mark.rows("S94")
def test_client_that_leaves_a_stream_stops_the_members(client: grpcclient.InferenceServerClient) -> None:
    before = {name: _done(client, name) for name in ("both", "counting")}
    said = _begin(client)
    client.async_stream_infer("both", _input(100_000_000))
    assert said.get(timeout=LIMIT)[1] is None
    client.stop_stream(cancel_requests=True)
    for name, number in before.items():
        _until(lambda name=name, number=number: _done(client, name) > number)  # type: ignore[misc]
    answer = client.infer("adding", _input(1)).as_numpy("OUTPUT0")
    assert answer is not None
    assert answer.tolist() == [101]


def _failures(serving: Serving) -> dict[tuple[str, str], int]:
    """The failed requests by model and reason, without zeros."""
    found = {}
    for line in serving.metrics().splitlines():
        if line.startswith("nv_inference_request_failure{") and not line.endswith(" 0"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            found[labels["model"], labels["reason"]] = int(line.split()[-1])
    return found


@pytest.mark.rows("S88", "S92")
def test_failure_counts_once_for_the_member_and_twice_for_the_ensemble(
    client: grpcclient.InferenceServerClient, serving: Serving
) -> None:
    before = _failures(serving)
    with pytest.raises(InferenceServerException, match=r"in ensemble 'fails', .*not this one"):
        client.infer("fails", _input(1), client_timeout=LIMIT)
    more = {key: count - before.get(key, 0) for key, count in _failures(serving).items()}
    assert {key: count for key, count in more.items() if count} == {("picky", "BACKEND"): 1, ("fails", "OTHER"): 2}


def test_model_that_waits_for_itself_through_an_ensemble_gets_an_error(
    client: grpcclient.InferenceServerClient,
) -> None:
    """The model's only instance calls an ensemble whose first step is the model itself. Triton never answers."""
    answer = client.infer("ring", _input(0)).as_numpy("OUTPUT0")
    assert answer is not None
    assert answer.tolist() == [100]
    with pytest.raises(InferenceServerException, match="wait"):
        client.infer("asking", _input(1), client_timeout=LIMIT)
    with pytest.raises(InferenceServerException, match=r"in ensemble 'ring', .*wait"):
        client.infer("ring", _input(1), client_timeout=LIMIT)
