"""The contract suite with a backend that has a device, answers later, and has two batches in flight."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from halimede.backends.api import BackendContext
from halimede.backends.testing import RELOADS, SITUATIONS, Situation, Unsupported
from tests.backends.contract.checking import check
from tests.backends.contract.fake_backend import FakeBackend, FakeInstance


class FakeAdapter:
    name = "fake"
    reloads = RELOADS
    cannot: Mapping[str, str] = {
        "ragged": "its traits say so",
        "killed child": "it has no process",
    }

    def __init__(self) -> None:
        self._gate = Event()

    def create(self, context: BackendContext) -> FakeBackend:
        return FakeBackend(context, self._gate)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role == "ragged":
            raise Unsupported("it has no ragged inputs")
        return {"parameters": {"role": {"string_value": role}}}

    def release(self) -> None:
        self._gate.set()

    def kill(self, instance: object) -> None:
        raise Unsupported("it has no process")

    def copies(self, instance: object) -> int | None:
        assert isinstance(instance, FakeInstance)
        return instance.device.copies.value


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_fake_keeps_the_contract(situation: Situation, tmp_path: Path) -> None:
    check(situation, FakeAdapter(), tmp_path)
