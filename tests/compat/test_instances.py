"""A running server with instances that run at the same time, that are passive, or that wait for resources of others."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.compat.serving import Serving

LIMIT = 60.0
FLAGS = ("--rate-limit=execution_count", "--rate-limit-resource=R:2")

_MEETS = """import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        \"\"\"Each end of a pipe is opened when the other end is: so neither is alone.\"\"\"
        [request] = requests
        end = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0]
        os.close(os.open(f"{self.folder}/pipe", os.O_WRONLY if end else os.O_RDONLY))
        found = np.array([os.getpid(), int(os.environ.get("OMP_NUM_THREADS", "0"))], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", found)])]
"""
_CALLS = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        call = pb_utils.InferenceRequest(
            model_name="inner",
            inputs=[pb_utils.get_input_tensor_by_name(request, "INPUT0")],
            requested_output_names=["OUTPUT0"],
        )
        answer = call.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return pb_utils.InferenceResponse(answer.output_tensors())
"""


_CALLS_WHEN_TOLD = _CALLS.replace(
    "import numpy",
    "import os\nimport time\n\nimport numpy",
).replace(
    "    def execute(self, requests):",
    """    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        open(f"{self.folder}/begun", "w").close()
        while not os.path.exists(f"{self.folder}/go"):
            time.sleep(0.01)""",
)


def _write(repository: Path, name: str, group: str, code: str | None = None, more: str = "") -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    if code is not None:
        (version / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(
        f'backend: "{"identity" if code is None else "python"}"\n'
        'input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }\n'
        'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }\n'
        f"instance_group {{ kind: KIND_CPU {group} }}\n{more}"
    )


def _needing(count: int) -> str:
    return f'rate_limiter {{ resources {{ name: "R" count: {count} }} }}'


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("instances")
    models = folder / "models"
    _write(models, "meets", "count: 2", _MEETS)
    _write(models, "told", "count: 2", _MEETS, 'parameters { key: "CPU_THREADS" value { string_value: "3" } }')
    for name in ("meets", "told"):
        os.mkfifo(models / name / "pipe")
    _write(models, "passive", "passive: true")
    _write(models, "inner", _needing(1))
    _write(models, "outer", _needing(1), _CALLS)
    _write(models, "greedy", _needing(2), _CALLS)
    _write(models, "large", _needing(2))
    _write(models, "slow_outer", _needing(1), _CALLS_WHEN_TOLD)
    beside = "count: 1 } instance_group { kind: KIND_CPU passive: true"
    _write(models, "itself", beside, _CALLS.replace('"inner"', '"itself"'))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        started = Serving(models, folder / "server.log", *FLAGS)
    with started as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def infer(serving: Serving, model: str, value: int = 7) -> list[int] | str:
    """The output, or the error."""
    document = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [value]}]}
    url = f"http://{serving.http_url}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(url, json.dumps(document).encode(), LIMIT) as answer:
            return [int(value) for value in json.load(answer)["outputs"][0]["data"]]
    except urllib.error.HTTPError as error:
        return str(json.load(error)["error"])


@pytest.mark.rows("R53", "S2", "D11")
@pytest.mark.parametrize("model", ["meets", "told"])
def test_instances_of_a_model_run_at_the_same_time_and_share_the_cores(serving: Serving, model: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda end: infer(serving, model, end), (0, 1)))
    (one, threads), (other, _) = [answer for answer in found if isinstance(answer, list)]
    assert one != other
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert threads == (3 if model == "told" else max(1, cores // 2))


def test_model_of_passive_instances_refuses_and_the_server_lives(serving: Serving) -> None:
    answer = infer(serving, "passive")
    assert str(answer).endswith("all instances of model 'passive' are passive and take no requests")
    assert infer(serving, "inner") == [7]


@pytest.mark.rows("D14")
def test_passive_instance_does_not_answer_the_calls_of_its_model_to_itself(serving: Serving) -> None:
    assert "The call would wait for ever" in str(infer(serving, "itself"))


def test_call_to_a_model_whose_resource_is_free_is_answered(serving: Serving) -> None:
    assert infer(serving, "outer") == [7]


@pytest.mark.rows("D14")
def test_call_to_a_model_that_needs_what_the_caller_has_gets_an_error(serving: Serving) -> None:
    """Triton waits forever."""
    answer = infer(serving, "greedy")
    assert isinstance(answer, str)
    assert "The call would wait for ever" in answer
    assert infer(serving, "outer") == [7]


def test_call_overtakes_a_model_that_waits_for_the_caller(serving: Serving) -> None:
    """`slow_outer` holds one of two resources. `large` needs both and is first in the queue. The called model needs the
    one that is left."""
    folder = serving.log.parent / "models" / "slow_outer"
    with ThreadPoolExecutor(2) as pool:
        caller = pool.submit(infer, serving, "slow_outer")
        serving.until((folder / "begun").exists, "did not run the caller")
        large = pool.submit(infer, serving, "large")
        serving.until(lambda: serving.pending("large") == 1, "did not queue")
        (folder / "go").touch()
        assert caller.result(LIMIT) == [7]
        assert large.result(LIMIT) == [7]
