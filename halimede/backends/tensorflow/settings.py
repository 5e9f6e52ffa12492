"""What a configuration and `--backend-config` say about TensorFlow (BF9 to BF11). Imports no runtime. Pure, any
thread."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from halimede.backends.api import ModelFolder
from halimede.backends.parameters import Settings
from halimede.config.model_config import InstanceKind, ModelConfig
from halimede.errors import Cause, Invalid, Unsupported

SAVED_MODEL, GRAPH = "tensorflow_savedmodel", "tensorflow_graphdef"


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """intra_threads, inter_threads -- None for a share of the cores
    jit_level -- of XLA, None for the runtime's choice
    libraries -- of custom operators
    warnings -- for the log
    """

    intra_threads: int | None = None
    inter_threads: int | None = None
    per_session_threads: bool = False
    soft_placement: bool = True
    gpu_memory_fraction: float = 0.0
    jit_level: int | None = None
    mixed_precision: bool = False
    init_ops: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_platform(platform: str, model: str) -> None:
    """Raises Invalid (BF1)."""
    if platform not in (SAVED_MODEL, GRAPH):
        text = f"platform {platform} not supported for TensorFlow model '{model}'"
        raise Invalid(text).blaming(Cause.CONFIGURATION)


def plan_session(config: ModelConfig, folder: ModelFolder, backend: Mapping[str, str]) -> SessionPlan:
    """Raises Invalid for a value without a meaning, Unsupported for what the runtime no longer has."""
    model = Settings(f"unable to load model '{config.name}'", config.parameters)
    of_backend = Settings("backend config of 'tensorflow'", backend)
    for key, least, words in (
        ("TF_NUM_INTRA_THREADS", 0, "non-negative"),
        ("TF_NUM_INTER_THREADS", 0, "non-negative"),
        ("MAX_SESSION_SHARE_COUNT", 1, "positive"),  # only checked: each instance has a process of its own
    ):
        number = model.number(key)
        if number is not None and number < least:
            text = f"parameter '{key}' must be {words} number for TensorFlow model '{config.name}'"
            raise Invalid(text).blaming(Cause.CONFIGURATION)
    graph, accelerators, operations = config.values(
        "optimization.graph", "optimization.execution_accelerators", "model_operations"
    )
    level = None if graph is None else int(graph["level"])
    mixed, warnings = _accelerators(config, accelerators or {})
    return SessionPlan(
        intra_threads=model.number("TF_NUM_INTRA_THREADS"),
        inter_threads=model.number("TF_NUM_INTER_THREADS"),
        per_session_threads=model.switch("TF_USE_PER_SESSION_THREADS", False),
        soft_placement=of_backend.switch("allow-soft-placement", True),
        gpu_memory_fraction=_fraction(backend.get("gpu-memory-fraction", "0")),
        jit_level=None if not level else (-1 if level < 0 else min(level, 2)),
        mixed_precision=mixed,
        init_ops=_init_ops(config, folder),
        libraries=tuple((operations or {}).get("op_library_filename", ())),
        warnings=warnings,
    )


def _fraction(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise Invalid(f"gpu-memory-fraction must be a number, not '{value}'") from None


def _init_ops(config: ModelConfig, folder: ModelFolder) -> tuple[str, ...]:
    """The operations of the file that TF_INIT_OPS_FILE names, which is in the version directory or the model's."""
    name = config.parameters.get("TF_INIT_OPS_FILE")
    if not name:
        return ()
    path = next((each for each in (folder.version / name, folder.model / name) if each.is_file()), None)
    try:
        if path is None:
            raise Invalid(f"unable to find '{name}' of model '{config.name}'").blaming(Cause.FILE)
        return tuple(map(str, json.loads(path.read_text())["init_ops"]))
    except (ValueError, LookupError, TypeError) as error:
        text = f"'{name}' of model '{config.name}' must be JSON with a list init_ops: {error!r}"
        raise Invalid(text).blaming(Cause.FILE) from error


def _accelerators(config: ModelConfig, given: Mapping[str, list[Mapping[str, str]]]) -> tuple[bool, tuple[str, ...]]:
    """Whether the runtime may compute in half precision, and warnings. Raises Invalid, Unsupported."""
    if given.get("cpu_execution_accelerator"):
        text = "CPU Execution Accelerator is not supported in TensorFlow backend"
        raise Invalid(text).blaming(Cause.CONFIGURATION)
    names = [each.get("name", "") for each in given.get("gpu_execution_accelerator", ())]
    unknown = next((name for name in names if name not in ("tensorrt", "gpu_io", "auto_mixed_precision")), None)
    if unknown is not None:
        raise Invalid(f"unknown Execution Accelerator '{unknown}' is requested").blaming(Cause.CONFIGURATION)
    if names and not any(group.kind is InstanceKind.GPU for group in config.instance_groups):
        return False, (f"model '{config.name}' has no instances on a GPU: its GPU Execution Accelerators are ignored",)
    if "tensorrt" in names:
        if "auto_mixed_precision" in names:
            raise Invalid("Auto mixed precision can not be set with TFTRT optimization").blaming(Cause.CONFIGURATION)
        text = f"model '{config.name}' asks for TensorRT inside TensorFlow, which releases since 2.18 do not have"
        raise Unsupported(text).blaming(Cause.CONFIGURATION)
    return "auto_mixed_precision" in names, ()
