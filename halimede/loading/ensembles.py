"""Ensembles among the models that come and go: they are loaded after the models that they are made of, loaded again
when one of those changes, and leave with it (contract S83, R15, R16).

Event-loop thread only. The order and who is concerned, `models.dependencies` knows; whether models fit each other,
`models.ensembles`. What a load is, whoever made this says.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from halimede.config import ModelConfig, with_decoupling
from halimede.errors import Error, Invalid
from halimede.models.dependencies import Dependencies
from halimede.models.ensembles import (
    bind,
    check_members,
    graph_of,
    inherited_labels,
    is_decoupled,
    members_of,
    missing,
    steps_of,
)
from halimede.models.lifecycle import ModelTable
from halimede.models.loader import EnsembleParts, LoadedVersion, LoadResult
from halimede.models.repository import FoundModel
from halimede.models.version import ModelVersion

log = logging.getLogger(__name__)

Fetch = Callable[[str, str], Awaitable[None]]
"""Waits until a model (the first) is not being loaded or unloaded any more, for the sake of an ensemble; where models
are loaded on request, it is then loaded, unless it serves as it lies there."""


class Ensembles:
    """`fetch` is set by whoever loads models, before the first load."""

    def __init__(self, models: ModelTable) -> None:
        self._models = models
        self.fetch: Fetch | None = None
        self.graph = Dependencies()
        self._found: dict[str, FoundModel] = {}
        """The ensembles that are wanted, whether they serve or wait for a model that is not there."""
        self._built_on: dict[str, tuple[int, ...]] = {}
        """How often the members of an ensemble had changed when it was loaded, or could not be."""
        self._changes: Counter[str] = Counter()
        self._failures: dict[str, str] = {}
        """Why a model could not be loaded last."""
        self._unfit: dict[str, str] = {}
        """Why an ensemble does not fit its members."""

    # What happens to models.

    def changed(self, key: str) -> None:
        """A model's versions are others than they were."""
        self._changes[key] += 1
        self._failures.pop(key, None)
        self._unfit.pop(key, None)

    def failed(self, key: str, error: Error) -> None:
        """The versions of a model could not be opened."""
        self._failures[key] = str(error)

    def leaving(self, key: str) -> list[str]:
        """A model goes; returns the ensembles that go with it, those first that others of them are made of last. They
        come back with it. The model itself does not, where it is an ensemble."""
        dependents = self.retiring(key)
        self._forget(key)
        return dependents

    def retiring(self, key: str) -> list[str]:
        """The same; but the model itself comes back too, where it is an ensemble that can be loaded again."""
        dependents = self.graph.dependents(key)[::-1]
        for each in (key, *dependents):
            self._changes[each] += 1
        for each in dependents:
            self._built_on[each] = self._seen(each)
        return dependents

    def _forget(self, key: str) -> None:
        self.graph.forget(key)
        self._found.pop(key, None)
        self._built_on.pop(key, None)

    def wanted(self) -> list[FoundModel]:
        """The ensembles that shall serve, in the order to load them."""
        return [self._found[key] for key in self.graph.order() if key in self._found]

    def is_stale(self, key: str) -> bool:
        """Whether it was not loaded with its members as they are now."""
        return self._built_on.get(key) != self._seen(key)

    def _seen(self, key: str) -> tuple[int, ...]:
        return tuple(self._changes[member] for member in self.graph.members(key))

    # A load.

    async def prepare(self, found: FoundModel, config: ModelConfig) -> None:
        """Before an ensemble is loaded: its members are there, and fit. Raises Invalid if not (contract S82, S83)."""
        key, ensemble = found.key, config.ensemble
        assert ensemble is not None
        names = members_of(ensemble)
        self._found[key] = found
        self.graph.learn(key, [self._key_of(name, found.namespace) for name in names])
        try:
            self._refuse_circle(key)
            for name in names:
                if self.fetch is not None:
                    await self.fetch(name, found.name)
            self._refuse_circle(key)
            members = self._members(found, config)
            check_members(config, members)
        except Error as error:
            self._unfit[key] = str(error)
            self._built_on[key] = self._seen(key)
            raise

    def _refuse_circle(self, key: str) -> None:
        if circle := self.graph.circle(key):
            raise Invalid(f"circular dependency between ensembles: {' -> '.join(circle)}")

    def _key_of(self, name: str, namespace: str) -> str:
        """The model of a step: in the ensemble's own namespace, or the only one of that name (contract R20)."""
        own = f"{namespace}::{name}"
        if not namespace or self._models.get(own) is not None:
            return own if namespace else name
        keys = self._models.keys_of(name)
        return keys[0] if len(keys) == 1 else name

    def _members(self, found: FoundModel, config: ModelConfig) -> dict[str, ModelConfig]:
        """The configurations of the models of the steps, by name. Raises Invalid (contract S83)."""
        keys = {step.model: self._key_of(step.model, found.namespace) for step in steps_of(config)}
        unknown = [name for name, key in keys.items() if not self._is_known(key)]
        if unknown:
            raise missing(found.name, unknown)
        members: dict[str, ModelConfig] = {}
        for step in steps_of(config):
            ready = {version.number: version for version in self._models.ready_versions(keys[step.model])}
            if not ready:
                raise self._not_there(found.name, step.model, keys[step.model])
            if step.version != -1 and step.version not in ready:
                raise Invalid(
                    f"ensemble '{found.name}' depends on '{step.model}' whose required version {step.version} is not "
                    "loaded."
                )
            members[step.model] = ready[max(ready) if step.version == -1 else step.version].config
        return members

    def _is_known(self, key: str) -> bool:
        record = self._models.get(key)
        return key in self._unfit or (record is not None and bool(record.versions))

    def _not_there(self, ensemble: str, name: str, key: str) -> Error:
        depends = f"ensemble '{ensemble}' depends on '{name}' which"
        if key in self._unfit:
            return Invalid(f"{depends} is not valid. Model '{name}' failed with error: {self._unfit[key]}")
        why = self._failures.get(key)
        reason = f" Model '{name}' loading failed with error: {why}" if why is not None else ""
        return Invalid(f"{depends} has no loaded version.{reason}")

    def join(self, found: FoundModel, result: LoadResult) -> list[LoadedVersion]:
        """Gives versions of an ensemble that were just opened what they have of their members. Returns those that
        cannot serve; the reason is in the result then."""
        refused = []
        for number, loaded in list(result.versions.items()):
            if isinstance(loaded, LoadedVersion):
                try:
                    self._join(found, loaded)
                except Error as error:
                    result.versions[number] = error
                    refused.append(loaded)
        self._built_on[found.key] = self._seen(found.key)
        return refused

    def _join(self, found: FoundModel, loaded: LoadedVersion) -> None:
        members = self._members(found, loaded.config)
        check_members(loaded.config, members)
        config = loaded.config = with_decoupling(loaded.config, is_decoupled(loaded.config, members))
        loaded.labels = inherited_labels(
            config, loaded.labels, lambda name: self._find(found.namespace, name, -1).loaded.labels
        )
        graph = graph_of(config)
        find = partial(self._find, found.namespace)
        loaded.ensemble = EnsembleParts(graph, lambda: bind(config, graph, find), lambda: self._models.changes)

    def _find(self, namespace: str, name: str, number: int) -> ModelVersion:
        return self._models.find(self._key_of(name, namespace), number)

    def left_behind(self, key: str, explicit: Collection[str]) -> list[str]:
        """The members of an ensemble that nobody asked for and that no other needs (contract R15)."""
        return self.graph.only_for(key, explicit)
