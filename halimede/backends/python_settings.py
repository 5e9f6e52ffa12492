"""The settings of the backend `python`, and those that a model has of its own (contract P70).

Pure; called on load threads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from halimede.config.model_config import ModelConfig
from halimede.errors import Invalid
from halimede.workers.restarts import PATIENCE


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
    "shm-default-byte-size": (4 << 20, "shm-default-byte-size can't be smaller than 4 MiBs"),
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


def execution_limit(config: ModelConfig, otherwise: float) -> float:
    """How many seconds `execute` may take, 0 for any time: the model's own word, or the backend's. Raises Invalid."""
    text = config.parameters.get(_LIMIT)
    if text is None:
        return otherwise
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise Invalid(f"model '{config.name}': the parameter '{_LIMIT}' must be a number of seconds, not '{text}'")
    return seconds


_LIMIT = "EXECUTION_TIMEOUT_SECONDS"
