"""Reads an estimator from a file of skops, and what it needs and returns. Load threads."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import skops.io

from halimede.errors import Cause, Invalid, Unavailable, Unknown
from halimede.tensors import BF16, BYTES, DATATYPES, FP64, DataType

Array = npt.NDArray[Any]

_BY_NUMPY = MappingProxyType({each.numpy: each for each in DATATYPES.values() if each not in (BYTES, BF16)})
METHODS = (
    *("predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "transform", "apply"),
)
"""Methods that an output can be named after. Each takes rows and returns a row for each."""
_COMPLETED = ("predict", "predict_proba")
"""Outputs of a configuration that has none. An estimator with none of them transforms."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a method returns for a row: how many numbers or texts, of which datatype."""

    datatype: DataType
    size: int


@dataclass(frozen=True, slots=True)
class Estimator:
    """An estimator, opened. `features` is 0 if it does not say; `names` are those of its columns, if it has some."""

    instance: Any
    features: int
    names: tuple[str, ...]

    def has(self, method: str) -> bool:
        """Whether it has the method: some estimators have one only with certain options."""
        return method in METHODS and callable(getattr(self.instance, method, None))

    def completed(self) -> tuple[str, ...]:
        """The outputs of a configuration that lists none."""
        return tuple(name for name in _COMPLETED if self.has(name)) or ("transform",)

    def result(self, method: str) -> Result:
        """What the method returns, found by calling it with a row of zeros. Raises Invalid if that fails."""
        try:
            found = np.asarray(
                getattr(self.instance, method)(self.table({"": np.zeros((1, self.features), np.float32)}))
            )
        except Exception as error:
            text = f"'{method}' of {type(self.instance).__name__} refuses a row of zeros, so its result is not known"
            raise Invalid(f"{text}: {error}; list the inputs and outputs").blaming(Cause.CONFIGURATION) from error
        return Result(datatype_of(found), found.size)

    def table(self, inputs: Mapping[str, Array]) -> Any:
        """The rows of a batch as the estimator takes them: an array; with names of columns a data frame, if pandas is
        there. One input has all columns, several have one each."""
        arrays = list(inputs.values())
        if len(arrays) == 1:
            return self._named(arrays[0])
        from pandas import DataFrame

        order = self.names or tuple(inputs)
        return DataFrame({name: column(inputs[name]) for name in order})

    def _named(self, rows: Array) -> Any:
        if not self.names:
            return rows
        try:
            from pandas import DataFrame
        except ImportError:  # then no step of a pipeline chooses columns by name
            return rows
        return DataFrame(rows, columns=list(self.names))


def column(values: Array) -> Array:
    """A column of a table: texts of requests are bytes, those of the training were str."""
    flat = values.reshape(-1)
    return np.array([each.decode() for each in flat], object) if flat.dtype == object else flat


def datatype_of(values: Array) -> DataType:
    """The datatype for what a method returned; texts are BYTES, unusual numbers FP64."""
    if values.dtype.kind in "OSU":
        return BYTES
    return _BY_NUMPY.get(values.dtype, FP64)


def read_estimator(path: Path, trusted: Collection[str]) -> Estimator:
    """Raises Unavailable if there is no file, Unknown if skops cannot read it, Invalid if it has types that are neither
    known to be harmless nor named in the configuration."""
    if not path.is_file():
        raise Unavailable(f"unable to find '{path}'").blaming(Cause.FILE)
    try:
        unknown = [each for each in skops.io.get_untrusted_types(file=path) if each not in trusted]
        if unknown:
            raise _untrusted(path, unknown)
        instance = skops.io.load(path, trusted=list(trusted))
    except Invalid:
        raise
    # Of the archive, of JSON, or of an estimator of another version of scikit-learn.
    except Exception as error:
        text = f"'{path}' cannot be read by skops: {type(error).__name__}: {error}"
        raise Unknown(text).blaming(Cause.FILE) from error
    names = tuple(str(each) for each in getattr(instance, "feature_names_in_", ()))
    return Estimator(instance, int(getattr(instance, "n_features_in_", 0)), names)


def _untrusted(path: Path, types: Collection[str]) -> Invalid:
    names = ",".join(types)
    error = Invalid(f"'{path}' has types that are not trusted: {names}").blaming(Cause.CONFIGURATION)
    error.advice = (
        "if the file comes from people whom you trust, add to the configuration: "
        f'parameters {{ key: "trusted_types" value {{ string_value: "{names}" }} }}'
    )
    return error
