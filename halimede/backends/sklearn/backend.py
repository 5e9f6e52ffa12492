"""The `sklearn` backend: estimators of scikit-learn, without a pickle.

An output is named after the method that computes it: `predict`, `predict_proba`, `transform`, ...

Estimators are opened on load threads. `execute` runs on an instance's thread; all instances of a version share the
estimator, whose methods do not change it.
"""

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from halimede.backends.api import (
    Arrays,
    BaseBackend,
    BaseInstance,
    BaseModel,
    Batch,
    Fault,
    InstancePlace,
    ModelFolder,
    Responses,
)
from halimede.backends.sklearn import TRAITS
from halimede.backends.sklearn.estimator import METHODS, Array, Estimator, read_estimator
from halimede.config.model_config import DescribedTensor, Description, Incomplete, ModelConfig, TensorSpec
from halimede.errors import Cause, Error, Internal, Invalid, Unavailable
from halimede.tensors import BYTES, FP32, Shape

INPUT = "predict"
"""The input of a completed configuration: requests for MLServer call it so."""
TRUSTED = "trusted_types"
"""The parameter that names types, with commas between them."""
MAX_BATCH_SIZE = 8192
"""Of a completed configuration."""


class SklearnInstance(BaseInstance):
    """One instance of an estimator."""

    def __init__(self, estimator: Estimator, outputs: Mapping[str, TensorSpec], batches: bool) -> None:
        self._estimator: Estimator | None = estimator
        self._outputs = outputs
        self._batches = batches

    def execute(self, batch: Batch, responses: Responses) -> None:
        estimator = self._estimator
        assert estimator is not None, "this instance is closed"
        table = estimator.table(batch.arrays())
        wanted = set().union(*[one.outputs for one in batch.requests])
        outputs: Arrays = {}
        for name, spec in self._outputs.items():
            if name in wanted:
                outputs[name] = self._answer(estimator, spec, table)
        responses.scatter(outputs)

    def close(self) -> None:
        self._estimator = None

    def _answer(self, estimator: Estimator, spec: TensorSpec, table: Any) -> Array:
        try:
            found = getattr(estimator.instance, spec.name)(table)
        except ValueError as error:  # wrong columns, missing values, unknown categories
            raise Invalid(f"{spec.name}: {error}") from error
        rows = np.asarray(found.toarray() if hasattr(found, "toarray") else found)
        dims = shape_of_rows(spec.model_dims, rows) if self._batches else rows.shape
        if spec.datatype is BYTES:
            texts = np.empty(rows.size, object)
            texts[:] = [str(each).encode() for each in rows.reshape(-1).tolist()]
            return texts.reshape(dims)
        return rows.astype(spec.datatype.numpy, copy=False).reshape(dims)


def shape_of_rows(dims: Shape, rows: Array) -> Shape:
    """The shape of an output: what the estimator returns for each row, in the dims of the configuration. Raises
    Internal if that does not fit."""
    count, each = len(rows), rows[:1].size if len(rows) else 1
    fixed = int(np.prod([size for size in dims if size != -1], dtype=int))
    if dims.count(-1) > 1 or each % fixed or (-1 not in dims and each != fixed):
        raise Internal(f"the estimator returns {each} values for a row, and the configuration has dims {list(dims)}")
    return count, *(each // fixed if size == -1 else size for size in dims)


class SklearnModel(BaseModel):
    """A version of an estimator."""

    def __init__(self, config: ModelConfig, estimator: Estimator) -> None:
        outputs = {spec.name: spec for spec in config.outputs}
        self._create = partial(SklearnInstance, estimator, outputs, config.max_batch_size > 0)

    def create_instance(self, place: InstancePlace) -> SklearnInstance:
        return self._create()


class SklearnBackend(BaseBackend):
    """Opens estimators."""

    traits = TRAITS

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description:
        """One input with all columns, and outputs for `predict` and `predict_proba`, or `transform`."""
        estimator = self._read(asked.parameters, folder, filename)
        if not estimator.features:
            text = (
                f"{type(estimator.instance).__name__} does not say how many columns it needs; list inputs and outputs"
            )
            raise Invalid(text).blaming(Cause.CONFIGURATION)
        outputs = []
        for name in estimator.completed():
            result = estimator.result(name)
            outputs.append(DescribedTensor(name, result.datatype, (-1, result.size)))
        inputs = DescribedTensor(INPUT, FP32, (-1, estimator.features))
        limit = max(int(asked.value("max_batch_size") or 0), MAX_BATCH_SIZE)
        return Description((inputs,), tuple(outputs), max_batch_size=limit, source=filename)

    def runs_code(self, asked: Incomplete) -> bool:
        """Only types that the configuration trusts."""
        return bool(asked.parameters.get(TRUSTED))

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """Types that are not trusted, a broken file, and outputs that no method computes."""
        try:
            estimator = self._read(asked.parameters, folder, filename)
            if config is not None:
                check(config, estimator)
        except Error as error:
            return [Fault(str(error), cause=error.cause)]
        return []

    def open(self, config: ModelConfig, folder: ModelFolder) -> SklearnModel:
        """Raises Invalid for types that are not trusted and for an output that no method computes, Unavailable,
        Unknown."""
        estimator = self._read(config.parameters, folder, config.model_filename)
        check(config, estimator)
        return SklearnModel(config, estimator)

    def _read(self, parameters: Mapping[str, str], folder: ModelFolder, filename: str) -> Estimator:
        trusted = [each.strip() for each in parameters.get(TRUSTED, "").split(",") if each.strip()]
        return read_estimator(folder.version / (filename or TRAITS.formats[0].filename), trusted)


def check(config: ModelConfig, estimator: Estimator) -> None:
    """Raises Invalid if an output is not named after a method of the estimator, or inputs are not its columns."""
    name = type(estimator.instance).__name__
    for spec in config.outputs:
        if not estimator.has(spec.name):
            there = ", ".join(each for each in METHODS if estimator.has(each))
            text = f"output '{spec.name}' is not a method of {name}, which has: {there}"
            raise Invalid(text).blaming(Cause.CONFIGURATION)
    if len(config.inputs) == 1:
        size = config.inputs[0].model_dims[-1:]
        if estimator.features and size not in ((-1,), (estimator.features,)):
            text = f"input '{config.inputs[0].name}' has {size[0]} columns, and {name} has {estimator.features}"
            raise Invalid(text).blaming(Cause.CONFIGURATION)
    elif not find_spec("pandas"):
        text = "a model with several inputs needs pandas, which is not installed"
        raise Unavailable(text).blaming(Cause.ENVIRONMENT)
    elif estimator.names and (missing := set(estimator.names) - {spec.name for spec in config.inputs}):
        text = f"{name} needs the columns {sorted(missing)}, which are no inputs"
        raise Invalid(text).blaming(Cause.CONFIGURATION)
