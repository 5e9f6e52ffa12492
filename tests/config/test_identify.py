"""How backend, platform and file name of a model are found: from each other, and from its files."""

from pathlib import Path

import pytest

from halimede import config
from halimede.errors import Invalid
from tests.config.models import TENSORS, folder_of

ONNX = ("onnxruntime", "onnxruntime_onnx", "model.onnx")
TORCH = ("pytorch", "pytorch_libtorch", "model.pt")
AOTI = ("pytorch", "torch_aoti", "model.pt2")
SAVED = ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")
GRAPH = ("tensorflow", "tensorflow_graphdef", "model.graphdef")
PLAN = ("tensorrt", "tensorrt_plan", "model.plan")
OPENVINO = ("openvino", "", "model.xml")
PYTHON = ("python", "", "model.py")


def found(folder: Path) -> tuple[str, str, str]:
    draft = config.read(folder)
    return draft.backend, draft.platform, draft.model_filename


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("1/model.savedmodel/", SAVED),
        ("1/model.graphdef", GRAPH),
        ("1/model.plan", PLAN),
        ("1/model.onnx", ONNX),
        ("1/model.onnx/", ONNX),
        ("1/model.xml", OPENVINO),
        ("1/model.pt", TORCH),
        ("1/model.pt2", AOTI),
        ("1/model.py", PYTHON),
    ],
)
def test_backend_from_the_file(tmp_path: Path, file: str, expected: tuple[str, str, str]) -> None:
    assert found(folder_of(tmp_path, "m", None, (file,))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('platform: "onnxruntime_onnx"', ONNX),
        ('backend: "onnxruntime"', ONNX),
        ('default_model_filename: "model.onnx"', ONNX),
        ('backend: "onnxruntime" default_model_filename: "x.onnx"', (*ONNX[:2], "x.onnx")),
        ('platform: "onnxruntime_onnx" default_model_filename: "x"', (*ONNX[:2], "x")),
        ('platform: "tensorflow_savedmodel"', SAVED),
        ('platform: "tensorflow_graphdef" backend: "tensorflow"', GRAPH),
        ('backend: "tensorrt"', PLAN),
        ('backend: "openvino"', OPENVINO),
        ('backend: "pytorch"', TORCH),
        ('platform: "torch_aoti"', AOTI),
        ('backend: "pytorch" default_model_filename: "model.pt2"', AOTI),
        ('backend: "python"', PYTHON),
        ('platform: "bar" backend: "python"', ("python", "bar", "model.py")),
        ('default_model_filename: "model.py"', PYTHON),
        ('backend: "identity"', ("identity", "", "")),
        ('platform: "onnxruntime_onnx" backend: "identity"', ("identity", "onnxruntime_onnx", "")),
        ('backend: "identity" default_model_filename: "w.bin"', ("identity", "", "w.bin")),
    ],
)
def test_backend_platform_and_filename_complete_each_other(
    tmp_path: Path, text: str, expected: tuple[str, str, str]
) -> None:
    assert found(folder_of(tmp_path, "m", f"{text} {TENSORS}")) == expected


def test_first_version_directory_decides(tmp_path: Path) -> None:
    assert found(folder_of(tmp_path, "m", None, ("2/model.py", "10/model.onnx"))) == ONNX


def test_first_format_of_the_table_decides(tmp_path: Path) -> None:
    assert found(folder_of(tmp_path, "m", None, ("1/model.py", "1/model.onnx"))) == ONNX


def test_directory_in_place_of_a_file_does_not_count(tmp_path: Path) -> None:
    assert found(folder_of(tmp_path, "m", None, ("1/model.plan/", "1/model.py"))) == PYTHON


def test_configured_backend_looks_only_for_its_own_files(tmp_path: Path) -> None:
    assert found(folder_of(tmp_path, "m", 'backend: "pytorch"', ("1/model.onnx", "1/model.pt2"))) == AOTI


@pytest.mark.parametrize("files", [(), ("1/",), ("1/model.bin",)])
def test_custom_backend_from_the_models_name(tmp_path: Path, files: tuple[str, ...]) -> None:
    assert found(folder_of(tmp_path, "big.identity", None, files)) == ("identity", "", "model.identity")


@pytest.mark.parametrize(
    ("files", "move"),
    [
        (("model.onnx",), ("model.onnx", "1/model.onnx")),
        (("add.onnx", "labels.txt"), ("add.onnx", "1/model.onnx")),
        (("1/resnet50.onnx", "1/notes.txt"), ("1/resnet50.onnx", "1/model.onnx")),
        (("2/", "net.pt"), ("net.pt", "2/model.pt")),
        (("1/a.onnx", "1/b.onnx"), None),
        (("1/a.onnx", "1/helper.py"), None),
        (("1/labels.json",), None),
    ],
)
def test_file_with_another_name_or_place_is_named(
    tmp_path: Path, files: tuple[str, ...], move: tuple[str, str] | None
) -> None:
    folder = folder_of(tmp_path, "m", TENSORS, files)
    with pytest.raises(Invalid) as caught:
        config.read(folder)
    if move is None:
        assert caught.value.advice.startswith("its configuration names no backend, and there is neither a ")
    else:
        assert caught.value.advice == f"move '{folder / move[0]}' to '{folder / move[1]}'"


def test_model_without_any_sign_of_a_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        config.read(folder_of(tmp_path, "m", TENSORS))
    assert str(caught.value) == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )
