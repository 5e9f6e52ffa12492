"""Python models that report whether they are ready (P9), asked over HTTP, gRPC and by another model."""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient

from tests.compat.serving import Serving, write_model

LIMIT = 60.0
QUESTIONS = 8
READY_LIMIT = 5.0
"""Seconds after which a model that has not answered counts as not ready."""

_MOODY = f"""import asyncio
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.calls = 0

    def hold(self, begun, go):
        open(os.path.join(self.folder, begun), "w").close()
        limit = time.monotonic() + {LIMIT}
        while not os.path.exists(os.path.join(self.folder, go)) and time.monotonic() < limit:
            time.sleep(0.01)

    def is_ready(self):
        self.calls += 1
        with open(os.path.join(self.folder, "mood")) as file:
            mood = file.read()
        if mood == "raises":
            raise ValueError("out of sorts")
        if mood == "one":
            return 1
        if mood == "thinks":
            self.hold("asked", "answer")
        if mood == "dies":
            os._exit(3)
        if mood == "asynchronous":
            return self.think()
        return mood != "no"

    async def think(self):
        await asyncio.sleep(0.01)
        return True

    def execute(self, requests):
        wish = pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy()[0]
        if wish > 0:
            self.hold("begun", "go")
        return [answer(self.calls) for _ in requests]


def answer(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([value], np.int32))])
"""

_ASKER = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        ready = pb_utils.is_model_ready("moody")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([ready], np.int32))]) for _ in requests]
"""


class Moody:
    """A server with the model `moody`, which answers as the file `mood` says, and `asker`, which asks for it.

    In the mood `thinks` it makes a file `asked` when it is asked, and answers when there is a file `answer`. If its
    input is above 0, it makes a file `begun` and executes until there is a file `go`.
    """

    def __init__(self, folder: Path, *flags: str) -> None:
        version = write_model(folder / "models", "moody", "INT32", backend="python")
        (version / "model.py").write_text(_MOODY)
        self.folder = version.parent
        (write_model(folder / "models", "asker", "INT32", backend="python") / "model.py").write_text(_ASKER)
        self.mood("yes")
        self.serving = Serving(folder / "models", folder / "server.log", *flags)

    def mood(self, mood: str) -> None:
        (self.folder / "mood").write_text(mood)

    def until(self, name: str) -> None:
        self.serving.until((self.folder / name).exists, f"did not come to {name}")

    def infer(self, wish: int = 0, model: str = "moody") -> int:
        document = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [wish]}]}
        url = f"http://{self.serving.http_url}/v2/models/{model}/infer"
        with urllib.request.urlopen(url, json.dumps(document).encode(), LIMIT) as answer:
            return int(json.load(answer)["outputs"][0]["data"][0])

    def ready(self, path: str = "/v2/models/moody/ready") -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.serving.http_url}{path}", timeout=LIMIT) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            status = error.code
        assert status in (200, 400)
        return bool(status == 200)


@pytest.fixture
def moody(tmp_path: Path) -> Iterator[Moody]:
    made = Moody(tmp_path)
    with made.serving:
        made.serving.wait_until_live()
        yield made
        assert made.serving.process.poll() == 0 or made.serving.stop() == 0


@pytest.mark.rows("P9", "P30")
def test_model_says_whether_it_is_ready_wherever_it_is_asked(moody: Moody) -> None:
    with grpcclient.InferenceServerClient(moody.serving.grpc_url) as client:
        for mood, ready in (("yes", True), ("no", False), ("raises", False), ("asynchronous", True), ("one", False)):
            moody.mood(mood)
            assert moody.ready() is ready
            assert moody.ready("/v2/models/moody/versions/1/ready") is ready
            assert moody.ready("/v2/health/ready") is ready
            assert client.is_model_ready("moody") is ready
            assert client.is_server_ready() is ready
            assert moody.infer(model="asker") == ready
            assert moody.ready("/v2/models/asker/ready"), "others are not concerned"
            assert moody.infer() > 0, "requests are served whatever the model says"
    assert moody.serving.stop() == 0
    log = moody.serving.log_text()
    assert "is_ready() must return a boolean value" in log
    assert re.search(r"exception in is_ready of model 'moody'.*:\n(.*\n)*?.*ValueError: out of sorts", log)


@pytest.mark.rows("P9")
def test_questions_at_the_same_time_are_one(moody: Moody) -> None:
    before = moody.infer()
    moody.mood("thinks")
    with ExitStack() as stack:
        asking = [stack.enter_context(Asking(moody.serving)) for _ in range(QUESTIONS)]
        for each in asking:
            each.ask("/v2/health/live")
            assert each.status() == 200  # the server has taken the connection: it reads what comes in its order
        for each in asking:
            each.ask("/v2/models/moody/ready")
        assert moody.infer() == before + 1  # so behind those questions
        (moody.folder / "answer").touch()
        assert [each.status() for each in asking] == [200] * QUESTIONS
    assert moody.infer() == before + 1


class Asking:
    """A connection that stays open. Its questions and answers may be in different places of a test."""

    def __init__(self, serving: Serving) -> None:
        self._connection = HTTPConnection("127.0.0.1", serving.http_port, timeout=LIMIT)

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, path: str) -> None:
        self._connection.request("GET", path)

    def status(self) -> int:
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


@pytest.mark.rows("P9")
def test_model_is_asked_while_it_executes(moody: Moody) -> None:
    with ThreadPoolExecutor(1) as clients:
        running = clients.submit(moody.infer, 1)
        moody.until("begun")
        assert moody.ready()
        assert not running.done()
        (moody.folder / "go").touch()
        assert running.result(LIMIT) > 0


@pytest.mark.rows("P9")
def test_model_that_does_not_answer_is_not_ready_and_delays_no_other(moody: Moody) -> None:
    """The model answers at the end of the test, so an earlier result did not wait for it."""
    moody.mood("thinks")
    with ThreadPoolExecutor(1) as clients:
        began = time.monotonic()
        asked = clients.submit(moody.ready)
        moody.until("asked")
        assert moody.infer() == 1
        assert moody.ready("/v2/models/asker/ready")
        assert asked.result(LIMIT) is False
        assert time.monotonic() - began > READY_LIMIT - 0.1
        assert not moody.ready()
        assert moody.infer() == 1, "while it hangs it is not asked again"
    moody.mood("yes")
    assert not moody.ready()
    (moody.folder / "answer").touch()
    moody.serving.until(moody.ready, "is not ready again")


@pytest.mark.rows("P9", "P10")
def test_model_that_dies_while_it_is_asked_is_not_ready_at_once(moody: Moody) -> None:
    moody.mood("dies")
    began = time.monotonic()
    assert not moody.ready()
    assert time.monotonic() - began < READY_LIMIT, "it is told when its time is over"
    moody.mood("yes")
    moody.serving.until(moody.ready, "is not ready again")
    assert moody.infer() >= 1, "the new process is asked, and serves"


def test_server_is_ready_without_its_models_if_strict_readiness_is_off(tmp_path: Path) -> None:
    moody = Moody(tmp_path, "--strict-readiness=false")
    with moody.serving:
        moody.serving.wait_until_live()
        moody.mood("no")
        assert moody.ready("/v2/health/ready")
        assert not moody.ready()


def test_server_that_stops_while_a_model_thinks_answers(tmp_path: Path) -> None:
    moody = Moody(tmp_path)
    with moody.serving, ThreadPoolExecutor(1) as clients:
        moody.serving.wait_until_live()
        moody.mood("thinks")
        asked = clients.submit(moody.ready)
        moody.until("asked")
        assert moody.serving.stop() == 0
        assert asked.result(LIMIT) is False
