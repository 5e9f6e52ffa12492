"""`halimede convert` of models of TensorFlow, which is in an environment of its own."""

from pathlib import Path

import pytest

from tests.formats.built import TENSORFLOW, place
from tests.formats.converting import CLOSE, converted, run
from tests.formats.with_tensorflow_served import GRAPH

APART = ("--environment", TENSORFLOW)


@pytest.mark.parametrize("to", ["tflite", "onnx"])
def test_savedmodel(tmp_path: Path, to: str) -> None:
    place("two.savedmodel", tmp_path, "two.savedmodel")
    assert converted(tmp_path / "two.savedmodel", "--to", to, *APART) < CLOSE
    assert (tmp_path / f"two.{to}").is_file()


def test_tflite_becomes_onnx(tmp_path: Path) -> None:
    place("echo_2.tflite", tmp_path, "echo.tflite")
    assert converted(tmp_path / "echo.tflite", "--to", "onnx", *APART) < CLOSE


def test_signature_of_a_model_directory(tmp_path: Path) -> None:
    """The parameters of the configuration count. The new file is not written into the repository."""
    folder = tmp_path / "models" / "named"
    (folder / "3").mkdir(parents=True)
    place("named.savedmodel", folder / "3", "model.savedmodel")
    (folder / "config.pbtxt").write_text(
        'platform: "tensorflow_savedmodel"\nparameters { key: "TF_SIGNATURE_DEF" value { string_value: "negative" } }\n'
    )
    target = tmp_path / "negative.tflite"
    assert converted(folder, "--to", "tflite", "--output", target, *APART) < CLOSE
    assert target.is_file()
    assert sorted(each.name for each in folder.iterdir()) == ["3", "config.pbtxt"]


def test_frozen_graph_needs_its_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    (folder / "1").mkdir(parents=True)
    place("frozen.graphdef", folder / "1", "model.graphdef")
    alone = run(folder / "1" / "model.graphdef", "--to", "onnx", *APART)
    assert alone.returncode == 1
    assert "Traceback" not in alone.stderr
    numbers = 'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [4] }\n' + "".join(
        f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [4] }}\n' for name in ("twice", "negative")
    )
    (folder / "config.pbtxt").write_text(f'platform: "tensorflow_graphdef"\n{numbers}')
    for to in ("onnx", "tflite"):
        assert converted(folder, "--to", to, "--output", tmp_path / f"graph.{to}", *APART) < CLOSE


def test_operator_that_the_format_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    (folder / "1").mkdir(parents=True)
    place("frozen.graphdef", folder / "1", "model.graphdef")
    (folder / "config.pbtxt").write_text(f'platform: "tensorflow_graphdef"\n{GRAPH}')
    done = run(folder, "--to", "tflite", "--output", tmp_path / "graph.tflite", *APART)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be converted: " in done.stderr
    assert not (tmp_path / "graph.tflite").exists()


def test_environment_without_tensorflow_names_the_extra(tmp_path: Path) -> None:
    """The original is described without TensorFlow; to run it needs it."""
    place("two.savedmodel", tmp_path, "two.savedmodel")
    done = run(tmp_path / "two.savedmodel", "--to", "tflite")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'halimede[tensorflow]'" in done.stderr
