from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from halimede.backends.onnx import values
from halimede.backends.onnx.values import values_decide

NAME = b'"\x04Loop'


def graph(*nodes: Any, **more: Any) -> Any:
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in ("x", "n", "c", "w")]
    return helper.make_graph(list(nodes), "graph", inputs, [], **more)


def node(kind: str, takes: str, gives: str, **more: Any) -> Any:
    """A node whose arguments and results are letters. A dot is an argument that is left out."""
    return helper.make_node(kind, ["" if letter == "." else letter for letter in takes], list(gives), **more)


LOOP = node("Loop", "ncx", "y", body=graph())
IDENTITY = node("Identity", "x", "y")
FUNCTION = helper.make_function("own", "f", ["n", "yes", "x"], ["y"], [LOOP], [helper.make_opsetid("", 13)])
WEIGHTS = numpy_helper.from_array(np.frombuffer(NAME * 100, np.uint8), "w")
NAMED = helper.make_tensor_value_info("Loop", TensorProto.FLOAT, [1])
EXPAND = node("Expand", "xs", "y")


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
    assert values_decide(str(path)) is expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((node("Range", "ane", "y"),), True),
        ((node("Cast", "n", "m"), node("Add", "wm", "s"), EXPAND), True),
        ((node("Shape", "x", "s"), EXPAND), False),
        ((node("Shape", "x", "m"), node("Mul", "mn", "s"), EXPAND), True),
        ((node("Constant", "", "s"), EXPAND), False),
        ((node("Expand", "nw", "y"),), False),
        ((node("Resize", "x..w", "y"),), False),
        ((node("Resize", "x..n", "y"),), True),
        ((node("If", "c", "s", then_branch=graph(IDENTITY)), EXPAND), True),
        ((node("If", "c", "y", then_branch=graph(node("Identity", "x", "y"))),), False),
        ((node("If", "c", "y", then_branch=graph(node("Tile", "xn", "y"))),), True),
    ],
)
def test_values_that_size_a_tensor_are_followed(tmp_path: Path, nodes: Any, expected: bool) -> None:
    """`w` is a weight that is also listed as an input."""
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph(*nodes, initializer=[WEIGHTS])).SerializeToString())
    assert values_decide(str(path)) is expected


def test_only_some_nodes_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_NODES", 3)
    path = tmp_path / "model.onnx"
    for number, expected in ((3, False), (4, True)):
        path.write_bytes(helper.make_model(graph(*[IDENTITY] * number)).SerializeToString())
        assert values_decide(str(path)) is expected


@pytest.mark.parametrize("data", [b"", b"ORTM" * 10, b"\xff" * 40])
def test_values_may_decide_in_another_format(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    assert values_decide(str(path))


def test_values_may_decide_in_a_missing_file(tmp_path: Path) -> None:
    assert values_decide(str(tmp_path / "model.onnx"))
