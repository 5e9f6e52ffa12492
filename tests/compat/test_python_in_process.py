"""Python models in the server's own process (parameter `EXECUTION`), through the official clients."""

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, shared_memory

from tests.compat.serving import Serving, processes_with, write_model

LIMIT = 60.0
IN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }\n'
DECOUPLED = IN_PROCESS + "model_transaction_policy { decoupled: true }\n"

_ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor)]) for tensor in tensors]
"""

_COUNT = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for i in range(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0]):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([i], np.int32))]))
                await asyncio.sleep(0)
            sender.send(flags=1)
"""

_WORD = """
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils
import helper

class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])
        self.family = pb_utils.MetricFamily("word_" + helper.WORD, "said", pb_utils.MetricFamily.COUNTER)
        self.said = self.family.Metric()
        self.pool = ThreadPoolExecutor(1)
        self.pool.submit(time.sleep, 3600)

    def execute(self, requests):
        import helper as late
        self.said.increment(len(requests))
        wanted = pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy()[0]
        if wanted == b"exit":
            raise SystemExit(3)
        tensor = pb_utils.Tensor("OUTPUT0", np.array([late.WORD.encode()], object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]

    def finalize(self):
        (self.folder / "finalized").touch()
"""


def write_repository(repository: Path) -> Path:
    def python(name: str, kind: str, source: str, more: str, **files: str) -> None:
        size = 8 if name == "echo" else 0
        version = write_model(repository, name, kind, backend="python", more=more, max_batch_size=size)
        for file, text in {"model": source, **files}.items():
            (version / f"{file}.py").write_text(text)

    python("echo", "FP32", _ECHO, IN_PROCESS + "dynamic_batching { }\n")
    python("count", "INT32", _COUNT, DECOUPLED)
    for word in ("one", "two"):
        python(word, "BYTES", _WORD, IN_PROCESS, helper=f"WORD = '{word}'")
    python("nowhere", "FP32", _ECHO, IN_PROCESS.replace("in_process", "elsewhere"))
    return repository


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The server. When it ends, it leaves behind a model's thread that would run for an hour."""
    folder = tmp_path_factory.mktemp("in_process")
    flags = ["--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--allow-client-shm=true"]
    with Serving(write_repository(folder / "models"), folder / "server.log", *flags) as made:
        yield made.wait_until_live()
        assert made.stop() == 0, made.log_text()[-3000:]


@pytest.fixture
def client(serving: Serving) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(serving.grpc_url) as made:
        yield made


def infer(client: Any, model: str, array: Any, datatype: str, module: Any = grpcclient) -> Any:
    tensor = module.InferInput("INPUT0", array.shape, datatype)
    tensor.set_data_from_numpy(array)
    return client.infer(model, [tensor]).as_numpy("OUTPUT0")


def word(client: Any, model: str, wanted: bytes = b"") -> str:
    text: bytes = infer(client, model, np.array([wanted], object), "BYTES")[0]
    return text.decode()


def test_no_process_is_started(serving: Serving) -> None:
    assert set(processes_with(serving.mark)) == {serving.process.pid}


@pytest.mark.parametrize("columns", [1, 16, 1 << 20])
def test_many_clients_at_once_get_their_own_answers(serving: Serving, columns: int) -> None:
    def ask(i: int) -> bool:
        module: Any = (grpcclient, httpclient)[i % 2]
        url = (serving.grpc_url, serving.http_url)[i % 2]
        array = np.full((1 + i % 3, columns), i, np.float32)
        with module.InferenceServerClient(url) as client:
            return all(np.array_equal(infer(client, "echo", array, "FP32", module), array) for _ in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(16)))


def test_tensors_in_shared_memory(client: Any) -> None:
    array = np.arange(1 << 16, dtype=np.float32).reshape(1, -1)
    handle = shared_memory.create_shared_memory_region("both", "/halimede_in_process", 2 * array.nbytes)
    try:
        shared_memory.set_shared_memory_region(handle, [array])
        client.register_system_shared_memory("both", "/halimede_in_process", 2 * array.nbytes)
        tensor = grpcclient.InferInput("INPUT0", array.shape, "FP32")
        tensor.set_shared_memory("both", array.nbytes)
        output = grpcclient.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("both", array.nbytes, array.nbytes)
        client.infer("echo", [tensor], outputs=[output])
        found = shared_memory.get_contents_as_numpy(handle, np.float32, array.shape, array.nbytes)
        assert np.array_equal(found, array)
        client.unregister_system_shared_memory("both")
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def test_coroutine_streams_to_many_at_once(serving: Serving) -> None:
    def stream(count: int) -> list[int]:
        answers: SimpleQueue[Any] = SimpleQueue()
        with grpcclient.InferenceServerClient(serving.grpc_url) as client:
            client.start_stream(lambda result, error: answers.put(error or result))
            tensor = grpcclient.InferInput("INPUT0", [1], "INT32")
            tensor.set_data_from_numpy(np.array([count], np.int32))
            client.async_stream_infer("count", [tensor], enable_empty_final_response=True)
            found = []
            while (
                not (answer := answers.get(timeout=LIMIT)).get_response().parameters["triton_final_response"].bool_param
            ):
                found.append(int(answer.as_numpy("OUTPUT0")[0]))
        return found

    counts = [0, 1, 500, 20, 300]
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(stream, counts)) == [list(range(count)) for count in counts]


def test_stream_over_http(serving: Serving) -> None:
    url = f"http://{serving.http_url}/v2/models/count/generate_stream"
    with urllib.request.urlopen(url, json.dumps({"INPUT0": 3}).encode(), LIMIT) as answer:
        events = [json.loads(line[6:]) for line in answer.read().decode().split("\n\n") if line]
    assert [event["OUTPUT0"] for event in events if "OUTPUT0" in event] == [0, 1, 2]


def test_models_with_equal_code_share_nothing(client: Any) -> None:
    assert [word(client, model) for model in ("one", "two", "one")] == ["one", "two", "one"]


def test_exit_of_a_model_fails_its_request_only(client: Any) -> None:
    with pytest.raises(
        InferenceServerException, match=r"for model 'one_0_0', message: SystemExit: 3\n\nAt:\n  .*execute"
    ):
        word(client, "one", b"exit")
    assert word(client, "one") == "one"


def test_reload_and_unload(serving: Serving, client: Any) -> None:
    models = serving.log.parent / "models"
    helper = models / "two" / "1" / "helper.py"
    helper.write_text("WORD = 'another'")
    client.load_model("two")
    assert word(client, "two") == "another"
    serving.until((models / "two" / "finalized").exists, "did not finalize what was replaced")
    client.unload_model("one")
    with pytest.raises(InferenceServerException, match="no available versions"):
        word(client, "one")
    serving.until((models / "one" / "finalized").exists, "did not finalize what was unloaded")
    client.load_model("one")
    assert word(client, "one") == "one"


def test_metrics_of_a_model_are_exposed(serving: Serving, client: Any) -> None:
    word(client, "one")
    text = serving.metrics()
    assert "# TYPE word_one counter\nword_one " in text


def test_batches_are_counted_and_timed(client: Any) -> None:
    def counts() -> Any:
        return client.get_inference_statistics("echo").model_stats[0]

    before = counts()
    infer(client, "echo", np.ones((3, 1), np.float32), "FP32")
    limit = time.monotonic() + LIMIT
    while (after := counts()).execution_count == before.execution_count:
        assert time.monotonic() < limit
    assert after.inference_count == before.inference_count + 3
    stats, earlier = after.inference_stats, before.inference_stats
    for phase in ("compute_input", "compute_infer", "compute_output"):
        assert getattr(stats, phase).ns > getattr(earlier, phase).ns


def test_unknown_execution_is_the_reason_in_the_index(client: Any) -> None:
    [entry] = [one for one in client.get_model_repository_index().models if one.name == "nowhere"]
    assert "'EXECUTION' must be 'process' or 'in_process', not 'elsewhere'" in entry.reason
