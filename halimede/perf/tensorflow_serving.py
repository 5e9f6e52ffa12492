"""TensorFlow Serving: what it says of a model, the requests that it takes, and its answers (X2). Only `ask` blocks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from halimede.errors import Invalid
from halimede.perf.data import framed
from halimede.perf.model import Model, TensorInfo
from halimede.perf.options import Options
from halimede.perf.requests import Places, Tensor, Whole, framed_message, unframed
from halimede.protocol import tensorflow_serving_pb2 as pb
from halimede.tensors import BYTES, DataType, datatype_named

SERVICE = "/tensorflow.serving.PredictionService/"
_SIGNATURES = "signature_def"
_TYPES: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        pb.DT_HALF: ("FP16", "half_val"),
        pb.DT_BFLOAT16: ("BF16", "half_val"),
        pb.DT_FLOAT: ("FP32", "float_val"),
        pb.DT_DOUBLE: ("FP64", "double_val"),
        pb.DT_INT8: ("INT8", "int_val"),
        pb.DT_INT16: ("INT16", "int_val"),
        pb.DT_INT32: ("INT32", "int_val"),
        pb.DT_INT64: ("INT64", "int64_val"),
        pb.DT_UINT8: ("UINT8", "int_val"),
        pb.DT_UINT16: ("UINT16", "int_val"),
        pb.DT_UINT32: ("UINT32", "uint32_val"),
        pb.DT_UINT64: ("UINT64", "uint64_val"),
        pb.DT_BOOL: ("BOOL", "bool_val"),
        pb.DT_STRING: ("BYTES", "string_val"),
    }
)
"""The datatypes of TensorFlow: their names here, and the field of a tensor that may have the elements."""
_NUMBERS: Mapping[str, Any] = {name: number for number, (name, _) in _TYPES.items()}
Ask = Callable[[str, bytes], bytes]
"""Calls a method of gRPC, by its path, with a message. Returns the answer's message."""


def describe(options: Options, ask: Ask) -> Model:
    """The model as its signature describes it. Raises Invalid with perf_analyzer's texts, and what `ask` raises."""
    request = pb.GetModelMetadataRequest(model_spec=_spec(options), metadata_field=[_SIGNATURES])
    request.model_spec.signature_name = ""
    answer = pb.GetModelMetadataResponse.FromString(ask(SERVICE + "GetModelMetadata", request.SerializeToString()))
    signatures = pb.Signatures.FromString(answer.metadata[_SIGNATURES].value).signature_def
    if options.signature not in signatures:
        raise Invalid(f'Failed to find signature_name "{options.signature}" in the metadata')
    signature = signatures[options.signature]
    # The batch of the command line is the largest one; the service says whether it takes that.
    batch = options.batch_size if options.batch_size_given else 0
    return Model(
        options.model,
        options.version,
        {name: _info(name, each, batch, options.shapes) for name, each in sorted(signature.inputs.items())},
        {name: _info(name, each, 0, {}) for name, each in sorted(signature.outputs.items())},
        batch,
    )


def _spec(options: Options) -> Any:
    """Which model and version. A number is a version, and another text is the label of one."""
    spec = pb.ModelSpec(name=options.model, signature_name=options.signature)
    if options.version.isdecimal():
        spec.version.value = int(options.version)
    elif options.version:
        spec.version_label = options.version
    return spec


def _info(name: str, described: Any, batch: int, shapes: Mapping[str, tuple[int, ...]]) -> TensorInfo:
    if described.dtype not in _TYPES:
        raise Invalid(f"tensor '{name}' has a datatype of TensorFlow (number {described.dtype}) that cannot be sent")
    shape = tuple(int(dim.size) for dim in described.tensor_shape.dim)
    is_variable = described.tensor_shape.unknown_rank
    if batch:
        if is_variable:
            raise Invalid("Can not specify -b flag for saved model with unknown ranked inputs")
        if shape[:1] != (-1,):
            raise Invalid("Can not specify -b flag for saved model with input not having their first dim as -1")
        shape = shape[1:]
    if is_variable or -1 in shape:
        shape = shapes.get(name, (-1,) if is_variable else shape)
    return TensorInfo(name, datatype_named(_TYPES[described.dtype][0]), shape)


@dataclass(frozen=True, slots=True)
class PredictEncoder:
    """Makes requests of the method Predict, as messages with their prefix."""

    options: Options

    def prepare(self, tensors: Sequence[Tensor], inputs: Places, outputs: Places) -> Whole:
        request = pb.PredictRequest(model_spec=_spec(self.options))
        for tensor in tensors:
            entry = request.inputs[tensor.info.name]
            entry.dtype = _NUMBERS[tensor.info.datatype.name]
            for size in tensor.shape:
                entry.tensor_shape.dim.add(size=size)
            if tensor.info.datatype is BYTES:
                entry.string_val.extend(unframed(tensor.content))
            else:
                entry.tensor_content = tensor.content
        return Whole(framed_message(request.SerializeToString(), self.options.compression))


def outputs_of(message: bytes) -> dict[str, tuple[str, bytes]]:
    """The outputs of an answer to Predict, with their datatypes."""
    return {name: _content(each) for name, each in pb.PredictResponse.FromString(message).outputs.items()}


def _content(tensor: Any) -> tuple[str, bytes]:
    name, field = _TYPES.get(tensor.dtype, ("BYTES", "string_val"))
    datatype = datatype_named(name)
    if datatype is BYTES:
        return name, framed(tensor.string_val)
    return name, tensor.tensor_content or _elements(getattr(tensor, field), datatype, tensor.tensor_shape.dim)


def _elements(values: Iterable[Any], datatype: DataType, dims: Sequence[Any]) -> bytes:
    """The bytes of elements in a field of their type. The last one stands for all that are missing."""
    # The field of half-precision numbers has their bits.
    found = np.array(list(values), "<u2" if datatype.name in ("FP16", "BF16") else datatype.numpy)
    missing = int(np.prod([int(dim.size) for dim in dims], dtype=np.int64)) - len(found)
    return (np.pad(found, (0, missing), "edge") if missing > 0 and len(found) else found).tobytes()
