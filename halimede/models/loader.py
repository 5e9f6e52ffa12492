"""One load: a model directory becomes opened versions with their instances, or errors; and how to undo it.

Runs on a load thread and may block for as long as a model takes. Touches no table: what it returns, the lifecycle
publishes or refuses on the event loop.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from halimede.backends.api import Backend, BackendModel, Instance, InstancePlace, ModelFolder, Placement
from halimede.backends.runtimes import PYTHON_BASED, find_runtime
from halimede.config import (
    LATENCY_TARGET_PARAMETER,
    Description,
    Draft,
    InstanceGroup,
    ModelConfig,
    read,
    read_labels,
    read_override,
    versions_to_load,
)
from halimede.config.files import is_directory
from halimede.errors import Error, Internal, Invalid, Unavailable, Unsupported
from halimede.models.agents import Agents, Engagement
from halimede.models.contents import digest_of
from halimede.models.repository import Fingerprint, FoundModel, fingerprint, version_names
from halimede.models.sequence_states import states_for
from halimede.models.steps import Steps, all_of, timed
from halimede.models.strategies import PARAMETER, strategy_of
from halimede.models.warmup import OnLoop, Warming, warm_up
from halimede.platform.hosts import host_policy
from halimede.scheduling.limited import LimiterSlots
from halimede.scheduling.sequence_state import ModelStates
from halimede.scheduling.step_binding import Binding
from halimede.scheduling.step_graph import StepGraph
from halimede.scheduling.strategy import BatchStrategy

log = logging.getLogger(__name__)

MOST_TOGETHER = 8
"""How many instances of one model start at once."""

DEFAULT_MAX_BATCH_SIZE = 4
"""What a completed configuration gets when the model can batch and nobody says how much (contract R72, C45)."""


_NO_POLICIES: Mapping[str, Mapping[str, str]] = MappingProxyType({})
_RUNTIMES_FOR_DATA = frozenset({"", "identity", "onnxruntime"})
"""Backends for which the files of a model are data (an ensemble has none). Any other may be a Python-based one."""


class Backends(Protocol):
    """Finds a backend by name; may be called from several load threads."""

    def __contains__(self, name: object) -> bool: ...
    def get(self, name: str) -> Backend: ...


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`settings` gives the `--backend-config` settings of a backend, `host_policies` are those of `--host-policy`;
    `gpus` are the ids of the machine's devices; `backend_directory` is where Python-based backends lie (contract R83).
    `on_loop` has something done on the event loop; `ending` says whether the server ends, so that nobody waits for a
    load any more."""

    auto_complete: bool = True
    config_name: str = ""
    retries: int = 0
    settings: Callable[[str], Mapping[str, str]] = lambda backend: {}
    host_policies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    backend_directory: Path = Path()
    on_loop: OnLoop = lambda work: work()
    ending: Callable[[], bool] = lambda: False
    agents: Agents = field(default_factory=Agents)
    digests: bool = False
    """Whether responses are kept where other servers find them, so that versions must be known by their contents."""


@dataclass(frozen=True, slots=True)
class EnsembleParts:
    """What an ensemble runs with: its steps, whoever serves them at a moment, and a number that changes when those may
    be others. On the event loop."""

    graph: StepGraph
    bind: Callable[[], Binding]
    changes: Callable[[], int]


class NoModel:
    """What an ensemble is in itself."""

    placement = Placement.LOOP
    inline_safe = False

    def create_instance(self, place: InstancePlace) -> Instance:
        raise Internal("an ensemble has no instances")

    def close(self) -> None:
        """There is nothing to close."""


@dataclass(slots=True, eq=False)
class LoadedVersion:
    """An opened version, not yet serving. `labels` by output (contract H82). `places` are those of the instances;
    `turns` is there once the rate limiter knows them, where there is one."""

    number: int
    config: ModelConfig
    model: BackendModel
    instances: list[Instance]
    load_seconds: float = 0.0
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    places: list[InstancePlace] = field(default_factory=list)
    turns: LimiterSlots | None = None
    strategy: BatchStrategy | None = None
    states: ModelStates | None = None
    """What each sequence begins with, where the server keeps implicit states for the model."""
    contents: bytes = b""
    """A digest of what the version is made of, where that was asked for."""
    ensemble: EnsembleParts | None = None
    """Of an ensemble, once its members are known."""
    key: str = ""
    """Of the model, where that is not its name (contract R20)."""
    signatures: dict[int, tuple[InstanceGroup, int]] = field(default_factory=dict)
    """What its instances are (`models.resizing`), once they are others than it was opened with."""
    agents: Engagement | None = None
    """Who is told when it goes."""

    def close(self) -> None:
        """Gives everything back. May block; does not raise."""
        if self.agents is not None:
            self.agents.leave()
        close_all([*self.instances, self.model])
        if self.agents is not None:
            self.agents.left()


@dataclass(slots=True)
class LoadResult:
    """What came of a load: each version that was asked for, opened or the error why not."""

    name: str
    versions: dict[int, LoadedVersion | Error] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return any(isinstance(v, Error) for v in self.versions.values())


@dataclass(frozen=True, slots=True)
class Code:
    """What a configuration makes run as code: a backend that is no runtime for data, the environment of its models
    and where they are executed, where it says so."""

    backend: str
    environment: str
    execution: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a look at a model's directory says: its configuration can be read, these are the versions to serve (or why
    there are none), and this is how to tell whether something has changed since."""

    backend: str
    versions: tuple[int, ...] | Error
    fingerprint: Fingerprint
    code: Code | None
    ensemble: ModelConfig | None = None
    """The configuration, where the model is made of others."""
    load_digest: bytes = b""
    """Equal for configurations that a version need not be loaded again for (contract R13)."""
    draft: Draft | None = field(default=None, compare=False)
    """The configuration as it was read, so that a load need not read it once more; nobody changes this one."""


def inspect_model(found: FoundModel, options: LoadOptions, may_ask_agents: bool = True) -> Inspection:
    """Opens nothing; the model's agents are asked where something has changed. Raises Error where the configuration
    cannot be read or an agent fails: what the real server calls a poll failure; AgentsWanted where agents had to be
    asked and may not be."""
    try:
        seen = fingerprint(found.folder)
        there = options.agents.engage(found, seen, may_ask_agents)
        draft = _read(there, options)
        ensemble = draft.finish() if draft.is_ensemble else None
        names = version_names(there.folder)
    except OSError as error:
        options.agents.give_up(found)
        raise Internal(f"failed to read {error.filename}: {error.strerror}") from error
    except Error:
        options.agents.give_up(found)
        raise
    try:
        numbers, warnings = versions_to_load(draft.version_policy, names, found.name)
    except Invalid as error:
        options.agents.give_up(found)
        return Inspection(draft.backend, error, seen, _code_of(draft), ensemble)
    for warning in warnings:
        log.warning(warning)
    # What agents did for versions in service they do again for others: where anything changed, all are loaded again.
    load_digest = draft.load_digest() if there is found else draft.load_digest() + repr(seen).encode()
    # Agents may do their work once more before the load, and leave another configuration.
    again = draft if there is found else None
    return Inspection(draft.backend, tuple(numbers), seen, _code_of(draft), ensemble, load_digest, again)


def _pause(options: LoadOptions) -> Steps[None]:
    """Between two steps, while nothing is open that would have to be closed. Raises Unavailable where the server ends
    meanwhile."""
    yield
    if options.ending():
        raise Unavailable("Server exiting")


def _code_of(draft: Draft) -> Code | None:
    is_data = draft.backend in _RUNTIMES_FOR_DATA and draft.runtime != PYTHON_BASED
    return None if is_data else Code(draft.backend, draft.environment, draft.execution)


def load(
    found: FoundModel, numbers: Sequence[int], backends: Backends, options: LoadOptions, seen: Draft | None = None
) -> LoadResult:
    """Opens these versions, which a survey found and whose configuration it may have `seen`. Never raises: what goes
    wrong is in the result."""
    return all_of(load_in_steps(found, numbers, backends, options, seen))


def load_in_steps(
    found: FoundModel, numbers: Sequence[int], backends: Backends, options: LoadOptions, seen: Draft | None = None
) -> Steps[LoadResult]:
    """The same; what a backend does is a step of its own, each on whatever load thread."""
    try:
        agents = options.agents.take(found)
    except Error as error:
        return LoadResult(found.name, dict.fromkeys(numbers, error))
    there = found if agents is None else replace(found, folder=agents.folder)
    versions: dict[int, LoadedVersion | Error] = {}
    for number in numbers:
        versions[number] = yield from _load_version(there, number, backends, options, seen)
    result = LoadResult(found.name, versions)
    if agents is not None:
        opened = [version for version in versions.values() if isinstance(version, LoadedVersion)]
        for version in opened:
            version.agents = agents
        options.agents.settle(found, agents, len(opened), result.failed)
    return result


def _read(found: FoundModel, options: LoadOptions) -> Draft:
    strict = not options.auto_complete
    if found.config is not None:
        return read_override(found.config, found.folder, strict=strict)
    return read(found.folder, config_name=options.config_name, strict=strict)


def _load_version(
    found: FoundModel, number: int, backends: Backends, options: LoadOptions, seen: Draft | None
) -> Steps[LoadedVersion | Error]:
    """Tries as often as the options say (contract C18), with the configuration as it is then; the error of the last try
    is the answer."""
    outcome: LoadedVersion | Error = Internal("never tried")
    for attempt in range(1 + options.retries):
        try:
            steps = _open_version(found, number, backends, options, None if attempt else seen)
            version, seconds = yield from timed(steps)
            version.load_seconds = seconds
            return version
        except Error as error:
            outcome = _apart(error)
        except Exception as error:
            log.exception("loading model '%s' version %d broke", found.name, number)
            outcome = Internal(f"{type(error).__name__}: {error}")
    return outcome


def _apart(error: Error) -> Error:
    """Without the frames that it went through: they hold what was opened, such as a session, and the one that keeps the
    error is among them, so that only the garbage collector would let go of all that."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _open_version(
    found: FoundModel, number: int, backends: Backends, options: LoadOptions, seen: Draft | None
) -> Steps[LoadedVersion]:
    log.info("loading: %s:%d", found.name, number, extra={"model": found.name, "version": number})
    draft = _read(found, options) if seen is None else seen.copy()
    if draft.is_ensemble:
        return _open_ensemble(found, number, draft, options)
    folder, backend = prepare_draft(found, number, draft, backends, options)
    if options.auto_complete:
        described = yield from _complete(draft, backend, folder, options)
        if described is not None:
            folder = replace(folder, opened=described.opened)
    gpus = backend.usable_gpus(options.gpus)
    config = draft.finish(gpus=gpus, default_instance_count=backend.default_instance_count)
    labels = {spec.name: read_labels(found.folder, spec, found.name) for spec in config.outputs}
    wanted = places(config, options.host_policies)
    strategy = _strategy_of(config, folder, found)
    states = states_for(config, found.folder)
    contents = digest_of(config, folder) if options.digests and config.response_cache else b""
    yield from _pause(options)
    with wanted[0].host.applied():
        model = backend.open(config, folder)
    try:
        opened = create_instances(model, wanted)
        try:
            warming = Warming(config, model.placement, options.on_loop, options.ending)
            warm_up(warming, found.folder, number, list(zip(wanted, opened, strict=True)), MOST_TOGETHER)
        except BaseException:
            close_all(opened)
            raise
    except BaseException:
        close_all([model])
        raise
    return LoadedVersion(
        number,
        config,
        model,
        opened,
        labels=labels,
        places=wanted,
        contents=contents,
        strategy=strategy,
        states=states,
        key=found.key,
    )


def _open_ensemble(found: FoundModel, number: int, draft: Draft, options: LoadOptions) -> LoadedVersion:
    config = draft.finish()
    labels = {spec.name: read_labels(found.folder, spec, found.name) for spec in config.outputs}
    # What its members are made of is not known here: no other server shall find its responses.
    contents = os.urandom(32) if options.digests else b""
    return LoadedVersion(number, config, NoModel(), [], labels=labels, contents=contents, key=found.key)


def prepare(
    found: FoundModel, number: int, backends: Backends, options: LoadOptions, seen: Draft | None = None
) -> tuple[Draft, ModelFolder, Backend]:
    """What a version is opened with: its configuration as it was read, its folder, and its backend. Raises Error."""
    draft = _read(found, options) if seen is None else seen.copy()
    return draft, *prepare_draft(found, number, draft, backends, options)


def prepare_draft(
    found: FoundModel, number: int, draft: Draft, backends: Backends, options: LoadOptions
) -> tuple[ModelFolder, Backend]:
    folder = ModelFolder(found.folder, version_folder(found.folder, number), number)
    runtime = find_runtime(draft.name, draft.backend, draft.runtime, folder, options.backend_directory, backends)
    if runtime.code is not None:
        folder = replace(folder, code=runtime.code)
        draft.set_runtime(PYTHON_BASED, runtime.environment)
    return folder, backends.get(runtime.backend)


def _strategy_of(config: ModelConfig, folder: ModelFolder, found: FoundModel) -> BatchStrategy | None:
    """What a client sends must not make code of the server's of a file that is none by the repository's own."""
    if found.config is not None and PARAMETER in config.parameters:
        raise Unsupported(f"the parameter '{PARAMETER}' can only be set by the configuration in the model's folder")
    strategy = strategy_of(config, folder)
    if strategy is not None and config.dynamic_batching is not None and config.dynamic_batching.latency_target_us:
        raise Invalid(f"model '{config.name}': a batch strategy and '{LATENCY_TARGET_PARAMETER}' cannot decide both")
    return strategy


def create_instances(model: BackendModel, wanted: Sequence[InstancePlace]) -> list[Instance]:
    """All of them, or none and the error. Those that are processes of their own start together."""
    if model.placement is Placement.LOOP and len(wanted) > 1:
        return _create_together(model, wanted)
    opened: list[Instance] = []
    try:
        for place in wanted:
            opened.append(_create_instance(model, place))
    except BaseException:
        close_all(opened)
        raise
    return opened


def _create_instance(model: BackendModel, place: InstancePlace) -> Instance:
    with place.host.applied():
        return model.create_instance(place)


def _create_together(model: BackendModel, wanted: Sequence[InstancePlace]) -> list[Instance]:
    with ThreadPoolExecutor(min(len(wanted), MOST_TOGETHER), "instance") as pool:
        begun = [pool.submit(_create_instance, model, place) for place in wanted]
        wait(begun, return_when=FIRST_EXCEPTION)
        pool.shutdown(cancel_futures=True)
    over = [future for future in begun if not future.cancelled()]
    failures = [error for future in over if (error := future.exception()) is not None]
    if failures:
        close_all([future.result() for future in over if future.exception() is None])
        raise failures[0]
    return [future.result() for future in over]


def version_folder(folder: Path, number: int) -> Path:
    """A version's directory; names such as `1abc` count as 1 where there is no `1` (contract R2)."""
    plain = folder / str(number)
    if is_directory(str(plain)):
        return plain
    for name in version_names(folder):
        if name.startswith(str(number)) and not name[len(str(number))].isdigit():
            return folder / name
    return plain


def complete(draft: Draft, backend: Backend, folder: ModelFolder, options: LoadOptions) -> None:
    """Fills in what the configuration leaves open, from the model itself (contract R72, R77)."""
    all_of(_complete(draft, backend, folder, options))


def _complete(draft: Draft, backend: Backend, folder: ModelFolder, options: LoadOptions) -> Steps[Description | None]:
    """The same; the description that counted, if one did."""
    if not (draft.needs_description or backend.describes_always):
        return None
    gpus = backend.usable_gpus(options.gpus)
    asked = draft.incomplete(gpus=gpus, default_instance_count=backend.default_instance_count)
    yield from _pause(options)
    described = backend.describe(asked, folder, draft.model_filename)
    yield from _pause(options)
    if isinstance(described, Description):
        for warning in draft.complete(described, _default_max_batch_size(options.settings(backend.name))):
            log.warning(warning)
        return described
    if described is not None:
        draft.update(described)
    return None


def _default_max_batch_size(settings: Mapping[str, str]) -> int:
    text = settings.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE))
    if not text.isdecimal():
        raise Invalid(f"backend config 'default-max-batch-size' must be a number >= 0, got '{text}'")
    return int(text)


def spread(config: ModelConfig) -> list[tuple[InstanceGroup, int, int]]:
    """The instances that a configuration asks for: group, device, and number in the group on this device. An instance
    that is not on a GPU is on device 0 (contract S105)."""
    return [
        (group, device, number)
        for group in config.instance_groups
        for device in group.gpus or (0,)
        for number in range(group.count)
    ]


def places(config: ModelConfig, policies: Mapping[str, Mapping[str, str]] = _NO_POLICIES) -> list[InstancePlace]:
    """The instances that a configuration asks for, each named after its group and its number there (contract P5).
    `policies` are the settings of host policies. Raises Invalid for one that means nothing (contract C57)."""
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


def close_all(parts: Sequence[Instance | BackendModel]) -> None:
    for part in parts:
        try:
            part.close()
        except Exception:
            log.exception("closing a model broke")
