"""What a configuration and `--backend-config` say about TensorRT (BR13 to BR15). Imports no runtime. Pure, any
thread."""

from collections.abc import Mapping
from dataclasses import dataclass

from halimede.backends.parameters import Settings
from halimede.config.model_config import ModelConfig
from halimede.errors import Cause, Invalid, Unsupported

_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")
_PRIORITIES: Mapping[str, int] = {"PRIORITY_MAX": -(2**31), "PRIORITY_MIN": 2**31 - 1}
"""As numbers of streams, which the driver limits to those of the GPU."""


@dataclass(frozen=True, slots=True)
class BackendSettings:
    plugins: tuple[str, ...]
    version_compatible: bool


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """strategy -- how memory of an execution context is allocated
    priority -- of the stream
    graphs -- whether CUDA graphs are recorded
    specs -- which ones
    """

    strategy: str = "STATIC"
    priority: int = 0
    graphs: bool = False
    specs: tuple[Mapping[str, object], ...] = ()


def backend_settings(values: Mapping[str, str]) -> BackendSettings:
    """Raises Invalid. `coalesce-request-input` is checked, and changes nothing: a batch is always gathered at once. So
    does `execution-policy`: each instance has a thread."""
    settings = Settings("backend config of 'tensorrt'", values)
    settings.switch("coalesce-request-input", False)
    plugins = tuple(path for path in values.get("plugins", "").split(";") if path)
    return BackendSettings(plugins, settings.switch("version-compatible", False))


def model_settings(config: ModelConfig, instance: str) -> ModelSettings:
    """Raises Invalid, and Unsupported for what needs several GPUs."""
    if config.parameters.get("enable_multi_device", "").lower() in ("true", "on", "1"):
        raise Unsupported(f"model '{config.name}' asks for several GPUs, which this backend does not use")
    strategy = config.parameters.get("execution_context_allocation_strategy") or "STATIC"
    if strategy not in _STRATEGIES:
        raise Invalid(
            f"Invalid value for 'execution_context_allocation_strategy': '{strategy}' for model instance '{instance}'. "
            "Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'."
        ).blaming(Cause.CONFIGURATION)
    priority, cuda = config.values("optimization.priority", "optimization.cuda")
    return ModelSettings(
        strategy,
        _PRIORITIES.get(priority or "", 0),
        bool((cuda or {}).get("graphs")),
        tuple((cuda or {}).get("graph_spec", ())),
    )
