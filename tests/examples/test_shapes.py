"""The ensemble for pictures: the drawing, the training and graphs of its models, and all of it through a server."""

import io
import json
import urllib.request
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import shapes
import shapes_onnx
import tritonclient.http as triton
from clients import ClientError, Server
from numpy.typing import NDArray
from PIL import Image
from shapes_images import LABELS, SIZE, as_tensor, draw
from shapes_onnx import Pictures, TrainingError, Weights, build_classifier, build_segmenter, contrast, make_pictures

from tests.compat.serving import Serving

HELD_OUT = 1000  # a seed: the training has another one


@pytest.fixture(scope="module")
def held_out() -> Pictures:
    return make_pictures(300, HELD_OUT)


def run(model: Path | bytes, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(model)
    found: NDArray[np.float32] = session.run(None, {"picture": pixels})[0]
    return found


def overlaps(found: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The intersection over union of each pair of masks."""
    both, either = (np.count_nonzero(part, axis=(1, 2)) for part in (found & wanted, found | wanted))
    return np.asarray(both / either, np.float64)


def test_held_out_shapes_are_recognised(demo_repository: Path, held_out: Pictures) -> None:
    probabilities = run(demo_repository / "shape_classifier" / "1" / "model.onnx", held_out.pixels)
    assert (probabilities.argmax(axis=1) == held_out.labels).mean() >= 0.98
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)


def test_held_out_shapes_are_found(demo_repository: Path, held_out: Pictures) -> None:
    masks = run(demo_repository / "shape_segmenter" / "1" / "model.onnx", held_out.pixels)
    assert set(np.unique(masks)) == {0, 255}
    shares = overlaps(masks > 0, held_out.masks)
    assert shares.mean() >= 0.98
    assert shares.min() >= 0.85


def test_labels_are_those_of_the_drawing(demo_repository: Path) -> None:
    assert tuple((demo_repository / "shape_classifier" / "labels.txt").read_text().split()) == LABELS


def test_background_that_changes_evenly_has_no_contrast() -> None:
    line = np.linspace(0, 1, SIZE, dtype=np.float32)
    picture = np.stack([np.tile(line, (SIZE, 1)), np.tile(line[:, None], (1, SIZE)), np.full((SIZE, SIZE), 0.5)])
    picture[:, 20:30, 20:30] += 0.4
    seen = contrast(picture[None].astype(np.float32))[0]
    assert seen[20:30, 20:30].min() > 0.9
    seen[20:30, 20:30] = 0
    assert seen.max() < 1e-3


def of_random(inputs: int, units: int, outputs: int) -> Weights:
    generator = np.random.default_rng(5)
    shapes = [(inputs,), (inputs,), (inputs, units), (units,), (units, outputs), (outputs,)]
    mean, scale, *rest = (generator.normal(0, 1, shape) for shape in shapes)
    return Weights(mean, np.abs(scale) + 0.5, *rest)


def by_hand(weights: Weights, features: NDArray[np.float64]) -> NDArray[np.float64]:
    hidden = ((features - weights.mean) / weights.scale) @ weights.first + weights.first_bias
    return np.asarray(np.maximum(hidden, 0) @ weights.second + weights.second_bias)


def saved(model: onnx.ModelProto) -> bytes:
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def test_graph_of_the_classifier_computes_what_was_trained(held_out: Pictures) -> None:
    pixels = held_out.pixels[:7]
    features = shapes_onnx.spectrum(pixels)
    weights = of_random(features.shape[1], 6, len(LABELS))
    odds = np.exp(by_hand(weights, features))
    expected = odds / odds.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(run(saved(build_classifier(weights)), pixels), expected, atol=2e-3)


def test_graph_of_the_segmenter_computes_what_was_trained(held_out: Pictures) -> None:
    pixels = held_out.pixels[:3]
    weights = of_random(shapes_onnx.REACH**2, 5, 1)._replace(mean=np.zeros(shapes_onnx.REACH**2))
    scores = by_hand(weights, shapes_onnx.surroundings(contrast(pixels)))[..., 0]
    masks = run(saved(build_segmenter(weights)), pixels)
    sure = np.abs(scores) > 1e-3
    assert sure.mean() > 0.95
    np.testing.assert_array_equal((masks > 0)[sure], (scores > 0)[sure])


def test_spectrum_is_the_same_wherever_the_shape_lies() -> None:
    plain = np.full((2, 3, SIZE, SIZE), 0.2, np.float32)
    plain[0, :, 10:22, 12:30] = 0.9
    plain[1, :, 35:47, 25:43] = 0.9
    one, other = shapes_onnx.spectrum(plain)
    # The contrast is computed in FP32: its rounding depends on the processor and on where the shape is. Shapes of
    # different kinds differ by 0.1 and more.
    np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("role", ["classifier", "segmenter"])
def test_training_that_does_not_settle_says_so(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    for name, value in {"ROUNDS": 1, "CLASSIFIER_PICTURES": 20, "SEGMENTER_PICTURES": 5}.items():
        monkeypatch.setattr(shapes_onnx, name, value)
    with pytest.raises(TrainingError, match=r"^only \d+% of the training data are classified correctly"):
        shapes_onnx.train(role)


def test_shapes_lie_within_the_picture() -> None:
    generator = np.random.default_rng(3)
    for label in range(len(LABELS)):
        scene = draw(generator, 96, 72, label)
        mask = np.asarray(scene.mask)
        assert (scene.label, scene.picture.size, scene.mask.size) == (label, (96, 72), (96, 72))
        assert 0.01 < (mask > 127).mean() < 0.5
        assert not mask[[0, -1]].any()
        assert not mask[:, [0, -1]].any()


# ---- through a server


def test_server_decodes_as_the_training_did(demo_server: Serving) -> None:
    picture = draw(np.random.default_rng(4), 200, 150).picture
    file = io.BytesIO()
    picture.save(file, "PNG")
    tensor = triton.InferInput("FILE", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[file.getvalue()]], dtype=object))
    client = triton.InferenceServerClient(demo_server.http_url)
    pixels = client.infer("image_decoder", [tensor]).as_numpy("picture")
    client.close()
    np.testing.assert_allclose(pixels[0], as_tensor(picture), atol=1e-6)


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_held_out_files_are_recognised_and_found(demo_server: Serving, form: str) -> None:
    generator = np.random.default_rng(HELD_OUT + 1)
    scenes = [draw(generator, 160, 120, number % len(LABELS)) for number in range(40)]
    files = []
    for scene in scenes:
        file = io.BytesIO()
        scene.picture.save(file, form, quality=85)
        files.append(file.getvalue())
    seen = shapes.ask(Server("http", demo_server.http_url), files)
    right = [each.label == LABELS[scene.label] for each, scene in zip(seen, scenes, strict=True)]
    assert sum(right) >= 38
    found = np.stack([np.asarray(each.mask) > 127 for each in seen])
    wanted = np.stack([np.asarray(scene.mask.resize((SIZE, SIZE))) > 127 for scene in scenes])
    assert overlaps(found, wanted).mean() > 0.95


def test_model_whose_output_is_not_requested_does_not_run(demo_server: Serving) -> None:
    client = triton.InferenceServerClient(demo_server.http_url)

    def executions(model: str) -> int:
        return int(client.get_inference_statistics(model)["model_stats"][0]["execution_count"])

    before = {model: executions(model) for model in ("shape_classifier", "shape_segmenter")}
    tensor = triton.InferInput("FILE", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[shapes.drawn(seed=1)[0]]], dtype=object))
    result = client.infer("shapes", [tensor], outputs=[triton.InferRequestedOutput("mask")])
    assert result.as_numpy("shape") is None
    assert result.as_numpy("mask").shape == (1, SIZE, SIZE)
    after = {model: executions(model) for model in before}
    client.close()
    assert after == {**before, "shape_segmenter": before["shape_segmenter"] + 1}


def test_file_is_sent_by_curl_as_it_is(demo_server: Serving) -> None:
    """`curl -H 'Inference-Header-Content-Length: 0' --data-binary @star.png`: the bytes alone, without JSON or a
    length."""
    url = f"http://{demo_server.http_url}/v2/models/shapes/infer"
    star = shapes.drawn(seed=1)[LABELS.index("star")]
    asked = urllib.request.Request(url, star, {"Inference-Header-Content-Length": "0"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        head = int(answer.headers["Inference-Header-Content-Length"])
        body = answer.read()
    names = [output["name"] for output in json.loads(body[:head])["outputs"]]
    assert names == ["shape", "mask"]
    assert LABELS[int(np.frombuffer(body, np.float32, 4, head).argmax())] == "star"
    assert len(body) == head + 4 * len(LABELS) + SIZE * SIZE


def png(width: int, height: int) -> bytes:
    """A small file whose header claims this size."""
    file = io.BytesIO()
    Image.new("L", (40, 40)).save(file, "PNG")
    content = file.getvalue()
    head = b"IHDR" + width.to_bytes(4) + height.to_bytes(4) + content[24:29]
    return content[:12] + head + zlib.crc32(head).to_bytes(4) + content[33:]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "is no PNG or JPEG"),
        (b"GIF89a" + bytes(30), "is no PNG or JPEG"),
        (png(40, 40)[:48], "cannot be read"),
        (png(20000, 2001), "is a picture of 20000 x 2001 pixels, which is too large"),
        (png(20000, 20000), "is no PNG or JPEG"),
    ],
    ids=["empty", "gif", "cut", "large", "bomb"],
)
def test_bad_picture_is_refused(demo_server: Serving, file: bytes, reason: str) -> None:
    server = Server("http", demo_server.http_url)
    with pytest.raises(ClientError, match=f"FILE {reason}"):
        shapes.ask(server, [file])
    assert len(shapes.ask(server, shapes.drawn(seed=1))) == 4


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_script_prints_a_row_per_picture_and_writes_them(
    demo_server: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    files = []
    for number, content in enumerate(shapes.drawn(seed=1) * 5):
        files.append(tmp_path / f"{number}.picture")
        files[-1].write_bytes(content)
    output = tmp_path / "shapes.png"
    url = getattr(demo_server, f"{protocol}_url")
    words = ["--protocol", protocol, "--url", url, "--output", str(output), *map(str, files)]
    assert shapes.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:20]] == list(LABELS) * 5
    assert lines[-1].startswith("20 pictures in ")
    with Image.open(output) as image:
        assert (image.format, image.size) == ("PNG", (754, 1550))


def test_overlay_keeps_the_shape_and_darkens_the_rest() -> None:
    picture = Image.new("RGB", (64, 64), (200, 100, 0))
    mask = Image.new("L", (64, 64))
    mask.paste(255, (16, 16, 48, 48))
    shown = shapes.overlay(picture, mask)
    assert shown.getpixel((32, 32)) == (200, 100, 0)
    assert shown.getpixel((15, 32)) == shapes.LINE
    dark = shown.getpixel((2, 2))
    assert isinstance(dark, tuple)
    assert max(dark) < 60


def test_script_says_what_is_wrong(demo_server: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.write_text("no picture")
    for words, reason in (
        (["--url", "127.0.0.1:1"], "no server answers at 127.0.0.1:1"),
        (["--url", demo_server.http_url, str(tmp_path / "none")], "No such file or directory"),
        (["--url", demo_server.http_url, str(text)], "FILE is no PNG or JPEG"),
        (["--url", demo_server.http_url, "--output", str(tmp_path / "none" / "x.png")], "No such file or directory"),
    ):
        assert shapes.main(words) == 1
        assert reason in capsys.readouterr().err
