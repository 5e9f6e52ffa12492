"""The contract suite with ONNX models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from onnx import helper

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.onnx import TRAITS
from halimede.backends.testing import SITUATIONS, NotApplicable, Situation
from tests.backends.contract.checking import Declared, DeclaredInChildren, check
from tests.backends.onnx_models import model, value

_ROWS: list[int | str | None] = ["batch", 2]


def _echo(dims: Sequence[int | str], datatype: str = "FP32") -> bytes:
    node = helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])
    return model([node], [value("INPUT0", datatype, dims)], [value("OUTPUT0", datatype, dims)])


def _adding(other: str, dims: Any, weights: Any = None) -> bytes:
    """Echoes INPUT0, and takes another input that changes nothing."""
    nodes = [
        helper.make_node("Mul", [other, "zero"], ["nothing"]),
        helper.make_node("Add", ["INPUT0", "nothing"], ["OUTPUT0"]),
    ]
    inputs = [value("INPUT0", "FP32", dims), value(other, "FP32", [dims[0], 1] if len(dims) > 1 else dims)]
    return model(nodes, inputs, [value("OUTPUT0", "FP32", dims)], {"zero": np.zeros(1, np.float32), **(weights or {})})


def _failing() -> bytes:
    """Looks up its elements in a table that has no entry for a negative number. The node is called "negative"."""
    nodes = [
        helper.make_node("Min", ["INPUT0", "zero"], ["below"]),
        helper.make_node("Mul", ["below", "far"], ["place"]),
        helper.make_node("Cast", ["place"], ["index"], to=7),
        helper.make_node("Gather", ["ones", "index"], ["one"], name="negative"),
        helper.make_node("Mul", ["INPUT0", "one"], ["OUTPUT0"]),
    ]
    weights = {
        "zero": np.zeros(1, np.float32),
        "far": np.full(1, 100, np.float32),
        "ones": np.ones(1, np.float32),
    }
    dims = value("INPUT0", "FP32", _ROWS), value("OUTPUT0", "FP32", _ROWS)
    return model(nodes, [dims[0]], [dims[1]], weights)


def _less() -> bytes:
    """One row less than it is given."""
    node = helper.make_node("Slice", ["INPUT0", "from", "to"], ["OUTPUT0"])
    weights = {"from": np.array([1], np.int64), "to": np.array([1 << 30], np.int64)}
    return model([node], [value("INPUT0", "FP32", _ROWS)], [value("OUTPUT0", "FP32", _ROWS)], weights)


_SCATTERED = [{"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["OUTPUT0"], "source_input": ["INPUT0"]}]


class OnnxAdapter(Declared):
    name = "onnxruntime"
    cannot: Mapping[str, str] = MappingProxyType(
        {
            **dict.fromkeys(
                [
                    *("cancelled during", "noticed cancellation", "slow reader", "decoupled"),
                    *("rescheduled", "rescheduled outside of an iterative sequence"),
                    *("close while running", "close after the last answer", "several batches in flight"),
                    *("tensors on a device", "killed child"),
                ],
                "a graph answers once, when it is computed, and waits for nothing",
            ),
            "two devices": "the runtime for the CPU uses no GPU",
            **dict.fromkeys(
                ["wrong output datatype", "unknown output"], "a load compares the graph and the configuration"
            ),
        }
    )

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        models = {
            "echo": lambda: _echo([f"any{i}" if size < 0 else size for i, size in enumerate(shape)]),
            "complete": lambda: _echo(["batch", 2]),
            "bytes": lambda: _echo([f"any{i}" if size < 0 else size for i, size in enumerate(shape)], "BYTES"),
            "broken": lambda: b"not a graph",
            "ragged": lambda: _echo(["elements"]),
            "optional": lambda: _adding("INPUT1", [2], {"INPUT1": np.ones(2, np.float32)}),
            "sequence": lambda: _adding("READY", _ROWS),
            "failing": _failing,
            "wrong shape": _less,
        }
        if role not in models:
            raise NotApplicable("a graph cannot do this")
        (version / "model.onnx").write_bytes(models[role]())
        return {"batch_output": _SCATTERED} if role == "ragged" else {}


@pytest.mark.parametrize("adapter", [OnnxAdapter(), DeclaredInChildren(OnnxAdapter(), TRAITS)])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_onnx_keeps_the_contract(situation: Situation, adapter: Declared, tmp_path: Path) -> None:
    check(situation, adapter, tmp_path)
