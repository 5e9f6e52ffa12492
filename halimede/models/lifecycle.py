"""The table of models: which exist, in which state each version is, and which version answers a request.

The states of a version, with the method of `ModelTable` that is the event:

    state         event                       next state     source
    (none)        loading                     LOADING        H110
    (none)        refuse                      UNAVAILABLE    R11
    LOADING       publish                     READY          R11
    LOADING       refuse                      UNAVAILABLE    R11
    READY         loading, refuse             READY          R11  a failed load leaves what serves
    READY         publish (its successor)     READY          R11  the record is the successor's now
    READY         publish (without it)        UNLOADING      R12
    READY         retire                      UNLOADING      R14
    UNLOADING     gone                        UNAVAILABLE    R14  with the reason "unloaded"
    UNLOADING     loading                     LOADING        R11  in a new record; `gone` changes the old one only
    UNLOADING     refuse                      UNAVAILABLE    R11  in a new record, likewise
    UNAVAILABLE   loading                     LOADING        R10
    UNAVAILABLE   forget_failures             (none)         R9   its folder is gone
    UNAVAILABLE   refuse, gone (of others)    (none)         `MAX_UNAVAILABLE_VERSIONS`

A version that an ensemble uses is UNLOADING until the ensemble lets it go (`ModelVersion.retire`, `hold`, `let_go`).

The table is used on the event loop only. Loads run elsewhere; their results come back through `publish` and `refuse`.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from halimede.errors import Error, Invalid, NotFound, Unavailable, shortened
from halimede.models.loader import MAX_REASON
from halimede.models.version import ModelVersion

UNLOADED = "unloaded"
"""The reason of a version that was taken out of service (H110)."""
MAX_UNAVAILABLE_VERSIONS = 4096
"""Versions of all models that the repository index lists although they do not serve. Beyond: those that left service
first are forgotten."""
MAX_REASONS = 4 << 20
"""Characters of all long reasons in the repository index. Beyond: the oldest are cut to 256."""
SHORT_REASON = 256
"""Characters of a reason that is not long."""


class VersionState(Enum):
    """The states of a model version, by their names in the protocol (H110)."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(slots=True)
class VersionRecord:
    """What is known of a version. `reason` says why it does not serve."""

    state: VersionState
    reason: str = ""
    version: ModelVersion | None = None
    """Set while requests hold the version."""


@dataclass(slots=True)
class ModelRecord:
    """What is known of a model."""

    name: str
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    reason: str = ""
    """Why the model has no versions at all."""
    no_usable_version: bool = False
    """Whether its configuration is valid, but its version policy allows none of the versions in the repository."""
    key: str = ""
    """Its name, or its name within its namespace (R20)."""
    waits_for_members: bool = False
    """Whether it is an ensemble that left service because of a member. It is loaded again when its members allow it."""

    @property
    def given_up(self) -> bool:
        """Whether it was unloaded, and will not be loaded again by itself."""
        return self.unloaded and not self.waits_for_members

    @property
    def unloaded(self) -> bool:
        """Whether all of its versions were unloaded, or are being unloaded."""
        return bool(self.versions) and all(
            version.state is VersionState.UNLOADING or version.reason == UNLOADED for version in self.versions.values()
        )


def _serves(record: ModelRecord, number: int) -> bool:
    return number in record.versions and record.versions[number].state is VersionState.READY


def _number(version: ModelVersion) -> int:
    return version.number


class ModelTable:
    """The models by key, which is what clients call them by."""

    def __init__(self) -> None:
        self._models: dict[str, ModelRecord] = {}
        self._latest: dict[str, ModelVersion] = {}
        self._ready: dict[tuple[str, int], ModelVersion] = {}
        self._pointed: dict[str, Sequence[int]] = {}
        """By name, the numbers that it has in `_ready`."""
        self._leaving: dict[ModelVersion, VersionRecord] = {}
        """The records of retired versions that are not yet closed."""
        self._unavailable: dict[tuple[str, int], None] = {}
        """The versions that do not serve, in the order in which they left service or failed."""
        self._long: deque[tuple[VersionRecord | ModelRecord, int]] = deque()
        """Records that got long reasons, with their lengths, the oldest first. Some may be forgotten."""
        self._long_characters = 0
        self.changes = 0
        """Incremented whenever a version comes into service or leaves it."""

    def __iter__(self) -> Iterator[ModelRecord]:
        """In the order of keys."""
        return iter(sorted(self._models.values(), key=lambda record: record.key))

    def get(self, name: str) -> ModelRecord | None:
        """The model of this key or name."""
        return self._models.get(name)

    def keys(self) -> list[str]:
        return list(self._models)

    def keys_of(self, name: str) -> list[str]:
        """The keys of the models with this name."""
        return [name] if name in self._models else []

    # Look-ups.

    def find(self, name: str, number: int) -> ModelVersion:
        """The version that answers a request; -1 asks for the latest. Every request calls this. Raises Error (H14)."""
        found = self._latest.get(name) if number == -1 else self._ready.get((name, number))
        if found is None:
            raise self._missing(name, number)
        return found

    def _missing(self, name: str, number: int) -> Error:
        """Why there is no such version, in Triton's words (H14)."""
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
        """The versions in service, in ascending order."""
        record = self.get(name)
        if record is None:
            return []
        found = [each.version for each in record.versions.values() if each.state is VersionState.READY and each.version]
        return sorted(found, key=_number)

    def serves(self, name: str, number: int) -> bool:
        """Whether this version is in service."""
        record = self.get(name)
        return record is not None and _serves(record, number)

    def in_service(self) -> Iterator[ModelVersion]:
        """Yields the versions in service, in any order."""
        for record in self._models.values():
            for each in record.versions.values():
                if each.state is VersionState.READY and each.version:
                    yield each.version

    # Changes.

    def loading(self, key: str, numbers: Iterable[int] = (), name: str = "") -> None:
        """The model and these versions are being loaded. `name` is needed if the key is another one."""
        record = self._record(key, name)
        for number in numbers:
            if not _serves(record, number):  # a version that serves is shown as READY while it is loaded again
                self._unavailable.pop((key, number), None)
                record.versions[number] = VersionRecord(VersionState.LOADING)

    def _record(self, key: str, name: str = "") -> ModelRecord:
        record = self._models.get(key)
        if record is None:
            record = self._models[key] = ModelRecord(name or key, key=key)
        return record

    def refuse(self, key: str, number: int | None, reason: str, no_usable_version: bool = False) -> None:
        """A version, or with None the whole model, could not be loaded. Keeps the reason for the repository index."""
        record = self._record(key)
        reason = shortened(reason, MAX_REASON)
        if number is None:
            record.reason, record.no_usable_version = reason, no_usable_version
            self._limit_reasons(record)
        elif not _serves(record, number):  # a version in service serves on (R11)
            refused = record.versions[number] = VersionRecord(VersionState.UNAVAILABLE, reason)
            self._limit_reasons(refused)
            self._limit_unavailable(key, number)

    def _limit_reasons(self, record: VersionRecord | ModelRecord) -> None:
        """The record has a reason now. Keeps the index from growing with each load that fails."""
        if len(record.reason) > SHORT_REASON:
            self._long.append((record, len(record.reason)))
            self._long_characters += len(record.reason)
        while self._long_characters > MAX_REASONS:
            oldest, characters = self._long.popleft()
            self._long_characters -= characters
            oldest.reason = shortened(oldest.reason, SHORT_REASON)

    def _limit_unavailable(self, key: str, number: int) -> None:
        """The version is UNAVAILABLE now. Forgets others: each load may bring a model or versions of another name."""
        self._unavailable.pop((key, number), None)
        self._unavailable[key, number] = None
        while len(self._unavailable) > MAX_UNAVAILABLE_VERSIONS:
            key, number = next(iter(self._unavailable))
            del self._unavailable[key, number]
            record = self._models[key]
            del record.versions[number]
            if not record.versions and not record.waits_for_members:
                del self._models[key]

    def publish(self, key: str, versions: Collection[ModelVersion], closed: Callable[[ModelVersion], None]) -> None:
        """These versions answer from now on, all at once. Others that served until now are retired (R11, R12)."""
        record = self._record(key)
        record.reason, record.no_usable_version, record.waits_for_members = "", False, False
        before = self.ready_versions(key)
        for version in versions:
            self._unavailable.pop((key, version.number), None)
            record.versions[version.number] = VersionRecord(VersionState.READY, "", version)
        # A new version has taken the number and the record of those, so no client sees them being unloaded.
        replaced = [old for old in before if record.versions[old.number].version is not old]
        staying = {*versions, *replaced}
        self.retire(key, [old for old in before if old not in staying], closed)
        for old in replaced:
            old.retire(partial(closed, old))

    def retire(self, key: str, versions: Collection[ModelVersion], closed: Callable[[ModelVersion], None]) -> None:
        """These versions of a model answer no further request. They are shown as UNLOADING until `gone` (R14). Calls
        `closed` with each when no request holds it any more."""
        records = self._models[key].versions
        leaving = {version: records[version.number] for version in versions}
        for record in leaving.values():
            record.state = VersionState.UNLOADING
        # Kept by version: a load that begins now gets a record of its own for the number.
        self._leaving.update(leaving)
        # Once for all of them, because it takes a time that grows with the versions.
        self._index(key)
        for version, record in leaving.items():
            version.retire(partial(self._retired, record, version, closed))

    @staticmethod
    def _retired(record: VersionRecord, version: ModelVersion, closed: Callable[[ModelVersion], None]) -> None:
        record.version = None
        closed(version)

    def awaits_members(self, key: str, waits: bool) -> None:
        """Says whether an unloaded model is an ensemble that waits for its members. Other models never do."""
        record = self._models.get(key)
        if record is not None:
            record.waits_for_members = waits
            self._index(key)

    def gone(self, version: ModelVersion) -> None:
        """A version that was retired or replaced is closed."""
        record = self._leaving.pop(version, None)
        if record is not None:  # a version that was replaced had lost its record
            record.state, record.reason = VersionState.UNAVAILABLE, UNLOADED
            model = self._models.get(version.key)
            if model is not None and model.versions.get(version.number) is record:
                self._limit_unavailable(version.key, version.number)

    def _index(self, key: str) -> None:
        """Updates the look-ups of one model."""
        self.changes += 1
        self._point(key, self.ready_versions(key))

    def _point(self, name: str, versions: Sequence[ModelVersion]) -> None:
        """Lets the name stand for these versions, in ascending order, and for no other."""
        for number in self._pointed.pop(name, ()):
            del self._ready[name, number]
        # No version may be left: then the name stands for nothing.
        self._latest.pop(name, None)
        for version in versions:
            self._ready[name, version.number] = version
            self._latest[name] = version
        if versions:
            self._pointed[name] = [version.number for version in versions]

    def forget_failures(self, key: str) -> None:
        """The model's folder is gone: forgets what could not be loaded from it. Versions that serve or are being
        unloaded stay in the table."""
        record = self._models.get(key)
        if record is None:
            return
        for number, version in list(record.versions.items()):
            if version.state not in (VersionState.READY, VersionState.UNLOADING):
                self._unavailable.pop((key, number), None)
                del record.versions[number]
        if not record.versions:
            del self._models[key]

    @property
    def live(self) -> int:
        """The number of versions that are loaded and not yet closed."""
        states = (version.state for record in self._models.values() for version in record.versions.values())
        return sum(state in (VersionState.READY, VersionState.UNLOADING) for state in states)

    # Readiness.

    def all_ready(self) -> bool:
        """Strict readiness (H8): every model has a version, and each version is ready or was unloaded.

        A model whose configuration cannot be read does not count: somebody may still be filling its folder.
        """
        return not any(
            (record.no_usable_version and not record.versions)
            or any(v.state is not VersionState.READY and v.reason != UNLOADED for v in record.versions.values())
            for record in self._models.values()
        )


class NamespacedTable(ModelTable):
    """A table in which several models may have one name, each in its namespace (R20).

    A name stands for the one model that has it and was not given up. If several do, it stands for none of them.
    """

    def keys_of(self, name: str) -> list[str]:
        return [record.key for record in self if name in (record.name, record.key)]

    def get(self, name: str) -> ModelRecord | None:
        record = self._models.get(name)
        if record is not None:
            return record
        known = self._known(name)
        return known[0] if len(known) == 1 else None

    def _known(self, name: str) -> list[ModelRecord]:
        """The models of this name that were not given up."""
        return [record for record in self._models.values() if record.name == name and not record.given_up]

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
        self._point(name, self.ready_versions(known[0].key) if len(known) == 1 else ())
