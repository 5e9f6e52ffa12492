"""The contract suite with forests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.fil import TRAITS
from halimede.backends.testing import SITUATIONS, NotApplicable, Situation
from halimede.backends.testing.bench import Array
from tests.backends.contract.checking import Declared, DeclaredInChildren, check
from tests.backends.fil.forests import stump

THRESHOLD = 4


class FilAdapter(Declared):
    """A forest cannot return its input. The one here has one split of the first number of a row."""

    name = "fil"
    input = "input__0"
    output = "output__0"
    cannot: Mapping[str, str] = MappingProxyType(
        {
            **dict.fromkeys(
                [
                    *("cancelled during", "noticed cancellation", "slow reader", "decoupled", "exception"),
                    *("rescheduled", "rescheduled outside of an iterative sequence"),
                    *("close while running", "close after the last answer", "several batches in flight"),
                    *("tensors on a device", "killed child", "wrong output shape", "wrong output datatype"),
                    "unknown output",
                ],
                "a forest answers once, when it is computed, and waits for nothing",
            ),
            **dict.fromkeys(["bytes", "ragged", "optional input absent", "empty tensor"], "rows of numbers"),
            "two devices": "nvforest is not installed",
        }
    )

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role == "broken":
            (version / "xgboost.json").write_text("not a forest")
            return {}
        if role not in ("echo", "complete", "sequence"):
            raise NotApplicable("a forest cannot do this")
        if shape[-1] < 1:
            raise NotApplicable("a forest has a number of features")
        stump(version / "checkpoint.tl", shape[-1], threshold=THRESHOLD)
        return {"parameters": {"model_type": {"string_value": "treelite_checkpoint"}}}

    def expected(self, rows: Array) -> Array:
        positive = np.where(rows[:, :1] < THRESHOLD, 0.25, 0.75).astype(np.float32)
        return np.concatenate([1 - positive, positive], axis=1)


@pytest.mark.parametrize("adapter", [FilAdapter(), DeclaredInChildren(FilAdapter(), TRAITS)])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_fil_keeps_the_contract(situation: Situation, adapter: Declared, tmp_path: Path) -> None:
    check(situation, adapter, tmp_path)
