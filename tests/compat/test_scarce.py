"""A server that lacks memory, disk or shared memory, or whose Redis and S3 hang or lie: each request gets an answer,
and the server lives.
"""

import json
import os
import random
import shutil
import socket
import socketserver
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compat.serving import Serving, write_model
from tests.rights import missing, open_folder
from tests.storage.emulators import CREDENTIALS, xml_storage
from tests.workers.host.environment_fakes import conda_like, packed

pytestmark = pytest.mark.sandbox

DELAY = 5.0
"""The longest that health may take on a busy machine while something is scarce."""
SMALL = 1 << 20
PYTHON = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in tensors]
"""


class Narrow(Serving):
    """A server behind a command that takes something from it, and then becomes it: both are one process."""

    def __init__(self, command: Sequence[str], *arguments: Any, **named: Any) -> None:
        self._command = command
        super().__init__(*arguments, **named)

    def command(self, repository: Path) -> Sequence[str]:
        return (*self._command, *super().command(repository))


def mounting(*folders: Path | str) -> Sequence[str]:
    """Gives the server file systems of one MiB in these folders, which nobody else sees."""
    if lack := missing():
        pytest.skip(lack)
    mounts = "".join(f"mount -t tmpfs -o size={SMALL} tmpfs {folder}\n" for folder in folders)
    return ("unshare", "--mount", "--propagation=private", "bash", "-c", f'set -e\n{mounts}exec "$@"', "-")


def fill(folder: Path) -> None:
    with (folder / "full").open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
            file.flush()


class Health:
    """Asks the server all the time whether it lives. `longest` is the longest time that an answer took."""

    def __init__(self, serving: Serving) -> None:
        self.longest = 0.0
        self.lives = True
        self._serving = serving
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        while not self._over.wait(0.02):
            began = time.monotonic()
            self.lives &= self._serving.status("/v2/health/live") == 200
            self.longest = max(self.longest, time.monotonic() - began)

    def __enter__(self) -> "Health":
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        print(f"longest delay of health: {self.longest * 1e3:.0f} ms; resident: {resident(self._serving) >> 20} MiB")
        if kind is None:
            assert self.lives
            assert self.longest < DELAY


def resident(serving: Serving) -> int:
    return int(Path(f"/proc/{serving.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def infer(serving: Serving, model: str, count: int = 4, **more: Any) -> tuple[int, Any]:
    tensor = {"name": "INPUT0", "shape": [count], "datatype": "INT32", "data": list(range(count))}
    return serving.ask(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor], **more}).encode())


def is_well(serving: Serving, model: str = "native") -> bool:
    status, answer = infer(serving, model)
    return status == 200 and answer["outputs"][0]["data"] == [0, 1, 2, 3]


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        write_model(made / "models", "native", "INT32")
        version = write_model(made / "models", "python", "INT32", backend="python")
        (version / "model.py").write_text(PYTHON)
        (made / "small").mkdir()
        yield made


@contextmanager
def served(folder: Path, command: Sequence[str], *flags: str, **variables: str) -> Iterator[Serving]:
    with Narrow(command, folder / "models", folder / "log", *flags, environment=variables) as serving:
        serving.wait_until_live()
        yield serving
        assert serving.stop() == 0
        assert "Traceback" not in serving.log_text()


# ---- shared memory and disk


def test_full_shared_memory(folder: Path) -> None:
    with served(folder, mounting("/dev/shm"), "--allow-client-shm=true") as serving, Health(serving):
        inside = Path(f"/proc/{serving.process.pid}/root/dev/shm")
        with (inside / "region").open("wb") as file:
            file.truncate(8 << 20)  # pages come when they are written
        region = {"key": "/region", "offset": 0, "byte_size": 8 << 20}
        assert serving.ask("/v2/systemsharedmemory/region/r/register", json.dumps(region).encode())[0] == 200
        count = 1 << 20
        wanted = {"shared_memory_region": "r", "shared_memory_byte_size": 4 * count}
        for model in ("native", "python"):
            status, answer = infer(serving, model, count, outputs=[{"name": "OUTPUT0", "parameters": wanted}])
            assert status >= 400, answer
            assert is_well(serving, model)
        (inside / "region").unlink()
        fill(inside)
        # Segments of workers are not files of /dev/shm.
        assert post(serving, "python", *binary(np.zeros(4 << 20, np.int32)))[0] == 200
        assert is_well(serving, "python")


def binary(data: Any) -> tuple[bytes, int]:
    """The body of a request, and the size of its head."""
    tensor = {
        "name": "INPUT0",
        "shape": [data.size],
        "datatype": "INT32",
        "parameters": {"binary_data_size": data.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + data.tobytes(), len(head)


def post(serving: Serving, model: str, body: bytes, size_of_head: int) -> tuple[int, bytes]:
    request = urllib.request.Request(
        f"http://{serving.http_url}/v2/models/{model}/infer",
        body,
        {"Inference-Header-Content-Length": str(size_of_head), "Content-Type": "application/octet-stream"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_full_disk_for_traces_and_log(folder: Path) -> None:
    small = folder / "small"
    flags = [f"--log-file={small}/log", f"--trace-config=triton,file={small}/trace", "--trace-config=level=TIMESTAMPS"]
    with (
        served(folder, mounting(small), *flags, "--trace-config=rate=1", "--log-verbose=1") as serving,
        Health(serving),
    ):
        fill(Path(f"/proc/{serving.process.pid}/root{small}"))
        for _ in range(200):
            assert is_well(serving)
        assert is_well(serving, "python")


def test_full_disk_for_environments_and_uploads(folder: Path) -> None:
    small = folder / "small"
    environment = conda_like(folder / "env")
    packed(environment, folder / "env.tar")
    config = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{folder}/env.tar" }} }}\n'
    version = write_model(folder / "models", "packed", "INT32", backend="python", more=config)
    (version / "model.py").write_text(PYTHON)
    flags = ("--model-control-mode=explicit", "--load-model=native", "--load-model=python", "--allow-code-upload=true")
    with served(folder, mounting(small), *flags, TMPDIR=str(small)) as serving, Health(serving):
        inside = Path(f"/proc/{serving.process.pid}/root{small}")
        fill(inside)
        status, answer = serving.ask("/v2/repository/models/packed/load", b"{}")
        assert status >= 400
        assert "No space left" in answer["error"]
        assert all(is_well(serving, model) for model in ("native", "python"))
        (inside / "full").unlink()
        assert serving.ask("/v2/repository/models/packed/load", b"{}")[0] == 200
        assert is_well(serving, "packed")


# ---- memory


def test_limit_of_memory(folder: Path) -> None:
    """Requests for which there is no memory are refused, or their connections end. Others go on."""
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not installed")
    request = binary(np.zeros(64 << 20, np.int32))
    with served(folder, ("prlimit", f"--data={700 << 20}")) as serving, Health(serving):
        answers: list[int] = []

        def ask() -> None:
            try:
                answers.append(post(serving, "native", *request)[0])
            except OSError:
                answers.append(0)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        print(f"answers: {answers}")
        assert len(answers) == len(threads)
        assert any(each != 200 for each in answers)
        assert b"no memory for a request body of 3221225472 bytes" in begun(serving, 3 << 30)
        assert all(is_well(serving, model) for model in ("native", "python"))


def begun(serving: Serving, size: int) -> bytes:
    """The answer to a request whose body only begins. A client that does not look before all is sent misses it."""
    with socket.create_connection(("127.0.0.1", serving.http_port), 60) as client:
        client.sendall(b"POST /v2/models/native/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\nx" % size)
        return client.recv(4096)


# ---- Redis and S3


LIES: dict[str, bytes] = {
    "nonsense": b"\x00\xff\x00\xff" * 64,
    "endless length": b"$1000000000000\r\n",
    "negative length": b"$-77\r\n",
    "endless array": b"*1000000000\r\n",
    "deep array": b"*1\r\n" * 100_000,
    "error": b"-ERR no\r\n",
    "number": b":12\r\n",
    "empty value": b"$0\r\n\r\n",
    "nonsense value": b"$64\r\n" + random.Random(1).randbytes(64) + b"\r\n",
    "half an answer": b"$10\r\nabc",
    "nothing": b"",
}


@contextmanager
def lying_redis(lie: bytes, asked_for: list[bytes]) -> Iterator[int]:
    """A server that greets as Redis does and answers each question for a value with `lie`. `nothing` hangs up."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while asked := self.request.recv(1 << 16):
                    words = asked.upper()
                    is_question = b"GET" in words or b"EVAL" in words
                    asked_for.append(words[:80])
                    if is_question and not lie:
                        return
                    greeting = b"%1\r\n$5\r\nproto\r\n:3\r\n" if b"HELLO" in words else b""
                    count = words.count(b"*") - (b"HELLO" in words)
                    self.request.sendall(lie if is_question else greeting + b"+OK\r\n" * count)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize("lie", LIES)
def test_redis_that_lies(folder: Path, lie: str) -> None:
    write_model(folder / "models", "cached", "INT32", more="response_cache { enable: true }\n")
    asked: list[bytes] = []
    with lying_redis(LIES[lie], asked) as port:
        flags = ("--cache-config=redis,host=127.0.0.1", f"--cache-config=redis,port={port}")
        with served(folder, (), *flags) as serving, Health(serving):
            for _ in range(10):
                assert is_well(serving, "cached")
            assert any(b"GET" in each for each in asked)
            print(f"resident after '{lie}': {resident(serving) >> 20} MiB")
            assert resident(serving) < 1 << 30


@pytest.mark.parametrize("fault", ["hangs", "spoils", "fails"])
def test_s3(folder: Path, fault: str) -> None:
    away = folder / "away"
    version = write_model(away, "far", "INT32", backend="python")
    (version / "model.py").write_text(PYTHON)
    with xml_storage() as storage:
        storage.put(away, "models")
        url = f"s3://http://127.0.0.1:{storage.port}/bucket/models"
        flags = (f"--model-repository={url}", "--model-control-mode=explicit", "--load-model=native")
        with served(folder, (), *flags, **CREDENTIALS) as serving, Health(serving):
            if fault == "hangs":
                storage.answering.clear()
            elif fault == "spoils":
                storage.spoilt = {"models/far/1/model.py"}
            else:
                storage.status = 503
            answers: list[tuple[int, Any]] = []
            load: Callable[[], None] = lambda: answers.append(serving.ask("/v2/repository/models/far/load", b"{}"))  # noqa: E731
            thread = threading.Thread(target=load)
            began = time.monotonic()
            thread.start()
            while thread.is_alive() and time.monotonic() < began + 5:
                assert is_well(serving)
            storage.answering.set()
            thread.join(60)
            print(f"{fault}: {answers} after {time.monotonic() - began:.1f} s")
            assert answers
            assert (answers[0][0] == 200) == (fault == "hangs")
            storage.status, storage.spoilt = 200, set()
            assert serving.ask("/v2/repository/models/far/load", b"{}") == (200, None)
            assert is_well(serving, "far")
