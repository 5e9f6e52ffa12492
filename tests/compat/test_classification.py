"""`class_count` of the official clients, over HTTP and gRPC, with a label file (contract H80 to H83)."""

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


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server of `scores`, which batches and has three labels, and of `flags`, whose output is BOOL."""
    folder = tmp_path_factory.mktemp("classification")
    write_model(folder / "models", "scores", "FP32", max_batch_size=4)
    config = folder / "models" / "scores" / "config.pbtxt"
    before, output, after = config.read_text().partition('{ name: "OUTPUT0"')
    config.write_text(f'{before}{output} label_filename: "labels.txt"{after}')
    (folder / "models" / "scores" / "labels.txt").write_text("cat\ndog\nhéron\n", encoding="utf-8")
    write_model(folder / "models", "flags", "BOOL")
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
def test_client_is_told_that_there_are_no_classes(labelled: Serving, client: Any) -> None:
    url = labelled.http_url if client is http_client else labelled.grpc_url
    with client.InferenceServerClient(url) as connected, pytest.raises(InferenceServerException) as caught:
        connected.infer("flags", **asked(client, 1, np.array([True])))
    assert caught.value.message() == "class result not available for output due to unsupported type 'BOOL'"
