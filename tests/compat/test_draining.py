"""What clients get after SIGTERM: while the server waits for the requests that it has accepted (G35), and before that
during --shutdown-delay-secs."""

import contextlib
import http.client
import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.compat.serving import Serving, write_held_model, write_model

LIMIT = 60.0
DRAINING = "GRPC server is shutting down and has stopped accepting new requests."
ONE = b"\1\0\0\0"


def asked(model: str, request: str = "") -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, id=request, raw_input_contents=[ONE])
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    return message


class Stream:
    """A stream that the client keeps open. Collects its answers and its end."""

    def __init__(self, stub: Any) -> None:
        self._requests: queue.SimpleQueue[pb.ModelInferRequest | None] = queue.SimpleQueue()
        self._call = stub.ModelStreamInfer(iter(self._requests.get, None), timeout=LIMIT)

    def send(self, request: pb.ModelInferRequest) -> None:
        self._requests.put(request)

    def next(self) -> Any:
        return next(self._call)

    def rest(self) -> tuple[list[Any], tuple[Any, str]]:
        """All answers, and the status with which the server ends the stream."""
        answers: list[Any] = []
        with pytest.raises(grpc.RpcError) as caught:
            answers.extend(self._call)
        self._requests.put(None)
        error: Any = caught.value
        return answers, (error.code(), error.details())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "good", "INT32")
    return tmp_path / "models"


@pytest.fixture
def serving(repository: Path, tmp_path: Path) -> Iterator[Serving]:
    write_held_model(repository)
    with Serving(repository, tmp_path / "server.log") as serving:
        yield serving.wait_until_live()


@pytest.mark.rows("G35")
def test_requests_while_others_end(serving: Serving, repository: Path) -> None:
    """Sends unary inferences, and messages on an open stream."""
    held = repository / "held"
    with grpc.insecure_channel(serving.grpc_url) as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stream = Stream(stub)
        stream.send(asked("held", "begun"))
        serving.until((held / "begun").exists, "did not execute the model")
        serving.process.send_signal(signal.SIGTERM)
        serving.until(lambda: refused(stub), "goes on taking requests")
        stream.send(asked("good", "late"))
        (held / "go").touch()
        answers, end = stream.rest()
        assert (answers[0].infer_response.id, answers[0].error_message) == ("begun", "")
        # Where the late message is not there before the last answer is, the stream is over already.
        assert [answer.error_message for answer in answers[1:]] in ([DRAINING], [])
        assert end == (grpc.StatusCode.UNAVAILABLE, DRAINING)
    assert serving.wait() == 0


def test_server_that_leaves_serves_everybody(repository: Path, tmp_path: Path) -> None:
    """With --shutdown-delay-secs: only readiness has ended after the first signal. The second one stops the server."""
    write_held_model(repository)
    with (
        Serving(repository, tmp_path / "server.log", f"--shutdown-delay-secs={LIMIT}") as serving,
        contextlib.ExitStack() as stack,
    ):
        serving.wait_until_live()
        kept = stack.enter_context(contextlib.closing(http.client.HTTPConnection(serving.http_url, timeout=LIMIT)))
        assert answer_of(kept, "/v2/health/ready") == (200, False)
        channel = stack.enter_context(grpc.insecure_channel(serving.grpc_url))
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stream = Stream(stub)
        stream.send(asked("held", "begun"))
        serving.until((repository / "held" / "begun").exists, "did not execute the model")
        serving.process.send_signal(signal.SIGTERM)
        serving.until(lambda: serving.status("/v2/health/ready") == 503, "is still ready")
        assert serving.status("/v2/health/live") == 200
        assert answer_of(kept, "/v2/health/live") == (200, True)
        assert stub.ServerLive(pb.ServerLiveRequest(), timeout=LIMIT).live
        assert stub.ModelInfer(asked("good", "new"), timeout=LIMIT).id == "new"
        (repository / "held" / "go").touch()
        stream.send(asked("good", "late"))
        assert [stream.next().infer_response.id for _ in range(2)] == ["begun", "late"]
        assert serving.stop() == 0
        assert stream.rest() == ([], (grpc.StatusCode.UNAVAILABLE, DRAINING))


def answer_of(client: http.client.HTTPConnection, path: str) -> tuple[int, bool]:
    """The status of the answer, and whether it ends the connection."""
    client.request("GET", path)
    answer = client.getresponse()
    answer.read()
    return answer.status, answer.will_close


def refused(stub: Any) -> bool:
    """Whether a new call is refused: with the contract's text, or with the library's if nothing listens any more when
    it retries."""
    try:
        stub.ModelInfer(asked("good"), timeout=LIMIT)
    except grpc.RpcError as caught:
        error: Any = caught
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return True
    return False
