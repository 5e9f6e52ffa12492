"""Queues with clients: a request that waits too long is refused at its timeout, a full queue refuses at once, answers
keep their order.

The models answer 0 at once. For another number they wait until there is a file of that number; `paced` takes that many
milliseconds.
"""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving, write_model

LIMIT = 0.2  # seconds that requests may wait
DELAY = 0.5  # seconds that a request alone waits for others
TARGET = 0.2  # seconds that an answer of the model with an adaptive delay may take
PACE = 25  # milliseconds that it takes: much longer than its clients do for themselves, on a busy machine too
PATIENCE = 60.0  # seconds

_MODEL = f"""import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def execute(self, requests):
        with (self.folder / "begun").open("a") as file:
            file.write(" ".join(request.request_id() for request in requests) + "\\n")
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        number = max(int(tensor.as_numpy().max()) for tensor in tensors)
        if self.folder.name == "paced":
            time.sleep(number / 1000)
            number = 0
        limit = time.monotonic() + {PATIENCE}
        while number and not (self.folder / f"go-{{number}}").exists() and time.monotonic() < limit:
            time.sleep(0.005)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.as_numpy())]) for each in tensors]
"""


def _parameters(values: Mapping[str, str]) -> str:
    return "\n".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in values.items())


_TIMED = f"default_timeout_microseconds: {int(LIMIT * 1e6)}"
MODELS = {
    "timed": (1, f"dynamic_batching {{ default_queue_policy {{ {_TIMED} }} }}"),
    "timed_alone": (0, _parameters({"QUEUE_TIMEOUT_MICROSECONDS": str(int(LIMIT * 1e6))})),
    "full": (1, "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"),
    "full_alone": (0, _parameters({"QUEUE_MAX_SIZE": "1"})),
    "late_alone": (
        0,
        _parameters(
            {
                "QUEUE_TIMEOUT_MICROSECONDS": "60000000",
                "QUEUE_ALLOW_TIMEOUT_OVERRIDE": "true",
                "QUEUE_TIMEOUT_ACTION": "DELAY",
            }
        ),
    ),
    "cancelled": (1, "dynamic_batching { }"),
    "ordered": (1, "dynamic_batching { preserve_ordering: true } instance_group [ { kind: KIND_CPU } ]"),
    "twice": (0, "instance_group [ { kind: KIND_CPU } ]"),
    "growing": (8, "dynamic_batching { }"),
    "waiting": (0, ""),
    "paced": (8, "dynamic_batching { } " + _parameters({"LATENCY_TARGET_MICROSECONDS": str(int(TARGET * 1e6))})),
    "delayed": (8, f"dynamic_batching {{ max_queue_delay_microseconds: {int(DELAY * 1e6)} }}"),
    "delayed_long": (8, f"dynamic_batching {{ max_queue_delay_microseconds: {int(10 * PATIENCE * 1e6)} }}"),
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("queues")
    repository = folder / "models"
    for name, (max_batch_size, more) in MODELS.items():
        version = write_model(repository, name, "INT32", backend="python", max_batch_size=max_batch_size, more=more)
        (version / "model.py").write_text(_MODEL)
    with Serving(repository, folder / "server.log") as serving:
        yield serving.wait_until_live()
        assert serving.stop() == 0, serving.log_text()[-3000:]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a request ended, and when it was sent and ended. `text` is the error's text, or the output."""

    code: str
    text: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Held:
    """A request that its model runs until it is released."""

    answer: Future[Ended]
    go: Path

    def release(self) -> float:
        """Releases the request. Returns the time before that."""
        now = time.monotonic()
        self.go.touch()
        return now

    def ended(self) -> Ended:
        """Releases the request, and waits for its end."""
        self.release()
        return self.answer.result(PATIENCE)


class Clients:
    """Requests that run side by side, over HTTP or gRPC. All of `numbers` are different."""

    def __init__(self, serving: Serving, pool: ThreadPoolExecutor, protocol: str, numbers: Iterator[int]) -> None:
        self.serving = serving
        self._pool = pool
        self._protocol = protocol
        self._numbers = numbers

    def ask(self, model: str, number: int = 0, name: str = "q", timeout: int = 0, rows: int = 1) -> Future[Ended]:
        """Sends a request on another thread. To be sure of an order, wait for `waits` or `begun`."""
        send = self._http if self._protocol == "http" else self._grpc
        shape = [rows, 1] if MODELS[model][0] else [1]
        return self._pool.submit(send, model, shape, number, name, timeout)

    def waits(self, model: str, count: int) -> None:
        """Waits until this number of requests is queued at the model."""
        self.until(lambda: metric(self.serving, "nv_inference_pending_request_count", model) == count)

    def runs(self, model: str) -> Held:
        """Starts a request that the model runs until it is released."""
        begun, number = len(self.begun(model)), next(self._numbers)
        held = Held(self.ask(model, number, f"held-{number}"), self._folder(model) / f"go-{number}")
        self.until(lambda: len(self.begun(model)) > begun)
        self.waits(model, 0)
        assert not held.answer.done()
        return held

    def begun(self, model: str) -> list[str]:
        """The request ids of each batch that the model has begun, as it reports itself."""
        told = self._folder(model) / "begun"
        return told.read_text().splitlines() if told.exists() else []

    def _folder(self, model: str) -> Path:
        return self.serving.log.parent / "models" / model

    @staticmethod
    def until(holds: Callable[[], bool]) -> None:
        limit = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < limit
            time.sleep(0.01)

    def _http(self, model: str, shape: list[int], number: int, name: str, timeout: int) -> Ended:
        tensor = {"name": "INPUT0", "shape": shape, "datatype": "INT32", "data": [number] * shape[0]}
        body = json.dumps({"id": name, "parameters": {"timeout": timeout}, "inputs": [tensor]}).encode()
        url = f"http://{self.serving.http_url}/v2/models/{model}/infer"
        began = time.monotonic()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=PATIENCE) as answer:
                code, text = str(answer.status), str(json.load(answer)["outputs"][0]["data"][0])
        except urllib.error.HTTPError as error:
            code, text = str(error.code), json.load(error)["error"]
        return Ended(code, text, began, time.monotonic())

    def _grpc(self, model: str, shape: list[int], number: int, name: str, timeout: int) -> Ended:
        tensor = triton.InferInput("INPUT0", shape, "INT32")
        tensor.set_data_from_numpy(np.full(shape, number, np.int32))
        with triton.InferenceServerClient(self.serving.grpc_url) as client:
            began = time.monotonic()
            try:
                result = client.infer(model, [tensor], request_id=name, timeout=timeout)
                code, text = "200", str(result.as_numpy("OUTPUT0").ravel()[0])
            except InferenceServerException as error:
                code, text = str(error.status()), str(error.message())
            return Ended(code, text, began, time.monotonic())


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture(params=["http", "grpc"])
def clients(
    serving: Serving, pool: ThreadPoolExecutor, numbers: Iterator[int], request: pytest.FixtureRequest
) -> Clients:
    return Clients(serving, pool, request.param, numbers)


UNAVAILABLE = {"503", "StatusCode.UNAVAILABLE"}


def metric(serving: Serving, name: str, model: str, reason: str = "") -> int:
    text = serving.metrics()
    wanted = {f'model="{model}"', *([f'reason="{reason}"'] if reason else [])}
    for labels, value in re.findall(rf"^{name}{{(.*)}} (\d+)", text, re.MULTILINE):
        if wanted <= set(labels.split(",")):
            return int(value)
    raise AssertionError(f"no {name} with {wanted} in {text}")


def stats(serving: Serving, model: str) -> dict[str, dict[str, int]]:
    with urllib.request.urlopen(f"http://{serving.http_url}/v2/models/{model}/stats", timeout=PATIENCE) as answer:
        found: dict[str, dict[str, int]] = json.load(answer)["model_stats"][0]["inference_stats"]
    return found


@pytest.mark.rows("S30", "D4", "M2")
@pytest.mark.parametrize("model", ["timed", "timed_alone"])
def test_request_is_refused_at_its_timeout_and_not_when_the_model_is_free(clients: Clients, model: str) -> None:
    before = metric(clients.serving, "nv_inference_request_failure", model, "REJECTED")
    held = clients.runs(model)
    late = [clients.ask(model) for _ in range(3)]
    for each in late:
        ended = each.result(PATIENCE)
        assert (ended.text, ended.code in UNAVAILABLE) == ("Request timeout expired", True)
        assert ended.seconds >= LIMIT
    assert not held.answer.done(), "they were told when the model was free"
    assert held.ended().code == "200"
    assert metric(clients.serving, "nv_inference_request_failure", model, "REJECTED") == before + 3


@pytest.mark.rows("S24", "S28")
@pytest.mark.parametrize("model", ["full", "full_alone"])
def test_full_queue_refuses_at_once(clients: Clients, model: str) -> None:
    held = clients.runs(model)
    waits = clients.ask(model, 0, "waits")
    clients.waits(model, 1)
    refused = clients.ask(model, 0, "refused").result(PATIENCE)
    assert (refused.text, refused.code in UNAVAILABLE) == ("[request id: refused] Exceeds maximum queue size", True)
    assert not held.answer.done()
    assert not waits.done()
    assert [held.ended().code, waits.result(PATIENCE).code] == ["200", "200"]


@pytest.mark.rows("S29", "S31")
def test_request_with_a_timeout_of_its_own_is_served_last_without_a_batcher(clients: Clients) -> None:
    model = "late_alone"
    held = clients.runs(model)
    asked = []
    for waiting, (name, timeout) in enumerate((("hasty", 1000), ("patient", 0), ("greedy", 2**40)), 1):
        asked.append(clients.ask(model, 0, name, timeout))
        clients.waits(model, waiting)
    time.sleep(0.01)  # the hasty one's microseconds are over, and the server has seen that when it answers this:
    clients.waits(model, len(asked))
    assert held.ended().code == "200"
    assert all(each.result(PATIENCE).code == "200" for each in asked)
    assert clients.begun(model)[-3:] == ["patient", "greedy", "hasty"]


@pytest.mark.rows("S32", "M2")
def test_request_that_is_cancelled_while_it_waits_never_runs(
    serving: Serving, pool: ThreadPoolExecutor, numbers: Iterator[int]
) -> None:
    clients = Clients(serving, pool, "grpc", numbers)
    held = clients.runs("cancelled")
    tensor = triton.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.int32))
    ended: SimpleQueue[InferenceServerException | None] = SimpleQueue()
    with triton.InferenceServerClient(serving.grpc_url) as client:
        call = client.async_infer("cancelled", [tensor], lambda result, error: ended.put(error))
        clients.waits("cancelled", 1)
        call.cancel()
        error = ended.get(timeout=PATIENCE)
    assert error is not None
    assert str(error.status()) == "StatusCode.CANCELLED"
    clients.waits("cancelled", 0)
    assert not held.answer.done()
    assert held.ended().code == "200"
    assert metric(serving, "nv_inference_request_failure", "cancelled", "CANCELED") == 1
    assert metric(serving, "nv_inference_exec_count", "cancelled") == 1


@pytest.mark.rows("S34")
def test_answers_keep_the_order_of_their_requests_over_all_instances(clients: Clients) -> None:
    """The quick answers are ready first, on the other instance, and wait."""
    held = clients.runs("ordered")
    run = metric(clients.serving, "nv_inference_exec_count", "ordered")
    quick = [clients.ask("ordered") for _ in range(2)]
    clients.until(lambda: metric(clients.serving, "nv_inference_exec_count", "ordered") == run + 2)
    released = held.release()
    assert held.answer.result(PATIENCE).code == "200"
    answers = [each.result(PATIENCE) for each in quick]
    assert [each.text for each in answers] == ["0", "0"]
    assert min(each.ended for each in answers) >= released


@pytest.mark.rows("S2")
def test_instances_run_side_by_side_and_what_came_first_starts_first(clients: Clients) -> None:
    first, second = clients.runs("twice"), clients.runs("twice")
    third = clients.ask("twice", 0, "third")
    clients.waits("twice", 1)
    fourth = clients.ask("twice", 0, "fourth")
    clients.waits("twice", 2)
    assert first.ended().code == "200"
    assert [each.result(PATIENCE).code for each in (third, fourth)] == ["200"] * 2
    assert clients.begun("twice")[-2:] == ["third", "fourth"]
    assert not second.answer.done()
    assert second.ended().code == "200"


@pytest.mark.rows("S6", "S23")
def test_batch_grows_while_the_instance_is_busy(clients: Clients) -> None:
    names = ("nv_inference_exec_count", "nv_inference_count")
    before = [metric(clients.serving, name, "growing") for name in names]
    held = clients.runs("growing")
    first = [clients.ask("growing", rows=2), clients.ask("growing")]
    clients.waits("growing", 2)
    then = [clients.ask("growing", rows=3), clients.ask("growing")]
    clients.waits("growing", 4)
    assert held.ended().code == "200"
    assert [each.result(PATIENCE).code for each in (*first, *then)] == ["200"] * 4
    after = [metric(clients.serving, name, "growing") for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 8]


@pytest.mark.rows("S22")
def test_single_request_waits_for_the_whole_queue_delay(clients: Clients) -> None:
    alone = clients.ask("delayed").result(PATIENCE)
    assert alone.code == "200"
    assert alone.seconds >= DELAY
    assert clients.ask("delayed_long", rows=8).result(PATIENCE).code == "200", "it needs no company"


@pytest.mark.rows("S7")
def test_queue_time_is_in_the_statistics(clients: Clients) -> None:
    before = stats(clients.serving, "waiting")["queue"]["ns"]
    held = clients.runs("waiting")
    waits = clients.ask("waiting")
    clients.waits("waiting", 1)
    waited = -time.monotonic()
    time.sleep(LIMIT)
    waited += held.release()
    took = [each.result(PATIENCE).seconds for each in (held.answer, waits)]
    queued = (stats(clients.serving, "waiting")["queue"]["ns"] - before) / 1e9
    assert waited <= queued < sum(took)


def test_adaptive_delay_batches_four_clients_and_does_not_delay_one(clients: Clients) -> None:
    """Four clients send again when they have their answers, so they are soon served together. A single client does not
    wait."""

    def one_after_the_other(number: int) -> list[float]:
        return [clients.ask("paced", PACE).result(PATIENCE).seconds for _ in range(number)]

    with ThreadPoolExecutor(4) as others:
        list(others.map(one_after_the_other, [40] * 4))
        begun = len(clients.begun("paced"))
        took = sorted(seconds for part in others.map(one_after_the_other, [20] * 4) for seconds in part)
    assert len(clients.begun("paced")) - begun < 60, "four of them at a time would be 20 batches, alone 80"
    assert took[len(took) // 2] < TARGET
    alone = one_after_the_other(60)
    assert sorted(alone[30:])[15] < TARGET / 2, "nobody came while it waited"
