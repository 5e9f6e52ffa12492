"""Checks repositories: looks at all models, and loads them if asked to.

`check` blocks, any thread. `load` runs on an event loop.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from halimede.backends.api import Severity
from halimede.checking.advice import BUILD, advised
from halimede.checking.model import ModelReview
from halimede.checking.problems import Problem
from halimede.checking.repository import review_repositories
from halimede.config import Draft, ModelConfig
from halimede.engine.engine import Engine
from halimede.errors import Unavailable
from halimede.models.agents import Agents
from halimede.models.ensembles import members_of
from halimede.models.lifecycle import ModelRecord, VersionState
from halimede.models.loader import LoadOptions
from halimede.options import ServerOptions

CLOSE_SECONDS = 30.0
CACHE_BYTES = 64 << 20
"""Of the response cache that is proposed for models that ask for one."""
_LISTS = (".txt", ".toml")
"""The ends of environments that are lists of packages."""
ENSEMBLE = "ensemble"
"""The backend of an ensemble, which has none."""


@dataclass(slots=True)
class CheckedModel:
    """A model and its problems. `loaded` are the versions that were loaded; None if no load was tried.

    `backend` is the configured one, "ensemble" for an ensemble, empty if it is unknown. `members` are the models of an
    ensemble's steps. `flags` are those of the server without which something in the configuration has no effect.
    `is_backend_here`: what the backend needs is installed; False also if nothing asked for the backend.
    """

    name: str
    repository: str
    versions: tuple[int, ...]
    problems: list[Problem]
    loaded: tuple[int, ...] | None = None
    backend: str = ""
    members: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    is_backend_here: bool = False


@dataclass(slots=True)
class Checked:
    """The result. `problems` are those of repositories. `seconds` is the duration of the loads, 0 without one."""

    repositories: tuple[str, ...]
    models: list[CheckedModel] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def all_problems(self) -> list[Problem]:
        return [*self.problems, *(problem for model in self.models for problem in model.problems)]

    def count(self, severity: Severity) -> int:
        return sum(problem.severity is severity for problem in self.all_problems)


def check(repositories: Sequence[str], options: ServerOptions, gpus: tuple[int, ...] = ()) -> Checked:
    """Looks at the files of all models and runs no code of them. `gpus` are those of this machine.

    Does not raise Error: everything that is wrong becomes a problem.
    """
    load_options = LoadOptions(
        auto_complete=options.auto_complete_config,
        config_name=options.model_config_name,
        settings=options.backend_settings,
        gpus=gpus,
        gpu_fallback=options.gpu_fallback,
        max_instances=options.client_limits.instances,
        max_warmup_samples=options.client_limits.warmup_samples,
        backend_directory=Path(options.backend_directory),
        agents=Agents(Path(options.repoagent_directory), options.model_config_name),
    )
    review = review_repositories(repositories, load_options, options.model_namespacing)
    models = [_checked(model, options.build_environments) for model in review.models]
    return Checked(tuple(repositories), models, [advised(problem) for problem in review.problems])


def _checked(model: ModelReview, builds: bool) -> CheckedModel:
    """`builds`: the server builds environments."""
    found = [problem for problem in model.problems if not (builds and problem.instead == BUILD)]
    problems = sorted(map(advised, found), key=lambda p: (str(p.file), p.line))
    draft, config = model.reviewed.draft, model.config
    return CheckedModel(
        model.found.name,
        str(model.found.folder.parent),
        model.versions,
        problems,
        backend="" if draft is None else ENSEMBLE if draft.is_ensemble else draft.backend,
        members=tuple(members_of(config.ensemble)) if config is not None and config.ensemble is not None else (),
        flags=tuple(_flags(config, draft)) if config is not None else (),
        is_backend_here=model.is_backend_here,
    )


def _flags(config: ModelConfig, draft: Draft | None) -> Iterator[str]:
    if draft is not None and draft.environment.endswith(_LISTS):
        yield BUILD
    if config.response_cache:
        yield f"--cache-config=local,size={CACHE_BYTES}"
    if any(group.resources or group.priority for group in config.instance_groups):
        yield "--rate-limit=execution_count"


async def load(checked: Checked, options: ServerOptions) -> None:
    """Loads the models through an engine without ports, and adds the problems of that. On the event loop.

    Raises Error if a repository cannot be read, or models do not end in time.
    """
    directories = tuple(path for path in checked.repositories if Path(path).is_dir())
    options = replace(
        options,
        # Paths that are not directories are problems already, and would end the start.
        model_repositories=directories,
        model_control_mode="explicit",
        load_models=("*",),
        # Nothing reads them, and measuring would cost time.
        metrics=replace(options.metrics, allowed=False),
    )
    began = perf_counter()
    engine = Engine(options, asyncio.get_running_loop())
    try:
        await engine.start()
        for model in checked.models:
            key = f"{model.repository}::{model.name}" if options.model_namespacing else model.name
            _add_load(model, engine.models.get(key))
    # A signal: without this, `stop` would wait for the loads under way.
    except asyncio.CancelledError:
        await engine.give_up()
        raise
    finally:
        checked.seconds = perf_counter() - began
        if not await engine.stop(CLOSE_SECONDS):
            raise Unavailable(f"some models did not end within {CLOSE_SECONDS:g} s")


def _add_load(model: CheckedModel, record: ModelRecord | None) -> None:
    folder = Path(model.repository) / model.name
    versions = {} if record is None else record.versions
    model.loaded = tuple(sorted(number for number, each in versions.items() if each.state is VersionState.READY))
    reasons = {each.reason for each in versions.values() if each.state is not VersionState.READY}
    # The model itself was refused, before any of its versions.
    if record is not None and not versions:
        reasons.add(record.reason or "it was not loaded")
    # With errors, the reason is among them already, in better words.
    if not any(problem.severity is Severity.ERROR for problem in model.problems):
        for reason in sorted(filter(None, reasons)):
            model.problems.append(advised(Problem("load", f"could not be loaded: {reason.strip()}", folder)))
        if record is None:
            model.problems.append(Problem("load", "could not be loaded", folder))
    if model.loaded:
        # Notes are about what only a load can show. Code may find its modules in a way that cannot be seen.
        model.problems = [
            problem
            for problem in model.problems
            if problem.severity is not Severity.NOTE and not (problem.module and problem.severity is Severity.ERROR)
        ]
