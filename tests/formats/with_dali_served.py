"""Pipelines on a running server, with the official clients, and the commands of docs/dali.md."""

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from PIL import Image
from shapes_images import LABELS, SIZE, draw
from shapes_onnx import train
from tritonclient.utils import InferenceServerException

from tests.backends.dali.pipelines import SIDE, decoded, frames, jpeg, pictures, serialized, video
from tests.compat.serving import Serving

DEMO = Path(__file__).resolve().parents[2] / "examples" / "dali"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "dali.md"
LIMIT = 60.0


def write(models: Path, name: str, content: bytes, config: str, file: str = "model.dali") -> None:
    version = models / name / "1"
    version.mkdir(parents=True)
    (version / file).write_bytes(content)
    (version.parent / "config.pbtxt").write_text(f'backend: "dali"\n{config}')


def source_of_the_page() -> str:
    blocks = re.findall(r"^```python\n# 1/dali.py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("dali")
    models = folder / "models"
    typed = 'output { name: "PICTURE" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] }\n'
    write(models, "pictures", serialized(pictures), typed)
    two = (
        'output { name: "P" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }\n'
        'output { name: "S" data_type: TYPE_INT32 dims: [ 3 ] }\n'
    )
    write(models, "two", serialized(decoded), two)
    film = (
        "max_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n"
        'input { name: "VIDEO" data_type: TYPE_UINT8 dims: [ -1, -1 ] }\n'
        'output { name: "FRAMES" data_type: TYPE_UINT8 dims: [ -1, -1, -1, -1, 3 ] }\n'
    )
    write(models, "film", serialized(frames, batch_size=1), film)
    page = models / "page" / "1"
    page.mkdir(parents=True)
    (page / "dali.py").write_text(source_of_the_page())
    shutil.copytree(DEMO / "picture_decoder", models / "picture_decoder")
    with Serving(models, folder / "server.log") as server:
        server.wait_until_live()
        yield server
        assert server.stop() == 0, server.log_text()[-3000:]


def asked(serving: Serving, model: str, data: Any, *outputs: str, name: str = "IMAGE") -> dict[str, Any]:
    """The outputs by name, which must be the same over HTTP and gRPC."""
    answers = []
    for library, url in ((httpclient, serving.http_url), (grpcclient, serving.grpc_url)):
        given = library.InferInput(name, [1, data.size], "UINT8")
        given.set_data_from_numpy(data[np.newaxis])
        wanted = [library.InferRequestedOutput(each) for each in outputs]
        with library.InferenceServerClient(url) as client:
            result = client.infer(model, [given], outputs=wanted)
            answers.append({name: result.as_numpy(name) for name in outputs})
            assert all(found is not None for found in answers[-1].values())
    for name in outputs:
        np.testing.assert_array_equal(answers[0][name], answers[1][name])
    return answers[0]


@pytest.mark.rows("BD6", "BD7")
def test_configuration_is_completed(serving: Serving) -> None:
    _, config = serving.ask("/v2/models/pictures/config")
    assert config["max_batch_size"] == 8
    assert "dynamic_batching" in config
    [given] = config["input"]
    assert (given["name"], given["data_type"], given["dims"], given["allow_ragged_batch"]) == (
        *("IMAGE", "TYPE_UINT8", [-1]),
        True,
    )
    _, config = serving.ask("/v2/models/film/config")
    assert config["max_batch_size"] == 0


def test_picture_becomes_a_tensor(serving: Serving) -> None:
    found = asked(serving, "pictures", jpeg(100, 70, (10, 240, 10)), "PICTURE")["PICTURE"]
    assert found.shape == (1, 3, SIDE, SIDE)
    np.testing.assert_allclose(found.mean(axis=(0, 2, 3)), [0.04, 0.94, 0.04], atol=0.03)


@pytest.mark.rows("BD11")
def test_one_of_two_outputs(serving: Serving) -> None:
    assert asked(serving, "two", jpeg(50, 30), "S")["S"].tolist() == [[30, 50, 3]]
    assert asked(serving, "two", jpeg(50, 30), "P")["P"].shape == (1, 30, 50, 3)


@pytest.mark.rows("BD8", "BD15")
def test_pictures_of_many_sizes_at_once_and_broken_ones_among_them(serving: Serving) -> None:
    good = [jpeg(20 + i, 30 + i) for i in range(12)]
    with grpcclient.InferenceServerClient(serving.grpc_url) as client:
        replies: Queue[tuple[int, Any, Any]] = Queue()
        for i in range(24):
            data = good[i // 2] if i % 2 == 0 else good[i // 2][: 100 + i]
            given = grpcclient.InferInput("IMAGE", [1, data.size], "UINT8")
            given.set_data_from_numpy(data[np.newaxis])
            client.async_infer("pictures", [given], lambda result, error, i=i: replies.put((i, result, error)))
        found = {i: (result, error) for i, result, error in (replies.get(timeout=LIMIT) for _ in range(24))}
    for i, (result, error) in found.items():
        if i % 2 == 0:
            assert error is None, error
            assert result.as_numpy("PICTURE").shape == (1, 3, SIDE, SIDE)
        else:
            assert "DALI error: " in str(error)


@pytest.mark.rows("BD12")
def test_video_is_answered_in_a_stream(serving: Serving) -> None:
    data = video(12)
    given = grpcclient.InferInput("VIDEO", [1, data.size], "UINT8")
    given.set_data_from_numpy(data[np.newaxis])
    replies: Queue[tuple[Any, Any]] = Queue()
    with grpcclient.InferenceServerClient(serving.grpc_url) as client:
        client.start_stream(lambda result, error: replies.put((result, error)))
        client.async_stream_infer("film", [given], enable_empty_final_response=True)
        shapes, last = [], False
        while not last:
            result, error = replies.get(timeout=LIMIT)
            assert error is None, error
            shapes.append(result.as_numpy("FRAMES").shape)
            last = result.get_response().parameters["triton_final_response"].bool_param
        client.stop_stream()
    assert shapes == [(1, 5, 48, 64, 3), (1, 5, 48, 64, 3), (1, 2, 48, 64, 3)]


def test_pipeline_of_the_page(serving: Serving) -> None:
    found = asked(serving, "page", jpeg(300, 200), "TENSOR")["TENSOR"]
    assert found.shape == (1, 3, 224, 224)
    assert found.dtype == np.float32
    assert re.search(r"^\$ pip install", PAGE.read_text(), re.MULTILINE)


def test_pipeline_runs_in_a_process_of_its_own(serving: Serving) -> None:
    assert "instance 'pictures_0' runs in process" in serving.log_text()


def test_request_without_its_input(serving: Serving) -> None:
    status, answer = serving.ask("/v2/models/pictures/infer", json.dumps({"inputs": []}).encode())
    assert status == 400
    assert "expected 1 inputs but got 0 inputs" in answer["error"]


def test_decoder_for_the_demo_gives_the_pixels_of_pillow(serving: Serving) -> None:
    y, x = np.mgrid[0:150, 0:200]
    pixels = np.stack([x, y, (x + y) // 2], axis=2).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    data = np.frombuffer(buffer.getvalue(), np.uint8)
    found = asked(serving, "picture_decoder", data, "picture", name="FILE")["picture"][0]
    small = Image.fromarray(pixels).resize((64, 64), Image.Resampling.BILINEAR)
    expected = np.asarray(small, np.float32).transpose(2, 0, 1) / 255
    assert np.abs(found - expected).max() < 0.02
    # The ensemble of the demo has it as its first step, and otherwise the demo's models.
    config = (DEMO / "shapes_dali" / "config.pbtxt").read_text()
    demo = (DEMO.parent / "models" / "shapes" / "config.pbtxt").read_text()
    steps = [re.findall(r'model_name: "(\w+)"', text) for text in (config, demo)]
    assert steps == [["picture_decoder", *steps[1][1:]], ["image_decoder", *steps[1][1:]]]


def test_ensemble_of_the_demo_from_jpegs_to_shapes(tmp_path: Path) -> None:
    """The commands of docs/dali.md serve two repositories; here the demo's has the models that the ensemble needs."""
    demo = tmp_path / "demo"
    for role in ("classifier", "segmenter"):
        model = demo / f"shape_{role}"
        shutil.copytree(DEMO.parent / "models" / model.name, model)
        (model / "1").mkdir(exist_ok=True)
        onnx.save(train(role), model / "1" / "model.onnx")
    generator = np.random.default_rng(77)
    scenes = [draw(generator, 160, 120, number % len(LABELS)) for number in range(24)]
    with Serving(demo, tmp_path / "log", f"--model-repository={DEMO}") as server:
        server.wait_until_live()
        right, overlaps = 0, []
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            for scene in scenes:
                file = io.BytesIO()
                scene.picture.save(file, "JPEG", quality=85)
                data = np.frombuffer(file.getvalue(), np.uint8)[np.newaxis]
                given = grpcclient.InferInput("FILE", list(data.shape), "UINT8").set_data_from_numpy(data)
                wanted = [
                    grpcclient.InferRequestedOutput("shape", class_count=1),
                    grpcclient.InferRequestedOutput("mask"),
                ]
                answer = client.infer("shapes_dali", [given], outputs=wanted)
                [text] = answer.as_numpy("shape").reshape(-1)
                right += text.decode().split(":")[2] == LABELS[scene.label]
                found = answer.as_numpy("mask")[0] > 127
                mask = np.asarray(scene.mask.resize((SIZE, SIZE))) > 127
                overlaps.append((found & mask).sum() / (found | mask).sum())
            given = grpcclient.InferInput("FILE", [1, 200], "UINT8").set_data_from_numpy(data[:, :200])
            with pytest.raises(InferenceServerException, match="DALI error: "):
                client.infer("shapes_dali", [given])
        assert server.stop() == 0
    assert right >= 22
    assert np.mean(overlaps) > 0.9
