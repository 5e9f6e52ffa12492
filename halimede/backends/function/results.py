"""From what a function returns or yields to the outputs of each request: names, datatypes, shapes, rows.

Texts are for the author of the function. Called on the threads of instances. Raises Internal.
"""

from collections.abc import Iterable, Mapping, Sequence
from sys import getrefcount
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.backends.api import BatchedRequest
from halimede.config.model_config import ModelConfig, TensorSpec
from halimede.errors import Error, Internal
from halimede.tensors import BYTES, Tensor, shape_text, tensor_of

Array = npt.NDArray[Any]
Part = Sequence[Tensor] | Exception | None
"""What one request gets: its outputs, an error, or nothing this time (decoupled models only)."""


class Results:
    """Reads the results of one model. An array that the function can still change is copied, because its bytes are
    sent later."""

    def __init__(self, config: ModelConfig) -> None:
        self._specs = {spec.name: spec for spec in config.model_outputs}
        self._batches = config.max_batch_size > 0
        self._always_copies = config.decoupled  # a generator still has what it yields

    def arrays(self, requests: Sequence[BatchedRequest], values: Mapping[str, Any]) -> dict[str, Array]:
        """The outputs of the whole batch. `values` is a result of `named` that nothing else refers to."""
        rows = sum([one.batch_size for one in requests])
        return {name: self._array(values, name, rows) for name in self._specs}

    def parts(self, requests: Sequence[BatchedRequest], values: Mapping[str, Any]) -> list[Part]:
        """The outputs of each request, from values for the whole batch. `values` is as for `arrays`."""
        arrays = self.arrays(requests, values)
        if not self._batches or len(requests) == 1:
            return [_tensors(one, self._specs, arrays) for one in requests]
        parts: list[Part] = []
        start = 0
        for one in requests:
            end = start + one.batch_size
            parts.append(_tensors(one, self._specs, {name: array[start:end] for name, array in arrays.items()}))
            start = end
        return parts

    def parts_of_each(self, requests: Sequence[BatchedRequest], results: Iterable[Any]) -> list[Part]:
        """The outputs of each request, from one result for each of them: what `named` reads, an exception, or None."""
        each = list(results) if not isinstance(results, Mapping) and isinstance(results, Iterable) else None
        if each is None or len(each) != len(requests):
            given = f"{len(each)} results" if each is not None else f"a {type(results).__name__}"
            raise Internal(
                f"the function got {len(requests)} requests and must give a list of as many results, not {given}"
            )
        return [
            result if result is None or isinstance(result, Exception) else self._part(one, result)
            for one, result in zip(requests, each, strict=True)
        ]

    def _part(self, one: BatchedRequest, result: Any) -> Part:
        try:
            return self.parts([one], self.named(result))[0]
        except Error as error:
            return error

    def named(self, result: Any) -> dict[str, Any]:
        """The values by the names of the outputs: of a mapping, or of a list or tuple with a value for each output. If
        there is one output, also of its value, or of a list with its array."""
        names = list(self._specs)
        if isinstance(result, Mapping):
            values = dict(result)
        elif len(names) == 1:
            values = {names[0]: result[0] if _is_wrapped(result) else result}
        elif isinstance(result, list | tuple) and len(result) == len(names):
            values = dict(zip(names, result, strict=True))
        else:
            given = f"{len(result)} values" if isinstance(result, list | tuple) else f"a {type(result).__name__}"
            raise Internal(
                f"the function gave {given} for {len(names)} outputs; it must give a dict of arrays, or a list or "
                f"tuple with one array for each of {_quoted(names)}"
            )
        if values.keys() != self._specs.keys():
            raise Internal(f"the function gave {_quoted(values)}, and the outputs are {_quoted(names)}")
        return values

    def _array(self, values: Mapping[str, Any], name: str, rows: int) -> Array:
        spec = self._specs[name]
        is_new = not isinstance(values[name], np.ndarray)
        shared = not is_new and (self._always_copies or _is_shared(values, name))
        given = _array_of(spec, values[name])
        array = _converted(spec, given)
        self._check_shape(spec, array, rows)
        return array.copy() if array is given and (shared or (is_new and given.base is not None)) else array

    def _check_shape(self, spec: TensorSpec, array: Array, rows: int) -> None:
        wanted = ((rows,) if self._batches else ()) + spec.model_dims
        fits = len(wanted) == array.ndim and all(
            most in (-1, size) for most, size in zip(wanted, array.shape, strict=True)
        )
        if not fits:
            what = f" for {rows} rows" if self._batches else ""
            raise Internal(
                f"output '{spec.name}' has shape {shape_text(array.shape)}, and must have {shape_text(wanted)}{what}"
            )


def _array_of(spec: TensorSpec, value: Any) -> Array:
    # numpy's own dtypes for texts drop zero bytes at their ends.
    is_texts = spec.datatype is BYTES and isinstance(value, list | tuple | str | bytes)
    return np.array(value, object) if is_texts else np.asarray(value)


def _converted(spec: TensorSpec, array: Array) -> Array:
    """The array with the dtype of the output. Only conversions within a kind are made: float64 to float32, and not to
    int32."""
    wanted = spec.datatype.numpy
    if array.dtype == wanted:
        return array
    if spec.datatype is BYTES:
        if array.dtype.kind in "SU":
            return array.astype(object)
    elif np.can_cast(array.dtype, wanted, "same_kind"):
        return array.astype(wanted)
    raise Internal(f"output '{spec.name}' has dtype {array.dtype}, which cannot become {spec.datatype}")


def _tensors(one: BatchedRequest, specs: Mapping[str, TensorSpec], arrays: Mapping[str, Array]) -> list[Tensor]:
    return [tensor_of(name, specs[name].datatype, arrays[name]) for name in one.outputs if name in arrays]


def _is_wrapped(result: Any) -> bool:
    """Whether a result is a list with one array, and not a list of numbers or texts."""
    return isinstance(result, list | tuple) and len(result) == 1 and isinstance(result[0], np.ndarray)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nothing"


def _is_shared(values: Mapping[str, Any], name: str) -> bool:
    """Whether anything besides `values` refers to an array, or to the memory that the array views."""
    of_array, of_base = _references(values, name)
    if of_array > _ALONE[0]:
        return True
    base = values[name].base
    if base is None:
        return not values[name].flags.owndata
    return type(base) is not np.ndarray or not base.flags.owndata or of_base > _ALONE[1]


def _references(values: Mapping[str, Any], name: str) -> tuple[int, int]:
    """The numbers of references to an array and to its base."""
    base = values[name].base
    return getrefcount(values[name]), getrefcount(base)


_ALONE = _references({"alone": np.zeros(2)[1:]}, "alone")
"""The numbers, in this Python, for an array to which nothing but its mapping refers."""
