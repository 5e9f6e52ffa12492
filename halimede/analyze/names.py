"""The names of configurations: `MODEL_config_default`, `MODEL_config_0` and so on (X39). No input or output."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from halimede.analyze.space import Setup, Variant


class Names:
    """The names of the configurations of one model. Equal ones get the same name."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._known: dict[Setup, str] = {(): f"{model}_config_default"}

    def of(self, setup: Setup) -> str:
        if setup not in self._known:
            self._known[setup] = f"{self.model}_config_{len(self._known) - 1}"
        return self._known[setup]

    def find(self, name: str) -> Setup | None:
        return next((setup for setup, each in self._known.items() if each == name), None)

    def all(self) -> Iterator[tuple[str, Setup]]:
        for setup, name in self._known.items():
            yield name, setup

    def to_json(self) -> list[list[dict[str, str]]]:
        """The configurations in the order of their numbers."""
        return [[{"model": each.model, "changes": each.changes} for each in setup] for setup in self._known if setup]

    def read(self, values: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Remembers what `to_json` wrote. Raises KeyError or TypeError for other values."""
        for each in values:
            self.of(tuple(Variant(str(part["model"]), str(part["changes"])) for part in each))
