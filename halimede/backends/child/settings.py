"""The settings of the child home, and the parameters that a model has for it. Load threads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from halimede.backends.traits import Home, Traits
from halimede.config.model_config import ModelConfig
from halimede.errors import Invalid
from halimede.workers.host.restarts import PATIENCE
from halimede.workers.host.sandbox_settings import NAMES as SANDBOX_NAMES
from halimede.workers.host.sandbox_settings import SandboxSettings, parse_sandbox

HOME = "HOME"
"""The parameter of a model that chooses its home."""
HOME_SETTING = "home"
"""The setting of a backend that chooses the home of models without the parameter."""
EXECUTION_LIMIT = "EXECUTION_TIMEOUT_SECONDS"
"""The parameter of a model: seconds that a batch may take."""

_LIMITS = {"execution-timeout-seconds": 0.0, "restart-wait-seconds": PATIENCE, "finish-timeout-seconds": 30.0}


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """Settings of `--backend-config=NAME,...` for processes. All times are in seconds."""

    execution_limit: float
    """How long a batch may take; 0 for no limit."""
    patience: float
    """How long requests wait for a process that is started again."""
    finish_limit: float
    """How long a model may take to close."""
    of_backend: Mapping[str, str] = field(default_factory=dict)
    """The other settings, which the backend reads."""
    sandbox: SandboxSettings | None = None
    """None: the processes may do what the server may."""
    describe_limit: float = 300.0
    """How long `describe`, `faults` and other calls of a load or of a check may take. No setting changes it."""

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> "ChildSettings":
        """Raises Invalid."""
        values = [_seconds(name, settings.get(name), otherwise) for name, otherwise in _LIMITS.items()]
        return cls(values[0], values[1], values[2], of_backend(settings), parse_sandbox(settings))


def of_backend(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings without those of the child home: what the backend sees, wherever it runs."""
    own = {HOME_SETTING, *_LIMITS, *SANDBOX_NAMES}
    return {name: value for name, value in settings.items() if name not in own}


def _seconds(name: str, text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    seconds = _number(text)
    if seconds < 0:
        raise Invalid(f"{name} must be a number of seconds of 0 or more, not '{text}'")
    return seconds


def _number(text: str) -> float:
    """A finite number of 0 or more; -1 for anything else."""
    try:
        number = float(text)
    except ValueError:
        return -1.0
    return number if 0 <= number < inf else -1.0


def execution_limit(config: ModelConfig, otherwise: float) -> float:
    """How many seconds `execute` may take, 0 for no limit: the model's parameter, or `otherwise`. Raises Invalid."""
    text = config.parameters.get(EXECUTION_LIMIT)
    if text is None:
        return otherwise
    seconds = _number(text)
    if seconds < 0:
        raise Invalid(
            f"model '{config.name}': the parameter '{EXECUTION_LIMIT}' must be a number of seconds, not '{text}'"
        )
    return seconds


def chosen_home(
    traits: Traits,
    setting: str | None,
    parameters: Mapping[str, str],
    model: str = "",
    usual: Callable[[], Home] | None = None,
) -> Home:
    """Where a model runs: its parameter HOME, else the backend's setting `home`, else what `usual` returns, else the
    backend's first home. Raises Invalid for a word that is no home, or a home that the backend does not allow."""
    homes = {home.value: home for home in traits.homes}
    word, where = parameters.get(HOME), f"model '{model}': the parameter '{HOME}'"
    if word is None:
        word, where = setting, f"the setting '{HOME_SETTING}' of backend '{traits.name}'"
    if word is None:
        return traits.homes[0] if usual is None else usual()
    if word not in homes:
        raise Invalid(f"{where} must be {' or '.join(map(repr, homes))}, not '{word}'")
    return homes[word]
