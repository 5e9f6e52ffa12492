"""A conversion is compared with its original: what is said of one that answers otherwise."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from halimede.backends.conversion import Conversion
from halimede.backends.traits import Format, Traits
from halimede.devtools import conversion
from halimede.devtools.conversion import Converted, convert
from halimede.errors import Unavailable
from tests.backends import onnx_models

MADE: dict[str, bytes] = {}
"""What the fake conversion writes, as "model"."""


def fake(asked: Conversion) -> Path:
    target = asked.target("-new.onnx")
    target.write_bytes(MADE["model"])
    return target


@pytest.fixture(autouse=True)
def _fake_format(monkeypatch: pytest.MonkeyPatch) -> None:
    traits = Traits("fake", formats=(Format("model.onnx"),), conversions={"fake": f"{__name__}:fake"})
    monkeypatch.setattr(conversion, "conversions", lambda: {"fake": traits})


def converted(folder: Path, original: bytes, made: bytes) -> Converted:
    MADE["model"] = made
    (folder / "a.onnx").write_bytes(original)
    return convert(folder / "a.onnx", "fake", "", (), "")


def plus(number: float, x: str = "x", y: str = "y", dims: tuple[str | int, ...] = ("n", 3)) -> bytes:
    return onnx_models.model(
        [helper.make_node("Add", [x, "number"], [y])],
        [onnx_models.value(x, "FP32", dims)],
        [onnx_models.value(y, "FP32", dims)],
        {"number": np.array([number], np.float32)},
    )


def test_largest_difference(tmp_path: Path) -> None:
    made = converted(tmp_path, plus(1), plus(1.5))
    assert made.file == tmp_path / "a-new.onnx"
    assert made.difference == pytest.approx(0.5)
    assert 0.5 < made.magnitude < 10
    assert (made.strings, made.reason) == (None, "")


def test_tensors_with_other_names_are_compared_in_their_order(tmp_path: Path) -> None:
    assert converted(tmp_path, plus(1), plus(1, "u", "v")).difference == 0.0


def test_strings_that_differ_are_counted(tmp_path: Path) -> None:
    x, y = (onnx_models.value(name, "BYTES", ["n", 2]) for name in ("x", "y"))
    swapped = helper.make_node("Gather", ["x", "order"], ["y"], axis=1)
    texts = onnx_models.identity("BYTES", ["n", 2])
    made = converted(tmp_path, texts, onnx_models.model([swapped], [x], [y], {"order": np.array([1, 0])}))
    assert (made.strings, made.difference) == (4, None)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (plus(1, dims=("n", 4)), "unexpected shape for input 'x'"),
        (onnx_models.add_and_subtract(["n", 3]), "the converted model has the inputs a, b"),
        (b"no model", "protobuf parsing failed"),
    ],
)
def test_reason_why_nothing_was_compared(tmp_path: Path, made: bytes, words: str) -> None:
    found = converted(tmp_path, plus(1), made)
    assert found.difference is None
    assert words in found.reason.lower()


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not exist"):
        convert(tmp_path / "a.onnx", "fake", "", (), "")
