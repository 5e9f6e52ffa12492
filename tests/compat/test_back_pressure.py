"""A client that does not read what a decoupled model sends: memory is bounded, others are served, and nothing is lost.

The stream is read message by message and raw, so that the client library holds no more than its own window.
"""

import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2 as pb

from tests.compat.serving import Serving, processes_with, write_model

LIMIT = 20.0
COUNTS = {"pool of any size": 10_000, "pool of 1": 2_000}
ELEMENTS = 25_000
SIZE = 4 * ELEMENTS
AHEAD = 16 << 20
"""How far a model may get ahead of a client that does not read: 2 MiB in its worker's window, 1 MiB on the call, one
response each, what sockets hold, and the window of the client, which its library lets grow to several MiB."""
GROWTH = 48 << 20
"""What server and worker together may grow meanwhile: the same, and what allocators keep. All responses are 1 GB."""

_FLOOD = f"""import os
import struct
import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.progress = os.open(Path(args["model_repository"], "progress"), os.O_CREAT | os.O_WRONLY)

    def execute(self, requests):
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0]
            threading.Thread(target=self.answer, args=(request.get_response_sender(), int(count))).start()

    def answer(self, sender, count):
        sent = 0
        while sent < count and not sender.is_cancelled():
            tensor = pb_utils.Tensor("OUTPUT0", np.full({ELEMENTS}, sent, np.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
            sent += 1
            os.pwrite(self.progress, struct.pack("<qq", sent, sent < count and sender.is_cancelled()), 0)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


class Flooded:
    """A server whose model `flood` answers with as many responses of `SIZE` bytes as its input says: 0, 1, 2, ..."""

    def __init__(self, serving: Serving, repository: Path, count: int) -> None:
        self.serving = serving
        self.count = count
        self._progress = repository / "flood" / "progress"

    def worker(self) -> int:
        """The process of `flood`, which is the only Python model."""
        [pid] = set(processes_with(self.serving.mark)) - {self.serving.process.pid}
        return pid

    def progress(self) -> tuple[int, bool]:
        """How many responses the last request has sent, and whether its model saw that the client has gone."""
        sent, cancelled = struct.unpack("<qq", self._progress.read_bytes() or bytes(16))
        return sent, bool(cancelled)

    def memory(self) -> int:
        """Bytes of all processes of the server."""
        return sum(_resident(pid) for pid in processes_with(self.serving.mark))

    def wait_until_it_stands_still(self) -> int:
        """How many responses were sent when no more came for a while."""
        seen: list[int] = []

        def still() -> bool:
            seen.append(self.progress()[0])
            return len(seen) > 25 and seen[-1] > 0 and seen[-25] == seen[-1]

        self.serving.until(still, "let the model go on and on", LIMIT)
        return seen[-1]


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def served(folder: Path, *flags: str, count: int = 1_000) -> Iterator[Flooded]:
    repository = folder / "models"
    decoupled = "model_transaction_policy { decoupled: true }\n"
    (write_model(repository, "flood", "INT32", backend="python", more=decoupled) / "model.py").write_text(_FLOOD)
    write_model(repository, "other", "INT32")
    with Serving(repository, folder / "server.log", *flags) as serving:
        serving.wait_until_live()
        yield Flooded(serving, repository, count)


@pytest.fixture(scope="module", params=COUNTS)
def flooded(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Flooded]:
    flags = ["--grpc-max-response-pool-size=1"] if request.param == "pool of 1" else []
    with served(tmp_path_factory.mktemp("flooded"), *flags, count=COUNTS[request.param]) as flooded:
        yield flooded
        assert flooded.serving.stop() == 0, flooded.serving.log_text()[-3000:]


class Client:
    """One stream of raw messages."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.insecure_channel(url)
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        call = self._channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer", None, None)
        self.answers: Any = call(iter(self._requests.get, None), timeout=LIMIT)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._channel.close()

    def ask(self, count: int) -> None:
        message = pb.ModelInferRequest(model_name="flood", raw_input_contents=[struct.pack("<i", count)])
        message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        self._requests.put(message.SerializeToString())

    def numbers(self) -> list[int]:
        """The numbers of the responses until the last, which has none. All elements of a response are its number."""
        found: list[int] = []
        for message in self.answers:
            if len(message) < SIZE:
                self.last = pb.ModelStreamInferResponse.FromString(message)
                return found
            (number,) = struct.unpack("<i", message[-4:])
            assert message.endswith(message[-4:] * ELEMENTS)
            found.append(number)
        raise AssertionError("the stream ended before the last response")


def other_model_answers(serving: Serving) -> bool:
    with grpcclient.InferenceServerClient(serving.grpc_url) as client:
        tensor = grpcclient.InferInput("INPUT0", [1], "INT32")
        tensor.set_data_from_numpy(np.array([5], np.int32))
        return [int(client.infer("other", [tensor]).as_numpy("OUTPUT0")[0]) for _ in range(20)] == [5] * 20


def flood(flooded: Flooded, client: Client) -> None:
    """A request whose responses nobody reads, until the model is held back."""
    before = flooded.memory()
    client.ask(flooded.count)
    sent = flooded.wait_until_it_stands_still()
    assert sent * SIZE < AHEAD
    assert flooded.memory() - before < GROWTH


@pytest.mark.rows("G32")
def test_slow_reader_slows_its_model_and_gets_everything_in_order(flooded: Flooded) -> None:
    serving = flooded.serving
    with Client(serving.grpc_url) as client:
        flood(flooded, client)
        assert other_model_answers(serving)
        with Client(serving.grpc_url) as second:
            second.ask(50)  # the same worker, and more than its window
            assert second.numbers() == list(range(50))
        before = flooded.memory()
        assert client.numbers() == list(range(flooded.count))
        assert flooded.memory() - before < GROWTH


@pytest.mark.rows("G34")
def test_client_that_goes_without_reading_releases_the_model(flooded: Flooded) -> None:
    with Client(flooded.serving.grpc_url) as client:
        flood(flooded, client)
        client.answers.cancel()
        flooded.serving.until(lambda: flooded.progress()[1], "did not tell the model", LIMIT)
        assert flooded.progress()[0] < flooded.count
    with Client(flooded.serving.grpc_url) as client:
        client.ask(3)
        assert client.numbers() == [0, 1, 2]


def test_worker_that_dies_while_its_client_does_not_read(tmp_path: Path) -> None:
    with served(tmp_path) as flooded, Client(flooded.serving.grpc_url) as client:
        flood(flooded, client)
        os.kill(flooded.worker(), signal.SIGKILL)
        numbers = client.numbers()
        assert numbers == list(range(len(numbers)))
        assert client.last.error_message == "Stub process 'flood_0_0' is not healthy."
        assert other_model_answers(flooded.serving)
        assert flooded.serving.stop() == 0


def test_server_ends_although_a_client_does_not_read(tmp_path: Path) -> None:
    with served(tmp_path, "--exit-timeout-secs=1") as flooded, Client(flooded.serving.grpc_url) as client:
        flood(flooded, client)
        flooded.serving.stop()
