"""Functions as models, with the official clients: `halimede.Server` in this process, on ports that the system chose."""

import asyncio
import functools
import os
import queue
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from halimede import Request, Server, Tensor
from halimede.errors import Internal, Invalid, Unavailable
from tests.compat.serving import write_held_model, write_model

Array = npt.NDArray[Any]

SECONDS = 60.0
LOCAL: Mapping[str, Any] = {
    "http_address": "127.0.0.1",
    "grpc_address": "127.0.0.1",
    **dict.fromkeys(["http_port", "grpc_port", "metrics_port", "http_drain_secs"], 0),
}
X, Y = Tensor("x", np.float32, [-1]), Tensor("y", np.float32, [-1])
ROOT = Path(__file__).resolve().parents[2]


def server_of(**options: Any) -> Server:
    return Server(**{**LOCAL, **options})


class Gate:
    """A function that waits until it is opened, and says who is in it."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()

    def __call__(self, x: Array) -> Array:
        self.begun.put(len(x))
        assert self.open.wait(SECONDS)
        return x


def double(x: Array) -> Array:
    x *= 2  # the array is the function's own
    return x


def in_parts(x: Array) -> Iterator[Array]:
    for number in x.ravel():
        yield np.full_like(x, number)


async def in_parts_async(x: Array) -> AsyncIterator[Array]:
    for number in x.ravel():
        await asyncio.sleep(0)
        yield np.full_like(x, number)


async def squared(x: Array) -> Array:
    await asyncio.sleep(0)
    return x * x


def upper(text: Array) -> Mapping[str, Any]:
    return {"text": [each.decode().upper() for each in text]}


def with_bias(x: Array, bias: Array | None = None) -> Array:
    return x if bias is None else x + bias


def failing(x: Array) -> Array:
    if x[0] < 0:
        raise Invalid("a negative number")
    raise ZeroDivisionError("nothing can be divided")


def described(requests: Sequence[Request]) -> list[Any]:
    """What a request says of itself; a request with the parameter `fail` fails alone."""
    found: list[Any] = []
    for each in requests:
        text = f"{each.id} {sorted(each.parameters.items())} {each.outputs} {each['x'].shape} {each.cancelled}"
        found.append(ValueError("told to fail") if "fail" in each.parameters else {"text": np.array([[text]])})
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with server_of(http_header_forward_pattern="X-.*") as server:
        server.bind("double", double, [X], [Y], max_batch_size=8)
        server.bind("parts", in_parts, [X], [Y])
        server.bind("parts_async", in_parts_async, [X], [Y])
        server.bind("squared", squared, [X], [Y])
        server.bind("upper", upper, [Tensor("text", bytes, [-1])], [Tensor("text", str, [-1])])
        server.bind("biased", with_bias, [X, Tensor("bias", np.float32, [1], optional=True)], [Y])
        server.bind("failing", failing, [X], [Y])
        server.bind("described", described, [X], [Tensor("text", bytes, [1])], max_batch_size=8, pass_requests=True)
        server.start()
        yield server


@pytest.fixture(scope="module")
def over_http(server: Server) -> Iterator[Any]:
    with http.InferenceServerClient(server.http_url) as client:
        yield client


@pytest.fixture(scope="module")
def over_grpc(server: Server) -> Iterator[Any]:
    with grpc.InferenceServerClient(server.grpc_url) as client:
        yield client


@pytest.fixture(params=["http", "grpc"])
def infer(request: pytest.FixtureRequest, over_http: Any, over_grpc: Any) -> Callable[..., Any]:
    """Sends arrays by the name of the input; returns the outputs by name."""
    triton, client = (http, over_http) if request.param == "http" else (grpc, over_grpc)
    return functools.partial(ask, triton, client)


def ask(triton: Any, client: Any, model: str, arrays: Mapping[str, Array], **options: Any) -> Any:
    return client.infer(model, inputs_of(triton, arrays), **options)


def inputs_of(triton: Any, arrays: Mapping[str, Array]) -> list[Any]:
    inputs = []
    for name, array in arrays.items():
        datatype = {"f": "FP32", "O": "BYTES"}[array.dtype.kind]
        inputs.append(triton.InferInput(name, array.shape, datatype))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize("size", [3, 100_000])
def test_function_of_arrays(infer: Callable[..., Any], size: int) -> None:
    x = np.arange(size, dtype=np.float32).reshape(1, size)
    assert np.array_equal(infer("double", {"x": x}).as_numpy("y"), x * 2)


def test_async_function(infer: Callable[..., Any]) -> None:
    assert infer("squared", {"x": floats(3, 4)}).as_numpy("y").tolist() == [9, 16]


def test_texts(infer: Callable[..., Any]) -> None:
    found = infer("upper", {"text": np.array(["ä".encode(), b"b\0"], object)}).as_numpy("text")
    assert found.tolist() == ["Ä".encode(), b"B\0"]


def test_optional_input(infer: Callable[..., Any]) -> None:
    assert infer("biased", {"x": floats(1, 2)}).as_numpy("y").tolist() == [1, 2]
    assert infer("biased", {"x": floats(1, 2), "bias": floats(5)}).as_numpy("y").tolist() == [6, 7]


def test_exception_of_a_function_is_the_error_of_the_client(
    infer: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        infer("failing", {"x": floats(1)})
    assert caught.value.message() == (
        "Failed to process the request(s) for model 'failing', message: ZeroDivisionError: nothing can be divided"
    )
    assert "in failing" in caplog.text, "the log lacks the traceback"
    assert "halimede/backends" not in caplog.text, "the traceback has frames of the server"


def test_wrong_result_is_in_the_log_too(caplog: pytest.LogCaptureFixture) -> None:
    with server_of() as server:
        server.bind("wrong", lambda x: x.astype(complex), [X], [Y])
        server.start()
        with grpc.InferenceServerClient(server.grpc_url) as client, pytest.raises(InferenceServerException) as caught:
            ask(grpc, client, "wrong", {"x": floats(1)})
    text = "output 'y' has dtype complex128, which cannot become FP32"
    assert (caught.value.status(), caught.value.message()) == ("StatusCode.INTERNAL", text)
    assert f"model 'wrong': {text}" in caplog.messages


def test_error_of_a_kind_keeps_its_kind(over_grpc: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(grpc, over_grpc, "failing", {"x": floats(-1)})
    assert (caught.value.status(), caught.value.message()) == ("StatusCode.INVALID_ARGUMENT", "a negative number")


def test_request_has_its_parameters_and_headers(over_http: Any) -> None:
    answer = ask(
        http, over_http, "described", {"x": np.zeros((2, 3), np.float32)[:1]},
        request_id="one", parameters={"weight": 2}, headers={"X-Tenant": "me"},
    )  # fmt: skip
    [[said]] = answer.as_numpy("text")
    assert said.decode() == "one [('X-Tenant', 'me'), ('weight', 2)] ('text',) (1, 3) False"


def test_request_can_fail_alone(infer: Callable[..., Any]) -> None:
    with pytest.raises(InferenceServerException, match="ValueError: told to fail"):
        infer("described", {"x": np.zeros((1, 1), np.float32)}, parameters={"fail": 1})


@pytest.mark.parametrize("model", ["parts", "parts_async"])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_responses_of_a_generator(server: Server, model: str, count: int) -> None:
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: found.put(error or result))
        x = np.arange(count, dtype=np.float32)
        client.async_stream_infer(model, inputs_of(grpc, {"x": x}), enable_empty_final_response=True)
        numbers = []
        while not (answer := found.get(timeout=SECONDS)).get_response().parameters["triton_final_response"].bool_param:
            numbers.append(answer.as_numpy("y")[0])
    assert numbers == list(range(count))


def test_generator_ends_when_its_client_goes() -> None:
    ended = threading.Event()

    def endless(x: Array) -> Iterator[Array]:
        try:
            while True:
                yield np.zeros(1000, np.float32)
        finally:
            ended.set()

    async def endless_async(x: Array) -> AsyncIterator[Array]:
        try:
            while True:
                yield np.zeros(1000, np.float32)
        finally:
            ended.set()

    with server_of() as server:
        for function in (endless, endless_async):
            server.bind(function.__name__, function, [X], [Y])
        server.start()
        for function in (endless, endless_async):
            ended.clear()
            came = threading.Event()
            with grpc.InferenceServerClient(server.grpc_url) as client:
                client.start_stream(lambda result, error, came=came: came.set())
                client.async_stream_infer(function.__name__, inputs_of(grpc, {"x": floats(1)}))
                assert came.wait(SECONDS)
                client.stop_stream(cancel_requests=True)
            assert ended.wait(SECONDS), function.__name__


def test_requests_of_several_clients_are_one_batch() -> None:
    gate = Gate()
    batching = {"preferred_batch_size": [4], "max_queue_delay_microseconds": 10_000_000}
    gate.open.set()
    with server_of() as server, ThreadPoolExecutor(4) as clients:
        server.bind("gate", gate, [X], [Y], max_batch_size=4, batching=batching)
        server.start()
        with grpc.InferenceServerClient(server.grpc_url) as client:
            x = np.ones((1, 2), np.float32)
            answers = list(clients.map(lambda i: ask(grpc, client, "gate", {"x": x * i}), range(4)))
            statistics = client.get_inference_statistics("gate").model_stats[0]
    assert [each.as_numpy("y").tolist() for each in answers] == [[[i, i]] for i in range(4)]
    assert gate.begun.get(timeout=SECONDS) == 4
    assert (statistics.inference_count, statistics.execution_count) == (4, 1)


def test_functions_of_a_list_run_at_the_same_time() -> None:
    gates = [Gate(), Gate()]
    with server_of() as server, ThreadPoolExecutor(2) as clients:
        server.bind("gates", gates, [X], [Y])
        server.start()
        with grpc.InferenceServerClient(server.grpc_url) as client:
            answers = [clients.submit(ask, grpc, client, "gates", {"x": floats(i)}) for i in range(2)]
            for gate in gates:
                gate.begun.get(timeout=SECONDS)
            for gate in gates:
                gate.open.set()
            assert [each.result(SECONDS).as_numpy("y").tolist() for each in answers] == [[0], [1]]


def test_async_function_has_several_batches_at_a_time() -> None:
    here, all_here = [], asyncio.Event()

    async def meeting(x: Array) -> Array:
        here.append(x)
        if len(here) == 3:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), SECONDS)
        return x

    with server_of() as server, ThreadPoolExecutor(3) as clients:
        server.bind("meeting", meeting, [X], [Y], concurrency=3)
        server.start()
        with grpc.InferenceServerClient(server.grpc_url) as client:
            answers = list(clients.map(lambda i: ask(grpc, client, "meeting", {"x": floats(i)}), range(3)))
    assert [each.as_numpy("y").tolist() for each in answers] == [[0], [1], [2]]


def test_metrics_and_index_have_bound_models(server: Server, over_http: Any) -> None:
    ask(http, over_http, "squared", {"x": floats(1)})
    with urllib.request.urlopen(f"http://{server.metrics_url}/metrics", timeout=SECONDS) as answer:
        assert 'nv_inference_request_success{model="squared",version="1"}' in answer.read().decode()
    index = {each["name"]: each["state"] for each in over_http.get_model_repository_index()}
    assert index["double"] == "READY"
    assert over_http.get_model_config("double")["max_batch_size"] == 8


# ---- while it runs


def test_bind_replace_and_unbind_while_it_serves() -> None:
    with server_of() as server:
        server.start()
        with grpc.InferenceServerClient(server.grpc_url) as client:
            server.bind("m", lambda x: x + 1, [X], [Y])
            assert ask(grpc, client, "m", {"x": floats(1)}).as_numpy("y").tolist() == [2]
            server.bind("m", lambda x: x + 2, [X], [Y])
            assert ask(grpc, client, "m", {"x": floats(1)}).as_numpy("y").tolist() == [3]
            server.unbind("m")
            assert not client.is_model_ready("m")
            assert [each.name for each in client.get_model_repository_index().models] == []
        with pytest.raises(Invalid, match="no function is bound as 'm'"):
            server.unbind("m")


def test_failed_bind_leaves_what_serves() -> None:
    with server_of() as server:
        server.bind("m", lambda x: x + 1, [X], [Y])
        server.start()
        with pytest.raises(Invalid, match="load failed for model 'm'"):  # no such file
            server.bind("m", lambda x: x, [X], [Y], config={"model_warmup": [_warmup("missing")]})
        with grpc.InferenceServerClient(server.grpc_url) as client:
            assert ask(grpc, client, "m", {"x": floats(1)}).as_numpy("y").tolist() == [2]
            assert client.is_model_ready("m")
        with pytest.raises(Invalid):
            server.bind("other", lambda x: x, [X], [Y], config={"model_warmup": [_warmup("missing")]})
        with pytest.raises(Invalid, match="no function is bound as 'other'"):
            server.unbind("other")


def _warmup(file: str) -> Mapping[str, Any]:
    tensor = {"data_type": "TYPE_FP32", "dims": [1], "input_data_file": file}
    return {"name": "sample", "batch_size": 1, "inputs": {"x": tensor}}


@pytest.mark.parametrize("mode", ["none", "explicit", "poll"])
def test_functions_beside_a_repository(mode: str, tmp_path: Path) -> None:
    write_model(tmp_path, "same", "FP32")
    options = {"load_model": "same"} if mode == "explicit" else {}
    with server_of(model_repository=tmp_path, model_control_mode=mode, settle_secs=0, **options) as server:
        server.bind("double", double, [X], [Y])
        server.start()
        server.bind("later", double, [X], [Y])
        with grpc.InferenceServerClient(server.grpc_url) as client:
            for name in ("same", "double", "later"):
                assert client.is_model_ready(name), name
            server.unbind("double")
            assert not client.is_model_ready("double")


def test_ensemble_of_a_repository_has_a_bound_member(tmp_path: Path) -> None:
    step = (
        'model_name: "double" model_version: -1 input_map { key: "x" value: "%s" } output_map { key: "y" value: "%s" }'
    )
    (tmp_path / "twice" / "1").mkdir(parents=True)
    (tmp_path / "twice" / "config.pbtxt").write_text(
        'platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }'
        ' output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }'
        f" ensemble_scheduling {{ step [ {{ {step % ('x', 'half')} }}, {{ {step % ('half', 'y')} }} ] }}"
    )
    with server_of(model_repository=tmp_path) as server:
        server.bind("double", double, [X], [Y])
        server.start()
        with grpc.InferenceServerClient(server.grpc_url) as client:
            x = np.arange(1000, dtype=np.float32)
            assert np.array_equal(ask(grpc, client, "twice", {"x": x}).as_numpy("y"), x * 4)
            server.bind("double", lambda x: x * 3, [X], [Y])
            assert ask(grpc, client, "twice", {"x": floats(1)}).as_numpy("y").tolist() == [9]


def test_client_unloads_and_loads_a_bound_model_in_explicit_mode() -> None:
    with server_of(model_control_mode="explicit") as server:
        server.bind("double", double, [X], [Y])
        server.start()
        with grpc.InferenceServerClient(server.grpc_url) as client:
            client.unload_model("double")
            assert not client.is_model_ready("double")
            client.load_model("double")
            assert ask(grpc, client, "double", {"x": floats(1)}).as_numpy("y").tolist() == [2]


def test_name_of_a_model_in_the_repository_cannot_be_bound(tmp_path: Path) -> None:
    write_model(tmp_path, "same", "FP32")
    server = server_of(model_repository=tmp_path)
    server.bind("same", double, [X], [Y])
    with pytest.raises(Internal, match="model appears in two or more repositories"):
        server.start()


def test_model_of_a_repository_has_no_function(tmp_path: Path) -> None:
    write_model(tmp_path, "lost", "FP32", backend="function")
    with pytest.raises(Internal, match=r"lost:1: .*the backend 'function' has no models in files"):
        server_of(model_repository=tmp_path).start()


# ---- starts and ends


def test_server_can_be_started_again() -> None:
    server = server_of()
    server.bind("double", double, [X], [Y])
    before = set(threading.enumerate())
    for _ in range(2):
        server.start()
        with http.InferenceServerClient(server.http_url) as client:
            assert client.is_model_ready("double")
        with pytest.raises(Invalid, match="the server runs already"):
            server.start()
        server.stop()
        server.stop()
        with pytest.raises(Unavailable, match="the server does not run"):
            _ = server.http_url
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)
        assert not thread.is_alive(), thread


def test_two_servers_in_one_process() -> None:
    with server_of() as one, server_of() as other:
        one.bind("m", lambda x: x + 1, [X], [Y])
        other.bind("m", lambda x: x + 2, [X], [Y])
        one.start()
        other.start()
        for server, expected in ((one, 2), (other, 3)):
            with grpc.InferenceServerClient(server.grpc_url) as client:
                assert ask(grpc, client, "m", {"x": floats(1)}).as_numpy("y").tolist() == [expected]


def test_port_that_is_taken_and_port_that_is_off() -> None:
    with server_of(allow_grpc=False) as one:
        one.start()
        with pytest.raises(Unavailable, match="--allow-grpc is false"):
            _ = one.grpc_url
        with pytest.raises(Unavailable, match="already in use"):
            server_of(http_port=int(one.http_url.rpartition(":")[2])).start()
        with http.InferenceServerClient(one.http_url) as client:
            assert client.is_server_live()


def test_stop_answers_what_was_accepted() -> None:
    gate = Gate()
    with server_of() as server, ThreadPoolExecutor(2) as pool:
        server.bind("gate", gate, [X], [Y])
        server.start()
        with grpc.InferenceServerClient(server.grpc_url) as client:
            answer = pool.submit(ask, grpc, client, "gate", {"x": floats(1)})
            gate.begun.get(timeout=SECONDS)
            stopped = pool.submit(server.stop)
            gate.open.set()
            assert answer.result(SECONDS).as_numpy("y").tolist() == [1]
            stopped.result(SECONDS)


def test_serve_on_another_thread_ends_with_stop() -> None:
    server = server_of()
    server.bind("double", double, [X], [Y])
    server.start()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(server.serve)
        with http.InferenceServerClient(server.http_url) as client:
            assert client.is_model_ready("double")
        server.stop()
        serving.result(SECONDS)


def run(code: str, *flags: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)


START = f"""
import os, signal, sys, threading, time
import numpy as np
from halimede import Server, Tensor
server = Server(*sys.argv[1:], **{dict(LOCAL)})
x = [Tensor("x", np.float32, [-1])]
server.bind("same", lambda x: x, x, [Tensor("y", np.float32, [-1])])
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_serve_ends_with_a_signal_and_gives_the_handlers_back(name: str) -> None:
    done = run(
        f"""{START}
def send():
    while True:
        try:
            server.http_url
            break
        except Exception:
            time.sleep(0.01)
    os.kill(os.getpid(), signal.{name})

before = signal.getsignal(signal.{name})
threading.Thread(target=send, daemon=True).start()
server.serve()
assert signal.getsignal(signal.{name}) is before
print("ended")
"""
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    assert "Started HTTPService at 127.0.0.1:" in done.stderr


def test_signal_ends_a_start() -> None:
    done = run(
        f"""{START}
def warm(x):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    return x

zeros = {{"data_type": "TYPE_FP32", "dims": [1], "zero_data": True}}
sample = {{"name": "s", "batch_size": 1, "inputs": {{"x": zeros}}}}
server.bind("warm", warm, x, [Tensor("y", np.float32, [-1])], config={{"model_warmup": [sample]}})
server.serve()
print("ended")
"""
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_program_that_does_not_stop_its_server_ends_all_the_same(tmp_path: Path) -> None:
    write_held_model(tmp_path)  # a worker process
    done = run(f"{START}\nserver.start()\nprint('end')", f"--model-repository={tmp_path}")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_import_of_the_package_is_light() -> None:
    done = run(
        "import sys, halimede\n"
        "assert {'Server', 'Tensor', 'Request'} <= set(dir(halimede))\n"
        "print([name for name in sys.modules if name.startswith('halimede.') or name in ('numpy', 'asyncio')])\n"
    )
    assert done.stdout == "['halimede.compiled']\n", done.stderr
