"""Which models exist, in which state, and which version answers: the state table, and the plan that changes it.

The plan is pure; the table belongs to the event-loop thread. Loads run elsewhere and come back through `publish`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from halimede.errors import Error, Invalid, NotFound, Unavailable
from halimede.models.version import ModelVersion

UNLOADED = "unloaded"
"""The reason of a version that was taken out of service."""


class State(Enum):
    """The states of a model version, as the protocol names them (contract H110)."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(slots=True)
class VersionRecord:
    """What is known of a version: `reason` says why it does not serve, `version` is there until it is closed."""

    state: State
    reason: str = ""
    version: ModelVersion | None = None


@dataclass(slots=True)
class ModelRecord:
    """What is known of a model. `key` is its name, or its name within its namespace.

    `reason` says why it has no versions at all. `no_usable_version` is true if its configuration is valid, but its
    version policy allows none of the versions in the repository.
    """

    name: str
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    reason: str = ""
    no_usable_version: bool = False
    key: str = ""

    @property
    def unloaded(self) -> bool:
        """Whether all that it had was unloaded."""
        return bool(self.versions) and all(
            version.state is State.UNLOADING or version.reason == UNLOADED for version in self.versions.values()
        )


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


def _serves(record: ModelRecord, number: int) -> bool:
    return number in record.versions and record.versions[number].state is State.READY


class ModelTable:
    """The models by key, which is what clients call them by. `find` is on the way of every request: one look-up."""

    def __init__(self) -> None:
        self._models: dict[str, ModelRecord] = {}
        self._latest: dict[str, ModelVersion] = {}
        self._ready: dict[tuple[str, int], ModelVersion] = {}
        self._leaving: dict[ModelVersion, VersionRecord] = {}
        self.changes = 0
        """Grows whenever a version comes into service or leaves it."""

    def __iter__(self) -> Iterator[ModelRecord]:
        """In the order of keys."""
        return iter(sorted(self._models.values(), key=lambda record: record.key))

    def get(self, name: str) -> ModelRecord | None:
        """By key, or by what a client calls it."""
        return self._models.get(name)

    def keys(self) -> list[str]:
        return list(self._models)

    def keys_of(self, name: str) -> list[str]:
        """Those of the models with this name."""
        return [name] if name in self._models else []

    # On the way of a request.

    def find(self, name: str, number: int) -> ModelVersion:
        """The version that answers; -1 asks for the latest. Raises the errors of contract H14."""
        found = self._latest.get(name) if number == -1 else self._ready.get((name, number))
        if found is None:
            raise self._missing(name, number)
        return found

    def _missing(self, name: str, number: int) -> Error:
        record = self.get(name)
        unknown = f"Request for unknown model: '{name if record is None else record.key}'"
        if record is None or not record.versions:
            return NotFound(f"{unknown} is not found")
        if number == -1:
            return NotFound(f"{unknown} has no available versions")
        if number not in record.versions:
            return NotFound(f"{unknown} version {number} is not found")
        return Unavailable(f"{unknown} version {number} is not at ready state")

    def ready_versions(self, name: str) -> list[ModelVersion]:
        """In ascending order."""
        record = self.get(name)
        if record is None:
            return []
        return [r.version for _, r in sorted(record.versions.items()) if r.state is State.READY and r.version]

    # Changes.

    def loading(self, key: str, numbers: Iterable[int] = (), name: str = "") -> None:
        """The model is being loaded; of its versions those that are not in service are shown so. `name` is its name
        where the key is another."""
        record = self._record(key, name)
        for number in numbers:
            if not _serves(record, number):
                record.versions[number] = VersionRecord(State.LOADING)

    def _record(self, key: str, name: str = "") -> ModelRecord:
        record = self._models.get(key)
        if record is None:
            record = self._models[key] = ModelRecord(name or key, key=key)
        return record

    def refuse(self, key: str, number: int | None, reason: str, no_usable_version: bool = False) -> None:
        """A model (None) or a version of it could not be loaded; the reason is kept for whoever asks. A version that
        serves meanwhile goes on (contract R11); of one that is unloaded meanwhile, this is the last word."""
        record = self._record(key)
        if number is None:
            record.reason, record.no_usable_version = reason, no_usable_version
        elif not _serves(record, number):
            record.versions[number] = VersionRecord(State.UNAVAILABLE, reason)

    def publish(self, key: str, versions: Collection[ModelVersion], closed: Callable[[ModelVersion], None]) -> None:
        """From now on these versions answer, all at once; others that did until now are retired (R11, R12)."""
        record = self._record(key)
        record.reason, record.no_usable_version = "", False
        before = self.ready_versions(key)
        for version in versions:
            record.versions[version.number] = VersionRecord(State.READY, "", version)
        self._index(key)
        for old in before:
            if old in versions:
                continue
            if record.versions[old.number].version is old:
                self.retire(old, closed)
            else:
                old.retire(partial(closed, old))

    def retire(self, version: ModelVersion, closed: Callable[[ModelVersion], None]) -> None:
        """The version answers nobody any more; `closed` is called when the last who held it let go. It is shown as
        unloading until `gone` says that what it held is given back (contract R14)."""
        record = self._leaving[version] = self._models[version.key].versions[version.number]
        record.state = State.UNLOADING
        self._index(version.key)
        version.retire(lambda: self._retired(record, version, closed))

    @staticmethod
    def _retired(record: VersionRecord, version: ModelVersion, closed: Callable[[ModelVersion], None]) -> None:
        record.version = None
        closed(version)

    def gone(self, version: ModelVersion) -> None:
        """The end of a version that was retired or replaced. Another in its place has a record of its own."""
        record = self._leaving.pop(version, None)
        if record is not None:
            record.state, record.reason = State.UNAVAILABLE, UNLOADED

    def _index(self, key: str) -> None:
        """Brings the look-ups of one model up to date."""
        self.changes += 1
        self._point(key, [self._models[key]], self.ready_versions(key))

    def _point(self, name: str, records: Iterable[ModelRecord], versions: Iterable[ModelVersion]) -> None:
        """From now on the name stands for these versions, in ascending order, and no others of these models."""
        for record in records:
            for number in record.versions:
                self._ready.pop((name, number), None)
        self._latest.pop(name, None)
        for version in versions:
            self._ready[name, version.number] = version
            self._latest[name] = version

    def forget_failures(self, key: str) -> None:
        """The model is gone, and with it what could not be loaded of it. Its versions in service are not, and
        those that leave it are unloading until they are `gone`."""
        record = self._models.get(key)
        if record is None:
            return
        for number, version in list(record.versions.items()):
            if version.state not in (State.READY, State.UNLOADING):
                del record.versions[number]
        if not record.versions:
            del self._models[key]

    # Readiness.

    def all_ready(self) -> bool:
        """Strict readiness (contract H8): every model has a version, each is ready or was unloaded. One whose
        configuration cannot be used is not among the models, as a folder that somebody is still filling."""
        return not any(
            (record.no_usable_version and not record.versions)
            or any(v.state is not State.READY and v.reason != UNLOADED for v in record.versions.values())
            for record in self._models.values()
        )


class NamespacedTable(ModelTable):
    """Several models may have one name, each in its namespace (contract R20). A name stands for the one model that has
    it and was not unloaded; where there are several, it stands for none of them."""

    def keys_of(self, name: str) -> list[str]:
        return [record.key for record in self if name in (record.name, record.key)]

    def get(self, name: str) -> ModelRecord | None:
        record = self._models.get(name)
        if record is not None:
            return record
        known = self._known(name)
        return known[0] if len(known) == 1 else None

    def _known(self, name: str) -> list[ModelRecord]:
        return [record for record in self._models.values() if record.name == name and not record.unloaded]

    def _missing(self, name: str, number: int) -> Error:
        if self.get(name) is not None:
            return super()._missing(name, number)
        known = len(self._known(name))
        if known:
            return Invalid(
                f"There are {known} identifiers of model '{name}' in global map, model namespace must be provided to "
                "resolve ambiguity."
            )
        if self.keys_of(name):
            return NotFound(f"Identifier of model '{name}' is not found in global map")
        return Invalid(f"Request for unknown model: '{name}' is not found")

    def loading(self, key: str, numbers: Iterable[int] = (), name: str = "") -> None:
        super().loading(key, numbers, name)
        self._index(key)

    def _index(self, key: str) -> None:
        super()._index(key)
        name = self._models[key].name
        known = self._known(name)
        records = [record for record in self._models.values() if record.name == name]
        self._point(name, records, self.ready_versions(known[0].key) if len(known) == 1 else ())
