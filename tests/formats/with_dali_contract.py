"""The contract suite with pipelines of DALI, which run in child processes only."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.dali import TRAITS
from halimede.backends.testing import SITUATIONS, NotApplicable, Situation
from halimede.backends.testing.child import RELOADS_IN_CHILDREN
from tests.backends.contract.checking import Declared, check
from tests.backends.dali.pipelines import FLOAT, echo, serialized


class DaliAdapter(Declared):
    name = "dali"
    reloads = RELOADS_IN_CHILDREN
    cannot: Mapping[str, str] = MappingProxyType(
        {
            **dict.fromkeys(
                [
                    *("cancelled during", "noticed cancellation", "slow reader", "decoupled", "exception"),
                    *("rescheduled", "rescheduled outside of an iterative sequence", "killed child"),
                    *("close while running", "close after the last answer", "several batches in flight"),
                    *("wrong output shape", "wrong output datatype", "unknown output", "null rows"),
                ],
                "a pipeline answers once, when it is computed, and waits for nothing",
            ),
            **dict.fromkeys(["bytes", "optional input absent"], "pipelines get all inputs, and return numbers"),
            "without batching": "the first dimension is always that of samples",
            **dict.fromkeys(["two devices", "tensors on a device"], "a child has no device for the server"),
        }
    )

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role not in ("echo", "complete", "ragged", "broken") or len(shape) < 2:
            raise NotApplicable("a pipeline cannot do this")
        content = (
            b"\x08\x02\xff no pipeline" if role == "broken" else serialized(echo, output_dtype=[FLOAT], output_ndim=[1])
        )
        (version / "model.dali").write_bytes(content)
        return {}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_dali_keeps_the_contract(situation: Situation, tmp_path: Path) -> None:
    check(situation, DaliAdapter(), tmp_path)
