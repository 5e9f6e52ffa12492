"""The settings of the backend `python`, and the parameters of its models (P70).

Called on load threads.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from halimede.backends.api import CpuShare, InstancePlace, ModelFolder
from halimede.backends.child.settings import EXECUTION_LIMIT
from halimede.config.model_config import ModelConfig
from halimede.errors import Internal, Invalid
from halimede.workers.host.environments import MODEL_DIRECTORY
from halimede.workers.host.restarts import PATIENCE
from halimede.workers.host.sandbox_settings import SANDBOX, SandboxSettings, parse_sandbox

log = logging.getLogger(__name__)

ENVIRONMENT = "EXECUTION_ENV_PATH"
"""The parameter that names a model's own environment (P71)."""


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """The backend's settings, in seconds: `finish_limit` for `finalize`, `describe_limit` for `auto_complete_config`,
    `execution_limit` for `execute` (0: none), `patience` for requests that wait for a worker that is restarted. Without
    `sandbox` a model may do what the server may."""

    finish_limit: float = 30.0
    describe_limit: float = 300.0
    execution_limit: float = 0.0
    patience: float = PATIENCE
    sandbox: SandboxSettings | None = None


def parse_settings(settings: Mapping[str, str]) -> PythonSettings:
    """Checks `--backend-config=python,...` (P70). Raises Invalid.

    The settings of shared memory are checked and change nothing: there is no fixed region.
    """
    values = {}
    for name, (least, complaint) in _NUMBERS.items():
        if name in settings:
            values[name] = _number(name, settings[name])
            if values[name] < least:
                raise Invalid(complaint)
    if settings.get("shm-region-prefix-name") == "":
        raise Invalid("shm-region-prefix-name can't be empty")
    return PythonSettings(
        finish_limit=float(values.get("stub-timeout-seconds", 30)),
        describe_limit=float(values.get("auto-complete-timeout-seconds", 300)),
        execution_limit=float(values.get("execution-timeout-seconds", 0)),
        patience=float(values.get("restart-wait-seconds", PATIENCE)),
        sandbox=parse_sandbox(settings),
    )


_NUMBERS: Mapping[str, tuple[int, str]] = {
    # Triton's limit is 1 MiB, its default; its text says 4 MiB.
    "shm-default-byte-size": (1 << 20, "shm-default-byte-size can't be smaller than 4 MiBs"),
    "shm-growth-byte-size": (1, "shm-growth-byte-size can't be smaller than or equal to zero."),
    "stub-timeout-seconds": (1, "stub-timeout-seconds can't be smaller than or equal to zero."),
    "thread-pool-size": (1, "thread-pool-size can't be less than 1."),
    "auto-complete-timeout-seconds": (1, "auto-complete-timeout-seconds can't be smaller than or equal to zero."),
    "execution-timeout-seconds": (0, "execution-timeout-seconds can't be smaller than zero."),
    "restart-wait-seconds": (0, "restart-wait-seconds can't be smaller than zero."),
}


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Invalid(f"{name} must be an integer, not '{text}'") from None


def cpu_threads(config: ModelConfig, place: InstancePlace, cores: int) -> int:
    """How many threads numerical libraries may use in each worker; with 0 the libraries decide (D11).

    The model's parameter has precedence. Otherwise instances divide `cores`: by default each library uses all of them,
    and several such libraries mostly wait for each other. Raises Invalid."""
    text = config.parameters.get(THREADS)
    if text is None:
        beside = config.instances_beside(place.host_policy)
        return CpuShare(frozenset(range(cores)), beside).threads if beside > 1 and not place.passive else 0
    if not text.isdecimal():
        raise Invalid(f"model '{config.name}': the parameter '{THREADS}' must be a number of 0 or more, not '{text}'")
    return int(text)


THREADS = "CPU_THREADS"


def runs_in_process(config: ModelConfig, limit: float, sandboxed: bool) -> bool:
    """Whether the model runs in the server's own process. `limit` is its time limit for a batch, `sandboxed` says
    whether models run in a sandbox.

    Raises Invalid for an unknown value, and for parameters that need a process: a thread runs under the server's
    Python, and nothing can end it."""
    ways = {"process": False, "in_process": True}
    text = config.parameters.get(_WAY, "process")
    if text not in ways:
        raise Invalid(f"model '{config.name}': the parameter '{_WAY}' must be 'process' or 'in_process', not '{text}'")
    if not ways[text]:
        return False
    if sandboxed:
        raise Invalid(
            f"model '{config.name}': the parameter '{_WAY}' is 'in_process', and the models of this server run in a "
            f"{SANDBOX}, which needs processes of their own"
        )
    asked = (
        (ENVIRONMENT, ENVIRONMENT in config.parameters),
        (THREADS, THREADS in config.parameters),
        (EXECUTION_LIMIT, limit),
    )
    refused = [name for name, asks in asked if asks]
    for name in refused:
        if name in config.parameters:
            raise Invalid(
                f"model '{config.name}': the parameter '{name}' needs a process of its own, and cannot be kept with "
                f"{_WAY} 'in_process'"
            )
        log.warning(
            "model '%s' runs in the server's process: execution-timeout-seconds has no effect on it", config.name
        )
    return True


_WAY = "EXECUTION"


def warn_of_own_stub(model: str, folder: Path) -> None:
    """Warns if a model has Triton's stub program, built for another Python (P73). Its protocol is not that of our
    workers, so it is not used."""
    stub = folder / _STUB
    if stub.exists():
        log.warning(
            "model '%s': '%s' is not used: workers are started by a Python, not by a stub. To run the model with "
            "another Python or other packages, name an environment by the parameter %s",
            model,
            stub,
            ENVIRONMENT,
        )


_STUB = "triton_python_backend_stub"


def naming_its_list(error: Internal, setting: str, folder: ModelFolder) -> Internal:
    """The error of a load. If a module is missing, the model has a list of packages, and `setting` names no
    environment, the text says what the list is good for."""
    if setting or _MISSING not in error.message:
        return error
    for place in (folder.version, folder.model):
        for name in _LISTS:
            if (place / name).is_file():
                value = MODEL_DIRECTORY + str(place / name).removeprefix(str(folder.model))
                return Internal(
                    f"{error.message.rstrip()}\n\nThe list of packages '{place / name}' is not used. To let the server "
                    f"build an environment from it, set the model's parameter {ENVIRONMENT} to '{value}', and give "
                    "the flag '--python-environments=build'."
                )
    return error


_MISSING = "ModuleNotFoundError"
_LISTS = ("requirements.txt", "pyproject.toml")
