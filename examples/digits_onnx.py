"""Two classifiers of handwritten digits, trained on the images that scikit-learn bundles and written as ONNX.

Knows the images, their split and the training; does not know the repository. Both classifiers are a chain of layers
with a ReLU between them and a softmax at the end, so one function writes either.
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

SEED = 0  # for the split and the first weights, so that every build trains on the same images in the same order
ROUNDS = 500  # most epochs; both classifiers converge earlier
DARKEST = 16  # the largest value of a pixel; the graph divides by it, so clients send the images unchanged

Layer = tuple[NDArray[Any], NDArray[Any]]


class TrainingError(Exception):
    """The training failed. The message gives the reason."""


class Images(NamedTuple):
    """`pixels`: FP32 [n, 8, 8], 0 to 16. `digits`: INT64 [n], the right answers."""

    pixels: NDArray[np.float32]
    digits: NDArray[np.int64]


def split() -> tuple[Images, Images]:
    """Splits the 1797 images: three quarters to train on, the rest held out for measuring."""
    bundled = load_digits()
    pixels = bundled.images.astype(np.float32)
    train, held_out, train_digits, held_out_digits = train_test_split(
        pixels, bundled.target, test_size=0.25, stratify=bundled.target, random_state=SEED
    )
    return Images(train, train_digits), Images(held_out, held_out_digits)


def train_versions() -> dict[int, onnx.ModelProto]:
    """Trains both versions: 1 is a logistic regression, 2 a network with one hidden layer. Raises TrainingError."""
    images, _ = split()
    pixels = images.pixels.reshape(-1, 64) / DARKEST
    with _to_the_end(), threadpool_limits(1):  # the matrices are small: more threads only wait for each other
        regression = LogisticRegression(max_iter=ROUNDS).fit(pixels, images.digits)
        network = MLPClassifier((128,), max_iter=ROUNDS, random_state=SEED).fit(pixels, images.digits)
    return {
        1: build_classifier([(regression.coef_.T, regression.intercept_)]),
        2: build_classifier(list(zip(network.coefs_, network.intercepts_, strict=True))),
    }


@contextmanager
def _to_the_end() -> Iterator[None]:
    """Makes a training in this block converge or fail.

    scikit-learn only warns if a training did not converge. It turns an interrupt into a warning too, and returns what
    was learnt so far."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            yield
        except UserWarning as warning:
            if isinstance(warning.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise TrainingError(str(warning)) from warning


def build_classifier(layers: Sequence[Layer]) -> onnx.ModelProto:
    """Writes a classifier with `layers` of (matrix, bias).

    Input `image`: FP32 [batch, 8, 8]. Output `probabilities`: FP32 [batch, 10]."""
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
