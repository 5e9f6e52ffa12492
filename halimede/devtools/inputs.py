"""Makes inference requests of inputs on a command line (`NAME=VALUE`) or of request files. Reads files; any thread.

Raises Invalid with a text for the user for everything that is wrong.
"""

import json
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.config import ModelConfig, TensorSpec
from halimede.config.sequencing import ControlKind
from halimede.errors import Error, Invalid
from halimede.requests import InferRequest, check_correlation_id
from halimede.tensors import BF16, BYTES, FP16, DataType, HostMemory, Shape, Tensor, shape_text, tensor_of
from halimede.wire.http.infer import decode_infer
from halimede.wire.http.json_data import pack_data

_FLOATS = (FP16, BF16)
"""Datatypes that the JSON data of the protocol cannot have. Here numbers are rounded to them."""


def requests_of(
    words: Sequence[str], config: ModelConfig, version: int, sequence: bool = False, sequence_id: str = ""
) -> list[InferRequest]:
    """The requests, in order: those in files with requests in HTTP's JSON, or one with an input for each word.

    They become one sequence with `sequence`, with a `sequence_id`, or if the model has only sequences. For a sequence
    an input may be given several times, once for each request; one that is given once is part of all of them.
    """
    batching = config.sequence_batching
    asked = sequence or bool(sequence_id)
    # An iterative model makes a sequence of each request by itself (S72).
    in_sequence = asked or (batching is not None and not batching.iterative)
    specs = {spec.name: spec for spec in config.inputs}
    # `NAME=x.json` is an input if the model has that input, and a file otherwise.
    files = [word for word in words if word.partition("=")[0] not in specs and _names_a_file(word)]
    if files and len(files) == len(words):
        requests = [request for word in files for request in _requests_in(Path(word), config.name, version)]
    elif files:
        raise Invalid(f"'{files[0]}' is a whole request and cannot be combined with other inputs")
    else:
        requests = _typed_requests(words, specs, config, version, in_sequence)
    for request in requests:
        # A raw request has the bytes of the only input, without its name.
        missing = [spec.name for spec in config.inputs if not spec.optional and spec.name not in request.inputs]
        if missing and request.raw is None:
            raise Invalid(f"{_named('input', missing)} missing; {takes(config)}")
    # Requests in files may have sequences of their own.
    if asked or (in_sequence and not any(request.correlation_id for request in requests)):
        _make_sequence(requests, config, sequence_id)
    return requests


def _typed_requests(
    words: Sequence[str], specs: dict[str, TensorSpec], config: ModelConfig, version: int, in_sequence: bool
) -> list[InferRequest]:
    given: dict[str, list[Tensor]] = {}
    for word in words:
        tensor = _input(word, specs, config)
        given.setdefault(tensor.name, []).append(tensor)
    several = {name: len(tensors) for name, tensors in given.items() if len(tensors) > 1}
    if several and not in_sequence:
        raise Invalid(f"input '{next(iter(several))}' is given twice; --sequence makes a request of each")
    if len(set(several.values())) > 1:
        counts = ", ".join(f"'{name}' {count} times" for name, count in several.items())
        raise Invalid(f"inputs are given for different numbers of requests: {counts}; give each once, or equally often")
    requests = []
    for i in range(max(several.values(), default=1)):
        request = InferRequest(config.name, version)
        request.inputs = {name: tensors[i if len(tensors) > 1 else 0] for name, tensors in given.items()}
        requests.append(request)
    return requests


def _make_sequence(requests: Sequence[InferRequest], config: ModelConfig, sequence_id: str) -> None:
    control = config.sequence_batching.control(ControlKind.CORRID) if config.sequence_batching is not None else None
    text = sequence_id or "1"
    # A model that is told the id wants it as a number or as a string (H72).
    wants_text = control is not None and control.datatype is BYTES
    is_number = text.isascii() and text.isdecimal() and not wants_text
    if is_number and not 0 < int(text) < 1 << 64:
        raise Invalid(f"the sequence id {text} is not a number from 1 to 18446744073709551615")
    for request in requests:
        request.correlation_id = int(text) if is_number else check_correlation_id(text)
        request.sequence_start = request.sequence_end = False
    requests[0].sequence_start = requests[-1].sequence_end = True


def takes(config: ModelConfig) -> str:
    """A text that lists the inputs of the model."""
    known = ", ".join(_described(spec, config) for spec in config.inputs)
    return f"model '{config.name}' takes {known or 'no inputs'}"


def _described(spec: TensorSpec, config: ModelConfig) -> str:
    optional = " (optional)" if spec.optional else ""
    return f"{spec.name}: {spec.datatype} {_dims_text(spec, config)}{optional}"


def _dims_text(spec: TensorSpec, config: ModelConfig) -> str:
    """The shape with its batch dimension, and `?` for a dimension of any size."""
    dims = ["batch"] if config.max_batch_size else []
    return "[" + ", ".join(dims + ["?" if dim < 0 else str(dim) for dim in spec.dims]) + "]"


def _named(what: str, names: Sequence[str]) -> str:
    quoted = ", ".join(f"'{name}'" for name in names)
    return f"{what} {quoted} is" if len(names) == 1 else f"{what}s {quoted} are"


def _names_a_file(word: str) -> bool:
    return "=" not in word or (word.endswith(".json") and Path(word).is_file())


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Invalid(f"failed to read '{path}': {error.strerror}") from None


def _requests_in(path: Path, model: str, version: int) -> list[InferRequest]:
    """The request in a file, or those in a list."""
    if not path.is_file() and path.suffix != ".json":
        raise Invalid(f"'{path}' is neither NAME=VALUE nor a file")
    raw = _bytes_of(path)
    # Only a list is read here, because the protocol's own reader knows the rules of a request.
    if not raw.lstrip().startswith(b"["):
        return [_decoded(raw, f"'{path}'", model, version)]
    try:
        bodies = [json.dumps(body).encode() for body in json.loads(raw)]
    except ValueError as error:
        raise Invalid(f"'{path}' is not JSON: {error}") from None
    if not bodies:
        raise Invalid(f"'{path}' is an empty list: there is no request in it")
    return [_decoded(body, f"request {i} of '{path}'", model, version) for i, body in enumerate(bodies, 1)]


def _decoded(raw: bytes, what: str, model: str, version: int) -> InferRequest:
    try:
        return decode_infer(model, version, memoryview(raw), None, sys.maxsize)[0]
    except Error as error:
        raise Invalid(f"{what} is not an inference request: {error}") from None


def _input(word: str, specs: dict[str, TensorSpec], config: ModelConfig) -> Tensor:
    name, _, value = word.partition("=")
    spec = specs.get(name)
    if spec is None:
        raise Invalid(f"the model has no input '{name}'; {takes(config)}")
    if value.startswith("@"):
        return _from_file(Path(value[1:]), spec, config)
    return _from_json(_typed(value, spec), spec, config)


def _typed(value: str, spec: TensorSpec) -> Any:
    """The value on a command line: JSON, or for BYTES also the text itself."""
    # A text such as `12` or `true` is valid JSON, but means itself.
    if spec.datatype is BYTES and value[:1] not in ("[", '"'):
        return value
    try:
        return json.loads(value)
    except ValueError:
        if spec.datatype is BYTES:
            return value
        raise Invalid(
            f"input '{spec.name}': '{value}' is not {spec.datatype}; write {spec.name}=[1,2,3] or {spec.name}=@FILE.npy"
        ) from None


def _from_file(path: Path, spec: TensorSpec, config: ModelConfig) -> Tensor:
    raw = _bytes_of(path)
    if path.suffix == ".npy":
        return _from_array(_array_in(path), spec, config)
    if path.suffix == ".json":
        try:
            return _from_json(json.loads(raw), spec, config)
        except ValueError as error:
            raise Invalid(f"'{path}' is not JSON: {error}") from None
    if spec.datatype is not BYTES:
        raise Invalid(f"input '{spec.name}': '{path}' must be a .npy or .json file")
    # The content of the file is one element, such as a picture.
    one = np.empty((), dtype=object)
    one[()] = raw
    return _fitted(one, spec, config)


def _array_in(path: Path) -> npt.NDArray[Any]:
    try:
        # A pickle may run code of the person who wrote the file.
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Invalid(f"'{path}' is not an array: {error}") from None
    return array


def _from_array(array: npt.NDArray[Any], spec: TensorSpec, config: ModelConfig) -> Tensor:
    # numpy has no strings of their own length, so each element becomes an object.
    if spec.datatype is BYTES:
        if array.dtype.kind not in "SU":
            raise Invalid(f"input '{spec.name}' takes BYTES, the file has {array.dtype}")
        elements = np.empty(array.size, dtype=object)
        elements[:] = [each.encode() if isinstance(each, str) else each for each in array.reshape(-1).tolist()]
        return _fitted(elements.reshape(array.shape), spec, config)
    # numpy has no BF16: numbers are read as FP32 and rounded below.
    wanted = np.dtype(np.float32) if spec.datatype is BF16 else spec.datatype.numpy
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise Invalid(f"input '{spec.name}' takes {spec.datatype}, the file has {array.dtype}")
    cast = array.astype(wanted)
    # Integers that do not fit wrap around silently.
    if wanted.kind in "iu" and not np.array_equal(cast, array):
        raise Invalid(f"input '{spec.name}' takes {spec.datatype}, which cannot hold all numbers of the file")
    return _fitted(_halved(cast) if spec.datatype is BF16 else cast, spec, config)


def _halved(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """FP32 as the 16 bits of BF16, rounded to the nearest; ties go to the even one."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), np.uint64(0x7FC0), rounded).astype(np.uint16)


def _from_json(data: Any, spec: TensorSpec, config: ModelConfig) -> Tensor:
    elements: list[Any] = []
    shape = fit(_shape_of(data, spec.name, elements), spec, config)
    try:
        return _packed(spec.name, spec.datatype, shape, elements)
    except OverflowError as error:
        raise Invalid(f"input '{spec.name}' takes {spec.datatype}: {error}") from None


def _packed(name: str, datatype: DataType, shape: Shape, elements: list[Any]) -> Tensor:
    if datatype in _FLOATS:
        if not all(type(each) in (int, float) for each in elements):
            raise Invalid(f"input '{name}' takes numbers")
        floats = np.array(elements, np.float64).reshape(shape)
        with np.errstate(over="ignore"):
            array = floats.astype(np.float16) if datatype is FP16 else _halved(floats.astype(np.float32))
        return tensor_of(name, datatype, array)
    try:
        return Tensor(name, datatype, shape, HostMemory(pack_data(name, datatype, shape, elements)))
    except Error as error:
        raise Invalid(f"input '{name}' takes {datatype}: {error}") from None


def _shape_of(data: Any, name: str, elements: list[Any]) -> Shape:
    """The shape of nested lists. Appends their elements to `elements`."""
    if not isinstance(data, list):
        elements.append(data)
        return ()
    shapes = {_shape_of(each, name, elements) for each in data}
    if len(shapes) > 1:
        raise Invalid(f"input '{name}': its rows differ in length")
    return (len(data), *(shapes.pop() if shapes else ()))


def _fitted(array: npt.NDArray[Any], spec: TensorSpec, config: ModelConfig) -> Tensor:
    return tensor_of(spec.name, spec.datatype, array.reshape(fit(array.shape, spec, config)))


def fit(shape: Shape, spec: TensorSpec, config: ModelConfig) -> Shape:
    """The shape to send.

    Adds the batch dimension if it was left out, gives a single value the dimensions that it needs, and folds a flat
    list if there is only one way to do so. Raises Invalid for a shape that does not fit.
    """
    batch = (1,) if config.max_batch_size else ()
    dims = spec.dims
    if len(shape) == len(batch) + len(dims) and _fits(shape[len(batch) :], dims):
        return shape
    if _fits(shape, dims):
        return batch + shape
    # Only a flat list is folded. Other wrong shapes are more likely mistakes.
    if len(shape) <= 1 and (folded := _folded(prod(shape), dims)) is not None:
        return batch + folded
    raise Invalid(
        f"input '{spec.name}' has the shape {shape_text(shape)}, but {_described(spec, config)} is wanted"
        + (" (the batch dimension may be left out)" if batch else "")
    )


def _fits(shape: Shape, dims: Shape) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))


def _folded(size: int, dims: Shape) -> Shape | None:
    """The shape of `size` elements in these dimensions; None if there is none, or more than one."""
    fixed = prod(dim for dim in dims if dim >= 0)
    open_ones = sum(dim < 0 for dim in dims)
    if size == 1 and fixed == 1:
        return (1,) * len(dims)
    if open_ones > 1 or not fixed or size % fixed or (not open_ones and size != fixed):
        return None
    return tuple(size // fixed if dim < 0 else dim for dim in dims)
