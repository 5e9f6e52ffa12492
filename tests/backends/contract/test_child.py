"""The contract suite with backends in child processes: the same modules, behind a socket."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.identity import TRAITS as IDENTITY
from halimede.backends.onnx import TRAITS as ONNX
from halimede.backends.testing import SITUATIONS, Situation
from halimede.backends.traits import Home, Traits
from tests.backends.contract.checking import check
from tests.backends.contract.fake_backend import TRAITS as FAKE
from tests.backends.contract.fake_backend import FakeBackend
from tests.backends.contract.test_fake import FakeAdapter
from tests.backends.contract.test_identity import IdentityAdapter
from tests.backends.contract.test_onnx import OnnxAdapter

GATE = "HALIMEDE_TEST_GATE"
"""The environment variable that names the file for which slow models wait."""
RELOADS = 2


class FileGate(Event):
    """Opens when a file is there: the test and the model are in different processes."""

    def wait(self, timeout: float | None = None) -> bool:
        path, pause = Path(os.environ[GATE]), Event()
        while not path.exists():
            pause.wait(0.01)
        return True


def fake_in_child(context: BackendContext) -> FakeBackend:
    return FakeBackend(context, FileGate())


def in_child(traits: Traits, context: BackendContext) -> Backend:
    settings = {**context.settings, "home": "child", "restart-wait-seconds": "60"}
    return create_backend(replace(traits, homes=(Home.CHILD, Home.SERVER)), replace(context, settings=settings))


def kill(instance: object) -> None:
    os.kill(cast(Any, instance).pid, signal.SIGKILL)


def able(cannot: Mapping[str, str], *situations: str) -> Mapping[str, str]:
    return {name: why for name, why in cannot.items() if name not in situations}


class ChildIdentity(IdentityAdapter):
    reloads = RELOADS
    cannot = able(IdentityAdapter.cannot)

    def create(self, context: BackendContext) -> Any:
        return in_child(IDENTITY, context)

    def kill(self, instance: object) -> None:
        kill(instance)


class ChildOnnx(OnnxAdapter):
    reloads = RELOADS
    cannot = able(OnnxAdapter.cannot)

    def create(self, context: BackendContext) -> Any:
        return in_child(ONNX, context)

    def kill(self, instance: object) -> None:
        kill(instance)


class ChildFake(FakeAdapter):
    reloads = RELOADS
    cannot: Mapping[str, str] = {
        **able(FakeAdapter.cannot, "killed child"),
        "slow device": "its device is in the child: the server gets its tensors in host memory",
    }

    def create(self, context: BackendContext) -> Any:
        return in_child(replace(FAKE, implementation=f"{__name__}:fake_in_child"), context)

    def release(self) -> None:
        Path(os.environ[GATE]).touch()

    def kill(self, instance: object) -> None:
        kill(instance)

    def copies(self, instance: object) -> int | None:
        return None


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Children import the modules of this folder, and know the gate."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv(GATE, str(tmp_path / "open"))


ADAPTERS: Sequence[type[ChildIdentity | ChildOnnx | ChildFake]] = (ChildIdentity, ChildOnnx, ChildFake)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda each: str(each.name))
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_backend_in_a_child_keeps_the_contract(situation: Situation, adapter: Any, tmp_path: Path) -> None:
    check(situation, adapter(), tmp_path)
