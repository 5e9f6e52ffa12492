"""What stands for TensorRT and CUDA where there is no GPU. A "plan" is JSON; memory of the GPU is memory of the host.

It does what the documentation of TensorRT says of the few calls that the backend makes, and complains about misuse: an
input without a shape or an address, an address of the wrong side, work on a stream that has ended."""

import ctypes
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

DTYPES = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "BF16": np.uint16,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "FP8": np.uint8,
}
DataType = Enum("DataType", list(DTYPES))  # type: ignore[misc]
TensorIOMode = Enum("TensorIOMode", ["NONE", "INPUT", "OUTPUT"])
TensorFormat = Enum("TensorFormat", ["LINEAR", "CHW4"])
ExecutionContextAllocationStrategy = Enum("ExecutionContextAllocationStrategy", ["STATIC", "ON_PROFILE_CHANGE"])


def tensor(name: str, kind: str, shape: Sequence[int], **more: Any) -> dict[str, Any]:
    """A tensor of a plan. An input of any size has `profiles`: lists of the least, the best and the largest shape."""
    return {"name": name, "kind": kind, "shape": list(shape), **more}


def plan(inputs: Sequence[Any], outputs: Sequence[Any], operation: str = "twice", profiles: int = 1) -> bytes:
    """`twice`: each output is the first input plus itself. `fill`: ones of the shape that the first input holds.

    `less`: a row less than the input. `fail`: the execution fails."""
    return json.dumps(
        {"inputs": list(inputs), "outputs": list(outputs), "operation": operation, "profiles": profiles}
    ).encode()


class Logger:
    WARNING = 2

    def __init__(self, level: int) -> None:
        """Nothing is logged."""


def init_libnvinfer_plugins(logger: Logger, namespace: str) -> bool:
    return True


class Runtime:
    def __init__(self, logger: Logger) -> None:
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, content: bytes) -> "Engine | None":
        try:
            return Engine(json.loads(content))
        except ValueError:
            return None


class Engine:
    def __init__(self, content: dict[str, Any]) -> None:
        self.operation = content["operation"]
        self.num_optimization_profiles = content["profiles"]
        self.inputs = {each["name"]: each for each in content["inputs"]}
        self.tensors = self.inputs | {each["name"]: each for each in content["outputs"]}
        self.num_io_tensors = len(self.tensors)

    def get_tensor_name(self, index: int) -> Any:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode["INPUT" if name in self.inputs else "OUTPUT"]

    def get_tensor_dtype(self, name: str) -> Any:
        return DataType[self.tensors[name]["kind"]]

    def get_tensor_shape(self, name: str) -> Sequence[int]:
        return tuple(self.tensors[name]["shape"])

    def is_shape_inference_io(self, name: str) -> bool:
        return bool(self.tensors[name].get("is_shape"))

    def get_tensor_format(self, name: str) -> TensorFormat:
        return TensorFormat[self.tensors[name].get("format", "LINEAR")]

    def get_tensor_profile_shape(self, name: str, profile: int) -> Sequence[Sequence[int]]:
        given = self.tensors[name]
        return given["profiles"][profile] if "profiles" in given else [given["shape"]] * 3

    def get_tensor_profile_values(self, profile: int, name: str) -> Sequence[Sequence[int]]:
        values: Sequence[Sequence[int]] = self.tensors[name]["profiles"][profile]
        return values

    def create_execution_context(self, strategy: Any) -> "Context":
        return Context(self)


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.profile = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return bool(profile < self.engine.num_optimization_profiles)

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        low, _, high = self.engine.get_tensor_profile_shape(name, self.profile)
        fits = len(shape) == len(low) and all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))
        if fits:
            self.shapes[name] = tuple(shape)
        return fits

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        on_device = address in CUDA.allocated
        return on_device is not self.engine.is_shape_inference_io(name)

    def get_tensor_shape(self, name: str) -> Sequence[int]:
        declared = self.engine.get_tensor_shape(name)
        if self.engine.is_shape_inference_io(name):
            return declared
        if name in self.engine.inputs:
            return self.shapes[name]
        if self.engine.operation == "fill":
            wanted = self._array(next(iter(self.engine.inputs)), declared=True) if self.addresses else None
            if wanted is None:
                _, _, most = self.engine.get_tensor_profile_values(self.profile, next(iter(self.engine.inputs)))
                return tuple(most)
            return tuple(map(int, wanted))
        first = self.shapes[next(iter(self.engine.inputs))]
        rows = first[0] - (1 if self.engine.operation == "less" else 0)
        return (rows, *first[1:]) if first else ()

    def execute_async_v3(self, stream: int) -> bool:
        assert stream in CUDA.streams, "the stream has ended"
        if self.engine.operation == "fail":
            return False
        CUDA.start(stream, self._compute)
        return True

    def _compute(self) -> None:
        first = self._array(next(iter(self.engine.inputs)))
        for name in self.engine.tensors.keys() - self.engine.inputs.keys():
            shape = self.get_tensor_shape(name)
            ones: Array = np.ones(shape, DTYPES[self.engine.tensors[name]["kind"]])
            result = ones if self.engine.operation == "fill" else (first + first)[: shape[0] if shape else None]
            target = self._array(name)
            target[...] = result.astype(target.dtype)

    def _array(self, name: str, declared: bool = False) -> Array:
        shape = self.engine.get_tensor_shape(name) if declared else self.get_tensor_shape(name)
        dtype = np.dtype(DTYPES[self.engine.tensors[name]["kind"]])
        size = math.prod(shape) * dtype.itemsize
        raw = (ctypes.c_ubyte * size).from_address(self.addresses[name])
        return np.ctypeslib.as_array(raw).view(dtype).reshape(shape)


class FakeCuda:
    """A `Cuda`. Work on a stream is done by `wait`, in order; work that is recorded is done by each `launch`."""

    def __init__(self) -> None:
        self.allocated: dict[int, Any] = {}
        self.pinned: dict[int, Any] = {}
        self.streams: dict[int, list[Any]] = {}
        self.priorities: list[int] = []
        self.graphs: dict[int, list[Any]] = {}
        self.launched: list[int] = []
        self._recording: list[Any] | None = None

    @contextmanager
    def current(self) -> Iterator[None]:
        yield

    def allocate(self, size: int) -> int:
        return self._kept(self.allocated, size)

    def allocate_pinned(self, size: int) -> int:
        return self._kept(self.pinned, size)

    def _kept(self, kept: dict[int, Any], size: int) -> int:
        memory = (ctypes.c_ubyte * max(size, 1))()
        kept[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free(self, pointer: int) -> None:
        del self.allocated[pointer]

    def free_pinned(self, pointer: int) -> None:
        del self.pinned[pointer]

    def copy(self, into: int, source: int, size: int, stream: int) -> None:
        assert (into in self.allocated) is not (source in self.allocated), "between host and device"
        self.start(stream, lambda: ctypes.memmove(into, source, size))

    def stream(self, priority: int) -> int:
        self.priorities.append(priority)
        handle = len(self.priorities)
        self.streams[handle] = []
        return handle

    def start(self, stream: int, work: Any) -> None:
        (self.streams[stream] if self._recording is None else self._recording).append(work)

    def end_stream(self, stream: int) -> None:
        assert not self.streams.pop(stream), "there is work in the stream"

    def wait(self, stream: int) -> None:
        work, self.streams[stream] = self.streams[stream], []
        for each in work:
            each()

    @contextmanager
    def record(self, stream: int) -> Iterator[list[int]]:
        made: list[int] = []
        self._recording = []
        yield made
        handle = len(self.graphs) + 1
        self.graphs[handle], self._recording = self._recording, None
        made.append(handle)

    def launch(self, graph: int, stream: int) -> None:
        self.launched.append(graph)
        for work in self.graphs[graph]:
            self.start(stream, work)

    def end_graph(self, graph: int) -> None:
        del self.graphs[graph]


CUDA = FakeCuda()
"""The one GPU."""
