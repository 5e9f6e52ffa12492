"""Two classifiers of handwritten digits, trained on the images that scikit-learn bundles and written as ONNX.

Knows the images, their split and the training; not where the models go. Both classifiers are the same chain, layers
with a ReLU between them and softmax at the end, so one function writes either.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto
from onnx_graph import Graph
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

SEED = 0  # of the split and of the first weights: every build trains on the same images in the same order
ROUNDS = 500  # over the images, at most: both classifiers settle earlier
DARKEST = 16  # a pixel's largest value; the graph divides by it, so clients send the images as they are

Layer = tuple[NDArray[Any], NDArray[Any]]


class TrainingError(Exception):
    """A classifier is not what it should be after the training; the text says why."""


class Images(NamedTuple):
    """`pixels` FP32 [n, 8, 8], 0 to 16, and `digits` INT64 [n], the right answers."""

    pixels: NDArray[np.float32]
    digits: NDArray[np.int64]


def split() -> tuple[Images, Images]:
    """Three quarters of the 1797 images to train on, and the rest, held out, to measure with."""
    bundled = load_digits()
    pixels = bundled.images.astype(np.float32)
    train, held_out, train_digits, held_out_digits = train_test_split(
        pixels, bundled.target, test_size=0.25, stratify=bundled.target, random_state=SEED
    )
    return Images(train, train_digits), Images(held_out, held_out_digits)


def train_versions() -> dict[int, onnx.ModelProto]:
    """Version number to model: 1 a logistic regression, 2 a network with one hidden layer. Raises TrainingError."""
    images, _ = split()
    pixels = images.pixels.reshape(-1, 64) / DARKEST
    with _to_the_end(), threadpool_limits(1):  # so small that more threads only wait for each other
        regression = LogisticRegression(max_iter=ROUNDS).fit(pixels, images.digits)
        network = MLPClassifier((128,), max_iter=ROUNDS, random_state=SEED).fit(pixels, images.digits)
    return {
        1: build_classifier([(regression.coef_.T, regression.intercept_)]),
        2: build_classifier(list(zip(network.coefs_, network.intercepts_, strict=True))),
    }


@contextmanager
def _to_the_end() -> Iterator[None]:
    """A training in here settles or fails. scikit-learn only warns of one that did not, and keeps an interrupt for
    itself: it warns, and gives back what was learnt so far."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            yield
        except UserWarning as warning:
            if isinstance(warning.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise TrainingError(str(warning)) from warning


def build_classifier(layers: Sequence[Layer]) -> onnx.ModelProto:
    """`image` FP32 [batch, 8, 8] to `probabilities` FP32 [batch, 10], through `layers` of (matrix, bias)."""
    graph = Graph()
    x = graph.op("Div", graph.op("Flatten", "image"), graph.scalar(DARKEST))
    for number, layer in enumerate(layers):
        if number > 0:
            x = graph.op("Relu", x)
        matrix, bias = (graph.constant(array.astype(np.float32)) for array in layer)
        x = graph.op("Gemm", x, matrix, bias)
    graph.op("Softmax", x, axis=-1, result="probabilities")
    return graph.model(
        "digits",
        inputs={"image": (TensorProto.FLOAT, ["batch", 8, 8])},
        outputs={"probabilities": (TensorProto.FLOAT, ["batch", 10])},
    )
