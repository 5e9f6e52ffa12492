"""`class_count` of the official clients, over HTTP and gRPC, with a label file (H80 to H83)."""

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving, write_model

SCORES = np.array([[0.1, 0.5, 0.25, 0.5], [8, -1, 9, 7]], np.float32)
BEST = [[b"0.500000:1:dog", b"0.500000:3"], [b"9.000000:2:h\xc3\xa9ron", b"8.000000:0:cat"]]
WAIT = 20.0
READER = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
    scores = [[float(word) for word in text.split()] for (text,) in texts]
    return pb_utils.InferenceResponse([pb_utils.Tensor("READ", np.array(scores, np.float32))])
"""
READER_CONFIG = """backend: "python"
max_batch_size: 4
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "READ" data_type: TYPE_FP32 dims: -1 }
instance_group { kind: KIND_CPU }
"""
READ_AND_SCORED = """platform: "ensemble"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_STRING dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
ensemble_scheduling {
  step {
    model_name: "reader" model_version: -1
    input_map { key: "TEXT" value: "INPUT0" } output_map { key: "READ" value: "read" }
  }
  step {
    model_name: "scores" model_version: -1
    input_map { key: "INPUT0" value: "read" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
  }
}
"""


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with `scores` (batches, three labels), `flags` (a BOOL output), and the ensemble `read_and_scored`,
    which makes numbers of files and passes them to `scores`."""
    folder = tmp_path_factory.mktemp("classification")
    write_model(folder / "models", "scores", "FP32", max_batch_size=4)
    config = folder / "models" / "scores" / "config.pbtxt"
    before, output, after = config.read_text().partition('{ name: "OUTPUT0"')
    config.write_text(f'{before}{output} label_filename: "labels.txt"{after}')
    (folder / "models" / "scores" / "labels.txt").write_text("cat\ndog\nhéron\n", encoding="utf-8")
    write_model(folder / "models", "flags", "BOOL")
    for name, text in {"reader": READER_CONFIG, "read_and_scored": READ_AND_SCORED}.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(text)
    (folder / "models" / "reader" / "1" / "model.py").write_text(READER)
    with Serving(folder / "models", folder / "server.log") as serving:
        yield serving.wait_until_live()
        assert serving.stop() == 0, serving.log_text()[-3000:]


def asked(client: Any, classes: int, scores: Any = SCORES, **more: Any) -> dict[str, Any]:
    datatype = "BOOL" if scores.dtype == np.bool_ else "FP32"
    tensor = client.InferInput("INPUT0", list(scores.shape), datatype)
    tensor.set_data_from_numpy(scores)
    return {"inputs": [tensor], "outputs": [client.InferRequestedOutput("OUTPUT0", class_count=classes, **more)]}


def classes_of(result: Any) -> list[list[bytes]]:
    found = result.as_numpy("OUTPUT0")
    assert found.dtype == np.object_
    listed: list[list[bytes]] = found.tolist()
    return listed


@pytest.mark.parametrize("binary", [True, False])
def test_http_client_reads_classes(labelled: Serving, binary: bool) -> None:
    with http_client.InferenceServerClient(labelled.http_url) as client:
        result = client.infer("scores", **asked(http_client, 2, binary_data=binary))
    # Out of JSON the client makes text of them.
    assert [[t if isinstance(t, bytes) else t.encode() for t in item] for item in classes_of(result)] == BEST


def test_http_client_reads_the_tensor_for_no_classes(labelled: Serving) -> None:
    with http_client.InferenceServerClient(labelled.http_url) as client:
        result = client.infer("scores", **asked(http_client, 0))
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), SCORES)


def test_grpc_client_reads_classes(labelled: Serving) -> None:
    with grpc_client.InferenceServerClient(labelled.grpc_url) as client:
        for _ in range(4):  # also once the server remembers the request
            assert classes_of(client.infer("scores", **asked(grpc_client, 2))) == BEST
        assert len(classes_of(client.infer("scores", **asked(grpc_client, 99)))[0]) == 4
        np.testing.assert_array_equal(client.infer("scores", **asked(grpc_client, 0)).as_numpy("OUTPUT0"), SCORES)


def test_grpc_stream_reads_classes(labelled: Serving) -> None:
    results: queue.Queue[Any] = queue.Queue()
    with grpc_client.InferenceServerClient(labelled.grpc_url) as client:
        client.start_stream(lambda result, error: results.put(error or result))
        for classes in (2, 1):
            client.async_stream_infer("scores", **asked(grpc_client, classes))
        assert classes_of(results.get(timeout=WAIT)) == BEST
        assert classes_of(results.get(timeout=WAIT)) == [item[:1] for item in BEST]
        client.stop_stream()


def test_asyncio_clients_read_classes(labelled: Serving) -> None:
    async def scenario() -> list[list[list[bytes]]]:
        async with (
            http_aio.InferenceServerClient(labelled.http_url) as http,
            grpc_aio.InferenceServerClient(labelled.grpc_url) as grpc,
        ):
            results = [
                await http.infer("scores", **asked(http_aio, 2)),
                await grpc.infer("scores", **asked(grpc_aio, 2)),
            ]
        return [classes_of(result) for result in results]

    assert asyncio.run(asyncio.wait_for(scenario(), WAIT)) == [BEST, BEST]


@pytest.mark.parametrize("client", [http_client, grpc_client])
def test_classes_of_a_bool_output_are_an_error(labelled: Serving, client: Any) -> None:
    url = labelled.http_url if client is http_client else labelled.grpc_url
    with client.InferenceServerClient(url) as connected, pytest.raises(InferenceServerException) as caught:
        connected.infer("flags", **asked(client, 1, np.array([True])))
    assert caught.value.message() == "class result not available for output due to unsupported type 'BOOL'"


@pytest.mark.parametrize("client", [http_client, grpc_client])
def test_files_go_in_and_classes_of_the_last_model_come_out(labelled: Serving, client: Any) -> None:
    """The client sends files of different lengths to an ensemble, and asks the server for the names of input and output
    first."""
    files = [" ".join(map(str, scores)).encode() for scores in SCORES.tolist()]
    assert len({len(file) for file in files}) == 2
    url = labelled.http_url if client is http_client else labelled.grpc_url
    with client.InferenceServerClient(url) as connected:
        as_json = {} if client is http_client else {"as_json": True}
        metadata = connected.get_model_metadata("read_and_scored", **as_json)
        (given,), (made,) = metadata["inputs"], metadata["outputs"]
        tensor = client.InferInput(given["name"], [2, 1], given["datatype"])
        tensor.set_data_from_numpy(np.array([[file] for file in files], np.object_))
        wanted = [client.InferRequestedOutput(made["name"], class_count=2)]
        assert classes_of(connected.infer("read_and_scored", [tensor], outputs=wanted)) == BEST
