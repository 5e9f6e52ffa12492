"""Iterative requests, which run until their model finishes them, beside others that join and leave (S72, P49): in a
worker and in the server's process, with one answer and with many."""

import json
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving, write_model

PATIENCE = 30.0  # seconds

_HEAD = """import json, os, time
import numpy as np
import triton_python_backend_utils as pb_utils

AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


class TritonPythonModel:
    def initialize(self, args):
        self.left = {}
        self.iterative = "sequence_batching" in json.loads(args["model_config"])
        self.log = open(os.path.join(args["model_repository"], "log"), "a")

    def steps_left(self, request):
        given = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0, 0])
        key = request.correlation_id() or request
        left = self.left.get(key, given)
        self.left[key] = left - 1
        return left

    def note(self, requests):
        time.sleep(0.002)
        self.log.write(json.dumps([[r.request_id(), r.correlation_id(), r.flags()] for r in requests]) + "\\n")
        self.log.flush()


def response(number):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([[number]], np.int32))])
"""

_SINGLE = (
    _HEAD
    + """
def execute(self, requests):
    self.note(requests)
    answers = []
    for request in requests:
        if self.iterative and not request.correlation_id():  # a row of no sequence
            answers.append(None)
            continue
        left = self.steps_left(request)
        if left < 0:
            request.set_release_flags(AGAIN)
            answers.append(response(left))
            continue
        if left:
            request.set_release_flags(AGAIN)
        answers.append(None if left else response(7))
    return answers


TritonPythonModel.execute = execute
"""
)
_MANY = (
    _HEAD
    + """
def execute(self, requests):
    self.note(requests)
    for request in requests:
        if self.iterative and not request.correlation_id():
            continue
        left = self.steps_left(request)
        sender = request.get_response_sender()
        sender.send(response(left))
        if left:
            request.set_release_flags(AGAIN)
        else:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


TritonPythonModel.execute = execute
"""
)
_IN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }\n'
_DECOUPLED = "model_transaction_policy { decoupled: true }\n"
_CANDIDATES = "oldest { max_candidate_sequences: 4 }"


def _batching(strategy: str) -> str:
    return f"sequence_batching {{ {strategy} iterative_sequence: true }}\n"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("iterative")
    repository = folder / "models"
    models = {
        "single": (_SINGLE, _batching(_CANDIDATES)),
        "single_direct": (_SINGLE, _batching("direct { }")),
        "single_inside": (_SINGLE, _batching(_CANDIDATES) + _IN_PROCESS),
        "many": (_MANY, _batching(_CANDIDATES) + _DECOUPLED),
        "many_inside": (_MANY, _batching("direct { }") + _DECOUPLED + _IN_PROCESS),
        "once": (_SINGLE, ""),
        "once_inside": (_SINGLE, _IN_PROCESS),
        "once_many": (_MANY, _DECOUPLED),
        "once_many_inside": (_MANY, _DECOUPLED + _IN_PROCESS),
    }
    for name, (code, more) in models.items():
        version = write_model(repository, name, "INT32", backend="python", max_batch_size=4, more=more)
        (version / "model.py").write_text(code)
    with Serving(repository, folder / "server.log") as serving:
        yield serving.wait_until_live()
        assert serving.stop() == 0, serving.log_text()[-3000:]


def _input(value: int) -> Any:
    tensor = triton.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return [tensor]


def _log(serving: Serving, model: str) -> Any:
    repository = serving.log.parent / "models"
    return [json.loads(line) for line in (repository / model / "log").read_text().splitlines()]


@pytest.mark.rows("S72", "P49")
@pytest.mark.parametrize("model", ["single", "single_direct", "single_inside"])
def test_requests_join_and_leave(serving: Serving, model: str) -> None:
    def one(steps: int) -> int:
        with triton.InferenceServerClient(serving.grpc_url) as client:
            answer = client.infer(model, _input(steps), request_id=f"r{steps}", client_timeout=PATIENCE)
        return int(answer.as_numpy("OUTPUT0")[0, 0])

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(one, range(12))) == [7] * 12
    batches = _log(serving, model)
    runs: dict[str, list[Any]] = {}
    for request, sequence, flags in [row for batch in batches for row in batch if row[0]]:
        runs.setdefault(request, []).append((sequence, flags))
    for steps in range(12):
        sequences, flags = zip(*runs[f"r{steps}"], strict=True)
        assert len(set(sequences)) == 1
        assert flags == (1, *[0] * steps)
    assert {sequence for run in runs.values() for sequence, _ in run} == set(range(1, 13))
    assert len(batches) < sum(map(len, runs.values()))  # some ran together


@pytest.mark.rows("S72", "P49")
@pytest.mark.parametrize("model", ["many", "many_inside"])
def test_requests_with_an_answer_for_each_run(serving: Serving, model: str) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with triton.InferenceServerClient(serving.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for steps in (3, 0, 5):
            client.async_stream_infer(model, _input(steps), request_id=str(steps))
        found: dict[str, list[int]] = {}
        for _ in range(4 + 1 + 6):
            result, error = answers.get(timeout=PATIENCE)
            assert error is None
            found.setdefault(result.get_response().id, []).append(int(result.as_numpy("OUTPUT0")[0, 0]))
        client.stop_stream()
    assert found == {"3": [3, 2, 1, 0], "0": [0], "5": [5, 4, 3, 2, 1, 0]}


@pytest.mark.rows("P49")
@pytest.mark.parametrize("model", ["single", "single_inside"])
def test_answer_of_a_request_that_runs_again(serving: Serving, model: str) -> None:
    with (
        triton.InferenceServerClient(serving.grpc_url) as client,
        pytest.raises(InferenceServerException, match="Expected a None object in the execute function return list for"),
    ):
        client.infer(model, _input(-1), client_timeout=PATIENCE)


@pytest.mark.rows("S72", "P49")
@pytest.mark.parametrize("model", ["once", "once_inside"])
def test_model_that_is_not_iterative(serving: Serving, model: str) -> None:
    text = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to"
    with triton.InferenceServerClient(serving.grpc_url) as client:
        with pytest.raises(InferenceServerException, match=text):
            client.infer(model, _input(1), client_timeout=PATIENCE)
        answer = client.infer(model, _input(0), client_timeout=PATIENCE)
    assert answer.as_numpy("OUTPUT0").tolist() == [[7]]


@pytest.mark.parametrize("model", ["once_many", "once_many_inside"])
def test_model_with_many_answers_that_is_not_iterative(serving: Serving, model: str) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with triton.InferenceServerClient(serving.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(model, _input(1))
        first, second = (answers.get(timeout=PATIENCE) for _ in range(2))
        client.stop_stream()
    assert first[0].as_numpy("OUTPUT0").tolist() == [[1]]
    assert "Request is released with" in str(second[1])
