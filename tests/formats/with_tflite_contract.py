"""The contract suite with models of TensorFlow Lite."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.testing import SITUATIONS, NotApplicable, Situation
from halimede.backends.tflite import TRAITS
from tests.backends.contract.checking import Declared, DeclaredInChildren, check
from tests.formats.built import place

ONCE = "a graph answers once, when it is computed, and waits for nothing"
CANNOT: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            [
                *("cancelled during", "noticed cancellation", "slow reader", "decoupled"),
                *("rescheduled", "rescheduled outside of an iterative sequence"),
                *("close while running", "close after the last answer", "several batches in flight"),
                *("tensors on a device", "killed child"),
            ],
            ONCE,
        ),
        "two devices": "the runtime for the CPU uses no GPU",
        "optional input absent": "a graph needs all its inputs",
        **dict.fromkeys(["wrong output datatype", "unknown output"], "a load compares the graph and the configuration"),
    }
)


def name_of(role: str, shape: Sequence[int]) -> str:
    """The model for a role. Raises NotApplicable."""
    if role == "echo":
        if shape[0] != -1:
            return "flat_" + "_".join(map(str, shape))
        return f"echo_{None if shape[1] < 0 else shape[1]}"
    names = {
        "complete": "echo_2",
        "bytes": "bytes_2",
        "ragged": "elements",
        "sequence": "control",
        "failing": "failing",
        "wrong shape": "less",
    }
    if role not in names:
        raise NotApplicable("a graph cannot do this")
    return names[role]


def fields_of(role: str) -> Mapping[str, Any]:
    """What the configuration for a role needs besides."""
    if role != "ragged":
        return {}
    scattered = {"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["OUTPUT0"], "source_input": ["INPUT0"]}
    return {"batch_output": [scattered]}


class TfliteAdapter(Declared):
    name = "tflite"
    cannot: Mapping[str, str] = MappingProxyType({**CANNOT, "exception": "it has no assertions"})

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role == "broken":
            (version / "model.tflite").write_bytes(b"no model")
            return {}
        if role == "failing":
            raise NotApplicable("it has no assertions")
        place(f"{name_of(role, shape)}.tflite", version, "model.tflite")
        return fields_of(role)


@pytest.mark.parametrize("adapter", [TfliteAdapter(), DeclaredInChildren(TfliteAdapter(), TRAITS)])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_tflite_keeps_the_contract(situation: Situation, adapter: Declared, tmp_path: Path) -> None:
    check(situation, adapter, tmp_path)
