"""A client that does not read what a decoupled model sends: memory stays bounded, other clients are served, and nothing
is lost.

The stream is read raw, message by message, so that the client library buffers no more than its own window.
"""

import json
import os
import signal
import socket
import struct
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import h2.connection
import h2.events
import h2.settings
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2 as pb

from tests.compat.serving import Serving, processes_with, write_model

LIMIT = 60.0
COUNTS = {"pool of any size": 10_000, "pool of 1": 2_000, "in process": 2_000}
ELEMENTS = 25_000
SIZE = 4 * ELEMENTS
AHEAD = 8 << 20
"""How far a model may get ahead of a client that does not read: 2 MiB in its worker's window, 1 MiB on the call, one
response each, and the buffers of sockets and of the client's library."""
NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
"""The same limit for a client whose window grows with the speed of the sender, to 16 MiB and more."""
GROWTH = 48 << 20
"""How much the memory of server and worker may grow: the limit above, and what allocators keep. All responses are 1 GB.
"""

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
            os.pwrite(self.progress, struct.pack("<qq", sent, 0), 0)
        if sent < count:
            os.pwrite(self.progress, struct.pack("<qq", sent, 1), 0)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


class Flooded:
    """A server with the model `flood`, which answers with as many responses of `SIZE` bytes as its input says: 0, 1, 2,
    ..."""

    def __init__(self, serving: Serving, repository: Path, count: int) -> None:
        self.serving = serving
        self.count = count
        self._progress = repository / "flood" / "progress"

    def worker(self) -> int:
        """The worker process of `flood`, the only Python model."""
        [pid] = set(processes_with(self.serving.mark)) - {self.serving.process.pid}
        return pid

    def progress(self) -> tuple[int, bool]:
        """How many responses the last request has sent, and whether its model saw the client leave."""
        sent, cancelled = struct.unpack("<qq", self._progress.read_bytes() or bytes(16))
        return sent, bool(cancelled)

    def memory(self) -> int:
        return memory_of(self.serving)

    def wait_until_it_stands_still(self) -> int:
        """How many responses were sent when no more came for a while."""
        return stands_still(self.serving, lambda: self.progress()[0], self.probe)

    def probe(self) -> None:
        """A request without responses. When it is done, neither the server nor the worker is stalled."""
        body = json.dumps({"INPUT0": 0}).encode()
        url = f"http://{self.serving.http_url}/v2/models/flood/generate_stream"
        with urllib.request.urlopen(url, body, timeout=LIMIT) as answer:
            assert b"OUTPUT0" not in answer.read()


def memory_of(serving: Serving) -> int:
    """Resident bytes of all processes of the server."""
    return sum(_resident(pid) for pid in processes_with(serving.mark))


def stands_still(serving: Serving, count: Callable[[], int], probe: Callable[[], object]) -> int:
    """The count, once it has not grown during several rounds of `probe`. So a stalled machine does not count as
    standing still."""
    seen: list[int] = []

    def still() -> bool:
        probe()
        seen.append(count())
        return len(seen) > 25 and seen[-1] > 0 and seen[-25] == seen[-1]

    serving.until(still, "went on and on", LIMIT)
    return seen[-1]


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def served(folder: Path, *flags: str, count: int = 1_000, way: str = "process") -> Iterator[Flooded]:
    repository = folder / "models"
    more = f'parameters {{ key: "EXECUTION" value {{ string_value: "{way}" }} }}\n'
    more += "model_transaction_policy { decoupled: true }\n"
    (write_model(repository, "flood", "INT32", backend="python", more=more) / "model.py").write_text(_FLOOD)
    write_model(repository, "other", "INT32")
    with Serving(repository, folder / "server.log", *flags) as serving:
        serving.wait_until_live()
        yield Flooded(serving, repository, count)


@pytest.fixture(scope="module", params=COUNTS)
def flooded(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Flooded]:
    flags = ["--grpc-max-response-pool-size=1"] if request.param == "pool of 1" else []
    way = "in_process" if request.param == "in process" else "process"
    with served(tmp_path_factory.mktemp("flooded"), *flags, count=COUNTS[request.param], way=way) as flooded:
        yield flooded
        assert flooded.serving.stop() == 0, flooded.serving.log_text()[-3000:]


class Client:
    """A stream of raw messages."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.insecure_channel(url, NARROW)
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
        """The numbers of the responses up to the last, which has none. All elements of a response are its number."""
        found: list[int] = []
        for message in self.answers:
            if len(message) < SIZE:
                self.last = pb.ModelStreamInferResponse.FromString(message)
                return found
            (number,) = struct.unpack("<i", message[-4:])
            assert message.endswith(message[-4:] * ELEMENTS)
            found.append(number)
        raise AssertionError("the stream ended before the last response")


class RoomForNothing:
    """A client whose window on the stream is open only for the answer that it asks for."""

    def __init__(self, url: str) -> None:
        host, _, port = url.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), LIMIT)
        self._h2 = h2.connection.H2Connection()
        self._h2.initiate_connection()
        self._h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        self._h2.increment_flow_control_window(1 << 24)

    def __enter__(self) -> "RoomForNothing":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, count: int) -> None:
        path = "/inference.GRPCInferenceService/ModelStreamInfer"
        pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
        self._h2.send_headers(1, [*pseudo, ("te", "trailers"), ("content-type", "application/grpc")])
        message = pb.ModelInferRequest(model_name="flood", raw_input_contents=[struct.pack("<i", count)])
        message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
        raw = message.SerializeToString()
        self._h2.send_data(1, struct.pack(">BI", 0, len(raw)) + raw)
        self._flush()

    def take_one(self) -> None:
        """Opens the window for the prefix of a message, and then for the length in it."""
        (size,) = struct.unpack(">xI", self._take(5))
        assert len(self._take(size)) == size

    def _take(self, size: int) -> bytes:
        self._h2.increment_flow_control_window(size, 1)
        self._flush()
        taken = bytearray()
        while len(taken) < size:
            for event in self._h2.receive_data(self._socket.recv(1 << 16)):
                if isinstance(event, h2.events.DataReceived):
                    taken += event.data or b""
            self._flush()
        return bytes(taken)

    def _flush(self) -> None:
        self._socket.sendall(self._h2.data_to_send())


def other_model_answers(serving: Serving) -> bool:
    with grpcclient.InferenceServerClient(serving.grpc_url) as client:
        tensor = grpcclient.InferInput("INPUT0", [1], "INT32")
        tensor.set_data_from_numpy(np.array([5], np.int32))
        return [int(client.infer("other", [tensor]).as_numpy("OUTPUT0")[0]) for _ in range(20)] == [5] * 20


def flood(flooded: Flooded, client: Client) -> None:
    """Starts a request whose responses are not read. Returns when the model is held back."""
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


@pytest.mark.rows("G32")
@pytest.mark.parametrize("size", [1, 3])
def test_pool_of_responses_counts_those_that_the_client_has_no_room_for(tmp_path: Path, size: int) -> None:
    """The client gives room for one response after the other, and no byte more."""
    with (
        served(tmp_path, f"--grpc-max-response-pool-size={size}") as flooded,
        RoomForNothing(flooded.serving.grpc_url) as client,
    ):
        client.ask(10)
        assert flooded.wait_until_it_stands_still() == size
        for taken in (1, 2, 3):
            client.take_one()
            assert flooded.wait_until_it_stands_still() == size + taken


def test_worker_that_dies_while_its_client_does_not_read(tmp_path: Path) -> None:
    with served(tmp_path) as flooded, Client(flooded.serving.grpc_url) as client:
        flood(flooded, client)
        os.kill(flooded.worker(), signal.SIGKILL)
        numbers = client.numbers()
        assert numbers == list(range(len(numbers)))
        assert client.last.error_message == "Stub process 'flood_0_0' is not healthy."
        assert other_model_answers(flooded.serving)
        assert flooded.serving.stop() == 0


@pytest.mark.parametrize("way", ["process", "in_process"])
def test_server_ends_although_a_client_does_not_read(tmp_path: Path, way: str) -> None:
    with served(tmp_path, "--exit-timeout-secs=1", way=way) as flooded, Client(flooded.serving.grpc_url) as client:
        flood(flooded, client)
        flooded.serving.stop()
