"""Trains two models of the same pictures, a classifier and a segmenter of shapes, and writes them as ONNX.

Both begin with the contrast: how much each pixel differs from the background, a linear colour gradient that is fitted
to the rim of the picture. The classifier uses the power spectrum of the contrast, which does not depend on the position
of the shape. The segmenter uses the neighbourhood of each pixel. Each is a network with one hidden layer.

Knows the training and the graphs; does not know the repository.
"""

import warnings
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto
from onnx_graph import Graph
from shapes_images import LABELS, SIZE, as_tensor, draw
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

SEED = 0
CLASSIFIER_PICTURES, SEGMENTER_PICTURES, ROUNDS = 2000, 800, 25
FORMS = ((SIZE, SIZE), (96, 72), (72, 96))  # widths and heights of drawn pictures, so that squeezed shapes are learnt
RIM = 3  # pixels
SHARPER = 1.5
PIXELS = SIZE * SIZE
LOW = 10  # frequencies of each sign that the classifier uses
REACH = 3  # width and height of the neighbourhood that the segmenter uses, in pixels
PER_PICTURE = 40  # pixels of each picture that the segmenter is trained on
CLASSIFIER_UNITS, SEGMENTER_UNITS = 64, 16

Wide = NDArray[np.float64]


class TrainingError(Exception):
    """The training failed. The message gives the reason."""


class Pictures(NamedTuple):
    """`pixels`: FP32 [n, 3, 64, 64], 0 to 1. `masks`: BOOL [n, 64, 64], true inside the shape. `labels`: INT64 [n]."""

    pixels: NDArray[np.float32]
    masks: NDArray[np.bool_]
    labels: NDArray[np.int64]


class Weights(NamedTuple):
    """The weights of a network with one hidden layer. `mean` and `scale` normalize its inputs."""

    mean: Wide
    scale: Wide
    first: Wide
    first_bias: Wide
    second: Wide
    second_bias: Wide


def make_pictures(count: int, seed: int) -> Pictures:
    random = np.random.default_rng(seed)
    scenes = [draw(random, *FORMS[random.integers(len(FORMS))]) for _ in range(count)]
    masks = [np.asarray(scene.mask.resize((SIZE, SIZE))) > 127 for scene in scenes]
    pixels = np.stack([as_tensor(scene.picture) for scene in scenes])
    return Pictures(pixels, np.stack(masks), np.array([scene.label for scene in scenes]))


# ---- the features


def _plane() -> tuple[Wide, Wide]:
    """Two matrices that give the background of a picture. [pixels, 3] finds its offset and its two gradients from the
    rim alone; [3, pixels] computes every pixel from those."""
    line = np.linspace(-1, 1, SIZE)
    across, down = np.broadcast_arrays(line, line[:, None])
    basis = np.stack([np.ones((SIZE, SIZE)), across, down])
    rim = np.ones((SIZE, SIZE), bool)
    rim[RIM:-RIM, RIM:-RIM] = False
    fit = np.zeros((PIXELS, 3))
    fit[rim.reshape(-1)] = np.linalg.pinv(basis[:, rim])
    return fit, basis.reshape(3, PIXELS)


def contrast(pixels: NDArray[np.float32]) -> Wide:
    """Returns how far each pixel is from the background: [n, 64, 64], about 1 at the largest distance."""
    flat = pixels.reshape(-1, 3, PIXELS)
    fit, basis = (part.astype(np.float32) for part in _plane())
    apart = np.sqrt(((flat - flat @ fit @ basis) ** 2).sum(axis=1))
    apart /= apart.max(axis=1, keepdims=True) + _LEAST
    return np.asarray(np.tanh(SHARPER * apart).reshape(-1, SIZE, SIZE))


_LEAST, _FAINTEST = 1e-3, 1e-2


def _waves() -> tuple[Wide, Wide]:
    """The discrete Fourier transform at the low frequencies of both signs: real and imaginary part, [64, 19]."""
    angle = 2 * np.pi * np.outer(np.arange(SIZE), np.arange(-LOW + 1, LOW)) / SIZE
    return np.cos(angle), np.sin(angle)


def spectrum(pixels: NDArray[np.float32]) -> Wide:
    """Returns the logarithm of the power at the low frequencies, relative to the lowest: [n, 19 * 10].

    One half of the plane mirrors the other and is left out."""
    real, imaginary = _waves()
    picture = contrast(pixels)
    by_row = picture @ (real - 1j * imaginary)
    waves = np.swapaxes((real - 1j * imaginary)[:, LOW - 1 :], 0, 1) @ by_row
    power = np.abs(waves) ** 2
    power /= power[:, :1, LOW - 1 : LOW]
    return np.asarray(np.log(power + _FAINTEST**2).reshape(len(picture), -1))


def surroundings(pictures: Wide) -> Wide:
    """Returns the neighbourhood of each pixel, with zeros beyond the edge: [n, 64, 64] to [n, 64, 64, 9]."""
    edge = REACH // 2
    wide = np.pad(pictures, ((0, 0), (edge, edge), (edge, edge)))
    return np.lib.stride_tricks.sliding_window_view(wide, (REACH, REACH), axis=(1, 2)).reshape(*pictures.shape, -1)


# ---- the training


def train(role: str) -> onnx.ModelProto:
    """Trains the `classifier` or the `segmenter`. Gives the same model at each call on one machine. Raises
    TrainingError."""
    with threadpool_limits(1):  # the matrices are small: more threads only wait for each other
        if role == "classifier":
            pictures = make_pictures(CLASSIFIER_PICTURES, SEED)
            return build_classifier(_learn(spectrum(pictures.pixels), pictures.labels, CLASSIFIER_UNITS, 0.98))
        return build_segmenter(_learn(*_spots(make_pictures(SEGMENTER_PICTURES, SEED)), SEGMENTER_UNITS, 0.95))


def _spots(pictures: Pictures) -> tuple[Wide, NDArray[np.bool_]]:
    """Chooses pixels of each picture. Returns their neighbourhoods, and which of them are inside the shape.

    Half of them lie at its edge, because the decision is hard there."""
    random = np.random.default_rng(SEED)
    seen, answers = [], []
    for each, mask in zip(contrast(pictures.pixels), pictures.masks, strict=True):
        around = surroundings(mask[None].astype(np.float64))[0].mean(axis=-1)
        edge = np.flatnonzero((around > 0) & (around < 1))
        chosen = np.concatenate([random.choice(edge, PER_PICTURE // 2), random.integers(PIXELS, size=PER_PICTURE // 2)])
        seen.append(surroundings(each[None]).reshape(PIXELS, -1)[chosen])
        answers.append(mask.reshape(-1)[chosen])
    return np.concatenate(seen), np.concatenate(answers)


def _learn(features: Wide, answers: NDArray[np.int64] | NDArray[np.bool_], units: int, least: float) -> Weights:
    mean, scale = features.mean(axis=0), features.std(axis=0) + 1e-6
    seen = (features - mean) / scale
    network = MLPClassifier((units,), max_iter=ROUNDS, alpha=1e-3, random_state=SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # ROUNDS epochs are enough; `least` is checked below
        network.fit(seen, answers)
    if (right := float(network.score(seen, answers))) < least:
        raise TrainingError(f"only {right:.0%} of the training data are classified correctly")
    (first, second), (first_bias, second_bias) = network.coefs_, network.intercepts_
    return Weights(mean, scale, first, first_bias, second, second_bias)


# ---- the graphs


class _Drawing:
    """The common part of both graphs."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.op = self.graph.op

    def constant(self, array: Wide) -> str:
        return self.graph.constant(array.astype(np.float32))

    def contrast(self) -> str:
        """Adds the contrast, [batch, 64, 64], and returns its name."""
        fit, basis = map(self.constant, _plane())
        flat = self.op("Reshape", "picture", self.graph.ints(0, 3, PIXELS))
        apart = self.op("Sub", flat, self.op("MatMul", self.op("MatMul", flat, fit), basis))
        length = self.op("ReduceL2", apart, self.graph.ints(1), keepdims=0)
        most = self.op("Add", self.op("ReduceMax", length, self.graph.ints(1)), self.graph.scalar(_LEAST))
        sharp = self.op("Tanh", self.op("Mul", self.op("Div", length, most), self.graph.scalar(SHARPER)))
        return self.op("Reshape", sharp, self.graph.ints(0, SIZE, SIZE))

    def model(self, name: str, result: str, kind: int, shape: list[str | int]) -> onnx.ModelProto:
        sees: list[str | int] = ["batch", 3, SIZE, SIZE]
        return self.graph.model(
            name, inputs={"picture": (TensorProto.FLOAT, sees)}, outputs={result: (kind, ["batch", *shape])}
        )


def build_classifier(weights: Weights) -> onnx.ModelProto:
    """Input `picture`: FP32 [batch, 3, 64, 64], 0 to 1. Output `probabilities`: FP32 [batch, 4]."""
    drawing = _Drawing()
    op, constant = drawing.op, drawing.constant
    real, imaginary = _waves()
    rows_real, rows_imaginary = constant(real[:, LOW - 1 :].T), constant(imaginary[:, LOW - 1 :].T)
    picture = drawing.contrast()
    across_real, across_imaginary = (op("MatMul", picture, constant(part)) for part in (real, imaginary))
    wave_real = op("Sub", op("MatMul", rows_real, across_real), op("MatMul", rows_imaginary, across_imaginary))
    wave_imaginary = op("Add", op("MatMul", rows_real, across_imaginary), op("MatMul", rows_imaginary, across_real))
    power = op("Add", op("Mul", wave_real, wave_real), op("Mul", wave_imaginary, wave_imaginary))
    flat = op("Reshape", power, drawing.graph.ints(0, -1))
    lowest = op("Gather", flat, drawing.graph.ints(LOW - 1), axis=1)
    seen = op("Log", op("Add", op("Div", flat, lowest), drawing.graph.scalar(_FAINTEST**2)))
    hidden = op(
        "Relu", op("Gemm", _scaled(drawing, seen, weights), constant(weights.first), constant(weights.first_bias))
    )
    scores = op("Gemm", hidden, constant(weights.second), constant(weights.second_bias))
    op("Softmax", scores, axis=-1, result="probabilities")
    return drawing.model("shape-classifier", "probabilities", TensorProto.FLOAT, [len(LABELS)])


def _scaled(drawing: _Drawing, x: str, weights: Weights) -> str:
    shifted = drawing.op("Sub", x, drawing.constant(weights.mean))
    return drawing.op("Div", shifted, drawing.constant(weights.scale))


def build_segmenter(weights: Weights) -> onnx.ModelProto:
    """Input `picture`: FP32 [batch, 3, 64, 64], 0 to 1. Output `mask`: UINT8 [batch, 64, 64], 255 inside the shape."""
    drawing = _Drawing()
    op, constant = drawing.op, drawing.constant
    picture = op("Unsqueeze", drawing.contrast(), drawing.graph.ints(1))
    # The normalization is folded into the first layer.
    first = weights.first / weights.scale[:, None]
    bias = weights.first_bias - weights.mean @ first
    kernel = constant(first.T.reshape(-1, 1, REACH, REACH))
    hidden = op("Relu", op("Conv", picture, kernel, constant(bias), pads=[REACH // 2] * 4))
    out = constant(weights.second.T.reshape(1, -1, 1, 1))
    scores = op("Conv", hidden, out, constant(weights.second_bias))
    inside = op("Cast", op("Greater", scores, drawing.graph.scalar(0)), to=TensorProto.UINT8)
    full = drawing.graph.constant(np.array(255, np.uint8), "full")
    op("Mul", op("Squeeze", inside, drawing.graph.ints(1)), full, result="mask")
    return drawing.model("shape-segmenter", "mask", TensorProto.UINT8, [SIZE, SIZE])
