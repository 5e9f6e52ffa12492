"""Reads the configuration and repository agents of a model's folder. Leads a configuration from its file to the frozen
ModelConfig of a load.

`read` makes a Draft. The load completes it from the model file, and `finish` compiles it. A Draft wraps the protobuf
message, which only `checking` sees outside this room. Only `read` and `agents_of` read files. Synchronous; a draft
belongs to one load and one thread at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halimede.config import message as messages
from halimede.config.checks import check_config, check_instance_groups, check_tensors
from halimede.config.compiling import compile_config, incomplete_of
from halimede.config.completion import (
    Completed,
    automatic_groups,
    complete_from_description,
    complete_from_values,
    fall_back_to_cpu,
    fill_defaults,
    fill_instance_groups,
    lacks_tensors,
)
from halimede.config.files import MAX_CONFIG_BYTES, mode_of, read_whole
from halimede.config.identify import ENSEMBLE, complete_backend
from halimede.config.model_config import Description, Incomplete, ModelConfig
from halimede.config.rendering import json_text
from halimede.config.states import check_states
from halimede.config.versions import VersionPolicy, version_policy_of
from halimede.errors import Internal, Invalid

_ENVIRONMENT = "EXECUTION_ENV_PATH"
"""The parameter with the packed environment of a Python model."""
_EXECUTION = "EXECUTION"
"""The parameter that says in which process the code of a Python model runs."""
_AGENTS_FIELD = b"model_repository_agents"


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """A repository agent of a model, with its parameters (R22)."""

    name: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfiguredAgents:
    """The repository agents of a model in their order (R22). `json` is the configuration that names them, without
    defaults or completion, for the agents to read; empty if there are none.
    """

    specs: tuple[AgentSpec, ...] = ()
    json: str = field(default="", compare=False)


_NO_AGENTS = ConfiguredAgents()


def agents_of(folder: Path, *, config_name: str = "", override: str | None = None) -> ConfiguredAgents:
    """The agents that the configuration of a model's folder names, or the one in `override`, as JSON (R22).

    Agents come before everything else: one may replace the model, and its configuration with it. Raises Invalid if
    there is no configuration to read.
    """
    if override is not None:
        message = messages.parse_json(override)
    else:
        file = messages.file_of(folder, config_name)
        try:
            # Almost no configuration names agents: the search for the word saves parsing each file twice.
            if _AGENTS_FIELD not in read_whole(file, MAX_CONFIG_BYTES):
                return _NO_AGENTS
        except OSError:
            return _NO_AGENTS  # `read` comes next and reports it
        message = messages.parse_file(file, folder.name)
    specs = tuple(
        AgentSpec(agent.name, MappingProxyType(dict(agent.parameters)))
        for agent in message.model_repository_agents.agents
    )
    return ConfiguredAgents(specs, json_text(message)) if specs else _NO_AGENTS


def read(folder: Path, *, config_name: str = "", strict: bool = False) -> "Draft":
    """The configuration of the model in `folder`: parsed, its backend found, defaults filled in, checked.

    A missing file counts as an empty configuration, unless `strict`. `strict` also checks inputs and outputs, since
    nothing will complete them (R64). Raises Invalid, Internal: Triton calls this a poll failure, before any version is
    considered.
    """
    try:
        file = messages.file_of(folder, config_name)
        is_there = strict or mode_of(str(file)) != 0
        message = messages.parse_file(file, folder.name) if is_there else messages.empty()
        return _draft(message, file, folder, strict)
    except OSError as error:
        raise Internal(f"failed to read {error.filename}: {error.strerror}") from error


def read_override(text: str, folder: Path, *, strict: bool = False) -> "Draft":
    """The configuration `text`, as JSON, which replaces the file of the model in `folder` (H113): parsed, its backend
    found, defaults filled in, checked. `strict` also checks inputs and outputs (R64). Raises Invalid, Internal.
    """
    message = messages.parse_json(text)
    try:
        return _draft(message, folder / "config.pbtxt", folder, strict)
    except OSError as error:
        raise Internal(f"failed to read {error.filename}: {error.strerror}") from error


def _draft(message: messages.Message, file: Path, folder: Path, strict: bool) -> "Draft":
    complete_backend(message, folder)
    fill_defaults(message)
    check_config(message)
    if strict:
        check_tensors(message)
    if message.name != folder.name:
        raise Invalid(
            f"unexpected directory name '{folder.name}' for model '{message.name}', directory name must equal model "
            "name"
        )
    return Draft(file, message)


class Draft:
    """A configuration that may still be completed. `file` is its path, also if there is no file."""

    __slots__ = ("_message", "file")

    def __init__(self, file: Path, message: messages.Message) -> None:
        self.file = file
        self._message = message

    def copy(self) -> "Draft":
        """A copy that can be completed independently."""
        return Draft(self.file, messages.copy_of(self._message))

    @property
    def name(self) -> str:
        return str(self._message.name)

    @property
    def backend(self) -> str:
        """Empty only for an ensemble."""
        return str(self._message.backend)

    @property
    def is_ensemble(self) -> bool:
        """Whether the model is an ensemble."""
        return self.platform == ENSEMBLE

    @property
    def runtime(self) -> str:
        """The configured runtime (R43); may be empty."""
        return str(self._message.runtime)

    @property
    def environment(self) -> str:
        """The configured environment of Python code (P71); may be empty."""
        return self._parameter(_ENVIRONMENT)

    @property
    def execution(self) -> str:
        """The configured place where Python code runs; may be empty."""
        return self._parameter(_EXECUTION)

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters that are text."""
        return {name: str(parameter.string_value) for name, parameter in self._message.parameters.items()}

    def _parameter(self, name: str) -> str:
        given = name in self._message.parameters  # [] would add the key to a protobuf map
        return str(self._message.parameters[name].string_value) if given else ""

    @property
    def platform(self) -> str:
        return str(self._message.platform)

    @property
    def max_batch_size(self) -> int:
        return int(self._message.max_batch_size)

    @property
    def model_filename(self) -> str:
        """The file or directory to open in a version directory; may be empty for a backend that opens none."""
        return str(self._message.default_model_filename)

    @property
    def version_policy(self) -> VersionPolicy:
        return version_policy_of(self._message)

    @property
    def needs_description(self) -> bool:
        """Whether inputs or outputs are missing (R72). Batch inputs count as inputs."""
        return lacks_tensors(self._message)

    def text(self) -> str:
        """The configuration as it is now, as the text of a `config.pbtxt`."""
        return messages.text_of(self._message)

    def json(self, *, gpus: Sequence[int] = (), default_instance_count: int = 1) -> str:
        """The configuration as it is now, with its instance groups, as JSON."""
        return json_text(self.with_groups(gpus, default_instance_count))

    def incomplete(self, *, gpus: Sequence[int] = (), default_instance_count: int = 1) -> Incomplete:
        """The configuration as it is now, with its instance groups, for a backend to complete it."""
        return incomplete_of(self.with_groups(gpus, default_instance_count))

    def json_of_version(self, version: int) -> str:
        """The configuration as JSON for a load of this version only (H113)."""
        message = messages.copy_of(self._message)
        message.version_policy.Clear()
        message.version_policy.specific.versions.append(version)
        return json_text(message)

    def complete(self, description: Description, default_max_batch_size: int) -> Completed:
        """Fills in what is missing from what the model file declares (R72).

        Raises Invalid if the configuration asks for batches that the model cannot run.
        """
        completed = complete_from_description(self._message, description, default_max_batch_size)
        fill_defaults(self._message)
        return completed

    def update(self, values: Mapping[str, Any]) -> None:
        """Takes over the fields that a model's own code may decide, and ignores the others (R77, R82).

        Raises Invalid for a value that is not of its field's type, Internal for a scheduler other than the chosen one.
        """
        complete_from_values(self._message, values, f"{self.file}: model '{self.name}': auto-completed configuration")
        fill_defaults(self._message)

    def load_digest(self) -> bytes:
        """The part of a configuration that requires a reload if it changes: all but instance groups and version policy
        (R13)."""
        message = messages.copy_of(self._message)
        message.ClearField("instance_group")
        message.ClearField("version_policy")
        return bytes(message.SerializeToString(deterministic=True))

    def complete_from_loaded(self, finished: bytes) -> None:
        """Takes over the completion of a loaded configuration with an equal load digest. `finished` is its
        `ModelConfig.message`.
        """
        message = messages.parse_bytes(finished)
        message.ClearField("instance_group")
        message.instance_group.extend(self._message.instance_group)
        message.version_policy.CopyFrom(self._message.version_policy)
        self._message = message

    def set_runtime(self, runtime: str, environment: Path | None) -> None:
        """Sets the runtime that was found (R43), and its environment if the model names none (R83)."""
        self._message.runtime = runtime
        if environment is not None and _ENVIRONMENT not in self._message.parameters:
            self._message.parameters[_ENVIRONMENT].string_value = str(environment)

    def fall_back_to_cpu(self, gpus: Sequence[int]) -> list[str]:
        """Moves instance groups that name other GPUs than `gpus` to the CPU. Returns what has changed, one text for
        each group."""
        return fall_back_to_cpu(self._message, gpus)

    def finish(self, *, gpus: Sequence[int] = (), default_instance_count: int = 1) -> ModelConfig:
        """The configuration, complete, checked, compiled. May be called again.

        `gpus` are the devices of this machine. `default_instance_count` is the backend's count for a CPU group that
        sets none (R53). Raises Invalid, Internal.
        """
        message = self.with_groups(gpus, default_instance_count)
        check_instance_groups(message, gpus, automatic_groups(self._message))
        check_config(message)
        check_tensors(message)
        check_states(message)
        return compile_config(message)

    def with_groups(self, gpus: Sequence[int], default_instance_count: int) -> messages.Message:
        """A copy of the message, with its instance groups filled in. Outside this room only `checking` reads it."""
        message = messages.copy_of(self._message)
        if not self.is_ensemble:
            fill_instance_groups(message, gpus, default_instance_count)
        return message
