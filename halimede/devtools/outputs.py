"""Responses of a model as text, and as the JSON of HTTP. Pure; any thread."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.config import ModelConfig
from halimede.errors import Error
from halimede.requests import NO_SEQUENCE, InferResponse
from halimede.tensors import BF16, BYTES, Tensor, array_of
from halimede.wire.http.infer import ResponseForm, encode_error, encode_infer

_MAX_ELEMENTS = 100
_MAX_CHARACTERS = 200
_WIDTH = 100
_JSON = ResponseForm(False, {})


def response_text(response: InferResponse) -> str:
    """Each output with name, datatype, shape and values. Long arrays and strings are shortened."""
    lines = [line for tensor in response.outputs for line in _tensor_lines(tensor)]
    # An ensemble repeats the place of the request in its sequence (S84).
    given = {name: value for name, value in (response.parameters or {}).items() if name not in NO_SEQUENCE}
    lines += [f"parameter {name} = {value!r}" for name, value in given.items()]
    return "\n".join(lines) if lines else "(no outputs)"


def mismatches(responses: Sequence[InferResponse], config: ModelConfig) -> list[str]:
    """What the outputs of a request for all of them have other than the configuration. The server sends such responses
    as they are, like Triton (P75, P77)."""
    specs = {spec.name: spec for spec in config.outputs}
    texts = []
    for response in responses:
        found = {tensor.name: tensor.datatype for tensor in response.outputs}
        # A response of a decoupled model may have some of the outputs.
        missing = [name for name in specs if name not in found and not config.decoupled]
        texts += [f"the model returned no output '{name}', which its configuration has" for name in missing]
        texts += [
            f"output '{name}' is {datatype}, and in the configuration {specs[name].datatype}"
            for name, datatype in found.items()
            if name in specs and specs[name].datatype is not datatype
        ]
    return list(dict.fromkeys(texts))


def _tensor_lines(tensor: Tensor) -> list[str]:
    shape = ", ".join(map(str, tensor.shape))
    head = f"{tensor.name}: {tensor.datatype} [{shape}]"
    try:
        array = array_of(tensor)
    except Error as error:
        return [f"{head}: {error}"]
    return [head, *(f"  {line}" for line in _values(tensor, array).splitlines())]


def _values(tensor: Tensor, array: npt.NDArray[Any]) -> str:
    if tensor.datatype is BYTES:
        shown = np.array([_string(each) for each in array.reshape(-1).tolist()], dtype=object).reshape(array.shape)
        return _array_text(shown, {"object": str})
    return _array_text(_as_floats(array) if tensor.datatype is BF16 else array)


def numbers_of(tensor: Tensor) -> npt.NDArray[np.float64]:
    """The elements of a tensor other than BYTES."""
    array = array_of(tensor)
    return (_as_floats(array) if tensor.datatype is BF16 else array).astype(np.float64)


def _as_floats(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """numpy has no BF16; its bits are the upper half of FP32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _array_text(array: npt.NDArray[Any], formatter: Any = None) -> str:
    return np.array2string(array, threshold=_MAX_ELEMENTS, max_line_width=_WIDTH, separator=", ", formatter=formatter)


def _string(raw: bytes) -> str:
    """Python's notation: a string if the bytes are UTF-8, else bytes."""
    try:
        shown = repr(raw.decode())
    except UnicodeDecodeError:
        shown = repr(raw)
    # A string may be a whole document or picture.
    return shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}... ({len(raw)} bytes)"


def response_json(response: InferResponse | Error) -> str:
    """The JSON that HTTP answers with, on one line. For FP16 and BF16, which JSON cannot have, it is the error."""
    try:
        if isinstance(response, Error):
            raise response
        return b"".join(map(bytes, encode_infer(response, _JSON)[0])).decode("utf-8", "replace")
    except Error as error:
        return encode_error(error).decode("utf-8", "replace")


def timing_text(seconds: Sequence[float]) -> str:
    """A line about requests that ran one after the other. The first one warms up, so it is listed by itself."""
    # One request is its own median.
    first, rest = seconds[0], sorted(seconds[1:]) or [seconds[0]]
    p99 = rest[min(len(rest) - 1, int(len(rest) * 0.99))]
    return f"{len(seconds)} requests: first {_ms(first)}, then median {_ms(median(rest))}, p99 {_ms(p99)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
