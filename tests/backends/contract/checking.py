"""Runs a situation with an adapter that says itself which ones its backend cannot be in."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from halimede.backends.testing import Adapter, NotApplicable, Situation
from halimede.backends.testing.child import InChildren
from halimede.backends.traits import Traits


class Declared(Adapter):
    """`cannot` has the situations that the backend cannot be in, with the reason."""

    cannot: Mapping[str, str] = {}


class DeclaredInChildren(InChildren, Declared):
    """`cannot` is that of the adapter unless it is given."""

    def __init__(self, adapter: Declared, traits: Traits, cannot: Mapping[str, str] | None = None) -> None:
        super().__init__(adapter, traits)
        self.cannot = adapter.cannot if cannot is None else cannot


def check(situation: Situation, adapter: Declared, folder: Path) -> None:
    """A situation that is declared impossible must be refused by the adapter, so that the list stays true."""
    if situation.name in adapter.cannot:
        with pytest.raises(NotApplicable):
            situation.check(adapter, folder)
    else:
        situation.check(adapter, folder)
