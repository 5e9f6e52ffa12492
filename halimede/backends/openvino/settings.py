"""What the parameters of a model, and `--backend-config`, say about OpenVINO (BV3, BV4). Imports no runtime. Pure, any
thread."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from halimede.backends.api import CpuShare
from halimede.errors import Invalid

_HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")


def _number(key: str, value: str) -> str:
    if not (value.isascii() and value.isdigit()):
        raise Invalid(f"expected the parameter '{key}' to be a non-negative number, got {value.lower()}")
    return value


def _streams(key: str, value: str) -> str:
    if value.upper() in ("AUTO", "NUMA"):
        return value.upper()
    if not (value.isascii() and value.isdigit()):
        raise Invalid(f"expected the parameter '{key}' to be either AUTO/NUMA/<int_value>, got {value.lower()}")
    return value


def _hint(key: str, value: str) -> str:
    if value.upper() not in _HINTS:
        raise Invalid(f"expected the parameter '{key}' to be {'/'.join(_HINTS)}, got {value.lower()}")
    return value.upper()


def _bfloat16(key: str, value: str) -> str:
    if value.upper() != "YES":
        raise Invalid(f"expected the parameter '{key}' to be YES, got {value.lower()}")
    return "bf16"


def _as_given(key: str, value: str) -> str:
    return value


_PROPERTIES: Mapping[str, tuple[str, Callable[[str, str], str]]] = MappingProxyType(
    {
        "INFERENCE_NUM_THREADS": ("INFERENCE_NUM_THREADS", _number),
        "COMPILATION_NUM_THREADS": ("COMPILATION_NUM_THREADS", _number),
        "NUM_STREAMS": ("NUM_STREAMS", _streams),
        "PERFORMANCE_HINT": ("PERFORMANCE_HINT", _hint),
        "INFERENCE_PRECISION_HINT": ("INFERENCE_PRECISION_HINT", _as_given),
        "HINT_BF16": ("INFERENCE_PRECISION_HINT", _bfloat16),
        "CACHE_DIR": ("CACHE_DIR", _as_given),
    }
)
"""Parameters that are properties of the runtime: the property, and what checks and translates a value."""

_PRECISE = ("CPU", "GPU")
"""Devices that compute in a lower precision than the model's, unless they are told not to."""


@dataclass(frozen=True, slots=True)
class Settings:
    """device -- the name that the runtime gets, such as CPU, GPU.0 or AUTO:GPU,CPU
    fixed_batch -- the model is compiled for batches of max_batch_size only
    padding -- smaller batches are filled with zeros
    reshape -- the model's inputs take the dims of the configuration
    libraries -- of custom operators
    properties -- of the runtime, without those that depend on the instances
    """

    device: str = "CPU"
    fixed_batch: bool = False
    padding: bool = False
    reshape: bool = False
    libraries: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def properties_for(self, share: CpuShare) -> dict[str, str]:
        """The properties for the instances that share these cores: one stream for each, unless the model says
        otherwise."""
        chosen: dict[str, str] = {}
        if self.device.partition(".")[0] in _PRECISE:
            chosen["INFERENCE_PRECISION_HINT"] = "f32"
        if self.device == "CPU":
            chosen["INFERENCE_NUM_THREADS"] = str(max(len(share.cores), 1))
            if "PERFORMANCE_HINT" not in self.properties:
                chosen["NUM_STREAMS"] = str(share.instances)
        return chosen | dict(self.properties)


def settings_of(parameters: Mapping[str, str], backend: Mapping[str, str], libraries: tuple[str, ...] = ()) -> Settings:
    """The settings of a model. `backend` has defaults for the properties of all models. An empty value counts as not
    set. Raises Invalid with Triton's texts."""
    properties = {}
    for given in (backend, parameters):
        for key, (name, check) in _PROPERTIES.items():
            if given.get(key):
                properties[name] = check(key, given[key])
    padding = _is_yes(parameters, "ENABLE_BATCH_PADDING")
    extension = parameters.get("CPU_EXTENSION_PATH", "")
    return Settings(
        device=(parameters.get("TARGET_DEVICE") or "CPU").upper(),
        fixed_batch=padding or _is_yes(parameters, "SKIP_OV_DYNAMIC_BATCHSIZE"),
        padding=padding,
        reshape=_is_yes(parameters, "RESHAPE_IO_LAYERS"),
        libraries=(*libraries, *([extension] if extension else [])),
        properties=MappingProxyType(properties),
    )


def _is_yes(parameters: Mapping[str, str], key: str) -> bool:
    """Only "yes" switches on (BV3)."""
    return parameters.get(key, "").lower() == "yes"
