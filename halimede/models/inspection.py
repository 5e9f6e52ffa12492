"""Inspects a model's directory before a load: can its configuration be read, which versions would serve, and has
anything changed since.

Opens no model and changes nothing, except that the model's repository agents run if something changed. On a thread;
may block.
"""

import logging
from dataclasses import dataclass, field

from halimede.backends.registry import traits_of
from halimede.backends.runtimes import PYTHON_BASED
from halimede.config import Draft, ModelConfig, versions_to_load
from halimede.errors import Error, Internal, Invalid
from halimede.models.loader import LoadOptions, read_draft
from halimede.models.repository import Fingerprint, FoundModel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Code:
    """What a configuration makes the server run as code: the backend, and the environment and the place of execution of
    its models, if the configuration sets them. The backend is one for data only if there is an environment."""

    backend: str
    environment: str
    execution: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """`versions` are the versions to serve, or why there are none. `code` is None if the model's files are data."""

    backend: str
    versions: tuple[int, ...] | Error
    fingerprint: Fingerprint
    code: Code | None
    ensemble: ModelConfig | None = None
    """The configuration, if the model is an ensemble."""
    load_digest: bytes = b""
    """Equal for two configurations between which a version need not be loaded again (R13)."""
    draft: Draft | None = field(default=None, compare=False)
    """The configuration as it was read, so that a load need not read it again. Never changed; a load copies it."""


def inspect_model(found: FoundModel, options: LoadOptions, may_ask_agents: bool = True) -> Inspection:
    """Raises Error if the configuration cannot be read or an agent fails: Triton calls that a poll failure. Raises
    AgentsWanted if agents must run and may not."""
    try:
        seen = found.fingerprint()
        _warn_of_misnamed(found, seen)
        there = options.agents.engage(found, seen, may_ask_agents)
        draft = read_draft(there, options)
        ensemble = draft.finish() if draft.is_ensemble else None
        names = there.version_names()
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
    has_agents = there is not found
    # One run of the agents belongs to the versions that it was made for. If anything changed they run again, and
    # every version must then be loaded again: so the digest covers all files.
    load_digest = draft.load_digest() + repr(seen).encode() if has_agents else draft.load_digest()
    # Agents may run once more before the load and leave another configuration, so the load must read it itself.
    kept = None if has_agents else draft
    return Inspection(draft.backend, tuple(numbers), seen, _code_of(draft), ensemble, load_digest, kept)


_OF_OTHERS = (".json", ".yaml", ".yml", ".py", ".ini")
"""Endings of configurations of frameworks, which models have beside their files."""


def _warn_of_misnamed(found: FoundModel, seen: Fingerprint) -> None:
    """Logs a file that was probably meant to be the configuration."""
    names = {name for name, _ in seen}
    if found.config is not None or "config.pbtxt" in names:
        return
    for name in sorted(names):
        if name.startswith("config.") and not name.endswith(_OF_OTHERS):
            text = "model '%s' has a file '%s', which is not read; its configuration must be called config.pbtxt"
            log.warning(text, found.name, name)


def _code_of(draft: Draft) -> Code | None:
    traits = traits_of(draft.backend)
    # An unknown backend may be a Python-based one. An ensemble has no backend and no files.
    is_data = not draft.backend or (traits is not None and not traits.runs_user_code)
    # A child process of any backend runs the interpreter of the model's environment.
    if is_data and draft.runtime != PYTHON_BASED and not draft.environment:
        return None
    return Code(draft.backend, draft.environment, draft.execution)
