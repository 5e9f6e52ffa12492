"""What a configuration asks of ONNX Runtime beside a session's settings: execution accelerators (R76), custom
operator libraries (R58), and another file for a GPU of another generation (R54).

Imports no runtime. Pure but for `filename_on`, which asks the driver; any thread.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from halimede.config.model_config import Incomplete, ModelConfig
from halimede.errors import Invalid
from halimede.platform.gpus import compute_capability

Provider = tuple[str, tuple[tuple[str, str], ...]]
"""An execution provider of the runtime and its options."""

CUDA = "CUDAExecutionProvider"

_TENSORRT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "max_workspace_size_bytes": "trt_max_workspace_size",
        "int8_calibration_table_name": "trt_int8_calibration_table_name",
        "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
    }
)
"""Triton's own names for options of the provider; those that begin with `trt_` are the provider's."""
_PRECISIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"FP32": {}, "FP16": {"trt_fp16_enable": "1"}, "INT8": {"trt_int8_enable": "1"}}
)


@dataclass(frozen=True, slots=True)
class Accelerator:
    name: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Extras:
    """`filenames` by compute capability, such as 7.5."""

    gpu: tuple[Accelerator, ...] = ()
    cpu: tuple[Accelerator, ...] = ()
    libraries: tuple[str, ...] = ()
    filenames: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def filename_on(
        self, device: int | None, usual: str, capability: Callable[[int], str | None] = compute_capability
    ) -> str:
        """The file to open for a GPU, or for the CPU (None)."""
        if device is None or not self.filenames:
            return usual
        return self.filenames.get(capability(device) or "", usual)

    def providers(self, device: int | None, available: Collection[str]) -> tuple[Provider, ...]:
        """The providers with precedence over the device's own. `available` are those of the installed runtime. Raises
        Invalid, with the real server's text, for an accelerator that is unknown or not in the runtime."""
        wanted = [_on_gpu(each, device, available) for each in self.gpu] if device is not None else []
        wanted += [_on_cpu(each, available) for each in self.cpu]
        return tuple(wanted)


NONE = Extras()


def extras_of(config: Incomplete | ModelConfig) -> Extras:
    """What a configuration asks for."""
    return level_and_extras_of(config)[1]


def level_and_extras_of(config: Incomplete | ModelConfig) -> tuple[int | None, Extras]:
    """What a configuration asks for, and before that its `optimization.graph.level`, None if it is not set (R75)."""
    graph, accelerators, operations, filenames = config.values(
        "optimization.graph", "optimization.execution_accelerators", "model_operations", "cc_model_filenames"
    )
    level = None if graph is None else int(graph["level"])
    if not (accelerators or operations or filenames):  # as of most models
        return level, NONE
    return level, Extras(
        gpu=_accelerators((accelerators or {}).get("gpu_execution_accelerator", ())),
        cpu=_accelerators((accelerators or {}).get("cpu_execution_accelerator", ())),
        libraries=tuple((operations or {}).get("op_library_filename", ())),
        filenames=MappingProxyType(filenames or {}),
    )


def _accelerators(given: Any) -> tuple[Accelerator, ...]:
    return tuple(Accelerator(each.get("name", ""), each.get("parameters", {})) for each in given)


def _on_gpu(wanted: Accelerator, device: int, available: Collection[str]) -> Provider:
    options = {"device_id": str(device)}
    match wanted.name:
        case "tensorrt":
            if "TensorrtExecutionProvider" not in available:
                raise Invalid("TensorRT Execution Accelerator is not enabled")
            return "TensorrtExecutionProvider", tuple({**options, **_tensorrt_options(wanted.parameters)}.items())
        case "cuda":
            return CUDA, tuple({**options, **wanted.parameters}.items())
        case other:
            raise _unknown(other)


def _tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in sorted(parameters.items()):
        if key == "precision_mode":
            if value not in _PRECISIONS:
                raise Invalid(f"unsupported precision mode '{value}' is requested")
            options.update(_PRECISIONS[value])
        elif key in _TENSORRT_NAMES or key.startswith("trt_"):
            options[_TENSORRT_NAMES.get(key, key)] = value
        else:
            raise Invalid(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
    return options


def _on_cpu(wanted: Accelerator, available: Collection[str]) -> Provider:
    if wanted.name != "openvino":
        raise _unknown(wanted.name)
    if "OpenVINOExecutionProvider" not in available:
        raise Invalid("OpenVINO Execution Accelerator is not enabled")
    return "OpenVINOExecutionProvider", tuple(sorted(wanted.parameters.items()))


def _unknown(name: str) -> Invalid:
    return Invalid(f"unknown Execution Accelerator '{name}' is requested")
