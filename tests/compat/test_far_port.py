"""The official clients against a server whose front ends talk to the engine in bytes only."""

import queue
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving, write_repository

SECONDS = 60.0


class FarServing(Serving):
    """`Serving` with the serializing port between front ends and engine."""

    def command(self, repository: Path) -> Sequence[str]:
        flags = super().command(repository)[4:]
        return (sys.executable, "-m", "tests.compat.far_server", *flags)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarServing]:
    folder = tmp_path_factory.mktemp("far")
    with FarServing(write_repository(folder / "models"), folder / "server.log") as serving:
        serving.wait_until_live()
        yield serving
        assert serving.stop() == 0, serving.log_text()[-3000:]


def infer(module: Any, client: Any, model: str, array: np.ndarray[Any, Any], datatype: str) -> Any:
    tensor = module.InferInput("INPUT0", list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return client.infer(model, [tensor], request_id="far")


@pytest.fixture(params=["http", "grpc"])
def spoken(request: pytest.FixtureRequest, far: FarServing) -> Iterator[tuple[Any, Any]]:
    """The module of a client, and a client, for each protocol."""
    module = httpclient if request.param == "http" else grpcclient
    with module.InferenceServerClient(far.http_url if request.param == "http" else far.grpc_url) as client:
        yield module, client


def test_far_inference_of_numbers_and_of_text(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    result = infer(module, client, "identity_fp32", numbers, "FP32")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), numbers)
    text = np.array([[b"far", b"\x00\xff"]], dtype=object)
    np.testing.assert_array_equal(infer(module, client, "identity_bytes", text, "BYTES").as_numpy("OUTPUT0"), text)


def test_far_inference_of_a_large_tensor(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    numbers = np.arange(1_000_000, dtype=np.float32).reshape(1, -1)
    result = infer(module, client, "identity_fp32", numbers, "FP32")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), numbers)


def test_far_questions(spoken: tuple[Any, Any]) -> None:
    _, client = spoken
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("identity_fp32")
    facts = client.get_model_metadata("identity_fp32")
    assert (facts["name"] if isinstance(facts, dict) else facts.name) == "identity_fp32"


def test_far_refusals_are_those_of_the_engine(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nope' is not found"):
        infer(module, client, "nope", np.zeros((1, 1), np.float32), "FP32")
    with pytest.raises(InferenceServerException, match="inference request batch-size must be <= 64"):
        infer(module, client, "identity_fp32", np.zeros((65, 1), np.float32), "FP32")


def test_far_stream_keeps_the_order(far: FarServing) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpcclient.InferenceServerClient(far.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for i in range(20):
            tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.full((1, 1), i, np.int32))
            client.async_stream_infer("identity_int32", [tensor], request_id=str(i))
        got = [answers.get(timeout=SECONDS) for _ in range(20)]
        client.stop_stream()
    assert [int(result.as_numpy("OUTPUT0")[0, 0]) for result in got] == list(range(20))
