"""A client that sends requests without end on a stream to a model that does not keep up. Its own window closes, the
server's memory is bounded, and everything is answered in order."""

import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.compat.serving import Serving, write_held_model, write_model
from tests.compat.test_back_pressure import LIMIT, memory_of, other_model_answers, stands_still

SIZE = 1 << 20
MOST = 500
"""The number of requests: half a GB."""
UNDER_WAY = 256 << 20
"""The number of requests that the server starts on one stream."""
SLACK = 64 << 20
"""Bytes of the windows, of the buffers of sockets and of the client's library, and of what allocators keep."""


class Sender:
    """Sends requests of `SIZE` bytes to a model, after one to `held`, which answers when it is released."""

    def __init__(self, serving: Serving, model: str) -> None:
        self._channel = grpc.insecure_channel(serving.grpc_url, [("grpc.max_receive_message_length", -1)])
        self._model = model
        self._stop = Event()
        self.count = 0
        call = self._channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer", None, None)
        self.answers = call(self._requests(), timeout=2 * LIMIT)

    def __enter__(self) -> "Sender":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._channel.close()

    def _requests(self) -> Iterator[bytes]:
        while self.count < MOST and not self._stop.is_set():
            message = pb.ModelInferRequest(model_name=self._model if self.count else "held", id=str(self.count))
            message.inputs.add(name="INPUT0", datatype="INT32", shape=[SIZE // 4])
            message.raw_input_contents.append(struct.pack("<i", self.count) + bytes(SIZE - 4))
            self.count += 1
            yield message.SerializeToString()


@pytest.mark.parametrize(("model", "most"), [("held", UNDER_WAY), ("other", 2 << 20)])
def test_client_that_sends_without_end_is_held_back(tmp_path: Path, model: str, most: int) -> None:
    """The requests that wait for the model hold it back, or the answers that wait for the first."""
    repository = tmp_path / "models"
    held = write_held_model(repository)
    write_model(repository, "other", "INT32")
    with Serving(repository, tmp_path / "server.log") as serving:
        serving.wait_until_live()
        before = memory_of(serving)
        with Sender(serving, model) as sender:
            sent = stands_still(serving, lambda: sender.count, lambda: serving.status("/v2/health/live"))
            assert sent * SIZE < most + SLACK
            assert memory_of(serving) - before < most + SLACK
            assert other_model_answers(serving)
            (held / "go").touch()
            answers = map(pb.ModelStreamInferResponse.FromString, sender.answers)
            assert [int(answer.infer_response.id) for answer in answers] == list(range(MOST))
        assert serving.stop() == 0
