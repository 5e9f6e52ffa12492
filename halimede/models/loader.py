"""Opens the versions of a model: a model directory becomes opened versions with their instances, or errors.

Runs on a load thread and may block for as long as a model takes. Changes no table: the event loop publishes or refuses
what `load` returns (`loading.model_loads`).
"""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Protocol

from halimede.backends.api import Backend, BackendModel, Instance, InstancePlace, ModelFolder, Placement
from halimede.backends.homes import BackendOfTwoHomes
from halimede.backends.runtimes import PYTHON_BASED, code_for, find_runtime
from halimede.backends.traits import Completes, Traits
from halimede.config import (
    LATENCY_TARGET_PARAMETER,
    Description,
    Draft,
    InstanceGroup,
    LabelFiles,
    ModelConfig,
    read,
    read_override,
)
from halimede.config.files import is_directory
from halimede.errors import Error, Internal, Invalid, Unavailable, Unsupported, shortened
from halimede.models.abilities import check_abilities, check_amounts
from halimede.models.agents import Agents, Engagement
from halimede.models.contents import digest_of
from halimede.models.repository import FoundModel, version_names
from halimede.models.sequence_states import states_for
from halimede.models.strategies import PARAMETER, strategy_of
from halimede.models.warmup import OnLoop, Warming, WarmUpRun, warm_up
from halimede.platform.hosts import host_policy
from halimede.scheduling.rate_limiter import Demand, LimiterSlots, RateLimiter, Resource, Slot
from halimede.scheduling.states import ModelStates
from halimede.scheduling.step_binding import Binding
from halimede.scheduling.step_graph import StepGraph
from halimede.scheduling.strategy import BatchStrategy

log = logging.getLogger(__name__)

MAX_PARALLEL_INSTANCES = 8
"""Instances of one model that start, or warm up, at the same time."""

DEFAULT_MAX_BATCH_SIZE = 4
"""The completed `max_batch_size` of a model that can batch, if neither configuration nor flags set one (R72, C45)."""

MAX_REASON = 8192
"""Characters of the reason why a version could not be loaded. Beyond: it is cut."""
_OF_GPUS = re.compile(r"(?<![/\w-])(cuda|nvidia|gpus?\b)", re.IGNORECASE)
"""What frameworks say without a GPU. Parts of paths do not count."""
_ON_THE_CPU = (
    "--gpu-fallback=cpu placed it on the CPU, but its own code seems to ask for a GPU; a Python model finds "
    "'CPU' in args['model_instance_kind']"
)
_NO_POLICIES: Mapping[str, Mapping[str, str]] = MappingProxyType({})


class Backends(Protocol):
    """Finds a backend by name. Called on several load threads."""

    def __contains__(self, name: object) -> bool: ...
    def get(self, name: str) -> Backend: ...


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the server's options say about loads, and what a load needs of the server."""

    auto_complete: bool = True
    config_name: str = ""
    retries: int = 0
    """Further attempts to open a version after the first one failed (C18)."""
    settings: Callable[[str], Mapping[str, str]] = lambda backend: {}
    """The `--backend-config` settings of a backend, by its name."""
    host_policies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The `--host-policy` settings, by the name of the policy."""
    gpus: tuple[int, ...] = ()
    """The ids of the machine's GPUs."""
    gpu_fallback: bool = False
    """Whether instance groups for GPUs that are not there run on the CPU."""
    max_instances: int = 1024
    """What one configuration may ask for, over all its versions."""
    max_warmup_samples: int = 10_000
    """What one configuration may ask for."""
    backend_directory: Path = Path()
    """Where the Python-based backends are (R83)."""
    on_loop: OnLoop = lambda work: work()
    """Runs a callback on the event loop, soon."""
    ending: Callable[[], bool] = lambda: False
    """Whether the server ends, so that nobody waits for a load any more."""
    unwanted: Callable[[str], bool] = lambda name: False
    """Whether an unload waits for the load of a model. Called on load threads."""
    overdue: Callable[[str], bool] = lambda name: False
    """Whether it has waited for so long that the load is to end. Likewise."""
    agents: Agents = field(default_factory=Agents)
    digests: bool = False
    """Whether versions need a digest of their contents, because they share a response cache with other servers."""
    limiter: RateLimiter | None = None
    """The rate limiter, if there is one. A load only makes slots for it; the event loop registers them."""


@dataclass(frozen=True, slots=True)
class EnsembleParts:
    """What an ensemble runs with. Used on the event loop."""

    graph: StepGraph
    bind: Callable[[], Binding]
    """Finds the versions that serve the steps now. Raises Error if one of them cannot."""
    changes: Callable[[], int]
    """A number that is another one if `bind` may find other versions."""


class NoModel:
    """The backend model of an ensemble, which has none."""

    placement = Placement.LOOP
    inline_safe = False
    gathers = False
    in_flight = 1

    def create_instance(self, place: InstancePlace) -> Instance:
        raise Internal("an ensemble has no instances")

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVersion:
    """An opened version as it was loaded. It never changes.

    What changes while it serves (its instances and their number) is in `models.version.ModelVersion`.
    """

    number: int
    config: ModelConfig
    model: BackendModel
    instances: Sequence[Instance]
    places: Sequence[InstancePlace] = ()
    """Of the instances, in their order."""
    load_seconds: float = 0.0
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By the name of the output (H82)."""
    limiter_slots: LimiterSlots | None = None
    """The slots of the instances at the rate limiter, if there is one."""
    checks_outputs: bool = True
    """Whether responses must have the names and datatypes of the configuration (`Traits.checks_outputs`)."""
    strategy: BatchStrategy | None = None
    states: ModelStates | None = None
    """The initial implicit states of a sequence, if the model has any."""
    contents: bytes = b""
    """A digest of what the version is made of, if `LoadOptions.digests`."""
    ensemble: EnsembleParts | None = None
    """Of an ensemble whose members are known (`loading.ensembles`)."""
    key: str = ""
    """The model's name within its namespace, if there are namespaces (R20)."""
    agents: Engagement | None = None
    """The model's agents, which are told when the version goes."""
    warmed: Sequence[WarmUpRun] = ()
    """The samples that its instances ran, for the statistics (W2)."""

    def close(self, instances: Sequence[Instance] | None = None) -> None:
        """Closes the model and its instances: those that it has now, if they are not those that were loaded. May block;
        does not raise."""
        if self.agents is not None:
            self.agents.leave()
        close_all([*(self.instances if instances is None else instances), self.model])
        if self.agents is not None:
            self.agents.left()


@dataclass(slots=True)
class LoadResult:
    """The result of a load: each version that was asked for, opened, or the reason why not."""

    name: str
    versions: dict[int, LoadedVersion | Error] = field(default_factory=dict)

    @property
    def opened(self) -> list[LoadedVersion]:
        return [version for version in self.versions.values() if isinstance(version, LoadedVersion)]

    @property
    def failures(self) -> dict[int, Error]:
        return {number: error for number, error in self.versions.items() if isinstance(error, Error)}


@dataclass(frozen=True, slots=True)
class LoadShare:
    """What the versions of one load share."""

    versions: int
    """How many will serve, those included that stay in service."""
    agents: Engagement | None
    labels: LabelFiles


def load(
    found: FoundModel,
    numbers: Sequence[int],
    backends: Backends,
    options: LoadOptions,
    seen: Draft | None = None,
    kept: int = 0,
) -> LoadResult:
    """Opens these versions, which an inspection found. `seen` is the configuration that it read, `kept` the number of
    versions that stay in service. Never raises: the result says what failed."""
    try:
        agents = options.agents.take(found)
    except Error as error:
        return LoadResult(found.name, dict.fromkeys(numbers, error))
    # Agents may have put the model elsewhere, decrypted for example.
    there = found if agents is None else replace(found, folder=agents.folder)
    share = LoadShare(len(numbers) + kept, agents, LabelFiles(there.folder, found.name))
    result = LoadResult(
        found.name, {number: _load_version(there, number, backends, options, seen, share) for number in numbers}
    )
    if agents is not None:
        options.agents.settle(found, agents, len(result.opened), bool(result.failures))
    return result


def read_draft(found: FoundModel, options: LoadOptions) -> Draft:
    """Reads the configuration of a model: the one that came with the load, or the file. Raises Error."""
    strict = not options.auto_complete
    if found.config is not None:
        return read_override(found.config, found.folder, strict=strict)
    return read(found.folder, config_name=options.config_name, strict=strict)


def draft_of(found: FoundModel, options: LoadOptions, seen: Draft | None) -> Draft:
    """A draft that the load may complete: a copy of `seen`, which the inspection has read; if that is None, the
    configuration is read again. Raises Error."""
    return read_draft(found, options) if seen is None else seen.copy()


def _load_version(
    found: FoundModel,
    number: int,
    backends: Backends,
    options: LoadOptions,
    seen: Draft | None,
    share: LoadShare,
) -> LoadedVersion | Error:
    """Tries as often as the options say (C18); returns the error of the last attempt."""
    outcome: LoadedVersion | Error = Internal("never tried")
    # All kinds of failures are tried again, as in Triton: a GPU may have no memory left for the moment.
    for attempt in range(1 + options.retries):
        try:
            check_wanted(options, found.name)
            # A further attempt reads the configuration again: a file may have been half written.
            return _open_version(found, number, backends, options, None if attempt else seen, share)
        except Error as error:
            outcome = _without_frames(error)
        except Exception as error:
            log.exception(
                "model '%s' version %d: unexpected error while it was opened; the version does not serve",
                found.name,
                number,
                extra={"model": found.name, "version": number},
            )
            outcome = Internal(f"{type(error).__name__}: {error}")
    return outcome


def _without_frames(error: Error) -> Error:
    """The error without its traceback, and with a text that can be kept for the repository index. The frames hold what
    was opened, such as a session: only the garbage collector would free all that."""
    if len(error.message) > MAX_REASON:
        error.message = shortened(error.message, MAX_REASON)
        error.args = (error.message,)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _open_version(
    found: FoundModel,
    number: int,
    backends: Backends,
    options: LoadOptions,
    seen: Draft | None,
    share: LoadShare,
) -> LoadedVersion:
    """One attempt: complete the configuration, open the model, create its instances, warm them up. Raises whatever the
    backend does; then nothing is left open."""
    began = monotonic()
    log.info("loading: %s:%d", found.name, number, extra={"model": found.name, "version": number})
    draft = draft_of(found, options, seen)
    if draft.is_ensemble:  # it has no backend; the event loop gives it its members
        return _open_ensemble(found, number, draft, options, share)
    folder, backend = find_backend(found, number, draft, backends, options)
    moved = move_to_cpu(draft, number, backend, options)
    with _advising_on_gpus(moved):
        return _open_with(found, draft, backend, folder, options, share, began)


def _open_with(
    found: FoundModel,
    draft: Draft,
    backend: Backend,
    folder: ModelFolder,
    options: LoadOptions,
    share: LoadShare,
    began: float,
) -> LoadedVersion:
    number = folder.number
    if options.auto_complete:
        described = complete(draft, backend, folder, options)
        # A backend that had to open the model to describe it need not open it twice.
        if described is not None:
            folder = replace(folder, opened=described.opened)
    gpus = backend.usable_gpus(options.gpus)
    config = draft.finish(gpus=gpus, default_instance_count=backend.traits.cpu_instances)
    check_abilities(config, backend.traits)
    check_amounts(config, options.max_instances, options.max_warmup_samples, share.versions)
    labels = {spec.name: share.labels.of(spec) for spec in config.outputs}
    wanted = places(config, options.host_policies)
    strategy = _strategy_of(config, folder, found)
    states = states_for(config, found.folder)
    contents = _contents(config, folder) if options.digests and config.response_cache else b""
    check_wanted(options, found.name)
    # The model's memory should be on the NUMA node of its first instance.
    with wanted[0].host.applied():
        model = backend.open(config, folder)
    instances: list[Instance] = []
    try:
        instances, warmed = create_warm_instances(model, config, wanted, found.folder, number, options)
        limiter_slots = _limiter_slots(config, instances, options.limiter)
    except BaseException:  # whatever it is, the model must not stay open
        close_all([*instances, model])
        raise
    return LoadedVersion(
        number,
        config,
        model,
        tuple(instances),
        tuple(wanted),
        load_seconds=monotonic() - began,
        labels=labels,
        limiter_slots=limiter_slots,
        checks_outputs=backend.traits.checks_outputs,
        strategy=strategy,
        states=states,
        contents=contents,
        key=found.key,
        agents=share.agents,
        warmed=warmed,
    )


def _contents(config: ModelConfig, folder: ModelFolder) -> bytes:
    # Nobody can compare two functions. A random digest keeps other servers from finding their responses.
    return digest_of(config, folder) if folder.bound is None else os.urandom(32)


def check_wanted(options: LoadOptions, name: str) -> None:
    """Called before each step of a load. Raises Unavailable if the server ends, or if an unload has waited for long."""
    if options.ending():
        raise Unavailable("Server exiting")
    if options.overdue(name):
        raise Unavailable(f"model '{name}' was unloaded while it was loaded")


def _open_ensemble(
    found: FoundModel, number: int, draft: Draft, options: LoadOptions, share: LoadShare
) -> LoadedVersion:
    config = draft.finish()
    labels = {spec.name: share.labels.of(spec) for spec in config.outputs}
    # The contents of its members are unknown here. A random digest keeps other servers from finding its responses.
    contents = os.urandom(32) if options.digests else b""
    return LoadedVersion(
        number, config, NoModel(), (), labels=labels, contents=contents, key=found.key, agents=share.agents
    )


def find_backend(
    found: FoundModel, number: int, draft: Draft, backends: Backends, options: LoadOptions
) -> tuple[ModelFolder, Backend]:
    """The folder of a version whose configuration was read, and the backend that serves it (R41 to R43, R83). Raises
    Error."""
    folder = replace(_folder_of(found, number), unwanted=partial(options.unwanted, found.name))
    runtime = find_runtime(draft.name, draft.backend, draft.runtime, folder, options.backend_directory, backends)
    # A Python-based backend: the Python backend runs the backend's own file with the files of the model (R83).
    if runtime.code is not None:
        folder = replace(folder, code=runtime.code)
        draft.set_runtime(PYTHON_BASED, runtime.environment)
    elif (code := code_for(runtime.backend, draft.platform)) is not None:
        folder = replace(folder, code=code)
    backend = backends.get(runtime.backend)
    # The GPUs that a runtime can use, for example, may be others in the model's home.
    if isinstance(backend, BackendOfTwoHomes):
        backend = backend.of_model(draft.parameters, draft.name, folder, draft.model_filename, draft.runtime)
    return folder, backend


def move_to_cpu(draft: Draft, number: int, backend: Backend, options: LoadOptions) -> bool:
    """Moves instance groups to the CPU that name GPUs which the backend cannot use here, if the options say so. Logs a
    warning for each. Returns whether there were any. Raises Error."""
    changes = draft.fall_back_to_cpu(backend.usable_gpus(options.gpus)) if options.gpu_fallback else []
    for change in changes:
        about = {"model": draft.name, "version": number}
        log.warning("model '%s' version %d: %s (--gpu-fallback=cpu)", draft.name, number, change, extra=about)
    return bool(changes)


@contextmanager
def _advising_on_gpus(moved: bool) -> Iterator[None]:
    """Adds an advice to the error of a model that was moved to the CPU and itself asks for a GPU."""
    try:
        yield
    except Error as error:
        if moved and _OF_GPUS.search(error.message):
            error.advice = error.advice or _ON_THE_CPU
        raise


def _strategy_of(config: ModelConfig, folder: ModelFolder, found: FoundModel) -> BatchStrategy | None:
    """The model's own batch strategy. Raises Error."""
    # A configuration that a client sent must not make the server run a file of the repository as code.
    if found.config is not None and PARAMETER in config.parameters:
        raise Unsupported(f"the parameter '{PARAMETER}' can only be set by the configuration in the model's folder")
    strategy = strategy_of(config, folder)
    if strategy is not None and config.dynamic_batching is not None and config.dynamic_batching.latency_target_us:
        raise Invalid(
            f"model '{config.name}' has both a batch strategy and '{LATENCY_TARGET_PARAMETER}', and both decide when a "
            "batch is full; remove one of them"
        )
    return strategy


def complete(draft: Draft, backend: Backend, folder: ModelFolder, options: LoadOptions) -> Description | None:
    """Fills in what the configuration leaves open, from the model itself (R72, R77). Returns the description that was
    used, if there is one. Raises Error."""
    if not _completes(backend.traits, draft):
        return None
    gpus = backend.usable_gpus(options.gpus)
    asked = draft.incomplete(gpus=gpus, default_instance_count=backend.traits.cpu_instances)
    check_wanted(options, draft.name)
    described = backend.describe(asked, folder, draft.model_filename)
    if isinstance(described, Description):
        complete_from(draft, described, backend, options)
        return described
    # A mapping with fields of the configuration, as from `auto_complete_config` of a model.py.
    if described is not None:
        draft.update(described)
    return None


def complete_from(draft: Draft, described: Description, backend: Backend, options: LoadOptions) -> None:
    """Fills in what the configuration leaves open, from a description. Raises Invalid."""
    completed = draft.complete(described, _default_max_batch_size(options.settings(backend.traits.name)))
    for warning in completed.warnings:
        log.warning("%s", warning)
    if completed.fields:
        fields = ", ".join(completed.fields)
        log.info("model '%s': %s of the configuration completed from %s", draft.name, fields, described.source)


def _completes(traits: Traits, draft: Draft) -> bool:
    """Whether the backend completes this configuration (R72, R77)."""
    # A model file is only opened if something is missing: opening it takes as long as a load.
    if traits.completes is Completes.MISSING:
        return draft.needs_description
    return traits.completes is Completes.ALWAYS


def _default_max_batch_size(settings: Mapping[str, str]) -> int:
    text = settings.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE))
    if not text.isdecimal():
        raise Invalid(f"backend config 'default-max-batch-size' must be a number >= 0, got '{text}'")
    return int(text)


def _folder_of(found: FoundModel, number: int) -> ModelFolder:
    if found.bound is not None:
        return ModelFolder(found.folder, found.folder / str(number), number, bound=found.bound.content)
    return ModelFolder(found.folder, version_folder(found.folder, number), number)


def version_folder(folder: Path, number: int) -> Path:
    """A version's directory. A name such as `1abc` counts as version 1 if there is no `1` (R2)."""
    plain = folder / str(number)
    if is_directory(str(plain)):
        return plain
    # Triton converts the name with `stoll`, which ignores what follows the digits.
    for name in version_names(folder):
        if name.startswith(str(number)) and not name[len(str(number))].isdigit():
            return folder / name
    return plain


# The instances of a version.


def create_warm_instances(
    model: BackendModel,
    config: ModelConfig,
    wanted: Sequence[InstancePlace],
    folder: Path,
    number: int,
    options: LoadOptions,
) -> tuple[list[Instance], Sequence[WarmUpRun]]:
    """Creates the instances and runs the warm-up samples on each. Raises whatever the backend does; then all are
    closed. `folder` is the model's."""
    check = partial(check_wanted, options, config.name)
    created = create_instances(model, wanted, check)
    warming = Warming(config, model.placement, options.on_loop, check)
    try:
        warm_up(warming, folder, number, list(zip(wanted, created, strict=True)), MAX_PARALLEL_INSTANCES)
    except BaseException:
        close_all(created)
        raise
    return created, warming.runs


def create_instances(
    model: BackendModel, wanted: Sequence[InstancePlace], check: Callable[[], None] = lambda: None
) -> list[Instance]:
    """Creates all of them, or closes them and raises. Instances that are processes start in parallel. `check` raises if
    the load is to end."""
    # An instance that is called on the loop is a process. Its start takes seconds, and none of this process's time.
    if model.placement is Placement.LOOP and len(wanted) > 1:
        return _create_in_parallel(model, wanted, check)
    created: list[Instance] = []
    try:
        for place in wanted:
            created.append(_create_instance(model, check, place))
    except BaseException:
        close_all(created)
        raise
    return created


def _create_instance(model: BackendModel, check: Callable[[], None], place: InstancePlace) -> Instance:
    check()
    with place.host.applied():
        return model.create_instance(place)


def _create_in_parallel(
    model: BackendModel, wanted: Sequence[InstancePlace], check: Callable[[], None]
) -> list[Instance]:
    with ThreadPoolExecutor(min(len(wanted), MAX_PARALLEL_INSTANCES), "instance") as pool:
        begun = [pool.submit(_create_instance, model, check, place) for place in wanted]
        # After the first failure no further instance starts. Those that are starting are waited for, to be closed.
        wait(begun, return_when=FIRST_EXCEPTION)
        pool.shutdown(cancel_futures=True)
    over = [future for future in begun if not future.cancelled()]
    failures = [error for future in over if (error := future.exception()) is not None]
    if failures:
        close_all([future.result() for future in over if future.exception() is None])
        raise failures[0]
    return [future.result() for future in over]


def spread(config: ModelConfig) -> list[tuple[InstanceGroup, int, int]]:
    """The instances that a configuration asks for: group, device, and number in the group on this device.

    An instance that is not on a GPU counts as on device 0 (S105).
    """
    return [
        (group, device, number)
        for group in config.instance_groups
        for device in group.gpus or (0,)
        for number in range(group.count)
    ]


def places(config: ModelConfig, policies: Mapping[str, Mapping[str, str]] = _NO_POLICIES) -> list[InstancePlace]:
    """The places of the instances that a configuration asks for. An instance is named after its group and its number
    in it (P5).

    `policies` are the settings of host policies. Raises Invalid for a setting that is wrong (C57).
    """
    wanted = spread(config)
    return [
        InstancePlace(
            name=f"{group.name}_{number}",
            kind=group.kind,
            device_id=device,
            index=index,
            total=len(wanted),
            passive=group.passive,
            host_policy=group.host_policy,
            host=host_policy(policies.get(group.host_policy_of(device), {})),
        )
        for index, (group, device, number) in enumerate(wanted)
    ]


def _limiter_slots(
    config: ModelConfig, instances: Sequence[Instance], limiter: RateLimiter | None
) -> LimiterSlots | None:
    """A slot for each instance that is given batches, by its index."""
    if limiter is None:
        return None
    demands: dict[tuple[int, int], Demand] = {}
    slots: dict[int, Slot] = {}
    for index, (group, device, _) in enumerate(spread(config)):
        if not group.passive:
            if (id(group), device) not in demands:
                demands[id(group), device] = demand(group, device)
            slots[index] = Slot(demands[id(group), device], instances[index])
    return LimiterSlots(limiter, slots)


def demand(group: InstanceGroup, device: int) -> Demand:
    """What an instance of the group on this device takes of the rate limiter's resources while it runs (S100, S105)."""
    needs = {Resource.of(need.name, None if need.is_global else device): need.count for need in group.resources}
    return Demand(needs, group.priority)


def close_all(parts: Sequence[Instance | BackendModel]) -> None:
    """Closes each of them, also if another one raises."""
    for part in parts:
        try:
            part.close()
        except Exception:
            log.exception("unexpected error while a %s was closed; what it held may stay in use", type(part).__name__)
