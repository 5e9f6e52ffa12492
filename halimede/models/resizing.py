"""A version that serves gets other instances, and is not opened again (contract R13).

What takes long runs on a load thread: the instances that are missing are created beside those that serve. The event
loop then takes them in, and lets go of those that are too many (`ModelVersion.resize`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from halimede.backends.api import Instance, InstancePlace
from halimede.config import Draft, InstanceGroup, ModelConfig
from halimede.errors import Error, Internal
from halimede.models.loader import (
    MOST_TOGETHER,
    Backends,
    LoadedVersion,
    LoadOptions,
    LoadResult,
    close_all,
    create_instances,
    load,
    places,
    prepare,
    spread,
)
from halimede.models.repository import Fingerprint, FoundModel, fingerprint
from halimede.models.warmup import Warming, warm_up

log = logging.getLogger(__name__)

Signature = tuple[InstanceGroup, int]
"""Instances that are alike: their group without its name and count, and their device."""


class Vacant:
    """Where an instance was that has left."""

    healthy = False

    def execute(self, batch: object, responses: object) -> None:
        """Never called."""
        raise RuntimeError("this instance has left")

    def close(self) -> None:
        """It was closed when it left."""


@dataclass(frozen=True, slots=True)
class Resized:
    """The instances that come, by their places in the list of the version, and the places of those that go."""

    config: ModelConfig
    added: Mapping[int, tuple[InstancePlace, Instance, Signature]]
    removed: Sequence[int]

    def undo(self) -> None:
        """Closes what was created. May block."""
        close_all([instance for _, instance, _ in self.added.values()])


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What came of a load: the versions that were opened or not, and those that only get other instances. `changed` are
    the files of the model that were written meanwhile, where that was to be looked at."""

    opened: LoadResult
    resized: Mapping[int, Resized]
    changed: frozenset[str] = frozenset()

    def undo(self) -> None:
        """Closes the instances that were created for versions that stay. May block."""
        for each in self.resized.values():
            each.undo()


def reload(
    found: FoundModel,
    numbers: Sequence[int],
    kept: Mapping[int, LoadedVersion],
    backends: Backends,
    options: LoadOptions,
    before: Fingerprint | None = None,
    seen: Draft | None = None,
) -> Reloaded:
    """Opens these versions; those that are `kept` get the instances of the configuration as it is now, or are opened
    too where that cannot be done in place. On a load thread; never raises: what goes wrong is in the result. `before`:
    how the folder was, to see what is not so any more at the end. `seen`: its configuration, if it was read."""
    result = LoadResult(found.name)
    resized: dict[int, Resized] = {}
    for number, version in kept.items():
        try:
            change = _resize(found, number, version, backends, options, seen)
            if change is not None:
                resized[number] = change
        except Error as error:
            result.versions[number] = error
        except Exception as error:
            log.exception("changing the instances of model '%s' version %d broke", found.name, number)
            result.versions[number] = Internal(f"{type(error).__name__}: {error}")
    opened = [number for number in numbers if number not in resized and number not in result.versions]
    result.versions.update(load(found, opened, backends, options, seen).versions)
    return Reloaded(result, resized, frozenset() if before is None else _changed(found, before))


THE_FOLDER = ""
"""Among the names of files that changed: the model's folder is not there, or cannot be read."""


def _changed(found: FoundModel, before: Fingerprint) -> frozenset[str]:
    try:
        now = fingerprint(found.folder)
    except OSError:
        return frozenset({THE_FOLDER})
    return frozenset(name for name, _ in set(before).symmetric_difference(now))


def _resize(
    found: FoundModel,
    number: int,
    version: LoadedVersion,
    backends: Backends,
    options: LoadOptions,
    seen: Draft | None,
) -> Resized | None:
    draft, _, backend = prepare(found, number, backends, options, seen)
    draft.complete_from_loaded(version.config.message)
    gpus = backend.usable_gpus(options.gpus)
    config = draft.finish(gpus=gpus, default_instance_count=backend.default_instance_count)
    had = signatures(version)
    left = list(had)
    missing: list[tuple[InstancePlace, Signature]] = []
    for place, signature in zip(places(config, options.host_policies), _signatures(config), strict=True):
        same = next((index for index in left if had[index] == signature), None)
        if same is None:
            missing.append((place, signature))
        else:
            left.remove(same)
    if (missing or left) and not _possible(version, config, [place for place, _ in missing]):
        return None
    vacant = [index for index, instance in enumerate(version.instances) if isinstance(instance, Vacant)]
    indices = [*vacant, *range(len(version.instances), len(version.instances) + len(missing))]
    wanted = [replace(place, index=index) for (place, _), index in zip(missing, indices, strict=False)]
    created = _create(found, number, version, config, wanted, options) if wanted else []
    added = {
        place.index: (place, instance, signature)
        for place, instance, (_, signature) in zip(wanted, created, missing, strict=True)
    }
    return Resized(config, added, left)


def _possible(version: LoadedVersion, config: ModelConfig, added: Sequence[InstancePlace]) -> bool:
    """Not where what was decided when the version was opened would be another."""
    if version.turns is not None:
        return False
    if any(all(group.passive for group in each.instance_groups) for each in (config, version.config)):
        return False
    return not (version.model.inline_safe and any(place.host for place in added))


def _create(
    found: FoundModel,
    number: int,
    version: LoadedVersion,
    config: ModelConfig,
    wanted: Sequence[InstancePlace],
    options: LoadOptions,
) -> list[Instance]:
    created = create_instances(version.model, wanted)
    try:
        warming = Warming(config, version.model.placement, options.on_loop, options.ending)
        warm_up(warming, found.folder, number, list(zip(wanted, created, strict=True)), MOST_TOGETHER)
    except BaseException:
        close_all(created)
        raise
    return created


def signatures(version: LoadedVersion) -> dict[int, Signature]:
    """Of the instances of a version that are there, by their places in its list."""
    return version.signatures or dict(enumerate(_signatures(version.config)))


def _signatures(config: ModelConfig) -> list[Signature]:
    return [(replace(group, name="", count=1, gpus=()), device) for group, device, _ in spread(config)]
