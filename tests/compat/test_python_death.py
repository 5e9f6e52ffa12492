"""A Python model whose processes die: its requests are answered, others are served, and another process takes over.

The server reports its state everywhere. However it ends, it leaves nothing behind.
"""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient

from halimede.platform.processes import ends_within
from tests.compat.serving import Serving, processes_with, write_model
from tests.processes import is_gone

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60.0
PATIENT = "--backend-config=python,restart-wait-seconds=60"
"""Requests wait for the new process, also if it starts slowly on a busy machine."""
UNHEALTHY = re.compile(r"Stub process 'mortal_0_\d' is not healthy\.")
EXIT, CHATTER, HANG, START_PROGRAM = 3, -1, -2, -3

_MORTAL = """import contextlib
import os
import subprocess
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = args["model_repository"]
        with open(os.path.join(folder, "starting"), "w") as note:
            note.write(str(os.getpid()))
        while os.path.exists(os.path.join(folder, "hold")):
            time.sleep(0.01)
        with contextlib.suppress(FileNotFoundError):  # another instance starts at the same time
            os.unlink(os.path.join(folder, "starting"))

    def execute(self, requests):
        return [answer(request) for request in requests]


def chatter():
    while True:
        print("and on", "and on" * 20)


def answer(request):
    wish = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])
    if wish > 0:
        os._exit(wish)
    if wish == -1:
        threading.Thread(target=chatter, daemon=True).start()
    if wish == -2:
        open(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hangs"), "w").close()
        threading.Event().wait()
    if wish == -3:
        subprocess.Popen(["sleep", "60"])
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([os.getpid()], np.int32))])
"""


class Mortal:
    """A server with the model `mortal` and the model `other`. `mortal` answers with its process id, exits with its
    input as status if that is above 0, and obeys other inputs.

    While the file `hold` exists, a new process of `mortal` does not come up. When `mortal` hangs, it makes a file
    `hangs`.
    """

    def __init__(self, folder: Path, *flags: str, instances: int = 1, seconds: int = 0) -> None:
        """`seconds` is the time limit of `execute`, 0 for none."""
        repository = folder / "models"
        limit = f'parameters {{ key: "EXECUTION_TIMEOUT_SECONDS" value {{ string_value: "{seconds}" }} }}\n'
        more = limit if seconds else ""
        version = write_model(repository, "mortal", "INT32", backend="python", more=more)
        (version / "model.py").write_text(_MORTAL)
        config = version.parent / "config.pbtxt"
        config.write_text(config.read_text().replace("KIND_CPU", f"KIND_CPU count: {instances}"))
        write_model(repository, "other", "INT32")
        self.hold, self.starting, self.hangs = (version.parent / name for name in ("hold", "starting", "hangs"))
        self.serving = Serving(repository, folder / "server.log", *flags)

    def infer(self, wish: int = 0, model: str = "mortal") -> tuple[int, object]:
        """The status, and the first element of the answer or the error's text."""
        document = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [wish]}]}
        return self.post(f"/v2/models/{model}/infer", document)

    def post(self, path: str, document: object) -> tuple[int, object]:
        request = urllib.request.Request(f"http://{self.serving.http_url}{path}", json.dumps(document).encode())
        try:
            with urllib.request.urlopen(request, None, LIMIT) as answer:
                said = answer.read()
                return answer.status, json.loads(said)["outputs"][0]["data"][0] if said else None
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]

    def pid(self) -> int:
        status, pid = self.infer()
        assert (status, type(pid)) == (200, int)
        assert isinstance(pid, int)
        return pid

    def die(self) -> None:
        status, text = self.infer(EXIT)
        assert status == 500
        assert UNHEALTHY.fullmatch(str(text)), text

    def until_starting(self) -> int:
        """Waits until a new process is held. Returns its id."""
        self.serving.until(lambda: self.starting.exists() and self.starting.read_text() != "", "started no process")
        return int(self.starting.read_text())

    def ready(self) -> list[int | None]:
        paths = ("/v2/models/mortal/ready", "/v2/models/mortal/versions/1/ready", "/v2/models/other/ready")
        return [self.serving.status(path) for path in (*paths, "/v2/health/ready", "/v2/health/live")]

    def restarts(self) -> int:
        page = self.serving.metrics()
        found = re.search(r'^halimede_worker_restarts_total\{model="mortal",version="1"\} (\d+)', page, re.MULTILINE)
        assert found is not None
        return int(found[1])


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    made = Mortal(tmp_path, "--model-control-mode=explicit", "--load-model=*", PATIENT)
    with made.serving as serving:
        serving.wait_until_live()
        yield made


def body_of(serving: Serving, path: str) -> bytes:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{serving.http_url}{path}", timeout=LIMIT)
    with caught.value as error:
        return error.read()


@pytest.mark.rows("P10", "H8", "H10")
@pytest.mark.parametrize("strict", ["true", "false"])
def test_model_without_a_living_process_is_not_ready_and_fails_at_once(tmp_path: Path, strict: str) -> None:
    flags = (f"--strict-readiness={strict}", "--backend-config=python,restart-wait-seconds=0")
    mortal = Mortal(tmp_path, *flags)
    with mortal.serving as serving:
        serving.wait_until_live()
        pid = mortal.pid()
        assert mortal.ready() == [200] * 5
        mortal.hold.touch()
        mortal.die()
        serving.until(lambda: is_gone(pid), "left a process behind")  # its socket ends a moment before it
        assert mortal.ready() == [400, 400, 200, 200 if strict == "false" else 400, 200]
        assert body_of(serving, "/v2/models/mortal/ready") == b'{"error":"Model version not ready"}'
        with grpcclient.InferenceServerClient(serving.grpc_url) as client:
            assert not client.is_model_ready("mortal")
            assert not client.is_model_ready("mortal", "1")
            assert client.is_model_ready("other")
            assert client.is_server_ready() is (strict == "false")
            assert client.is_server_live()
        for _ in range(2):
            mortal.die()
        assert mortal.infer(5, "other") == (200, 5)
        mortal.hold.unlink()
        serving.until(lambda: mortal.ready() == [200] * 5, "did not become ready again")
        assert mortal.pid() != pid
        assert mortal.restarts() == 1
        assert serving.stop() == 0


def test_requests_wait_for_a_process_that_comes_back_soon(mortal: Mortal) -> None:
    pids = [mortal.pid()]
    for _ in range(3):
        mortal.die()
        pids.append(mortal.pid())
    assert len(set(pids)) == 4
    assert mortal.restarts() == 3
    assert mortal.serving.stop() == 0
    assert mortal.serving.log_text().count("ended: exit status 3; it is started again") == 3


def test_model_with_another_living_process_is_ready_and_served_by_it(tmp_path: Path) -> None:
    mortal = Mortal(tmp_path, instances=2)
    with mortal.serving as serving:
        serving.wait_until_live()
        mortal.hold.touch()
        mortal.die()
        assert mortal.ready() == [200] * 5
        assert len({mortal.pid() for _ in range(10)}) == 1
        mortal.hold.unlink()
        serving.until(lambda: mortal.restarts() == 1, "started no process")
        assert len({mortal.pid() for _ in range(10)}) == 2
        assert serving.stop() == 0


def test_processes_that_hang_or_flood_the_log_do_not_disturb_others(tmp_path: Path) -> None:
    mortal = Mortal(tmp_path, PATIENT, seconds=5)
    with mortal.serving as serving:
        serving.wait_until_live()
        assert mortal.infer(CHATTER)[0] == 200
        assert mortal.infer(7, "other") == (200, 7)
        text = "Failed to process the request(s) for model 'mortal_0_0', message: the time limit for execute is over"
        assert mortal.infer(HANG) == (500, text)
        assert mortal.infer(0)[0] == 200
        assert serving.stop() == 0


# ---- what comes in between


def test_unload_while_a_process_starts_ends_it(mortal: Mortal) -> None:
    mortal.hold.touch()
    mortal.die()
    starting = mortal.until_starting()
    assert mortal.post("/v2/repository/models/mortal/unload", {}) == (200, None)
    mortal.serving.until(lambda: is_gone(starting), "left a process that starts")
    assert mortal.infer(7, "other") == (200, 7)
    assert mortal.serving.stop() == 0


def test_load_of_a_model_whose_process_is_down_serves_at_once(mortal: Mortal) -> None:
    mortal.hold.touch()
    mortal.die()
    starting = mortal.until_starting()
    os.kill(starting, signal.SIGKILL)  # from here on it is tried again after a while
    mortal.serving.until_logged("could not be started again")
    mortal.hold.unlink()
    assert mortal.post("/v2/repository/models/mortal/load", {}) == (200, None)
    mortal.pid()
    assert mortal.ready() == [200] * 5
    assert mortal.serving.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_end_of_the_server_while_a_process_starts_leaves_nothing(mortal: Mortal, number: signal.Signals) -> None:
    mortal.hold.touch()
    mortal.die()
    starting = mortal.until_starting()
    if number == signal.SIGTERM:
        assert mortal.serving.stop() == 0
        assert is_gone(starting)
    else:
        assert mortal.serving.stop(number) == -signal.SIGKILL
        assert ends_within(starting, LIMIT)  # it is killed with the server, which does not wait for it


def test_kill_of_the_server_ends_processes_in_the_middle_of_anything(mortal: Mortal) -> None:
    """The processes are a model that computes, and a program that it started."""
    assert mortal.infer(START_PROGRAM)[0] == 200

    def ask() -> None:
        with pytest.raises((OSError, http.client.HTTPException)):
            mortal.infer(HANG)

    asking = threading.Thread(target=ask)
    asking.start()
    mortal.serving.until(mortal.hangs.exists, "did not compute")
    assert len(list(processes_with(mortal.serving.mark))) == 3
    assert mortal.serving.stop(signal.SIGKILL) == -signal.SIGKILL
    asking.join(LIMIT)
    assert not asking.is_alive()


@pytest.mark.parametrize("kind", ["python", "onnx"])
def test_killed_workers_under_load_leave_no_request_unanswered(kind: str) -> None:
    command = [sys.executable, "-m", "tools.soak_workers", f"--kind={kind}", "--kills=30"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, f"{done.stdout[-5000:]}{done.stderr[-3000:]}"
    assert done.stdout.rstrip().endswith("PASSED")
