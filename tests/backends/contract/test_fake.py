"""The contract suite with a backend that has a device, answers later, and has three batches in flight: in the server,
and in child processes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.testing import SITUATIONS, NotApplicable, Situation
from tests.backends.contract.checking import Declared, DeclaredInChildren, check
from tests.backends.contract.fake_backend import TRAITS

ROOT = Path(__file__).parents[3]


class FakeAdapter(Declared):
    name = "fake"
    cannot: Mapping[str, str] = {
        **dict.fromkeys(["ragged", "bytes", "broken file"], "it has no such models"),
        "completion": "its configurations must be complete",
        "killed child": "it has no process",
    }

    def __init__(self, folder: Path) -> None:
        self._gate = folder / "gate"

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role in ("ragged", "bytes", "broken"):
            raise NotApplicable("it has no such models")
        return {"parameters": {"role": {"string_value": role}, "gate": {"string_value": str(self._gate)}}}

    def release(self) -> None:
        self._gate.touch()


IN_CHILDREN = {
    **dict.fromkeys(["ragged", "bytes", "broken file"], "it has no such models"),
    "completion": "its configurations must be complete",
    "tensors on a device": "its device is in the child",
}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_fake_keeps_the_contract(situation: Situation, tmp_path: Path) -> None:
    check(situation, FakeAdapter(tmp_path), tmp_path)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_fake_keeps_the_contract_in_a_child(
    situation: Situation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # children import the backend of this folder
    check(situation, DeclaredInChildren(FakeAdapter(tmp_path), TRAITS, IN_CHILDREN), tmp_path)
