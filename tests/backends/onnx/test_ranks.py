from pathlib import Path

import numpy as np
import pytest

from halimede.backends.onnx.ranks import unknown_ranks
from tests.backends import onnx_models


def written(root: Path, data: bytes) -> Path:
    path = root / "model.onnx"
    path.write_bytes(data)
    return path


def test_rank_of_a_scalar_is_known(tmp_path: Path) -> None:
    assert unknown_ranks(written(tmp_path, onnx_models.identity("FP32", []))) == frozenset()


def test_rank_of_a_tensor_without_a_shape_is_unknown(tmp_path: Path) -> None:
    assert unknown_ranks(written(tmp_path, onnx_models.identity("FP32", None))) == {"x", "y"}


def test_rank_found_behind_large_weights(tmp_path: Path) -> None:
    weights = {"w": np.zeros(100_000, np.float32)}
    inputs = [onnx_models.value("x", "FP32", None)]
    data = onnx_models.model([], inputs, [onnx_models.value("w", "FP32", [100_000])], weights)
    assert unknown_ranks(written(tmp_path, data)) == {"x"}


def test_rank_of_a_file_cut_off_anywhere_is_no_crash(tmp_path: Path) -> None:
    whole = onnx_models.identity("FP32", None)
    found = [unknown_ranks(written(tmp_path, whole[:size])) for size in range(1, len(whole))]
    assert found[:40] == [frozenset()] * 40
    assert set(found) <= {frozenset(), frozenset({"x", "y"})}


@pytest.mark.parametrize("data", [b"\xff" * 40, b"ORTM" * 10, b"\x07\x00"])
def test_rank_of_a_file_that_is_no_protobuf(tmp_path: Path, data: bytes) -> None:
    assert unknown_ranks(written(tmp_path, data)) == frozenset()
