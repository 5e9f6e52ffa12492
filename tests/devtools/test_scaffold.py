"""A model made of a file passes the check, and says what to do next; what cannot become one leaves nothing."""

from pathlib import Path

import pytest

from halimede.checking.check import check
from halimede.config import read
from halimede.devtools.scaffold import Begun, begin
from halimede.errors import Error
from halimede.options import ServerOptions
from tests.backends.onnx_models import add_and_subtract, identity
from tests.backends.tensorflow.protos import saved_model, signature

_COMPLETES = """class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "LENGTH", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        return []
"""
_NAMES = """import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A")
            yield pb_utils.InferenceResponse([pb_utils.Tensor("B", a.as_numpy())])
"""
_SILENT = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


def made(source: Path, repository: Path, name: str = "") -> Begun:
    return begin(source, repository, name, ServerOptions())


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "batch", "tensors"),
    [
        ("flat.onnx", identity("INT64", [3]), 0, [("x", "INT64", (3,)), ("y", "INT64", (3,))]),
        ("rows.onnx", identity("FP32", [None, 4]), 4, [("x", "FP32", (4,)), ("y", "FP32", (4,))]),
        ("scalars.onnx", identity("FP16", [None]), 4, [("x", "FP16", (1,)), ("y", "FP16", (1,))]),
        ("texts.onnx", identity("BYTES", ["n", 2]), 4, [("x", "BYTES", (2,)), ("y", "BYTES", (2,))]),
        ("completes.py", _COMPLETES, 8, [("TEXT", "BYTES", (1,)), ("LENGTH", "INT32", (1,))]),
        ("names.py", _NAMES, 0, [("A", "FP32", (-1,)), ("B", "FP32", (-1,))]),
    ],
)
def test_configuration_is_what_the_model_declares(
    name: str, content: bytes | str, batch: int, tensors: list[tuple[str, str, tuple[int, ...]]], tmp_path: Path
) -> None:
    repository = tmp_path / "models"
    begun = made(write(tmp_path, name, content), repository)
    assert begun.folder == repository / Path(name).stem
    assert begun.notes == ()
    config = read(begun.folder, strict=True).finish()
    assert config.max_batch_size == batch
    assert [(s.name, s.datatype.name, s.dims) for s in (*config.inputs, *config.outputs)] == tensors
    assert check([str(repository)], ServerOptions()).all_problems == []
    assert [entry.name for entry in repository.iterdir()] == [begun.folder.name]


def test_files_and_commands(tmp_path: Path) -> None:
    source = write(tmp_path, "net/model.onnx", add_and_subtract([2]))
    begun = made(source, tmp_path / "my models")
    assert [str(file.relative_to(tmp_path / "my models")) for file in begun.files] == [
        "net/1/model.onnx",
        "net/config.pbtxt",
    ]
    assert begun.next == f"halimede serve --model-repository '{tmp_path}/my models'"
    assert begun.run.endswith("net' --input 'a=[1,1]' --input 'b=[1,1]'")


def test_directory_with_data_is_copied_whole(tmp_path: Path) -> None:
    write(tmp_path, "big/model.onnx", identity("FP32", [3]))
    write(tmp_path, "big/weights.bin", b"w")
    begun = made(tmp_path / "big", tmp_path / "models", "other")
    assert (begun.folder / "1" / "model.onnx" / "weights.bin").read_bytes() == b"w"
    assert check([str(tmp_path / "models")], ServerOptions()).all_problems == []


def test_directory_is_recognized_by_a_file_in_it(tmp_path: Path) -> None:
    """A SavedModel, whose configuration is completed without TensorFlow."""
    source = tmp_path / "exported"
    source.mkdir()
    content = signature({"x": ("FP32", [-1, 4])}, {"y": ("FP32", [-1, 2])})
    (source / "saved_model.pb").write_bytes(saved_model({"serving_default": content}))
    begun = made(source, tmp_path / "models")
    assert (begun.folder / "1" / "model.savedmodel" / "saved_model.pb").is_file()
    config = read(begun.folder, strict=True).finish()
    assert (config.platform, config.max_batch_size) == ("tensorflow_savedmodel", 4)
    assert [(s.name, s.dims) for s in (*config.inputs, *config.outputs)] == [("x", (4,)), ("y", (2,))]


def test_code_without_declarations_gets_a_skeleton(tmp_path: Path) -> None:
    begun = made(write(tmp_path, "m.py", _SILENT), tmp_path / "models")
    assert len(begun.notes) == 1
    assert "# input [ { name:" in (begun.folder / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("m.onnx", b"<html>", "onnx runtime error"),
        ("m.py", "class TritonPythonModel:\n  def", "1/model.py:2: "),
        ("m.py", _COMPLETES.replace("return config", "raise OSError('no net')"), "no net"),
        ("m.zip", b"", "is not a model of a known kind"),
    ],
)
def test_failed_init_leaves_nothing(name: str, content: bytes | str, text: str, tmp_path: Path) -> None:
    source = write(tmp_path, name, content)
    with pytest.raises(Error, match=text) as caught:
        made(source, tmp_path / "models")
    assert ".halimede-init" not in str(caught.value)
    assert not (tmp_path / "models").exists() or not list((tmp_path / "models").iterdir())


def test_existing_model_is_not_overwritten(tmp_path: Path) -> None:
    source = write(tmp_path, "m.onnx", identity("FP32", [3]))
    write(tmp_path, "models/m/config.pbtxt", "mine")
    with pytest.raises(Error, match="exists already; --name gives the model another name"):
        made(source, tmp_path / "models")
    assert (tmp_path / "models" / "m" / "config.pbtxt").read_text() == "mine"


@pytest.mark.parametrize("source", ["net/1/model.onnx", "net/1", "net/model.onnx", "1/net.onnx", "net/1/model.onnx/"])
def test_default_name_is_not_that_of_a_version(source: str, tmp_path: Path) -> None:
    write(tmp_path, source if source.endswith(".onnx") else f"{source}/model.onnx", identity("FP32", [3]))
    assert made(tmp_path / source, tmp_path / "models").folder == tmp_path / "models" / "net"


def test_module_that_is_not_installed_is_a_warning(tmp_path: Path) -> None:
    source = write(tmp_path, "m.py", f"import no_such\n{_NAMES}")
    begun = made(source, tmp_path / "models")
    assert "the code imports 'no_such', which is not installed" in begun.notes
    assert (tmp_path / "models" / "m" / "config.pbtxt").is_file()


def test_name_of_digits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match="'12' is the name of a version and cannot be that of a model"):
        made(write(tmp_path, "12.onnx", identity("FP32", [3])), tmp_path / "models")


@pytest.mark.parametrize("name", ["../up", ".hidden", "a/b", ".."])
def test_name_stays_in_the_repository(name: str, tmp_path: Path) -> None:
    with pytest.raises(Error, match="cannot be the name of a model"):
        made(write(tmp_path, "m.onnx", identity("FP32", [3])), tmp_path / "models", name)


def test_missing_file_and_wrong_repository_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "m.onnx", identity("FP32", [3]))
    with pytest.raises(Error, match="does not exist"):
        made(tmp_path / "gone.onnx", tmp_path)
    with pytest.raises(Error, match="is not a directory"):
        made(source, source)
