"""Which models exist, in which state, and which version answers: the state table, and the plan that changes it.

The plan is pure; the table belongs to the event-loop thread. Loads run elsewhere and come back through `publish`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from halimede.errors import Error, NotFound, Unavailable
from halimede.models.version import ModelVersion


class State(Enum):
    """The states of a model version, as the protocol names them (contract H110)."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(slots=True)
class VersionRecord:
    state: State
    reason: str = ""
    version: ModelVersion | None = None


@dataclass(slots=True)
class ModelRecord:
    """What is known of a model. `reason` says why it has no versions at all."""

    name: str
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What must be done to get from what is to what is wanted; new models first."""

    load: tuple[str, ...]
    unload: tuple[str, ...]


def plan(actual: Collection[str], desired: Collection[str]) -> Plan:
    """Idempotent: when what is equals what is wanted, nothing is done."""
    return Plan(
        tuple(sorted(set(desired).difference(actual))),
        tuple(sorted(set(actual).difference(desired))),
    )


class ModelTable:
    """The models by name. `find` and `latest` are on the way of every request: a dictionary look-up each."""

    def __init__(self) -> None:
        self._models: dict[str, ModelRecord] = {}
        self._latest: dict[str, ModelVersion] = {}
        self._ready: dict[tuple[str, int], ModelVersion] = {}

    def __iter__(self) -> Iterator[ModelRecord]:
        """In the order of names."""
        return iter(sorted(self._models.values(), key=lambda record: record.name))

    def get(self, name: str) -> ModelRecord | None:
        return self._models.get(name)

    def names(self) -> list[str]:
        return list(self._models)

    # On the way of a request.

    def find(self, name: str, number: int) -> ModelVersion:
        """The version that answers; -1 asks for the latest. Raises the errors of contract H14."""
        found = self._latest.get(name) if number == -1 else self._ready.get((name, number))
        if found is None:
            raise self._missing(name, number)
        return found

    def _missing(self, name: str, number: int) -> Error:
        unknown = f"Request for unknown model: '{name}'"
        record = self._models.get(name)
        if record is None or not record.versions:
            return NotFound(f"{unknown} is not found")
        if number == -1:
            return NotFound(f"{unknown} has no available versions")
        if number not in record.versions:
            return NotFound(f"{unknown} version {number} is not found")
        return Unavailable(f"{unknown} version {number} is not at ready state")

    def ready_versions(self, name: str) -> list[ModelVersion]:
        """In ascending order."""
        record = self._models.get(name)
        if record is None:
            return []
        return [r.version for _, r in sorted(record.versions.items()) if r.state is State.READY and r.version]

    # Changes.

    def loading(self, name: str, numbers: Iterable[int] = ()) -> None:
        """The model is being loaded; of its versions those that are not in service are shown so."""
        record = self._models.setdefault(name, ModelRecord(name))
        for number in numbers:
            if number not in record.versions or record.versions[number].version is None:
                record.versions[number] = VersionRecord(State.LOADING)

    def refuse(self, name: str, number: int | None, reason: str) -> None:
        """A model (None) or a version of it could not be loaded; the reason is kept for whoever asks. A version that
        serves meanwhile goes on (contract R11)."""
        record = self._models.setdefault(name, ModelRecord(name))
        if number is None:
            record.reason = reason
        elif number not in record.versions or record.versions[number].version is None:
            record.versions[number] = VersionRecord(State.UNAVAILABLE, reason)

    def publish(self, name: str, versions: Iterable[ModelVersion], closed: Callable[[ModelVersion], None]) -> None:
        """From now on these versions answer, all at once, and those that did until now are retired (R11, R12)."""
        record = self._models.setdefault(name, ModelRecord(name))
        record.reason = ""
        before = self.ready_versions(name)
        for version in versions:
            record.versions[version.number] = VersionRecord(State.READY, "", version)
        self._index(name)
        for old in before:
            if record.versions[old.number].version is old:
                self.retire(old, closed)
            else:
                old.retire(partial(closed, old))

    def retire(self, version: ModelVersion, closed: Callable[[ModelVersion], None]) -> None:
        """The version answers nobody any more; `closed` is called when the last who held it let go."""
        record = self._models[version.name].versions[version.number]
        record.state = State.UNLOADING
        self._index(version.name)
        version.retire(lambda: self._retired(record, version, closed))

    @staticmethod
    def _retired(record: VersionRecord, version: ModelVersion, closed: Callable[[ModelVersion], None]) -> None:
        record.state, record.reason, record.version = State.UNAVAILABLE, "unloaded", None
        closed(version)

    def _index(self, name: str) -> None:
        """Brings the look-ups of one model up to date."""
        for key in [key for key in self._ready if key[0] == name]:
            del self._ready[key]
        self._latest.pop(name, None)
        for version in self.ready_versions(name):
            self._ready[name, version.number] = version
            self._latest[name] = version

    # Readiness.

    def all_ready(self) -> bool:
        """Strict readiness (contract H8): every model has a version, each is ready or was unloaded."""
        return all(
            record.versions and all(v.state is State.READY or v.reason == "unloaded" for v in record.versions.values())
            for record in self._models.values()
        )
