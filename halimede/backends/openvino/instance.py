"""An instance of an OpenVINO model: the path of a batch through its infer request. On an instance's thread, or on the
event loop."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.backends.api import Arrays, BaseInstance, Batch, Responses
from halimede.backends.openvino.errors import failed
from halimede.backends.openvino.model import TYPES, Port, named
from halimede.backends.openvino.runtime import ov
from halimede.backends.openvino.settings import Settings
from halimede.config.model_config import ModelConfig
from halimede.errors import Error, Internal
from halimede.tensors import BF16, BYTES, DataType

Array = npt.NDArray[Any]


class OpenVinoInstance(BaseInstance):
    """One infer request. Its outputs are copied, because the next inference writes into the same memory."""

    def __init__(
        self, config: ModelConfig, settings: Settings, request: Any, inputs: Sequence[Port], outputs: Sequence[Port]
    ) -> None:
        cut = {name for each in config.batch_outputs for name in each.targets}
        batching = config.max_batch_size > 0
        self._request = request
        self._inputs = [_Side(port, spec.name, spec.datatype) for spec, port in _pairs(config.model_inputs, inputs)]
        self._inputs += [
            _Side(port, name, each.datatype)
            for each in config.batch_inputs
            for name in each.targets
            if (port := named(inputs, name)) is not None
        ]
        self._outputs = [_Side(port, spec.name, spec.datatype) for spec, port in _pairs(config.model_outputs, outputs)]
        self._by_rows = frozenset(side.name for side in self._outputs if batching and side.name not in cut)
        self._scalars = {spec.name: spec.model_dims for spec in config.model_outputs}
        self._fixed_rows = config.max_batch_size if batching and settings.fixed_batch else 0
        self._padding = settings.padding

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Raises Internal with the runtime's words, or where the number of rows does not fit."""
        arrays = batch.arrays()
        rows = sum([each.batch_size for each in batch.requests])
        wanted = frozenset().union(*[each.outputs for each in batch.requests])
        if self._fixed_rows and rows != self._fixed_rows:
            arrays = self._padded(arrays, rows)
        outputs = self._infer(arrays, wanted)
        responses.scatter({name: self._cut(name, array, rows) for name, array in outputs.items()})

    def close(self) -> None:
        self._request = None

    def _infer(self, arrays: Arrays, wanted: frozenset[str]) -> Arrays:
        request = self._request
        if request is None:
            raise Internal("this instance is closed")
        what = "setting tensor data"
        try:
            for side in self._inputs:
                request.set_input_tensor(side.index, side.tensor_of(arrays[side.name]))
            what = "running inference - wait"
            request.start_async()
            request.wait()
            return {
                side.name: side.array_of(request.get_output_tensor(side.index))
                for side in self._outputs
                if side.name in wanted
            }
        except Error:
            raise
        except Exception as error:
            raise failed(what, error) from error

    def _padded(self, arrays: Arrays, rows: int) -> Arrays:
        """The inputs with rows of zeros at their end (BV13)."""
        if not self._padding:
            raise Internal(
                f"expected requests with batch size '{self._fixed_rows}', got '{rows}'... this error can be avoided by "
                "setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
            )
        return {name: _with_rows(array, self._fixed_rows) for name, array in arrays.items()}

    def _cut(self, name: str, array: Array, rows: int) -> Array:
        if name not in self._by_rows:
            return array if array.ndim or not self._scalars[name] else array.reshape(self._scalars[name])
        expected = self._fixed_rows or rows
        found = array.shape[0] if array.ndim else 0
        if found != expected:
            raise Internal(f"expected the batch size of openvino model output to be {expected}, got {found}")
        return array[:rows]


class _Side:
    """An input or output: its place in the request, and the way of its elements in and out."""

    __slots__ = ("_datatype", "_is_scalar", "index", "name")

    def __init__(self, port: Port, name: str, datatype: DataType) -> None:
        self.index = port.index
        self.name = name
        self._datatype = datatype
        self._is_scalar = port.bounds == ()

    def tensor_of(self, array: Array) -> Any:
        """A tensor of the array's own memory, if it is in one piece."""
        if self._is_scalar:
            array = array.reshape(())
        if self._datatype is BYTES:
            return _string_tensor(array)
        return ov.Tensor(_writable(array), array.shape, TYPES[self._datatype])

    def array_of(self, tensor: Any) -> Array:
        """A copy of what the tensor has."""
        if self._datatype is BYTES:
            return _strings(tensor)
        if self._datatype is BF16:
            return np.array(tensor.data.view(np.uint16))
        return np.array(tensor.data)


class _Writable:
    """Makes numpy see an array as writable. The runtime insists on it, but only reads its inputs."""

    __slots__ = ("__array_interface__", "_array")

    def __init__(self, array: Array) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _writable(array: Array) -> Array:
    if not array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    return array if array.flags.writeable else np.asarray(_Writable(array))


def _with_rows(array: Array, rows: int) -> Array:
    padded = np.zeros((rows, *array.shape[1:]), array.dtype)
    if array.dtype == object:
        padded[...] = b""
    padded[: len(array)] = array
    return padded


def _string_tensor(array: Array) -> Any:
    tensor = ov.Tensor(ov.Type.string, array.shape)
    if array.size:
        tensor.bytes_data = array.astype("S").reshape(array.shape)
    return tensor


def _strings(tensor: Any) -> Array:
    shape = tuple(tensor.shape)
    if not tensor.size:
        return np.empty(shape, object)
    return np.asarray(tensor.bytes_data.astype(object)).reshape(shape)


def _pairs(specs: Sequence[Any], ports: Sequence[Port]) -> list[tuple[Any, Port]]:
    return [(spec, port) for spec in specs if (port := named(ports, spec.name)) is not None]
