"""Changes the instances of a version in service without opening it again (R13).

The load thread creates the missing instances beside those that serve (`load_or_resize`). Then the event loop adds them
and removes those that are no longer wanted (`ModelVersion.resize`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from halimede.backends.api import Instance, InstancePlace
from halimede.config import Draft, InstanceGroup, ModelConfig
from halimede.errors import Error, Internal
from halimede.models.abilities import check_amounts
from halimede.models.loader import (
    Backends,
    LoadedVersion,
    LoadOptions,
    LoadResult,
    close_all,
    create_warm_instances,
    demand,
    draft_of,
    find_backend,
    load,
    move_to_cpu,
    places,
    spread,
)
from halimede.models.repository import Fingerprint, FoundModel
from halimede.models.warmup import WarmUpRun
from halimede.scheduling.rate_limiter import Slot

log = logging.getLogger(__name__)

Signature = tuple[InstanceGroup, int]
"""Equal for instances that can stand in for each other: their group without its name and count, and their device."""

MODEL_FOLDER = ""
"""Among the names of changed files: the model's folder itself is gone or cannot be read."""


class Vacant:
    """Stands in the list of instances for one that was removed, so that the others keep their indices."""

    healthy = False

    def execute(self, batch: object, responses: object) -> None:
        """Never called."""
        raise RuntimeError("this instance was removed")

    def close(self) -> None:
        """It was closed when it was removed."""


@dataclass(frozen=True, slots=True)
class InstancesNow:
    """The instances of a version in service when a load begins. The event loop takes it, the load thread reads it."""

    loaded: LoadedVersion
    config: ModelConfig
    signatures: Mapping[int, Signature]
    """By index, without those that were removed."""
    indices: int
    """How many indices are in use, those of removed instances included."""
    vacant: Sequence[int]
    """The indices of removed instances, which can be used again."""


@dataclass(frozen=True, slots=True)
class Resized:
    """The change of a version's instances, by their indices: `added` were created, `removed` are still in service."""

    config: ModelConfig
    added: Mapping[int, tuple[InstancePlace, Instance, Signature]]
    removed: Sequence[int]
    warmed: Sequence[WarmUpRun] = ()
    """The samples that the created instances ran (W2)."""
    slots: Mapping[int, Slot] = field(default_factory=dict)
    """The slots of the created instances at the rate limiter, if there is one. The event loop registers them."""

    def undo(self) -> None:
        """Closes the instances that were created. May block."""
        close_all([instance for _, instance, _ in self.added.values()])


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The result of a load: what was opened, and what changes in the versions that serve already."""

    result: LoadResult
    """The versions that were opened, or could not be opened or resized."""
    resized: Mapping[int, Resized] = field(default_factory=dict)
    """The versions that stay in service, by number."""
    changed: frozenset[str] = frozenset()
    """Files of the model that were written during the load, if the load looked for them."""

    def undo(self) -> None:
        """Closes the instances that were created for versions that stay. May block."""
        for each in self.resized.values():
            each.undo()


def load_or_resize(
    found: FoundModel,
    numbers: Sequence[int],
    kept: Mapping[int, InstancesNow],
    backends: Backends,
    options: LoadOptions,
    before: Fingerprint | None = None,
    seen: Draft | None = None,
) -> LoadOutcome:
    """Resizes the versions that are `kept`, and opens the others.

    A kept version is opened too if its instances cannot be changed in place. `before` is the fingerprint at the
    inspection, to find files that changed since; `seen` is the configuration that it read. On a load thread. Never
    raises: the result says what failed.
    """
    result = LoadResult(found.name)
    resized: dict[int, Resized] = {}
    # First, because a version whose instances cannot be changed in place joins those to open.
    for number, now in kept.items():
        try:
            change = _resize(found, number, now, backends, options, seen, len(numbers))
            if change is not None:
                resized[number] = change
        except Error as error:
            result.versions[number] = error
        except Exception as error:
            log.exception(
                "model '%s' version %d: unexpected error while its instances were changed; it serves on as it was",
                found.name,
                number,
                extra={"model": found.name, "version": number},
            )
            result.versions[number] = Internal(f"{type(error).__name__}: {error}")
    # A kept version that failed is not opened again: the load fails, and the version serves on as it was.
    to_open = [number for number in numbers if number not in resized and number not in result.versions]
    result.versions.update(load(found, to_open, backends, options, seen, len(numbers) - len(to_open)).versions)
    return LoadOutcome(result, resized, frozenset() if before is None else _changed_since(before, found))


def _changed_since(before: Fingerprint, found: FoundModel) -> frozenset[str]:
    try:
        now = found.fingerprint()
    except OSError:
        return frozenset({MODEL_FOLDER})
    return frozenset(name for name, _ in set(before).symmetric_difference(now))


def _resize(
    found: FoundModel,
    number: int,
    now: InstancesNow,
    backends: Backends,
    options: LoadOptions,
    seen: Draft | None,
    versions: int,
) -> Resized | None:
    """`versions` is how many will serve. None if the version must be opened again instead."""
    draft = draft_of(found, options, seen)
    _, backend = find_backend(found, number, draft, backends, options)
    # The model's files are the same, so its description is too: there is no need to ask the model for it again.
    draft.complete_from_loaded(now.config.message)
    move_to_cpu(draft, number, backend, options)
    gpus = backend.usable_gpus(options.gpus)
    config = draft.finish(gpus=gpus, default_instance_count=backend.traits.cpu_instances)
    check_amounts(config, options.max_instances, options.max_warmup_samples, versions)
    left = list(now.signatures)
    missing: list[tuple[InstancePlace, Signature]] = []
    for place, signature in zip(places(config, options.host_policies), _signatures(config), strict=True):
        same = next((index for index in left if now.signatures[index] == signature), None)
        # An instance that serves is kept if it is like one that is wanted, whatever its name and position.
        if same is None:
            missing.append((place, signature))
        else:
            left.remove(same)
    if (missing or left) and not _is_resizable(now, config, [place for place, _ in missing]):
        return None
    indices = [*now.vacant, *range(now.indices, now.indices + len(missing))]
    wanted = [replace(place, index=index) for (place, _), index in zip(missing, indices, strict=False)]
    loaded = now.loaded
    created: Sequence[Instance] = ()
    warmed: Sequence[WarmUpRun] = ()
    if wanted:
        created, warmed = create_warm_instances(loaded.model, config, wanted, found.folder, number, options)
    added = {
        place.index: (place, instance, signature)
        for place, instance, (_, signature) in zip(wanted, created, missing, strict=True)
    }
    slots = {
        place.index: Slot(demand(*signature), instance)
        for place, instance, signature in added.values()
        if loaded.limiter_slots is not None and not place.passive
    }
    return Resized(config, added, left, warmed, slots)


def _is_resizable(now: InstancesNow, config: ModelConfig, added: Sequence[InstancePlace]) -> bool:
    """Whether all that was decided when the version was opened would be decided again."""
    # A version without an instance that takes requests has another policy: it refuses them.
    if any(all(group.passive for group in each.instance_groups) for each in (config, now.config)):
        return False
    # A host policy binds a thread. Such a version must not run on the event loop.
    return not (now.loaded.model.inline_safe and any(place.host for place in added))


def signatures_of(config: ModelConfig) -> dict[int, Signature]:
    """The signatures of the instances of a version that was just opened, by index."""
    return dict(enumerate(_signatures(config)))


def _signatures(config: ModelConfig) -> list[Signature]:
    return [(replace(group, name="", count=1, gpus=()), device) for group, device, _ in spread(config)]
