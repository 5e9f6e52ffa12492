"""The contract suite for a backend in child processes: `InChildren` turns an adapter for the server into one for
children.

    @pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
    def test_contract_in_a_child(situation: Situation, tmp_path: Path) -> None:
        situation.check(InChildren(MyAdapter(), TRAITS), tmp_path)

Starts processes, which import the backend by its name. Needs no test framework.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from halimede.backends.api import Backend, BackendContext
from halimede.backends.child.settings import HOME_SETTING
from halimede.backends.creation import create_backend
from halimede.backends.traits import Home, Traits

RELOADS_IN_CHILDREN = 5
"""How often a model is loaded and closed again. Each load starts a process."""


class ModelWriter(Protocol):
    """The part of an adapter that does not depend on the home."""

    @property
    def name(self) -> str: ...
    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]: ...
    def release(self) -> None: ...


class InChildren:
    """An adapter (`testing.Adapter`) for the models of another adapter, whose instances are child processes.

    The other adapter shares no memory with the models, so its `release` must reach them in another way, such as by a
    file. `copies` is None, because the devices are in the children.
    """

    reloads = RELOADS_IN_CHILDREN

    def __init__(self, adapter: ModelWriter, traits: Traits) -> None:
        self.name = adapter.name
        self._adapter = adapter
        self._traits = traits

    def create(self, context: BackendContext) -> Backend:
        settings = {**context.settings, HOME_SETTING: Home.CHILD.value}
        return create_backend(self._traits, replace(context, settings=settings))

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        return self._adapter.write(role, version, shape)

    def release(self) -> None:
        self._adapter.release()

    def kill(self, instance: object) -> None:
        pid: int = instance.pid  # type: ignore[attr-defined] # instances in children have one
        os.kill(pid, signal.SIGKILL)

    def copies(self, instance: object) -> int | None:
        return None
