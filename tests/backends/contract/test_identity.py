"""The contract suite with the backend `identity`, which only echoes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.identity import TRAITS
from halimede.backends.testing import SITUATIONS, NotApplicable, Situation
from tests.backends.contract.checking import Declared, DeclaredInChildren, check

_ROLES = ("echo", "bytes", "ragged", "optional", "sequence")


class IdentityAdapter(Declared):
    name = "identity"
    cannot: Mapping[str, str] = MappingProxyType(
        dict.fromkeys(
            [
                *("cancelled during", "noticed cancellation", "slow reader", "completion", "exception", "broken file"),
                *("rescheduled", "rescheduled outside of an iterative sequence", "decoupled"),
                *("wrong output shape", "wrong output datatype", "unknown output"),
                *("close while running", "close after the last answer"),
                *("several batches in flight", "tensors on a device", "killed child"),
            ],
            "it has no model: it answers at once, with what it is given",
        )
    )

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role not in _ROLES:
            raise NotApplicable("it answers at once, with what it is given")
        return {}


@pytest.mark.parametrize("adapter", [IdentityAdapter(), DeclaredInChildren(IdentityAdapter(), TRAITS)])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_identity_keeps_the_contract(situation: Situation, adapter: Declared, tmp_path: Path) -> None:
    check(situation, adapter, tmp_path)
