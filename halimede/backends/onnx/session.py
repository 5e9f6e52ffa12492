"""Sessions of ONNX Runtime: how one is built from settings, what it declares, and its errors in the server's words.

Knows the runtime and its options (R75), and nothing of instances or batches. Blocks; called on load threads.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import onnxruntime as ort

from halimede.backends.api import ModelFolder, cpu_share
from halimede.backends.onnx.completion import RULES
from halimede.backends.onnx.errors import translated
from halimede.backends.onnx.extras import CUDA, NONE, Extras, Provider
from halimede.backends.onnx.ranks import unknown_ranks
from halimede.backends.parameters import Settings
from halimede.config.files import status_of
from halimede.config.model_config import DescribedTensor, Description
from halimede.errors import Cause, Unavailable, Unsupported
from halimede.tensors import DATATYPES, DataType

_DATATYPES: Mapping[str, DataType] = MappingProxyType(
    {
        "tensor(bool)": DATATYPES["BOOL"],
        "tensor(float16)": DATATYPES["FP16"],
        "tensor(float)": DATATYPES["FP32"],
        "tensor(double)": DATATYPES["FP64"],
        "tensor(bfloat16)": DATATYPES["BF16"],
        "tensor(string)": DATATYPES["BYTES"],
        **{f"tensor({sign}int{bits})": DATATYPES[f"{sign}int{bits}".upper()]
           for sign in ("", "u") for bits in (8, 16, 32, 64)},
    }
)  # fmt: skip

_FOREIGN_TYPES = (
    ("seq(", "ONNX_TYPE_SEQUENCE"),
    ("map(", "ONNX_TYPE_MAP"),
    ("optional(", "ONNX_TYPE_OPTIONAL"),
    ("sparse_tensor(", "ONNX_TYPE_SPARSETENSOR"),
)

_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
"""By `optimization.graph.level`; anything else means all optimizations (R75)."""

_SIZE = range(2**64)
_CUDA_VALUES: Mapping[str, Mapping[str, str] | None] = MappingProxyType(
    {
        "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
        "gpu_mem_limit": None,
        "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    }
)
"""Parameters that are options of the CUDA provider, with its words for their values (None: a whole number)."""

_COPY_IN_STREAM = "do_copy_in_default_stream"

_SPINNING: Mapping[str, str] = MappingProxyType(
    {
        "session.force_spinning_stop": "1",
        "session.intra_op.spin_duration_us": "20",
        "session.inter_op.spin_duration_us": "20",
    }
)
"""Workers that spin from one operator to the next make a run much shorter. Spinning on after it, or for longer than a
wake-up takes, they only take the cores from the loop and from other models (docs/decisions/sessions-and-threads.md)."""
_NO_SPINNING: Mapping[str, str] = MappingProxyType(
    {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
)
_BOUNDS_SPINNING = (1, 31)
"""The first version of the runtime that is known to bound it; older ones pass over the entry and spin for 1 ms."""


def spinning(version: str) -> Mapping[str, str]:
    """Session entries that say how long workers of a session's own pool spin, for a version of the runtime."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return _SPINNING if numbers >= _BOUNDS_SPINNING else _NO_SPINNING


_KEPT_OPTIONS = 16
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_ALLOCATOR = "session.use_device_allocator_for_initializers"


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """How to build a session. Equal plans for the same file give interchangeable sessions.

    device -- a GPU, None for the CPU
    cores -- the cores that its threads may use
    intra_threads, inter_threads -- as ONNX Runtime counts them: 1 is the calling thread alone, 0 the runtime's choice
    run_entries -- settings for each run
    providers -- with precedence over the device's own
    libraries -- of custom operators
    """

    device: int | None = None
    intra_threads: int = 1
    inter_threads: int = 1
    parallel: bool = False
    level: int | None = None
    arena: bool = True
    pattern: bool = True
    global_pool: bool = False
    entries: tuple[tuple[str, str], ...] = ()
    run_entries: tuple[tuple[str, str], ...] = ()
    cuda: tuple[tuple[str, str], ...] = ()
    cores: frozenset[int] = frozenset()
    providers: tuple[Provider, ...] = ()
    libraries: tuple[str, ...] = ()


def execution_mode(model: Settings) -> bool:
    """Whether operators run in parallel. Raises Invalid."""
    mode = model.number("execution_mode") or 0
    if mode not in (0, 1):
        text = "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got"
        raise model.refusal("execution_mode", f"{text} {mode} .")
    return mode == 1


def plan_session(
    model: Settings,
    backend: Settings,
    level: int | None,
    instances: int,
    device: int | None,
    extras: Extras = NONE,
) -> SessionPlan:
    """The plan for a model from its parameters and `--backend-config` (R75): a model's own thread count wins,
    then the backend's, then a share of the cores. Raises Invalid for a value that means nothing."""
    global_pool = backend.switch("enable-global-threadpool", False)
    share = cpu_share(instances)
    threads = share.pool  # the instances share the session
    parallel = execution_mode(model)
    intra = _first(model.count("intra_op_thread_count"), backend.count("intra_op_thread_count"), threads)
    inter_default = threads if parallel else 1
    inter = _first(model.count("inter_op_thread_count"), backend.count("inter_op_thread_count"), inter_default)
    allocator = model.values.get(_ALLOCATOR)
    return SessionPlan(
        device=device,
        intra_threads=intra,
        inter_threads=inter,
        parallel=parallel,
        level=level,
        arena=model.switch("enable_mem_arena", True),
        pattern=model.switch("enable_mem_pattern", True),
        global_pool=global_pool,
        entries=() if allocator is None else ((_ALLOCATOR, allocator),),
        run_entries=tuple((key, model.values[key]) for key in (_SHRINKAGE,) if key in model.values),
        cuda=() if device is None else _cuda_options(model, device),
        cores=share.cores,
        providers=extras.providers(device, _available_providers()),
        libraries=extras.libraries,
    )


def _first(*numbers: int | None) -> int:
    return next(number for number in numbers if number is not None)


def _cuda_options(model: Settings, device: int) -> tuple[tuple[str, str], ...]:
    options = {"device_id": str(device)}
    for key, words in _CUDA_VALUES.items():
        value = model.number(key, _SIZE) if words is None else model.choice(key, words)
        if value is not None:
            options[key] = str(value)
    if _COPY_IN_STREAM in model.values:
        options[_COPY_IN_STREAM] = str(int(model.switch(_COPY_IN_STREAM, True)))
    return tuple(options.items())


def _session_options(plan: SessionPlan) -> Any:
    """Sessions of equal plans share their options. A session reads them only when it is opened."""
    # Options with libraries of operators keep these open, so they belong to one session.
    return _made_options(plan) if plan.libraries else _shared_options(plan)


def _made_options(plan: SessionPlan) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong comes back as an exception; a bad request must not fill the log
    options.use_per_session_threads = not plan.global_pool
    options.intra_op_num_threads = plan.intra_threads
    options.inter_op_num_threads = plan.inter_threads
    for key, value in spinning(ort.__version__).items():
        options.add_session_config_entry(key, value)
    if plan.parallel:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.graph_optimization_level = _LEVELS.get(plan.level or 0, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    options.enable_cpu_mem_arena = plan.arena
    options.enable_mem_pattern = plan.pattern
    for key, value in plan.entries:
        options.add_session_config_entry(key, value)
    for library in plan.libraries:
        options.register_custom_ops_library(library)
    return options


_shared_options = lru_cache(_KEPT_OPTIONS)(_made_options)


def run_options(plan: SessionPlan) -> Any:
    """The RunOptions of each run, None if the defaults do."""
    if not plan.run_entries:
        return None
    options = ort.RunOptions()
    for key, value in plan.run_entries:
        options.add_run_config_entry(key, value)
    return options


def share_threads(backend: Settings) -> None:
    """Makes the process-wide thread pools that `enable-global-threadpool` asks for; they stay as the first engine of
    the process made them, the runtime cannot change them."""
    intra, inter = backend.count("intra_op_thread_count"), backend.count("inter_op_thread_count")
    try:
        ort.set_global_thread_pool_sizes(intra or 0, inter or 0)
    except AttributeError as error:
        raise Unsupported(f"onnxruntime {ort.__version__} does not offer global thread pools") from error
    except Exception as error:
        if "already been created" not in str(error):
            raise translated(error) from error


class ModelFile(NamedTuple):
    """A file as it was when it was looked at."""

    path: str
    mtime_ns: int
    size: int


def find_file(folder: ModelFolder, filename: str, model: str) -> ModelFile:
    """The file to open: `filename` in the version directory. If that is a directory (a model with external data), the
    file `model.onnx` in it. Raises Unavailable if there is none."""
    path = os.path.join(folder.version, filename or "model.onnx")  # noqa: PTH118 - quicker, as `mode_of` says
    status = status_of(path)
    if status is not None and stat.S_ISDIR(status.st_mode):
        path += "/model.onnx"
        status = status_of(path)
    # To open a pipe may take for ever.
    if status is None or not stat.S_ISREG(status.st_mode):
        raise Unavailable(f"unable to find '{path}' for model instance '{model}'").blaming(Cause.FILE)
    return ModelFile(path, status.st_mtime_ns, status.st_size)


@cache
def _available_providers() -> tuple[str, ...]:
    return tuple(ort.get_available_providers())


def has_cuda() -> bool:
    """Whether the installed runtime can use GPUs at all."""
    return CUDA in _available_providers()


def open_session(path: str | bytes, plan: SessionPlan) -> Any:
    """An InferenceSession of a file, or of its content.

    Raises Internal with the runtime's words, Unsupported if a GPU is wanted and the installed runtime has no provider
    for it: asked for one that is missing it would silently use the CPU."""
    providers: list[Any] = ["CPUExecutionProvider"]
    if plan.device is not None:
        if not has_cuda():
            text = "the installed onnxruntime has no CUDA provider, which an instance of KIND_GPU needs"
            raise Unsupported(text).blaming(Cause.ENVIRONMENT)
        providers.insert(0, (CUDA, dict(plan.cuda)))
    for name, chosen in reversed(plan.providers):
        providers = [(name, dict(chosen)), *(each for each in providers if each[0] != name)]
    try:
        session = ort.InferenceSession(path, _session_options(plan), providers=providers, enable_fallback=0)
    except Exception as error:
        raise translated(error).blaming(Cause.FILE) from error
    if plan.device is not None and CUDA not in session.get_providers():
        raise Unavailable(f"onnxruntime could not use GPU {plan.device}").blaming(Cause.MACHINE)
    return session


def describe_session(session: Any, path: str, model: str) -> Description:
    """What the model declares; an initializer that a request may override is an optional input.

    Raises Unsupported for a tensor that no request could carry (a sequence, a map, 8-bit floats).
    """
    inputs = [_described(node, model) for node in session.get_inputs()]
    inputs += [_described(node, model, optional=True) for node in session.get_overridable_initializers()]
    outputs = [_described(node, model) for node in session.get_outputs()]
    if not all(tensor.shape for tensor in (*inputs, *outputs)):
        rankless = unknown_ranks(Path(path))
        inputs, outputs = ([_ranked(tensor, rankless) for tensor in tensors] for tensors in (inputs, outputs))
    return Description(tuple(inputs), tuple(outputs), source=Path(path).name, rules=RULES)


def _described(node: Any, model: str, optional: bool = False) -> DescribedTensor:
    kind = node.type
    datatype = _DATATYPES.get(kind)
    if datatype is None:
        raise _unsupported(kind, node.name, model)
    return DescribedTensor(
        node.name, datatype, tuple([size if isinstance(size, int) else -1 for size in node.shape]), optional
    )


def _ranked(tensor: DescribedTensor, rankless: frozenset[str]) -> DescribedTensor:
    return replace(tensor, shape=None) if tensor.name in rankless and not tensor.shape else tensor


def _unsupported(kind: str, tensor: str, model: str) -> Unsupported:
    for start, word in _FOREIGN_TYPES:
        if kind.startswith(start):
            return Unsupported(f"Unsupported ONNX Type '{word}' for I/O '{tensor}', expected 'ONNX_TYPE_TENSOR'")
    return Unsupported(f"unsupported datatype '{kind}' for I/O '{tensor}' of model '{model}'")
