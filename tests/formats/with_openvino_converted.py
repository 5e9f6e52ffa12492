"""`halimede convert` to IR, with what every installation of OpenVINO reads."""

from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from digits_onnx import split, train_versions
from onnx import helper

from halimede.devtools.scaffold import begin
from halimede.options import ServerOptions
from tests.backends import onnx_models
from tests.compat.serving import Serving
from tests.formats.converting import CLOSE, converted, run


def test_classifier_becomes_ir_that_serves_batches(tmp_path: Path) -> None:
    (tmp_path / "digits.onnx").write_bytes(train_versions()[2].SerializeToString())
    assert converted(tmp_path / "digits.onnx", "--to", "openvino") < CLOSE
    assert sorted(each.name for each in tmp_path.iterdir()) == ["digits.bin", "digits.onnx", "digits.xml"]
    for ending in ("onnx", "xml"):
        begin(tmp_path / f"digits.{ending}", tmp_path / "models", ending, ServerOptions())
    images = split()[1].pixels[:20]
    with Serving(tmp_path / "models", tmp_path / "log") as serving:
        serving.wait_until_live()
        _, config = serving.ask("/v2/models/xml/config")
        assert config["backend"] == "openvino"
        assert config["max_batch_size"] > 1
        answers = []
        for model in ("onnx", "xml"):
            given = httpclient.InferInput("image", list(images[:4].shape), "FP32").set_data_from_numpy(images[:4])
            with httpclient.InferenceServerClient(serving.http_url) as client:
                answers.append(client.infer(model, [given]).as_numpy("probabilities"))
        np.testing.assert_allclose(answers[1], answers[0], rtol=0, atol=CLOSE)


def test_strings_are_compared_exactly(tmp_path: Path) -> None:
    """The model is no Identity: OpenVINO's own one for strings ends the process when it is closed."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    x, y = (onnx_models.value(name, "BYTES", ["n", 2]) for name in ("x", "y"))
    (tmp_path / "text.onnx").write_bytes(onnx_models.model([node], [x], [y], {"shape": np.array([-1, 2])}))
    done = run(tmp_path / "text.onnx", "--to", "openvino")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nall strings are equal\n" in done.stdout


def test_output_is_written_where_the_user_says(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(onnx_models.identity("FP32", ["n", 2]))
    place = tmp_path / "elsewhere.xml"
    assert converted(tmp_path / "a.onnx", "--to", "openvino", "--output", place) == 0.0
    assert place.is_file()
    again = run(tmp_path / "a.onnx", "--to", "openvino", "--output", place)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == f"error: '{place}' exists already; --output gives the file another name\n"


@pytest.mark.parametrize("content", [b"no model", b""])
def test_broken_file_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.onnx").write_bytes(content)
    done = run(tmp_path / "a.onnx", "--to", "openvino")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["a.onnx"]


def test_operator_that_openvino_lacks(tmp_path: Path) -> None:
    """The words are OpenVINO's, and the file is not there."""
    node = helper.make_node("StringConcat", ["x", "x"], ["y"])
    model = helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [onnx_models.value("x", "BYTES", ["n", 1])],
            [onnx_models.value("y", "BYTES", ["n", 1])],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    done = run(tmp_path / "a.onnx", "--to", "openvino")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"'{tmp_path / 'a.onnx'}' cannot be converted: " in done.stderr
    assert "StringConcat" in done.stderr
    assert not (tmp_path / "a.xml").exists()
