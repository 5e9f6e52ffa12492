"""The contract suite for a backend in child processes: `InChildren` turns an adapter for the server into one for
children.

    @pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
    def test_contract_in_a_child(situation: Situation, tmp_path: Path) -> None:
        situation.check(InChildren(MyAdapter(), TRAITS), tmp_path)

Starts processes, which import the backend by its name: its package must be installed or on PYTHONPATH. Needs no test
framework.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from halimede.backends.api import Backend, BackendContext
from halimede.backends.child.settings import HOME_SETTING
from halimede.backends.creation import create_backend
from halimede.backends.testing.bench import Adapter, Array
from halimede.backends.traits import Home, Traits

RELOADS_IN_CHILDREN = 5
"""How often a model is loaded and closed again. Each load starts a process."""


class InChildren(Adapter):
    """An adapter for the models of another adapter, whose instances are child processes.

    The other adapter shares no memory with the models, so its `release` must reach them in another way, such as by a
    file. A model in a child has no device for the server, so "tensors on a device" is not applicable.
    """

    reloads = RELOADS_IN_CHILDREN

    def __init__(self, adapter: Adapter, traits: Traits) -> None:
        self.name = adapter.name
        self.input, self.output = adapter.input, adapter.output
        self.input_type, self.output_type = adapter.input_type, adapter.output_type
        self.ready = adapter.ready
        self._adapter = adapter
        self._traits = traits

    def create(self, context: BackendContext) -> Backend:
        settings = {**context.settings, HOME_SETTING: Home.CHILD.value}
        return create_backend(self._traits, replace(context, settings=settings))

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        return self._adapter.write(role, version, shape)

    def release(self) -> None:
        self._adapter.release()

    def encode(self, rows: Array) -> Array:
        return self._adapter.encode(rows)

    def expected(self, rows: Array) -> Array:
        return self._adapter.expected(rows)

    @property
    def echoes_tensors(self) -> bool:
        return self._adapter.echoes_tensors
