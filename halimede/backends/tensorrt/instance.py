"""An instance of a plan: an execution context for each of its profiles, buffers on its GPU, and a stream. On the
instance's thread."""

import ctypes
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.backends.api import Arrays, BaseInstance, Batch, Responses
from halimede.backends.tensorrt.cuda import Cuda
from halimede.backends.tensorrt.plan import Plan, PlanTensor
from halimede.backends.tensorrt.profiles import choose
from halimede.backends.texts import wrong_rows
from halimede.config.model_config import ModelConfig
from halimede.devices import DEVICE_FAILED
from halimede.errors import Internal, Unsupported
from halimede.tensors import INT64, DataType, Shape

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
_Graph = tuple[int, tuple[tuple[str, Shape], ...]]
"""What identifies a CUDA graph: a profile, and the shape of each input."""


class Buffer:
    """Memory of one tensor on the GPU, with as much pinned memory of the host."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        self._cuda = cuda
        self.size = size
        self.device = cuda.allocate(size)
        self.host = cuda.allocate_pinned(size)

    def array(self, shape: Shape, datatype: DataType) -> Array:
        """The host memory as an array of this shape."""
        count = math.prod(shape)
        if count * datatype.numpy.itemsize > self.size:
            raise Internal(f"a tensor of shape {list(shape)} does not fit into {self.size} bytes")
        raw = (ctypes.c_ubyte * (count * datatype.numpy.itemsize)).from_address(self.host)
        return np.ctypeslib.as_array(raw).view(datatype.numpy).reshape(shape)

    def free(self) -> None:
        self._cuda.free(self.device)
        self._cuda.free_pinned(self.host)


class TensorRtInstance(BaseInstance):
    """The buffers have the largest size of all profiles, so their places never change, as CUDA graphs require.

    `healthy` is False after an error of the GPU that cannot be undone in this process."""

    def __init__(
        self,
        config: ModelConfig,
        plan: Plan,
        contexts: Mapping[int, Any],
        cuda: Cuda,
        priority: int,
        name: str,
    ) -> None:
        """Each context already has its profile."""
        self._config = config
        self._plan = plan
        self._contexts = contexts
        self._cuda = cuda
        self._name = name
        self.healthy = True
        self._batching = config.max_batch_size > 0
        cut = {each for output in config.batch_outputs for each in output.targets}
        self._outputs = plan.outputs
        self._wanted = {spec.name: spec.datatype for spec in config.model_outputs}
        self._by_rows = frozenset(each for each in self._wanted if self._batching and each not in cut)
        self._shape_tensors = [tensor for tensor in plan.inputs if tensor.is_shape_tensor]
        self._graphs: dict[_Graph, int] = {}
        self._buffers: dict[str, Buffer] = {}
        with cuda.current():
            self._stream = cuda.stream(priority)
            try:
                self._allocate()
            except BaseException:
                self.close()
                raise

    def _allocate(self) -> None:
        """Buffers for the largest shapes, which the contexts compute of those of the inputs."""
        sizes = dict.fromkeys((tensor.name for tensor in self._plan.tensors), 0)
        for profile, context in self._contexts.items():
            largest = {tensor.name: tensor.limits[profile].most for tensor in self._plan.inputs}
            self._set_shapes(context, largest, {})
            for tensor in self._plan.tensors:
                shape = tuple(context.get_tensor_shape(tensor.name))
                if any(size < 0 for size in shape):
                    text = f"output '{tensor.name}' of model '{self._config.name}' has a size that depends on data"
                    raise Unsupported(text)
                sizes[tensor.name] = max(sizes[tensor.name], math.prod(shape) * tensor.datatype.numpy.itemsize)
        for name, size in sizes.items():
            self._buffers[name] = Buffer(self._cuda, size)
        for context in self._contexts.values():
            for tensor in self._plan.tensors:
                buffer = self._buffers[tensor.name]
                place = buffer.host if tensor.is_shape_tensor else buffer.device
                self._checked(context.set_tensor_address(tensor.name, place), "set_tensor_address")

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Raises Internal with the runtime's words or where a shape does not fit, Invalid if no profile fits."""
        if not self.healthy:
            raise Internal(DEVICE_FAILED)
        arrays = batch.arrays()
        rows = sum([each.batch_size for each in batch.requests])
        asked = frozenset().union(*[each.outputs for each in batch.requests])
        given = self._given(arrays, rows)
        with self._cuda.current():
            try:
                outputs = self._run(given, [tensor for tensor in self._outputs if tensor.name in asked])
            except Exception:
                self._finish()
                raise
        for name, array in outputs.items():
            if name in self._by_rows and array.shape[:1] != (rows,):
                raise wrong_rows(self._config.name, name, array.shape, rows)
        responses.scatter(outputs)

    def _finish(self) -> None:
        """Waits after an error: copies that were started still use the buffers."""
        try:
            self._cuda.wait(self._stream)
        except Internal as error:  # the driver repeats an error that cannot be undone
            self.healthy = False
            log.error("instance '%s': %s: %s", self._name, DEVICE_FAILED, error)

    def _given(self, arrays: Arrays, rows: int) -> Arrays:
        """The inputs as the plan takes them: a shape tensor is one for the whole batch, and begins with its rows
        (BR10)."""
        given = dict(arrays)
        for tensor in self._shape_tensors:
            values = np.asarray(arrays[tensor.name])
            if self._batching:
                values = np.concatenate([[rows], values[0].reshape(-1)]).astype(tensor.datatype.numpy)
            given[tensor.name] = values.reshape(tensor.shape)
        return given

    def _run(self, given: Arrays, wanted: Sequence[PlanTensor]) -> Arrays:
        shapes = {
            tensor.name: tuple(map(int, given[tensor.name].reshape(-1)))
            if tensor.is_shape_tensor
            else given[tensor.name].shape
            for tensor in self._plan.inputs
        }
        profile = choose(self._plan, tuple(self._contexts), shapes, self._name)
        context = self._contexts[profile]
        self._set_shapes(context, shapes, given)
        for tensor in self._plan.inputs:
            array, buffer = given[tensor.name], self._buffers[tensor.name]
            buffer.array(array.shape, tensor.datatype)[...] = array
            if not tensor.is_shape_tensor:
                self._cuda.copy(buffer.device, buffer.host, array.nbytes, self._stream)
        self._start(context, profile, shapes)
        sizes = {tensor.name: tuple(context.get_tensor_shape(tensor.name)) for tensor in wanted}
        for tensor in wanted:
            if not tensor.is_shape_tensor:
                buffer, size = (
                    self._buffers[tensor.name],
                    math.prod(sizes[tensor.name]) * tensor.datatype.numpy.itemsize,
                )
                self._cuda.copy(buffer.host, buffer.device, size, self._stream)
        self._cuda.wait(self._stream)
        return {tensor.name: self._taken(tensor, sizes[tensor.name]) for tensor in wanted}

    def _taken(self, tensor: PlanTensor, shape: Shape) -> Array:
        array = self._buffers[tensor.name].array(shape, INT64 if tensor.is_shape_tensor else tensor.datatype)
        return array.astype(self._wanted[tensor.name].numpy)  # a copy: the next batch writes here again

    def _set_shapes(self, context: Any, shapes: Mapping[str, Shape], given: Arrays) -> None:
        for tensor in self._plan.inputs:
            if tensor.is_shape_tensor:
                if tensor.name in given:
                    self._buffers[tensor.name].array(tensor.shape, tensor.datatype)[...] = given[tensor.name]
            else:
                self._checked(context.set_input_shape(tensor.name, shapes[tensor.name]), "set_input_shape")

    def _start(self, context: Any, profile: int, shapes: Mapping[str, Shape]) -> None:
        graph = self._graphs.get((profile, tuple(sorted(shapes.items()))))
        if graph is not None:
            self._cuda.launch(graph, self._stream)
        else:
            self._checked(context.execute_async_v3(self._stream), "execute_async_v3")

    def record(self, batch_sizes: Sequence[int]) -> None:
        """Records CUDA graphs for batches of these sizes, with the best sizes of each profile (BR12). A plan with shape
        tensors has none, because their values are no part of a graph."""
        if self._shape_tensors:
            return
        with self._cuda.current():
            for profile, context in self._contexts.items():
                for size in batch_sizes:
                    shapes = {
                        tensor.name: (size, *tensor.limits[profile].best[1:]) if size else tensor.limits[profile].best
                        for tensor in self._plan.inputs
                    }
                    limits = [tensor.limits[profile] for tensor in self._plan.inputs]
                    if size and not all(each.least[0] <= size <= each.most[0] for each in limits):
                        continue
                    self._set_shapes(context, shapes, {})
                    # The first run of a shape may allocate, which cannot be recorded.
                    self._checked(context.execute_async_v3(self._stream), "execute_async_v3")
                    self._cuda.wait(self._stream)
                    with self._cuda.record(self._stream) as made:
                        self._checked(context.execute_async_v3(self._stream), "execute_async_v3")
                    self._graphs[profile, tuple(sorted(shapes.items()))] = made[0]

    def _checked(self, done: bool, what: str) -> None:
        if not done:
            raise Internal(f"TensorRT: {what} failed for {self._name}; the log of the server has the reason")

    def close(self) -> None:
        if self.healthy:
            self._release()
        self._graphs.clear()
        self._buffers.clear()

    def _release(self) -> None:
        with self._cuda.current():
            for graph in self._graphs.values():
                self._cuda.end_graph(graph)
            for buffer in self._buffers.values():
                buffer.free()
            self._cuda.end_stream(self._stream)
