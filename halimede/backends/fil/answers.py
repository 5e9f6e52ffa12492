"""What a row of a forest's output becomes in a response: a value, a class, probabilities (BX5 to BX9). Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.backends.fil.forest import Forest
from halimede.backends.fil.settings import Settings
from halimede.config.model_config import ModelConfig, TensorSpec
from halimede.errors import Cause, Internal, Invalid
from halimede.tensors import FP32, Shape, shape_text

Array = npt.NDArray[Any]

INPUT, OUTPUT, SHAP = "input__0", "output__0", "treeshap_output"


class Answer(Enum):
    """What a row of `output__0` has."""

    VALUES = "values"
    """What the model returns: a regression value, a probability of class 1, or a number for each class."""
    CLASS = "class"
    """The class, as a number."""
    BOTH = "both"
    """The probabilities of both classes, of a model that returns that of class 1."""


def answer_of(forest: Forest, settings: Settings, size: int) -> Answer:
    """What a row with `size` numbers has. Raises Invalid for a size that no answer has: Triton's backend trusts the
    configuration, and reads beyond the output then (BX9)."""
    says_nothing = settings.is_classifier is None and settings.predict_proba is None
    classifies = forest.is_classification if settings.is_classifier is None else settings.is_classifier
    # A configuration that was completed has no parameters. Its size tells.
    proba = settings.predict_proba or (says_nothing and classifies and size > 1)
    if proba and forest.classes == 1 and size == 2:
        return Answer.BOTH
    if classifies and not proba:
        found, fits = Answer.CLASS, size == 1
    else:
        found, fits = Answer.VALUES, size == forest.classes
    if not fits:
        raise Invalid(
            f"'{OUTPUT}' has {size} numbers in a row by its dims, and the model returns "
            + ("one, the class; for probabilities set predict_proba" if found is Answer.CLASS else str(forest.classes))
        ).blaming(Cause.CONFIGURATION)
    return found


def usual_size(forest: Forest) -> int:
    """The numbers in a row if the configuration says nothing: the probability of each class, or one value."""
    return 2 if forest.is_classification and forest.classes == 1 else forest.classes


def answered(values: Array, answer: Answer, threshold: float) -> Array:
    """Rows of the output as float32, from the model's own output of shape [rows, classes]."""
    if answer is Answer.BOTH:
        positive = values[:, 0].astype(np.float32)
        return np.stack([1 - positive, positive], axis=1)
    found = values
    if answer is Answer.CLASS:
        found = values > threshold if values.shape[1] == 1 else values.argmax(axis=1)[:, np.newaxis]
    rows: Array = found.astype(np.float32, copy=False)
    return rows


@dataclass(frozen=True, slots=True)
class OutputShape:
    """The shape of an output: without its dimensions of size 1, and with rows first (BX8)."""

    sizes: Shape
    is_batch: bool
    """Whether the rows are a dimension. Without batches and without a variable size, the output is one row."""

    @property
    def row(self) -> int:
        """The numbers in a row."""
        return prod(self.sizes)

    def shaped(self, rows: Array) -> Array:
        return rows.reshape((len(rows), *self.sizes) if self.is_batch else self.sizes or (1,))


def output_shape(spec: TensorSpec, max_batch_size: int) -> OutputShape:
    """Raises Internal for a size that only the batch may have."""
    dims: Sequence[int] = spec.model_dims
    is_batch = max_batch_size > 0 or dims[:1] == (-1,)
    if max_batch_size == 0 and is_batch:
        dims = dims[1:]
    if -1 in dims:
        raise Internal("Backends with variable-shape outputs must request desired output shape")
    return OutputShape(tuple(size for size in dims if size != 1), is_batch)


def check_input(config: ModelConfig, forest: Forest) -> None:
    """Raises Invalid if the configuration has not the one input of a forest, with a number for each feature."""
    names = [spec.name for spec in config.inputs]
    if names != [INPUT]:
        raise Invalid(f"a model of fil has one input, '{INPUT}', and not {names}").blaming(Cause.CONFIGURATION)
    dims = config.inputs[0].model_dims
    if dims and dims[-1] not in (-1, forest.features):
        raise Invalid(f"'{INPUT}' has dims {shape_text(dims)}, and the model has {forest.features} features").blaming(
            Cause.CONFIGURATION
        )


def check_outputs(specs: Mapping[str, TensorSpec], forest: Forest, shap: OutputShape | None) -> None:
    """Raises Invalid if the outputs have not the datatype of a forest's, or `shap` not a value for each feature and one
    for the bias."""
    for name in (OUTPUT, SHAP):
        if name in specs and specs[name].datatype is not FP32:
            raise Invalid(f"'{name}' of a model of fil is TYPE_FP32").blaming(Cause.CONFIGURATION)
    values = forest.classes * (forest.features + 1)
    if shap is not None and shap.row != values:
        classes = f" for each of {forest.classes} classes" if forest.classes > 1 else ""
        raise Invalid(
            f"'{SHAP}' has {shap.row} numbers in a row by its dims, and the model returns {values}: one for each of "
            f"{forest.features} features and the bias{classes}"
        ).blaming(Cause.CONFIGURATION)
