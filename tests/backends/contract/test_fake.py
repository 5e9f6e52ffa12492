"""The contract suite with a backend that has a device, answers later, and has two batches in flight: in the server, and
in child processes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.testing import RELOADS, SITUATIONS, Situation, Unsupported
from tests.backends.contract.checking import DeclaredInChildren, check
from tests.backends.contract.fake_backend import TRAITS, FakeInstance

ROOT = Path(__file__).parents[3]


class FakeAdapter:
    name = "fake"
    reloads = RELOADS
    settings: Mapping[str, str] = {}
    cannot: Mapping[str, str] = {"ragged": "its traits say so", "killed child": "it has no process"}

    def __init__(self, folder: Path) -> None:
        self._gate = folder / "gate"

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role == "ragged":
            raise Unsupported("it has no ragged inputs")
        return {"parameters": {"role": {"string_value": role}, "gate": {"string_value": str(self._gate)}}}

    def release(self) -> None:
        self._gate.touch()

    def kill(self, instance: object) -> None:
        raise Unsupported("it has no process")

    def copies(self, instance: object) -> int | None:
        assert isinstance(instance, FakeInstance)
        return instance.device.copies.value


IN_CHILDREN = {"ragged": "its traits say so", "slow device": "its device is in the child"}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_fake_keeps_the_contract(situation: Situation, tmp_path: Path) -> None:
    check(situation, FakeAdapter(tmp_path), tmp_path)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_fake_keeps_the_contract_in_a_child(
    situation: Situation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # children import the backend of this folder
    check(situation, DeclaredInChildren(FakeAdapter(tmp_path), TRAITS, IN_CHILDREN), tmp_path)
