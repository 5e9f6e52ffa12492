"""The contract suite with OpenVINO models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from openvino import opset15 as ops

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.openvino import TRAITS
from halimede.backends.testing import SITUATIONS, NotApplicable, Situation
from tests.backends.contract.checking import Declared, DeclaredInChildren, check
from tests.formats.openvino_models import function, identity, parameter, save

NAMES = ("INPUT0", "OUTPUT0")


def _with_control() -> Any:
    """Echoes INPUT0, and takes READY, which changes nothing."""
    inputs = [parameter("INPUT0", "FP32", [-1, 2]), parameter("READY", "FP32", [-1, 1])]
    zero = ops.constant(np.zeros(1, np.float32))
    return function(inputs, lambda x, ready: ops.add(x, ops.multiply(ready, zero)), ["OUTPUT0"])


def _failing() -> Any:
    """Reshapes to two columns, or to 7 if the first number is negative, which does not work."""
    given = parameter("INPUT0", "FP32", [-1, 2])

    def compute(x: Any) -> Any:
        first = ops.slice(x, *(ops.constant(np.array(each, np.int64)) for each in ([0, 0], [1, 1], [1, 1])))
        below = ops.minimum(ops.reshape(first, ops.constant(np.array([1], np.int64)), False), np.float32(0))
        columns = ops.convert(ops.subtract(np.float32(2), ops.multiply(below, np.float32(5))), "i64")
        shape = ops.concat([ops.constant(np.array([-1], np.int64)), columns], 0)
        return ops.reshape(x, shape, False, name="negative")

    return function([given], compute, ["OUTPUT0"])


def _less() -> Any:
    """One row less than it is given."""
    given = parameter("INPUT0", "FP32", [-1, 2])
    cut = [ops.constant(np.array([each], np.int64)) for each in (1, 1 << 30, 1, 0)]
    return function([given], lambda x: ops.slice(x, *cut), ["OUTPUT0"])


class OpenVinoAdapter(Declared):
    name = "openvino"
    cannot: Mapping[str, str] = MappingProxyType(
        {
            **dict.fromkeys(
                [
                    *("cancelled during", "noticed cancellation", "slow reader", "decoupled"),
                    *("rescheduled", "rescheduled outside of an iterative sequence"),
                    *("close while running", "close after the last answer", "several batches in flight"),
                    *("tensors on a device", "killed child"),
                ],
                "a model answers once, when it is computed, and waits for nothing",
            ),
            "two devices": "instances are on the CPU",
            "optional input absent": "Triton's backend has none",
            **dict.fromkeys(["wrong output datatype", "unknown output"], "a load makes the model fit"),
        }
    )

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        models = {
            "echo": lambda: identity("FP32", shape, names=NAMES),
            "complete": lambda: function(
                [parameter("INPUT0", "FP32", [-1, 2], "NC")], lambda x: ops.add(x, np.float32(0)), ["OUTPUT0"], "NC"
            ),
            "bytes": lambda: identity("BYTES", shape, names=NAMES),
            "ragged": lambda: identity("FP32", [-1], names=NAMES),
            "sequence": _with_control,
            "failing": _failing,
            "wrong shape": _less,
        }
        if role == "broken":
            (version / "model.xml").write_text("no graph")
            return {}
        if role not in models:
            raise NotApplicable("a graph cannot do this")
        save(models[role](), version)
        scattered = {
            "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
            "target_name": ["OUTPUT0"],
            "source_input": ["INPUT0"],
        }
        return {"batch_output": [scattered]} if role == "ragged" else {}


@pytest.mark.parametrize("adapter", [OpenVinoAdapter(), DeclaredInChildren(OpenVinoAdapter(), TRAITS)])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_openvino_keeps_the_contract(situation: Situation, adapter: Declared, tmp_path: Path) -> None:
    check(situation, adapter, tmp_path)
