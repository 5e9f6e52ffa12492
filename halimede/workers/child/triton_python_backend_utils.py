"""The module that Python models import (P20 to P31): functions, constants and the names of the classes.

`get_model_dir`, `Logger` and the functions for models belong to one worker; `bind` sets them when it starts.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .calls import ModelCaller, ResponseIterator
from .logger import Logger
from .metrics import Metric, MetricFamily, MetricKind, family_type
from .model_config import ModelConfig
from .requests import InferenceRequest, InferenceResponseSender
from .signatures import MODULE, native
from .values import (
    NUMPY_TYPES,
    InferenceResponse,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
    deserialize,
    serialize,
)

__all__ = [
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
COUNTER, GAUGE, HISTOGRAM = MetricKind

TRITON_STRING_TO_NUMPY = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes | tuple[()] | None:
    """The array's elements in row-major order, in the form of BYTES. `()` for an empty array, None if the dtype is
    neither object nor bytes (P24)."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type != np.bytes_:
        return None
    return serialize(input_tensor.reshape(-1).tolist())


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray[Any, Any]:
    """The elements of serialized BYTES as a one-dimensional object array of `bytes`."""
    elements = deserialize(encoded_tensor) if len(encoded_tensor) else []
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    try:
        find = inference_request.find_input
    except AttributeError:  # a stand-in, in tests of a model; or no request
        return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)
    return find(name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    return _by_name(model_config, "input", name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    return _by_name(model_config, "output", name)


def _by_name(model_config: dict[str, Any], which: str, name: str) -> dict[str, Any] | None:
    if which not in model_config:
        return None
    return next((tensor for tensor in model_config[which] if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> Any:
    """What the configuration says, normally a bool (P25)."""
    if "model_transaction_policy" not in model_config:
        return False
    return model_config["model_transaction_policy"]["decoupled"]


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of a datatype's number; None if there is none (P23)."""
    return next((kind for number, kind in NUMPY_TYPES.items() if number == data_type), None)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The datatype's number of a numpy type or dtype (P23)."""
    if data_type == np.bytes_:
        return 13
    return next((number for number, kind in NUMPY_TYPES.items() if kind == data_type), None)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a name such as TYPE_FP32. Raises KeyError for another name (P22)."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    raise TritonModelException(_NO_MODELS.format("load model"))


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    raise TritonModelException(_NO_MODELS.format("unload model"))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    raise TritonModelException(_NO_MODELS.format("check model readiness"))


_NO_MODELS = "Failed to {}: it is not possible while a configuration is completed, or in a process of the model's own."


def bind(model_dir: str, logger: type, caller: ModelCaller | None = None) -> None:
    """Makes this module the one that models import, for one worker (P26, P56). With `caller`, models can call others
    (P28 to P30, P51)."""
    module = sys.modules[__name__]
    vars(module).update(spoken_for(model_dir, logger, caller))
    InferenceRequest._caller = caller
    name_natively()
    sys.modules["triton_python_backend_utils"] = sys.modules[NATIVE] = module


def spoken_for(model_dir: str, logger: type, caller: ModelCaller | None) -> dict[str, Any]:
    """The names of this module that belong to one worker, or to one instance in the server's process."""
    models = {name: native(each)(getattr(caller, name)) for name, each in _OF_CALLER.items()} if caller else {}
    families = family_type(caller.metrics if caller is not None else None, NATIVE)
    return {"get_model_dir": lambda: model_dir, "Logger": logger, "MetricFamily": families, **models}


_OF_CALLER = {
    "load_model": "(model_name: str, config: str = '', files: object = None) -> None",
    "unload_model": "(model_name: str, unload_dependents: bool = False) -> None",
    "is_model_ready": "(model_name: str, model_version: str = '') -> bool",
}


def name_natively() -> None:
    """Sets the module names of the classes, which error texts contain (P4)."""
    for kind in (
        InferenceRequest,
        InferenceResponse,
        InferenceResponseSender,
        InferenceTrace,
        MemoryType,
        Metric,
        MetricKind,
        PreferredMemory,
        ResponseIterator,
        Tensor,
        TritonError,
        TritonModelException,
    ):
        kind.__module__ = NATIVE
    ModelConfig.__module__ = "triton_python_backend_utils"


NATIVE = MODULE
