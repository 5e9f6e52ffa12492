"""What stands for TensorRT on a real GPU: memory, streams and graphs are CUDA's, and kernels of `tests.gpu.kernels`
compute. All tensors have FP32, except those that hold shapes.

A server imports it if a folder of its PYTHONPATH has a module `tensorrt` with `from tests.gpu.tensorrt_standin import
*`."""

import ctypes
import json
import math
from functools import cache
from typing import Any

from tests.backends.tensorrt import standin
from tests.backends.tensorrt.standin import (
    DataType,
    ExecutionContextAllocationStrategy,
    Logger,
    TensorFormat,
    TensorIOMode,
    init_libnvinfer_plugins,
)
from tests.gpu.kernels import Kernels

__all__ = [
    "DataType",
    "ExecutionContextAllocationStrategy",
    "Logger",
    "Runtime",
    "TensorFormat",
    "TensorIOMode",
    "init_libnvinfer_plugins",
]

_MEMORY_TYPE = 2
"""CU_POINTER_ATTRIBUTE_MEMORY_TYPE: 1 for the host, 2 for the GPU."""
_ONE = 0x3F800000
"""The bits of 1.0."""


@cache
def kernels() -> Kernels:
    """Made where GPU 0 is current."""
    return Kernels()


class Runtime(standin.Runtime):
    def deserialize_cuda_engine(self, content: bytes) -> "GpuEngine | None":
        try:
            return GpuEngine(json.loads(content))
        except ValueError:
            return None


class GpuEngine(standin.Engine):
    def create_execution_context(self, strategy: Any) -> "GpuContext":
        return GpuContext(self)


class GpuContext(standin.Context):
    """It knows the operations of the other stand-in, and two more. `break`: a kernel fails. `slow`: the GPU is busy for
    0.05 s before it does `twice`."""

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        kind = ctypes.c_uint()
        kernels().call(
            "cuPointerGetAttribute", ctypes.byref(kind), ctypes.c_int(_MEMORY_TYPE), ctypes.c_uint64(address)
        )
        return (kind.value == 1) is self.engine.is_shape_inference_io(name)

    def execute_async_v3(self, stream: int) -> bool:
        operation = self.engine.operation
        if operation == "fail":
            return False
        if operation == "break":
            kernels().fail(stream)
        if operation == "slow":
            kernels().busy(0.05, stream)
        first = self.addresses[next(iter(self.engine.inputs))]
        for name in self.engine.tensors.keys() - self.engine.inputs.keys():
            count = math.prod(self.get_tensor_shape(name))
            if operation == "fill":
                arguments = (ctypes.c_uint64(self.addresses[name]), ctypes.c_uint(_ONE), ctypes.c_size_t(count))
                kernels().call("cuMemsetD32Async", *arguments, ctypes.c_void_p(stream))
            elif count:
                kernels().twice(self.addresses[name], first, count, stream)
        return True
