"""A configuration on its way from its file to the frozen ModelConfig of a load.

Wraps the protobuf message, which only `checking` sees outside this room. Synchronous, reads files only in `read`; a
draft belongs to one load and one thread at a time.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from halimede.config import message as messages
from halimede.config.checks import check_config, check_instance_groups, check_tensors
from halimede.config.compiling import compile_config, incomplete_of, version_policy_of
from halimede.config.completion import Completed, complete_from_description, complete_from_values, lacks_tensors
from halimede.config.defaults import fill_defaults, fill_instance_groups
from halimede.config.files import mode_of
from halimede.config.identify import ENSEMBLE, complete_backend
from halimede.config.model_config import Description, Incomplete, ModelConfig, VersionPolicy
from halimede.config.rendering import json_text
from halimede.config.states import check_states
from halimede.errors import Internal, Invalid

_ENVIRONMENT = "EXECUTION_ENV_PATH"
_EXECUTION = "EXECUTION"


def read(folder: Path, *, config_name: str = "", strict: bool = False) -> "Draft":
    """The configuration of the model in `folder`: parsed, its backend found, defaults filled in, checked.

    What raises here is what the real server calls a poll failure: the model never gets as far as a version. No file
    is an empty configuration, unless `strict`; `strict` also checks inputs and outputs, since nothing will complete
    them (contract R64). Raises Invalid, Internal.
    """
    try:
        file = messages.file_of(folder, config_name)
        is_there = strict or mode_of(str(file)) != 0
        message = messages.parse_file(file, folder.name) if is_there else messages.empty()
        return _draft(message, file, folder, strict)
    except OSError as error:
        raise Internal(f"failed to read {error.filename}: {error.strerror}") from error


def read_override(text: str, folder: Path, *, strict: bool = False) -> "Draft":
    """As `read`, from a configuration as JSON that counts instead of any file (contract H113)."""
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
    """A configuration that may still be completed. `file` is where it was read, or would have been."""

    __slots__ = ("_message", "file")

    def __init__(self, file: Path, message: messages.Message) -> None:
        self.file = file
        self._message = message

    def copy(self) -> "Draft":
        """One that may be completed on its own."""
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
        """Whether the model is made of others."""
        return self.platform == ENSEMBLE

    @property
    def runtime(self) -> str:
        """What runs the model where the configuration says so (contract R43); may be empty."""
        return str(self._message.runtime)

    @property
    def environment(self) -> str:
        """What the configuration says of the environment of Python code (contract P71); may be empty."""
        return self._parameter(_ENVIRONMENT)

    @property
    def execution(self) -> str:
        """What the configuration says of where Python code runs; may be empty."""
        return self._parameter(_EXECUTION)

    def _parameter(self, name: str) -> str:
        given = name in self._message.parameters
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
        """Whether inputs (batch inputs count) or outputs are missing (contract R72)."""
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
        """The configuration as JSON for a load (contract H113) of this version only."""
        message = messages.copy_of(self._message)
        message.version_policy.Clear()
        message.version_policy.specific.versions.append(version)
        return json_text(message)

    def complete(self, description: Description, default_max_batch_size: int) -> Completed:
        """Fills in what is missing from what the model file declares (contract R72).

        Raises Invalid where the configuration asks for batches and the model cannot.
        """
        completed = complete_from_description(self._message, description, default_max_batch_size)
        fill_defaults(self._message)
        return completed

    def update(self, values: Mapping[str, Any]) -> None:
        """Takes over what a model's own code decided (contract R77, R82): the fields that it may; the rest is ignored.

        Raises Invalid where a value is not of its field's type, Internal for a scheduler other than the chosen one.
        """
        complete_from_values(self._message, values, f"{self.file}: model '{self.name}': auto-completed configuration")
        fill_defaults(self._message)

    def load_digest(self) -> bytes:
        """What a version must be loaded again for when it changes: everything but the instance groups and the version
        policy (contract R13)."""
        message = messages.copy_of(self._message)
        message.ClearField("instance_group")
        message.ClearField("version_policy")
        return bytes(message.SerializeToString(deterministic=True))

    def complete_as(self, finished: bytes) -> None:
        """Takes over what a configuration of the same essence was completed to, by its `ModelConfig.message`."""
        message = messages.parse_bytes(finished)
        message.ClearField("instance_group")
        message.instance_group.extend(self._message.instance_group)
        message.version_policy.CopyFrom(self._message.version_policy)
        self._message = message

    def serve_by(self, runtime: str, environment: Path | None) -> None:
        """This runtime was found (contract R43), with an environment that its models get which name none (R83)."""
        self._message.runtime = runtime
        if environment is not None and _ENVIRONMENT not in self._message.parameters:
            self._message.parameters[_ENVIRONMENT].string_value = str(environment)

    def finish(self, *, gpus: Sequence[int] = (), default_instance_count: int = 1) -> ModelConfig:
        """The configuration, complete, checked, compiled. May be called again.

        `gpus` are the devices of this machine, `default_instance_count` what the backend wants of a CPU group without
        a count (contract R53). Raises Invalid, Internal.
        """
        message = self.with_groups(gpus, default_instance_count)
        check_instance_groups(message, gpus)
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
