"""The process of a conversion: its answers, and what a user reads if there is none."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from halimede.backends.conversion import Conversion, Way, run_converter
from halimede.backends.onnx.conversion import WAYS as TO_ONNX
from halimede.backends.openvino.conversion import WAYS as TO_IR
from halimede.backends.registry import formats
from halimede.backends.tflite.conversion import WAYS as TO_TFLITE
from halimede.errors import Error, Internal, Invalid, Unavailable
from tests.backends.fakes import model_config, spec

ROOT = Path(__file__).parents[2]
PROGRAM = """import os, sys
from pathlib import Path


def copy(order):
    print("noise")
    print("more noise", file=sys.stderr)
    [x] = order["inputs"]
    Path(order["target"]).write_text(f"{order['batches']} {x['name']} {x['datatype']} {x['shape']}")
    Path(order["target"]).with_suffix(".bin").write_text("weights")


def fail(order):
    Path(order["target"]).write_text("half")
    raise KeyError("unknown operator")


def die(order):
    Path(order["target"]).write_text("half")
    print("the framework aborts", file=sys.stderr, flush=True)
    os.kill(os.getpid(), 9)
"""
WAYS = {
    "model.copy": Way("copy", {"json": "none"}),
    "model.fail": Way("fail", {}),
    "model.die": Way("die", {}),
    "model.missing": Way("copy", {"json": "none", "no_such_framework": "framework"}),
}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def asked(folder: Path, kind: str, **more: str) -> Conversion:
    source = folder / "models" / f"net.{kind}"
    source.parent.mkdir(exist_ok=True)
    source.touch()
    config = model_config([spec("x", "FP32", [3, -1])], [spec("y", "FP32", [3])], 4)
    return Conversion(source, format=f"model.{kind}", config=config, **more)


def test_files_appear_beside_the_source(tmp_path: Path, program: Path) -> None:
    written = run_converter(asked(tmp_path, "copy"), program, ".new", WAYS)
    assert written == tmp_path / "models" / "net.new"
    assert written.read_text() == "True x FP32 [-1, 3, -1]"
    assert sorted(each.name for each in written.parent.iterdir()) == ["net.bin", "net.copy", "net.new"]


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("fail", Invalid, "cannot be converted: KeyError: 'unknown operator'"),
        ("die", Internal, "died (status -9): the framework aborts"),
        ("missing", Unavailable, "the module 'no_such_framework' (No module named 'no_such_framework'): pip install "
         "'halimede[framework]'"),
        ("other", Invalid, "cannot be converted to '.new', which is made of '.copy' or '.fail' or "),
    ],
)  # fmt: skip
def test_failure_leaves_nothing(tmp_path: Path, program: Path, kind: str, error: type[Error], words: str) -> None:
    order = asked(tmp_path, kind)
    with pytest.raises(error) as raised:
        run_converter(order, program, ".new", WAYS)
    assert words in str(raised.value)
    assert list(order.source.parent.iterdir()) == [order.source]


def test_file_that_exists_is_kept(tmp_path: Path, program: Path) -> None:
    order = asked(tmp_path, "copy")
    target = order.source.with_suffix(".new")
    target.write_text("old")
    with pytest.raises(Invalid, match="exists already"):
        run_converter(order, program, ".new", WAYS)
    assert target.read_text() == "old"


def test_environment_must_be_one(tmp_path: Path, program: Path) -> None:
    ways = {"model.copy": Way("copy", {}, in_environment=True)}
    with pytest.raises(Invalid, match=r"is no Python environment: it has no bin/python"):
        run_converter(asked(tmp_path, "copy", environment=str(tmp_path)), program, ".new", ways)


@pytest.mark.parametrize("ways", [TO_ONNX, TO_IR, TO_TFLITE])
def test_ways_are_of_formats_and_extras_that_exist(ways: Mapping[str, Way]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for way in ways.values() for extra in way.needs.values()} <= extras.keys()
    assert set(ways) <= {each.filename for _, each in formats()}
