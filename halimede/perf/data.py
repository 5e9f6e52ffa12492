"""The data of the requests: random, zero, or from files (X10, X11). Reads files; otherwise pure.

The data are streams of steps. A step has the tensors of one request of batch size 1.
"""

import base64
import binascii
import json
import math
import random
import string
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from halimede.errors import Invalid
from halimede.perf.model import TensorInfo
from halimede.tensors import BF16, BOOL, BYTES, DataType


@dataclass(frozen=True, slots=True)
class Value:
    """The content of a tensor, as the protocol has it: little-endian, BYTES framed. `shape` has no batch dimension."""

    shape: tuple[int, ...]
    content: bytes


@dataclass(frozen=True, slots=True)
class Step:
    """The inputs of a request, the outputs that it must have, and other members of its JSON, such as `delay`."""

    inputs: Mapping[str, Value]
    expected: Mapping[str, Value] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


Streams = Sequence[Sequence[Step]]


def framed(texts: Sequence[bytes]) -> bytes:
    """Elements of BYTES, each after its length."""
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


# ---- generated


def generated(
    inputs: Mapping[str, TensorInfo], zero: bool, string_length: int, text: str, lot: random.Random
) -> list[list[Step]]:
    """One stream with one step of zero or random values. Optional inputs get values too. Raises Invalid."""
    for info in inputs.values():
        if info.is_shape_tensor:
            raise Invalid(f"can not generate data for shape tensor '{info.name}', user-provided data is needed.")
    return [[Step({name: _generated(info, zero, string_length, text, lot) for name, info in inputs.items()})]]


def _generated(info: TensorInfo, zero: bool, string_length: int, text: str, lot: random.Random) -> Value:
    if not info.is_fixed():
        raise Invalid(f"input {info.name} contains dynamic shape, provide shapes to send along with the request")
    count = math.prod(info.shape)
    if info.datatype is BYTES:
        texts = [
            text or "".join(lot.choices(string.ascii_letters + string.digits, k=string_length)) for _ in range(count)
        ]
        return Value(info.shape, framed([each.encode() for each in texts]))
    if zero:
        return Value(info.shape, bytes(count * info.datatype.size))
    return Value(info.shape, _random(info.datatype, count, lot))


def _random(datatype: DataType, count: int, lot: random.Random) -> bytes:
    """Random elements. Those of floating-point types are from 0 to 1: random bits would be NaN and denormal numbers,
    with which some models are many times slower."""
    draw = np.random.default_rng(lot.getrandbits(64))
    if datatype is BOOL:
        return draw.integers(0, 2, count, np.uint8).tobytes()
    if datatype is BF16:
        return (draw.random(count, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    if datatype.numpy.kind == "f":
        return draw.random(count).astype(datatype.numpy).tobytes()
    return draw.bytes(count * datatype.size)


# ---- from a directory


def from_directory(path: Path, inputs: Mapping[str, TensorInfo], outputs: Mapping[str, TensorInfo]) -> list[list[Step]]:
    """One step from a directory with a file for each input, and for outputs that are to be checked. Raises Invalid."""
    for file in sorted(path.iterdir()):
        if file.name not in inputs and file.name not in outputs:
            raise Invalid(f"Provided data file '{file.name}' does not correspond to a valid model input or output.")
    values = {name: _read_input(path / name, info) for name, info in inputs.items()}
    expected = {
        name: Value(info.shape, _read(path / name, info)) for name, info in outputs.items() if (path / name).is_file()
    }
    return [[Step(values, expected)]]


def _read_input(path: Path, info: TensorInfo) -> Value:
    content = _read(path, info)
    if not info.is_fixed():
        raise Invalid(f"input {info.name} contains dynamic shape, provide shapes to send along with the request")
    count = math.prod(info.shape)
    if info.datatype is BYTES:
        lines = len(path.read_bytes().splitlines())
        if lines != count:
            raise Invalid(f"provided data for input {info.name} has {lines} elements, expect {count}")
    elif len(content) != count * info.datatype.size:
        raise Invalid(
            f"provided data for input {info.name} has byte size {len(content)}, expect {count * info.datatype.size}"
        )
    return Value(info.shape, content)


def _read(path: Path, info: TensorInfo) -> bytes:
    try:
        content = path.read_bytes()
    except OSError:
        raise Invalid(f"failed to open file '{path}'") from None
    if not content:
        raise Invalid(f"file '{path}' is empty")
    return framed(content.splitlines()) if info.datatype is BYTES else content


# ---- from JSON


def from_json(
    path: Path,
    inputs: Mapping[str, TensorInfo],
    outputs: Mapping[str, TensorInfo],
    streams: list[list[Step]],
    members: Sequence[str] = (),
) -> None:
    """Adds the streams of a file. `members` are names beside the tensors that are allowed. Raises Invalid."""
    document = document_of(path)
    data, expected = document["data"], document.get("validation_data")
    if expected is not None and (not isinstance(expected, list) or len(expected) != len(data)):
        raise Invalid("The 'validation_data' field doesn't align with 'data' field in the json file")
    nested = [isinstance(each, list) for each in data]
    if any(nested) != all(nested):
        raise Invalid(
            "Inconsistency in input-data provided. Can not have a combination of objects and arrays inside of the Data "
            "array"
        )
    reader = _Reader(inputs, outputs, members)
    if not any(nested):
        # Steps of one stream, also if several files have some.
        if not streams:
            streams.append([])
        at = len(streams[0])
        streams[0] += [reader.step(each, _other(expected, k), 0, at + k) for k, each in enumerate(data)]
        return
    for number, steps in enumerate(data):
        others = _other(expected, number)
        if others is not None and (not isinstance(others, list) or len(others) != len(steps)):
            raise Invalid("The 'validation_data' field doesn't align with 'data' field in the json file")
        place = len(streams)
        streams.append([reader.step(each, _other(others, k), place, k) for k, each in enumerate(steps)])


def document_of(path: Path) -> Mapping[str, Any]:
    """A file of data, whose member `data` is a list. Raises Invalid."""
    try:
        found = json.loads(path.read_bytes())
    except OSError:
        raise Invalid("failed to open file for reading provided data") from None
    except (ValueError, RecursionError) as error:
        raise Invalid(
            f"failed to parse the specified json file for reading provided data ({path.name}: {error})"
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("data"), list):
        raise Invalid("The json file doesn't contain data field")
    return found


def _other(values: Any, number: int) -> Any:
    return None if values is None else values[number]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads steps of a JSON file."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    members: Sequence[str]

    def step(self, step: Any, expected: Any, stream: int, number: int) -> Step:
        where = f"( Location stream id: {stream}, step id: {number})"
        values = self._values(step, self.inputs, where)
        checked = {} if expected is None else self._values(expected, self.outputs, where)
        more = {name: step[name] for name in self.members if name in step}
        return Step(values, checked, more)

    def _values(self, step: Any, infos: Mapping[str, TensorInfo], where: str) -> dict[str, Value]:
        if not isinstance(step, dict):
            raise Invalid("Input data file is malformed.")
        unknown = next((name for name in step if name not in infos and name not in ("model", *self.members)), None)
        if unknown is not None:
            raise Invalid(f"The input or output '{unknown}' is not found in the model configuration")
        values = {}
        for name, info in infos.items():
            if name in step:
                values[name] = value_of(step[name], info, where)
            elif not info.is_optional and infos is self.inputs:
                raise Invalid(f"missing tensor {name} {where}")
        return values


def value_of(given: Any, info: TensorInfo, where: str) -> Value:
    """The tensor of a JSON value: a list, `{"content":..,"shape":..}` or `{"b64":..}` (X11). Raises Invalid."""
    shape, content = info.shape, given
    if isinstance(given, dict):
        if "shape" in given:
            shape = _shape(given["shape"])
        if "b64" not in given:
            if "content" not in given:
                raise Invalid(f"missing content field. {where}")
            content = given["content"]
    elif not isinstance(given, list):
        raise Invalid("Input data file is malformed.")
    data = _content(content, info, where)
    _check(info, shape, data)
    return Value(shape, data)


def _shape(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(type(each) is int for each in given):
        raise Invalid("shape values must be integers.")
    return tuple(given)


def _content(given: Any, info: TensorInfo, where: str) -> bytes:
    if isinstance(given, list):
        return elements(given, info)
    if isinstance(given, dict) and "b64" in given:
        if not isinstance(given["b64"], str):
            raise Invalid(f"the value of b64 field should be of type string {where}")
        try:
            return base64.b64decode(given["b64"])
        except (binascii.Error, ValueError):
            raise Invalid(f"the value of b64 field is no base64 {where}") from None
    raise Invalid(f"The tensor values are not supported. Expected an array or b64 string {where}")


def elements(given: list[Any], info: TensorInfo) -> bytes:
    flat = list(_flat(given))
    if info.datatype is BYTES:
        texts = [each.encode() if isinstance(each, str) else json.dumps(each).encode() for each in flat]
        return framed(texts)
    try:
        if info.datatype is BF16:
            return (np.array(flat, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        return np.array(flat, info.datatype.numpy).tobytes()
    except (ValueError, TypeError, OverflowError) as error:
        raise Invalid(f"the values of {info.name} are no {info.datatype}: {error}") from None


def _flat(given: list[Any]) -> Any:
    for each in given:
        if isinstance(each, list):
            yield from _flat(each)
        else:
            yield each


def _check(info: TensorInfo, shape: tuple[int, ...], data: bytes) -> None:
    if min(shape, default=0) < 0:
        raise Invalid(
            f'The variable-sized tensor "{info.name}" with model shape {_text(info.shape)} needs to have its shape '
            "fully defined. See the --shape option."
        )
    fits = len(shape) == len(info.shape) and all(
        own in (-1, given) for own, given in zip(info.shape, shape, strict=True)
    )
    if not fits:
        raise Invalid(
            f'The supplied shape of {_text(shape)} for input "{info.name}" is incompatible with the model\'s input '
            f"shape of {_text(info.shape)}"
        )
    size = math.prod(shape) * info.datatype.size
    if size and size != len(data):
        raise Invalid(f"mismatch in the data provided for {info.name}. Expected: {size} bytes, Got: {len(data)} bytes")


def _text(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
