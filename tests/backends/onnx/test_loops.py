from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from halimede.backends.onnx.loops import may_loop

NAME = b'"\x04Loop'


def graph(*nodes: Any, **more: Any) -> Any:
    return helper.make_graph(list(nodes), "graph", [], [], **more)


LOOP = helper.make_node("Loop", ["n", "yes", "x"], ["y"], body=graph())
IDENTITY = helper.make_node("Identity", ["x"], ["y"])
FUNCTION = helper.make_function("own", "f", ["n", "yes", "x"], ["y"], [LOOP], [helper.make_opsetid("", 13)])
WEIGHTS = numpy_helper.from_array(np.frombuffer(NAME * 100, np.uint8), "w")
NAMED = helper.make_tensor_value_info("Loop", TensorProto.FLOAT, [1])


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (helper.make_model(graph(IDENTITY)), False),
        (helper.make_model(graph(IDENTITY, LOOP)), True),
        (helper.make_model(graph(helper.make_node("If", ["c"], ["y"], then_branch=graph(LOOP)))), True),
        (helper.make_model(graph(IDENTITY), functions=[FUNCTION]), True),
        (helper.make_model(graph(IDENTITY, initializer=[WEIGHTS], value_info=[NAMED])), False),
    ],
    ids=["none", "graph", "branch", "function", "weights"],
)
def test_loops_are_found_in_nodes(tmp_path: Path, model: Any, expected: bool) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert may_loop(str(path)) is expected


@pytest.mark.parametrize("data", [b"", b"ORTM" * 10, b"\xff" * 40])
def test_file_of_another_format_may_loop(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    assert may_loop(str(path))


def test_missing_file_may_loop(tmp_path: Path) -> None:
    assert may_loop(str(tmp_path / "model.onnx"))
