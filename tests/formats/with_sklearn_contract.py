"""The contract suite with estimators of scikit-learn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.preprocessing import StandardScaler

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.sklearn import TRAITS
from halimede.backends.testing import SITUATIONS, NotApplicable, Situation
from tests.backends.contract.checking import Declared, check


class SklearnAdapter(Declared):
    """A scaler that neither shifts nor scales returns its input."""

    name = "sklearn"
    input = "predict"
    output = "transform"
    reloads = 10
    cannot: Mapping[str, str] = MappingProxyType(
        {
            **dict.fromkeys(
                [
                    *("cancelled during", "noticed cancellation", "slow reader", "decoupled", "exception"),
                    *("rescheduled", "rescheduled outside of an iterative sequence", "null rows"),
                    *("close while running", "close after the last answer", "several batches in flight"),
                    *("tensors on a device", "killed child", "wrong output shape", "wrong output datatype"),
                    "unknown output",
                ],
                "an estimator answers once, when it has computed, and waits for nothing",
            ),
            **dict.fromkeys(["bytes", "ragged", "optional input absent", "empty tensor"], "rows of numbers"),
            **dict.fromkeys(["without batching"], "an estimator takes rows"),
            "two devices": "it runs on the CPU",
        }
    )

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role not in ("echo", "complete", "broken") or shape[-1] < 1 or len(shape) < 2:
            raise NotApplicable("an estimator cannot do this")
        scaler = StandardScaler(with_mean=False, with_std=False).fit(np.zeros((1, shape[-1])))
        skops.io.dump(scaler, version / "model.skops")
        if role == "broken":
            (version / "model.skops").write_bytes(b"no archive")
        return {}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_sklearn_keeps_the_contract(situation: Situation, tmp_path: Path) -> None:
    check(situation, SklearnAdapter(), tmp_path)
