"""A backend that does what a test says, and loaded versions of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from halimede.backends.api import Backend, Batch, InstancePlace, ModelFolder, Placement, Responses
from halimede.backends.traits import Traits
from halimede.config import Description, Incomplete, ModelConfig
from halimede.models.loader import LoadedVersion


class FakeInstance:
    def __init__(self, place: InstancePlace, log: list[str]) -> None:
        self.healthy = True
        self.place = place
        self.executed = 0
        self._log = log

    def execute(self, batch: Batch, responses: Responses) -> None:
        self.executed += 1
        for i, one in enumerate(batch.requests):
            responses.send(i, list(one.request.inputs.values()))

    def close(self) -> None:
        self._log.append(f"close {self.place.name}")


class Returning(FakeInstance):
    """An instance that breaks and comes back when a test says so."""

    restarts = 0

    def watch(self, changed: Callable[[bool, bool], None]) -> None:
        self.changed = changed


class FakeModel:
    """`breaks_at`: the instance of this index cannot be created."""

    placement = Placement.THREAD
    inline_safe = False
    gathers = False
    in_flight = 1

    def __init__(self, log: list[str], breaks_at: int = -1, error: Exception | None = None) -> None:
        self._log = log
        self._breaks_at = breaks_at
        self._error = error

    def create_instance(self, place: InstancePlace) -> FakeInstance:
        if place.index == self._breaks_at and self._error is not None:
            raise self._error
        self._log.append(f"create {place.name}")
        return FakeInstance(place, self._log)

    def close(self) -> None:
        self._log.append("close model")


class FakeBackend:
    """`errors` are raised by `open`, one a call, until there are none left. `log` is what happened."""

    traits = Traits("fake", cpu_instances=2)

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        return gpus

    def __init__(
        self,
        errors: Sequence[Exception] = (),
        description: Description | Mapping[str, Any] | None = None,
        breaks_at: int = -1,
    ) -> None:
        self.log: list[str] = []
        self.opened: list[tuple[ModelConfig, ModelFolder]] = []
        self.described: list[tuple[str, ModelFolder, str]] = []
        self._errors = list(errors)
        self._description = description
        self._breaks_at = breaks_at

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | Mapping[str, Any] | None:
        self.described.append((asked.json, folder, filename))
        return self._description

    def open(self, config: ModelConfig, folder: ModelFolder) -> FakeModel:
        self.opened.append((config, folder))
        error = self._errors.pop(0) if self._errors else None
        if error is not None and self._breaks_at < 0:
            raise error
        return FakeModel(self.log, self._breaks_at, error)

    def close(self) -> None:
        self.log.append("close backend")


class OneBackend:
    """Finds the same backend under every name."""

    def __init__(self, backend: Backend) -> None:
        self.asked: list[str] = []
        self._backend = backend

    def __contains__(self, name: object) -> bool:
        return True

    def get(self, name: str) -> Backend:
        self.asked.append(name)
        return self._backend


def loaded(config: ModelConfig, number: int = 1, log: list[str] | None = None, instances: int = 1) -> LoadedVersion:
    log = [] if log is None else log
    kind = config.instance_groups[0].kind
    made = [FakeInstance(InstancePlace(f"m_0_{i}", kind, 0, i, instances), log) for i in range(instances)]
    return LoadedVersion(number, config, FakeModel(log), [*made], load_seconds=0.0)


def repository(root: Path, models: Mapping[str, str | None], versions: Sequence[str] = ("1",)) -> Path:
    """Model directories with these configurations (None: no file), each with these version directories."""
    for name, text in models.items():
        for version in versions:
            (root / name / version).mkdir(parents=True)
        if text is not None:
            (root / name / "config.pbtxt").write_text(text)
    return root
