"""The settings of the backend `python`, and those that a model has of its own (contract P70).

Called on load threads.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from halimede.backends.api import CpuShare, InstancePlace
from halimede.backends.child.settings import EXECUTION_LIMIT
from halimede.config.model_config import ModelConfig
from halimede.errors import Invalid
from halimede.workers.host.restarts import PATIENCE

log = logging.getLogger(__name__)

ENVIRONMENT = "EXECUTION_ENV_PATH"
"""The parameter that names a model's own environment (contract P71)."""


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """The backend's settings. `finish_limit` is how long a model may take to finalize, `describe_limit` to complete its
    configuration, `execution_limit` to execute a batch (0: as long as it likes), `patience` how long requests wait for
    a worker that is started again, in seconds."""

    finish_limit: float = 30.0
    describe_limit: float = 300.0
    execution_limit: float = 0.0
    patience: float = PATIENCE


def parse_settings(settings: Mapping[str, str]) -> PythonSettings:
    """Checks `--backend-config=python,...` (contract P70). Raises Invalid.

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
    )


_NUMBERS: Mapping[str, tuple[int, str]] = {
    # The limit is that of the real server, which is not the one of its text: 1 MiB is its default.
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
    """How many threads libraries for numbers may use in each worker, 0 where that is theirs to decide (contract D11).

    The model's own word, or, where instances share `cores`, what is each one's part of them: a library takes them all,
    and several that do wait for each other most of the time. Raises Invalid."""
    text = config.parameters.get(THREADS)
    if text is None:
        beside = config.instances_beside(place.host_policy)
        return CpuShare(frozenset(range(cores)), beside).threads if beside > 1 and not place.passive else 0
    if not text.isdecimal():
        raise Invalid(f"model '{config.name}': the parameter '{THREADS}' must be a number of 0 or more, not '{text}'")
    return int(text)


THREADS = "CPU_THREADS"


def runs_in_process(config: ModelConfig, limit: float) -> bool:
    """Whether the model wants to run in the server's own process. `limit` is what `execution_limit` said.

    Raises Invalid for a way that does not exist, and for what cannot be had there: a thread has the server's Python,
    and nothing ends it."""
    ways = {"process": False, "in_process": True}
    text = config.parameters.get(_WAY, "process")
    if text not in ways:
        raise Invalid(f"model '{config.name}': the parameter '{_WAY}' must be 'process' or 'in_process', not '{text}'")
    if not ways[text]:
        return False
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
    """Says so in the log where a model brings the original's stub program, built for a Python of its own (contract
    P73). It speaks another protocol than our workers, and nothing here can run it."""
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
