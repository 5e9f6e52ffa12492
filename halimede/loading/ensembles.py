"""Loads ensembles in step with the models that they are made of, their members: after them, again when one of them
changes, and out of service with them (S83, R15, R16).

`Ensembles` knows which ensembles there are and whether each was loaded with its members as they are now. `ModelLoads`
tells it what happens to models, and asks it which ensembles to load or to retire. Two pure modules help:
`models.dependencies` (the graph of names) and `models.ensembles` (whether an ensemble fits its members).

Event-loop thread only.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

from halimede.config import ModelConfig, with_decoupling
from halimede.errors import Error, Invalid, shortened
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
from halimede.models.loader import MAX_REASON, EnsembleParts, LoadedVersion
from halimede.models.repository import FoundModel
from halimede.models.version import ModelVersion

log = logging.getLogger(__name__)

MAX_FAILURES = 1000
"""Failed models for which an ensemble that needs them gives the reason. Beyond: the oldest reason is forgotten."""

FetchMember = Callable[[str, str], Awaitable[None]]
"""Called with the names of a member and its ensemble. Waits until the member is not being loaded or unloaded. If models
are loaded on request, loads it too."""


class Ensembles:
    """`fetch_member` is set by `RepositoryControl`, before the first load."""

    def __init__(self, models: ModelTable) -> None:
        self._models = models
        self.fetch_member: FetchMember | None = None
        self._graph = Dependencies()
        self._wanted: dict[str, FoundModel] = {}
        """The ensembles that should serve, by key. They serve, or wait for a member."""
        self._members: dict[str, tuple[str, ...]] = {}
        """The names of their steps' models."""
        self._changes: Counter[str] = Counter()
        """How often the versions of a model have changed."""
        self._loaded_with: dict[str, Mapping[str, int]] = {}
        """By ensemble, its members with their changes when it was last loaded, or could not be."""
        self._failures: dict[str, str] = {}
        """Why a model could not be loaded last."""
        self._misfits: dict[str, str] = {}
        """Why an ensemble does not fit its members."""

    # What happens to models.

    def model_changed(self, key: str) -> None:
        """Other versions of the model serve now."""
        self._changes[key] += 1
        self._failures.pop(key, None)
        self._misfits.pop(key, None)

    def model_failed(self, key: str, error: Error) -> None:
        """The versions of a model could not be opened."""
        self._failures.pop(key, None)
        self._failures[key] = shortened(str(error), MAX_REASON)
        if len(self._failures) > MAX_FAILURES:
            del self._failures[next(iter(self._failures))]

    def model_unloaded(self, key: str) -> list[str]:
        """The model is unloaded. Returns the ensembles to retire, each before the ensembles that it is made of.

        They are loaded again if the model is. If the model is an ensemble, it is not loaded again with its members.
        """
        dependents = self.model_retired(key)
        self._graph.forget(key)
        self._wanted.pop(key, None)
        self._members.pop(key, None)
        self._loaded_with.pop(key, None)
        return dependents

    def model_retired(self, key: str) -> list[str]:
        """An ensemble leaves service because it could not be loaded. Returns the ensembles to retire with it."""
        dependents = self._graph.dependents(key)[::-1]
        for each in (key, *dependents):
            self._changes[each] += 1
        # They are not stale: nothing can be done for them before the model changes again.
        for each in dependents:
            self._loaded_with[each] = self._changes_of_members(each)
        return dependents

    def loaded(self, key: str) -> None:
        """An ensemble was loaded, or could not be, with its members as they are now."""
        self._loaded_with[key] = self._changes_of_members(key)

    # What to load, and what to unload.

    def wanted(self) -> list[FoundModel]:
        """The ensembles that should serve, in the order to load them."""
        return [self._wanted[key] for key in self._graph.order() if key in self._wanted]

    def from_the_top(self) -> list[str]:
        """The keys of all ensembles, each before the ensembles that it is made of."""
        return self._graph.order()[::-1]

    def is_stale(self, key: str) -> bool:
        """Whether its members have changed since it was loaded, or other models are its members now (R20)."""
        if self._loaded_with.get(key) != self._changes_of_members(key):
            return True
        return key in self._wanted and self._graph.members(key) != self._keys_of_members(self._wanted[key])

    def _changes_of_members(self, key: str) -> dict[str, int]:
        return {member: self._changes[member] for member in self._graph.members(key)}

    def _keys_of_members(self, found: FoundModel) -> tuple[str, ...]:
        return tuple(self._key_of(name, found.namespace) for name in self._members[found.key])

    def members_left_behind(self, key: str, explicit: Collection[str]) -> list[str]:
        """The members of an ensemble that nobody asked for by name and no other ensemble needs (R15)."""
        return self._graph.only_for(key, explicit)

    def is_left_behind(self, key: str, explicit: Collection[str]) -> bool:
        """Whether nobody asked for the model by name and no ensemble needs it (R15)."""
        return key not in explicit and not self._graph.dependents(key)

    # The load of an ensemble.

    async def prepare(self, found: FoundModel, config: ModelConfig) -> None:
        """Waits until the members are loaded, before the ensemble is. Raises Invalid if they do not fit (S82, S83)."""
        key, ensemble = found.key, config.ensemble
        assert ensemble is not None
        names = members_of(ensemble)
        # From here on the ensemble is wanted, even if this load fails: it is tried again when a member changes.
        self._wanted[key], self._members[key] = found, tuple(names)
        self._graph.learn(key, self._keys_of_members(found))
        try:
            self._refuse_circle(key)
            for name in names:
                if self.fetch_member is not None:
                    await self.fetch_member(name, found.name)
            # Meanwhile another model may have become the member, or a member an ensemble of this one.
            self._graph.learn(key, self._keys_of_members(found))
            self._refuse_circle(key)
            check_members(config, self._configs_of_members(found, config))
        except Error as error:
            self._misfits[key] = str(error)
            self.loaded(key)
            raise

    def with_members(self, found: FoundModel, loaded: LoadedVersion) -> LoadedVersion:
        """The version of an ensemble, completed by what it takes from its members: whether it is decoupled (S89), its
        labels (H82), and how its steps find them. Raises Invalid if they fit no longer."""
        self._graph.learn(found.key, self._keys_of_members(found))
        members = self._configs_of_members(found, loaded.config)
        check_members(loaded.config, members)
        config = with_decoupling(loaded.config, is_decoupled(loaded.config, members))
        # The models that are the members now, until the ensemble is loaded again.
        keys = {step.model: self._key_of(step.model, found.namespace) for step in steps_of(config)}

        def find(name: str, number: int) -> ModelVersion:
            return self._models.find(keys[name], number)

        labels = inherited_labels(config, loaded.labels, lambda name: find(name, -1).loaded.labels)
        graph = graph_of(config)
        parts = EnsembleParts(graph, lambda: bind(config, graph, find), lambda: self._models.changes)
        return replace(loaded, config=config, labels=labels, ensemble=parts)

    def _refuse_circle(self, key: str) -> None:
        if circle := self._graph.circle(key):
            # Triton's text has the dots, and never the models between.
            log.error("ensemble '%s' contains itself: %s; remove one of these steps", key, " -> ".join(circle))
            raise Invalid(f"circular dependency between ensembles: {key} -> ... -> {circle[-2]} -> {key}")

    def _key_of(self, name: str, namespace: str) -> str:
        """The model of a step: the one in the ensemble's own namespace, or else the only one of that name (R20).

        A model that was given up is the member only if no other model can be.
        """
        if not namespace:
            return name
        own = self._models.get(f"{namespace}::{name}")
        if own is not None and not own.given_up:
            return own.key
        known = [key for key in self._models.keys_of(name) if not self._is_given_up(key)]
        if len(known) == 1:
            return known[0]
        return name if own is None or known else own.key

    def _is_given_up(self, key: str) -> bool:
        record = self._models.get(key)
        return record is not None and record.given_up

    def _configs_of_members(self, found: FoundModel, config: ModelConfig) -> dict[str, ModelConfig]:
        """The configurations of the steps' models, by name. Raises Invalid if one of them does not serve (S83)."""
        keys = {step.model: self._key_of(step.model, found.namespace) for step in steps_of(config)}
        # Triton names all unknown members in one text, and otherwise only the first problem.
        unknown = [name for name, key in keys.items() if not self._is_known(key)]
        if unknown:
            raise missing(found.name, unknown)
        members: dict[str, ModelConfig] = {}
        for step in steps_of(config):
            ready = {version.number: version for version in self._models.ready_versions(keys[step.model])}
            if not ready:
                raise self._not_loaded(found.name, step.model, keys[step.model])
            if step.version != -1 and step.version not in ready:
                raise Invalid(
                    f"ensemble '{found.name}' depends on '{step.model}' whose required version {step.version} is not "
                    "loaded."
                )
            members[step.model] = ready[max(ready) if step.version == -1 else step.version].config
        return members

    def _is_known(self, key: str) -> bool:
        record = self._models.get(key)
        return key in self._misfits or (record is not None and bool(record.versions))

    def _not_loaded(self, ensemble: str, name: str, key: str) -> Error:
        depends = f"ensemble '{ensemble}' depends on '{name}' which"
        if key in self._misfits:
            return Invalid(f"{depends} is not valid. Model '{name}' failed with error: {self._misfits[key]}")
        why = self._failures.get(key)
        reason = f" Model '{name}' loading failed with error: {why}" if why is not None else ""
        return Invalid(f"{depends} has no loaded version.{reason}")
