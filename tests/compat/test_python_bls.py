"""Python models that call other models, through the official clients (P28 to P30, P50 to P53, D14)."""

import json
import os
import queue
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.compat.serving import Serving, write_model

LIMIT = 30.0

_SCRIPT = """
import asyncio, json, os, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

MODEL = Path(__file__).parent.parent


def make(model, *numbers, **fields):
    inputs = [pb_utils.Tensor("INPUT0", np.array(numbers, np.int32))]
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUTPUT0"], inputs=inputs, **fields)


def script(model, source, **fields):
    inputs = [pb_utils.Tensor("INPUT0", np.array([source], object))]
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUTPUT0"], inputs=inputs, **fields)


def told(response):
    if response.has_error():
        return response.error().message()
    tensors = response.output_tensors()
    if tensors and tensors[0].as_numpy().dtype == object:
        return json.loads(tensors[0].as_numpy()[0])
    return tensors[0].as_numpy().tolist() if tensors else None


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        source = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0].decode()
        names = {**globals(), "self": self, "request": request}
        exec(source, names)
        text = json.dumps(names.get("found"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([text], object))])
"""

_STREAM = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0]
            sent = 0
            while sent < count and not request.is_cancelled():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([sent], np.int32))]))
                sent += 1
                if count > 1000:
                    time.sleep(0.001)
            sender.send(flags=1)
"""

_EARLY = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        request = pb_utils.InferenceRequest(
            model_name="identity",
            requested_output_names=["OUTPUT0"],
            inputs=[pb_utils.Tensor("INPUT0", np.array([7], np.int32))],
        )
        loads = [pb_utils.load_model(name) for name in json_of(args)]
        answer = request.exec()
        self.found = answer.error().message() if answer.has_error() else str(answer.output_tensors()[0].as_numpy())

    def execute(self, requests):
        found = np.array([self.found], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", found)]) for _ in requests]


def json_of(args):
    import json

    config = json.loads(args["model_config"])
    return config.get("parameters", {}).get("LOADS", {}).get("string_value", "").split()
"""


def write_repository(repository: Path, way: str) -> Path:
    """Writes the models. `way` says in which process they run."""
    execution = f'parameters {{ key: "EXECUTION" value {{ string_value: "{way}" }} }}\n'

    def python(name: str, kind: str, source: str, more: str = "") -> None:
        version = write_model(repository, name, kind, backend="python", more=execution + more)
        (version / "model.py").write_text(source)

    def loads(*names: str) -> str:
        return f'parameters {{ key: "LOADS" value {{ string_value: "{" ".join(names)}" }} }}\n'

    write_model(repository, "identity", "INT32")
    for name in ("a", "b", "c"):
        python(name, "BYTES", _SCRIPT)
    python("two", "BYTES", _SCRIPT, "instance_group [ { kind: KIND_CPU count: 1 } ]\n")
    python("stream", "INT32", _STREAM, "model_transaction_policy { decoupled: true }\n")
    python("early", "BYTES", _EARLY)
    python("needs", "BYTES", _EARLY, loads("early", "identity"))
    python("needs_itself", "BYTES", _EARLY, loads("needs_itself"))
    python("ring_1", "BYTES", _EARLY, loads("ring_2"))
    python("ring_2", "BYTES", _EARLY, loads("ring_1"))
    return repository


START = ("identity", "a", "b", "c", "two", "stream")
WAYS = ("process", "in_process")


@pytest.fixture(scope="module", params=WAYS)
def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("bls")
    flags = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in START)]
    with Serving(write_repository(folder / "models", request.param), folder / "server.log", *flags) as made:
        yield made.wait_until_live()
        assert made.stop() == 0, made.log_text()[-3000:]


@pytest.fixture
def client(serving: Serving) -> Iterator[grpcclient.InferenceServerClient]:
    """A client that many threads may use."""
    with grpcclient.InferenceServerClient(serving.grpc_url) as made:
        yield made


def run(client: Any, source: str, model: str = "a", module: Any = grpcclient) -> Any:
    """The value of `found` after the script."""
    tensor = module.InferInput("INPUT0", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([source.encode()], object))
    more = {"client_timeout": LIMIT} if module is grpcclient else {}
    return json.loads(client.infer(model, [tensor], **more).as_numpy("OUTPUT0")[0])


def test_model_of_any_backend_is_called_and_counted(client: Any) -> None:
    def count() -> int:
        found = client.get_inference_statistics("identity").model_stats[0]
        return int(found.inference_stats.success.count)

    before = count()
    assert run(client, "found = [told(make('identity', i).exec()) for i in range(5)]") == [[i] for i in range(5)]
    assert count() == before + 5


def test_model_is_called_over_http(serving: Serving) -> None:
    with httpclient.InferenceServerClient(serving.http_url) as client:
        assert run(client, "found = told(make('identity', 1, 2).exec())", module=httpclient) == [1, 2]


@pytest.mark.rows("P52")
def test_coroutines_and_threads_call_at_once(client: Any) -> None:
    source = """
async def several():
    return [told(r) for r in await asyncio.gather(*(make("identity", i).async_exec() for i in range(32)))]
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda i: told(make("identity", i).exec()), range(32))) + asyncio.run(several())
"""
    assert run(client, source) == [[i] for i in range(32)] * 2


@pytest.mark.rows("P50")
def test_stream_is_read_and_read_again(client: Any) -> None:
    source = """
stream = make("stream", 3).exec(decoupled=True)
found = [[told(r) for r in stream], [told(r) for r in stream]]
"""
    assert run(client, source) == [[[0], [1], [2], None]] * 2


def test_stream_that_is_cancelled_ends(client: Any) -> None:
    source = """
stream = make("stream", 1_000_000).exec(decoupled=True)
next(stream)
stream.cancel()
found = len(list(stream))
"""
    assert run(client, source) < 100_000


def test_stream_of_many_bytes_is_read_whole(client: Any) -> None:
    assert (
        run(client, "found = sum(len(r.output_tensors()) for r in make('stream', 1000).exec(decoupled=True))") == 1000
    )


def test_calls_go_through_several_models(client: Any) -> None:
    inner = 'found = told(make("identity", 5).exec())'
    outer = f"found = ['b', told(script('c', {inner!r}).exec())]"
    assert run(client, f"found = ['a', told(script('b', {outer!r}).exec())]") == ["a", ["b", [5]]]


# ---- calls that wait for themselves


def circle(model: str) -> str:
    return (
        f"Model {model} - Error when running inference: The call would wait for ever: every instance of model "
        f"'{model}' waits itself for a call that this one must be answered for. More instances of it may help."
    )


@pytest.mark.rows("D14")
def test_model_that_calls_itself_gets_an_error(client: Any) -> None:
    assert run(client, "found = told(script('a', 'found = 1').exec())") == circle("a")
    assert run(client, "found = told(request.exec())") == circle("a")


@pytest.mark.rows("D14")
def test_circle_of_models_gets_an_error(client: Any) -> None:
    last = 'found = told(script("a", "found = 1").exec())'
    middle = f"found = ['c', told(script('c', {last!r}).exec())]"
    assert run(client, f"found = ['b', told(script('b', {middle!r}).exec())]") == ["b", ["c", circle("a")]]


@pytest.mark.rows("D14")
def test_model_with_two_instances_may_call_itself_once(client: Any) -> None:
    assert run(client, "found = told(script('two', 'found = 1').exec())", "two") == 1
    deeper = "found = told(script('two', \"found = 1\").exec())"
    assert run(client, f"found = told(script('two', {deeper!r}).exec())", "two") == circle("two")


@pytest.mark.rows("D14")
def test_two_that_take_each_others_last_instance_both_go_on(client: Any, serving: Serving) -> None:
    """Two requests each hold one of two instances when they call the model."""
    source = """
(MODEL / f"met_{os.getpid()}_{threading.get_ident()}").touch()
limit = time.monotonic() + 20
while len(list(MODEL.glob("met_*"))) < 2 and time.monotonic() < limit:
    time.sleep(0.005)
found = told(script("two", "found = 1").exec())
"""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: run(client, source, "two"), range(2)))
    assert sorted(found, key=str) in ([1, circle("two")], [circle("two")] * 2)


@pytest.mark.rows("D14")
def test_threads_of_a_model_that_wait_for_it_get_an_error(client: Any) -> None:
    source = """
with ThreadPoolExecutor(3) as pool:
    found = list(pool.map(lambda _: told(script("a", "found = 1").exec()), range(3)))
"""
    assert run(client, source) == [circle("a")] * 3


def test_queue_behind_a_busy_model_is_no_deadlock(client: Any) -> None:
    inner = "time.sleep(0.02); found = 1"
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: run(client, f"found = told(script('b', {inner!r}).exec())"), range(12)))
    assert found == [1] * 12


# ---- models that come and go


@pytest.mark.rows("P28", "P29", "P30")
def test_models_are_loaded_and_unloaded(client: Any) -> None:
    source = """
found = [pb_utils.is_model_ready("identity"), pb_utils.is_model_ready("identity", "2"), pb_utils.is_model_ready("x")]
pb_utils.unload_model("identity")
found += [pb_utils.is_model_ready("identity"), told(make("identity", 1).exec())]
pb_utils.load_model("identity")
found += [pb_utils.is_model_ready("identity"), told(make("identity", 1).exec())]
"""
    gone = (
        "Model identity - Error when running inference: Failed for execute the inference request. Model 'identity' is "
        "not ready."
    )
    assert run(client, source) == [True, False, False, False, gone, True, [1]]


@pytest.mark.rows("D14")
def test_model_calls_and_loads_while_it_is_initialized(client: Any) -> None:
    client.load_model("needs")
    assert client.is_model_ready("early")
    for model in ("early", "needs"):
        tensor = grpcclient.InferInput("INPUT0", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b""], object))
        assert client.infer(model, [tensor]).as_numpy("OUTPUT0").tolist() == [b"[7]"]
    client.unload_model("needs")
    client.unload_model("early")


@pytest.mark.parametrize(("model", "other"), [("needs_itself", "needs_itself"), ("ring_1", "ring_1")])
def test_load_that_waits_for_itself_fails(client: Any, model: str, other: str) -> None:
    with pytest.raises(Exception, match=rf"cannot wait for model '{other}', which waits for it"):
        client.load_model(model)
    assert not client.is_model_ready(model)


def test_many_loads_that_ask_for_the_same_model(client: Any) -> None:
    """More loads than the server runs at once (4), each waiting for a model that a client loads too."""
    with ThreadPoolExecutor(7) as pool:
        loads = [
            pool.submit(client.load_model, name) for name in ("needs", "early", "needs", "needs", "early", "needs")
        ]
        for load in loads:
            load.result(LIMIT)
    client.unload_model("needs")
    client.unload_model("early")


# ---- ends


def test_model_that_is_unloaded_while_it_calls_finishes(client: Any, serving: Serving) -> None:
    inner = """
(MODEL / "begun").touch()
limit = time.monotonic() + 20
while not (MODEL / "go").exists() and time.monotonic() < limit:
    time.sleep(0.005)
found = 1
"""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(run, client, f"found = told(script('b', {inner!r}).exec())")
        folder = serving_model(serving, "b")
        serving.until((folder / "begun").exists, "did not begin")
        for name in ("a", "b"):
            client.unload_model(name)
        (folder / "go").touch()
        assert answer.result(LIMIT) == 1
    for name in ("a", "b"):
        client.load_model(name)
    assert run(client, "found = told(script('b', 'found = 2').exec())") == 2


def serving_model(serving: Serving, name: str) -> Path:
    return serving.log.parent / "models" / name


@pytest.mark.parametrize("serving", ["process"], indirect=True)
def test_calls_of_a_worker_that_dies_are_cancelled(client: Any) -> None:
    """The stream that the worker read is cancelled, so that its model serves others."""
    kill = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    with pytest.raises(Exception, match="is not healthy"):
        run(client, f"stream = make('stream', 1_000_000).exec(decoupled=True); next(stream); {kill}")
    assert run(client, "found = len(list(make('stream', 3).exec(decoupled=True)))", "b") == 4


def test_stream_behind_a_client_that_left_is_cancelled(serving: Serving, client: Any) -> None:
    source = """
stream = make("stream", 1_000_000).exec(decoupled=True)
(MODEL / "reading").touch()
found = len(list(stream))
(MODEL / "ended").write_text(str(found))
"""
    answers: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(serving.grpc_url) as caller:
        tensor = grpcclient.InferInput("INPUT0", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([source.encode()], object))
        call = caller.async_infer("b", [tensor], lambda result, error: answers.put(error))
        folder = serving_model(serving, "b")
        serving.until((folder / "reading").exists, "did not begin")
        call.cancel()
        assert answers.get(timeout=LIMIT) is not None
        serving.until((folder / "ended").exists, "did not cancel what was called")
    assert run(client, "found = 1", "b") == 1


@pytest.mark.parametrize("way", WAYS)
def test_server_that_ends_answers_what_it_accepted(tmp_path: Path, way: str) -> None:
    """Calls of an accepted request are served, though new requests are refused."""
    with Serving(write_repository(tmp_path / "models", way), tmp_path / "log", "--model-control-mode=explicit") as made:
        made.wait_until_live()
        with grpcclient.InferenceServerClient(made.grpc_url) as client:
            for name in ("identity", "a"):
                client.load_model(name)
            source = """
(MODEL / "begun").touch()
limit = time.monotonic() + 20
while not (MODEL / "go").exists() and time.monotonic() < limit:
    time.sleep(0.01)
found = told(make("identity", 3).exec())
"""
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(run, client, source)
                folder = tmp_path / "models" / "a"
                made.until((folder / "begun").exists, "did not begin")
                os.kill(made.process.pid, signal.SIGTERM)
                made.until(lambda: made.status("/v2/health/live") is None, "still takes connections")
                (folder / "go").touch()
                assert answer.result(LIMIT) == [3]
        assert made.wait() == 0
