"""The contract suite with TorchScript models, in the server's process and in child processes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from torch import nn

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.pytorch import TRAITS
from halimede.backends.testing import SITUATIONS, NotApplicable, Situation
from tests.backends.contract.checking import Declared, DeclaredInChildren, check
from tests.pytorch import scripts

_SCATTERED = [{"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["OUTPUT0"], "source_input": ["INPUT0"]}]


class ScriptAdapter(Declared):
    name = "pytorch"
    ready = "READY__1"
    cannot: Mapping[str, str] = MappingProxyType(
        {
            **dict.fromkeys(
                [
                    *("cancelled during", "noticed cancellation", "slow reader", "decoupled"),
                    *("rescheduled", "rescheduled outside of an iterative sequence"),
                    *("close while running", "close after the last answer", "several batches in flight"),
                    "killed child",
                ],
                "a module answers once, when it has run, and waits for nothing",
            ),
            **dict.fromkeys(["two devices", "tensors on a device"], "torch for the CPU uses no GPU"),
            "unknown output": "outputs have no names of their own",
            "optional input absent": "a load refuses optional inputs (BC7)",
            "bytes": "lists of strings have one dimension (BT16)",
            "completion": "a TorchScript file does not name datatypes and sizes",
        }
    )

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        modules: dict[str, nn.Module] = {
            "echo": scripts.Echo(),
            "ragged": scripts.Echo(),
            "failing": scripts.Failing(),
            "wrong shape": scripts.Less(),
            "wrong datatype": scripts.Integers(),
        }
        if role == "broken":
            (version / "model.pt").write_bytes(b"no archive")
        elif role in modules:
            scripts.save(modules[role], version / "model.pt")
        elif role == "sequence":
            scripts.save(scripts.Sequence(), version / "model.pt")
        else:
            raise NotApplicable("a module cannot do this")
        return {"batch_output": _SCATTERED} if role == "ragged" else {}


@pytest.mark.parametrize("adapter", [ScriptAdapter(), DeclaredInChildren(ScriptAdapter(), TRAITS)])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_scripts_keep_the_contract(situation: Situation, adapter: Declared, tmp_path: Path) -> None:
    check(situation, adapter, tmp_path)
