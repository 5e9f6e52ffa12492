"""Runs a situation with an adapter that says itself which ones its backend cannot be in."""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from halimede.backends.api import Backend, BackendContext
from halimede.backends.testing import Adapter, Situation, Unsupported


class Declared(Adapter, Protocol):
    """`cannot` has the situations that the backend cannot be in, with the reason."""

    @property
    def cannot(self) -> Mapping[str, str]: ...


class ChildHome:
    """What differs for a backend in child processes. In front of its adapter."""

    reloads = 5
    """Each takes a process."""

    def create(self, context: BackendContext) -> Backend:
        settings = {**context.settings, "home": "child"}
        backend: Backend = super().create(replace(context, settings=settings))  # type: ignore[misc] # the adapter has it
        return backend

    def kill(self, instance: object) -> None:
        pid: int = instance.pid  # type: ignore[attr-defined] # instances in children have one
        os.kill(pid, signal.SIGKILL)

    def copies(self, instance: object) -> int | None:
        return None


def check(situation: Situation, adapter: Declared, folder: Path) -> None:
    """A situation that is declared impossible must be refused by the adapter, so that the list stays true."""
    if situation.name in adapter.cannot:
        with pytest.raises(Unsupported):
            situation.check(adapter, folder)
    else:
        situation.check(adapter, folder)
