"""Trains a detector of telephone keys in a stream of audio, a GRU, and writes it as ONNX.

A key is two simultaneous tones, one of four low and one of four high frequencies. The detector gets 20 ms at a time,
and reports a key if both tones last for 60 ms, so it needs a state. The state is an input and an output of the model,
`state` and `next_state`, which the server keeps for each stream (`models/keypad/config.pbtxt`).

Knows the training and the graph; does not know the repository.
"""

from typing import NamedTuple

import numpy as np
import onnx
from keypad_audio import CLASSES, FRAME, Wide, make_clip
from numpy.typing import NDArray
from onnx import TensorProto
from onnx_graph import Graph
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

UNITS = 32
BINS = np.arange(12, 36)  # the bins of 50 Hz that the detector sees: 600 to 1750 Hz
SEED = 0
CLIPS = 360
ROUNDS, BATCH, RATE = 28, 40, 1.2e-2


class TrainingError(Exception):
    """The training failed. The message gives the reason."""


# ---- the features


def _kernel() -> tuple[Wide, Wide]:
    """The windowed discrete Fourier transform of a frame: real and imaginary part, [FRAME, bins]."""
    angle = 2 * np.pi * np.outer(np.arange(FRAME), BINS) / FRAME
    window = np.hanning(FRAME)[:, None]
    return np.cos(angle) * window, np.sin(angle) * window


def features(samples: NDArray[np.float32]) -> Wide:
    """Returns the logarithm of the power at each frequency: [..., frames, bins]."""
    frames = samples.reshape(*samples.shape[:-1], -1, FRAME).astype(np.float64)
    real, imaginary = _kernel()
    return np.asarray(np.log((frames @ real) ** 2 + (frames @ imaginary) ** 2 + _FLOOR) * _SCALE + _SHIFT)


_FLOOR, _SCALE, _SHIFT = 1e-3, 0.25, 0.3  # these put the features roughly between -1.5 and 1.5


# ---- the network


class Weights(NamedTuple):
    """The weights of a GRU and of its output layer. The gates are in ONNX's order: update, reset, hidden."""

    of_input: Wide  # [bins, 3 units]
    of_state: Wide  # [units, 3 units]
    bias: Wide  # [3 units]
    state_bias: Wide  # [units], of the hidden gate's recurrent part, which the reset gate multiplies
    out: Wide  # [units, classes]
    out_bias: Wide  # [classes]


def _first_weights(random: np.random.Generator) -> Weights:
    bins = len(BINS)
    return Weights(
        random.normal(0, bins**-0.5, (bins, 3 * UNITS)),
        random.normal(0, UNITS**-0.5, (UNITS, 3 * UNITS)),
        np.zeros(3 * UNITS),
        np.zeros(UNITS),
        random.normal(0, UNITS**-0.5, (UNITS, CLASSES)),
        np.zeros(CLASSES),
    )


def _sigmoid(x: Wide) -> Wide:
    return np.asarray(0.5 * np.tanh(0.5 * x) + 0.5)


def _gradients(weights: Weights, x: Wide, labels: NDArray[np.int64]) -> tuple[float, Weights]:
    """Returns the mean cross-entropy of `x` [time, batch, bins] and its gradients, by backpropagation through time."""
    of_input, of_state, bias, state_bias, out, out_bias = weights
    times, batch, _ = x.shape
    projected = x @ of_input + bias
    state = np.zeros((batch, UNITS))
    kept = []
    for t in range(times):
        gates = state @ of_state
        update, reset = np.split(_sigmoid(projected[t, :, : 2 * UNITS] + gates[:, : 2 * UNITS]), 2, axis=1)
        inner = gates[:, 2 * UNITS :] + state_bias
        hidden = np.tanh(projected[t, :, 2 * UNITS :] + reset * inner)
        following = hidden + update * (state - hidden)
        kept.append((state, update, reset, inner, hidden, following))
        state = following
    states = np.stack([each[-1] for each in kept])
    scores = states @ out + out_bias
    scores -= scores.max(axis=-1, keepdims=True)
    odds = np.exp(scores)
    odds /= odds.sum(axis=-1, keepdims=True)
    hit = np.take_along_axis(odds, labels[..., None], axis=-1)
    d_scores = odds
    np.put_along_axis(d_scores, labels[..., None], hit - 1, axis=-1)
    d_scores /= labels.size
    d_states = d_scores @ out.T
    d_projected = np.empty_like(projected)
    d_gates_all = np.empty_like(projected)
    d_state = np.zeros((batch, UNITS))
    for t in range(times - 1, -1, -1):
        state, update, reset, inner, hidden, _ = kept[t]
        d_following = d_states[t] + d_state
        d_hidden = d_following * (1 - update) * (1 - hidden**2)
        d_update = d_following * (state - hidden) * update * (1 - update)
        d_reset = d_hidden * inner * reset * (1 - reset)
        d_projected[t] = np.concatenate([d_update, d_reset, d_hidden], axis=1)
        d_gates_all[t] = np.concatenate([d_update, d_reset, d_hidden * reset], axis=1)
        d_state = d_following * update + d_gates_all[t] @ of_state.T
    before = np.stack([each[0] for each in kept])
    flat = (-1, 3 * UNITS)
    return float(-np.log(hit + 1e-12).mean()), Weights(
        x.reshape(-1, x.shape[-1]).T @ d_projected.reshape(flat),
        before.reshape(-1, UNITS).T @ d_gates_all.reshape(flat),
        d_projected.sum(axis=(0, 1)),
        d_gates_all[..., 2 * UNITS :].sum(axis=(0, 1)),
        states.reshape(-1, UNITS).T @ d_scores.reshape(-1, CLASSES),
        d_scores.sum(axis=(0, 1)),
    )


def train() -> Weights:
    """Trains the detector. Gives the same weights at each call on one machine. Raises TrainingError."""
    with threadpool_limits(1):  # the matrices are small: more threads only wait for each other
        return _train()


def _train() -> Weights:
    random = np.random.default_rng(SEED)
    clips = [make_clip(random) for _ in range(CLIPS)]
    seen = features(np.stack([clip.samples for clip in clips])).transpose(1, 0, 2)
    labels = np.stack([clip.labels for clip in clips], axis=1)
    weights = _first_weights(random)
    mean, square = ([np.zeros_like(part) for part in weights] for _ in range(2))
    steps, loss = 0, np.inf
    total = ROUNDS * (CLIPS // BATCH)
    for _ in range(ROUNDS):
        for chosen in np.split(random.permutation(CLIPS), CLIPS // BATCH):
            loss, slopes = _gradients(weights, seen[:, chosen], labels[:, chosen])
            steps += 1
            rate = RATE * (1 - steps / (total + 1))
            for part, slope, m, s in zip(weights, slopes, mean, square, strict=True):  # Adam
                m += 0.1 * (slope - m)
                s += 0.01 * (slope**2 - s)
                part -= rate * (m / (1 - 0.9**steps)) / (np.sqrt(s / (1 - 0.99**steps)) + 1e-8)
    if not loss < 0.2:
        raise TrainingError(f"the loss is still {loss:.3f}")
    return weights


def build_detector(weights: Weights) -> onnx.ModelProto:
    """Writes the detector as ONNX.

    Inputs: `audio` FP32 [batch, samples], samples a multiple of 160, and `state` FP32 [batch, 32]. Outputs: `keys` FP32
    [batch, frames, 17], the probabilities of each key and of no key, and `next_state`."""
    graph = Graph()

    def constant(array: Wide) -> str:
        return graph.constant(array.astype(np.float32))

    frames = graph.op("Reshape", "audio", graph.ints(0, -1, FRAME))
    real, imaginary = (graph.op("MatMul", frames, constant(part)) for part in _kernel())
    power = graph.op("Add", graph.op("Mul", real, real), graph.op("Mul", imaginary, imaginary))
    logarithm = graph.op("Log", graph.op("Add", power, graph.scalar(_FLOOR)))
    seen = graph.op("Add", graph.op("Mul", logarithm, graph.scalar(_SCALE)), graph.scalar(_SHIFT))
    in_time = graph.op("Transpose", seen, perm=[1, 0, 2])
    biases = np.concatenate([weights.bias, np.zeros(2 * UNITS), weights.state_bias])
    parts = [constant(part[None]) for part in (weights.of_input.T, weights.of_state.T, biases)]
    first = graph.op("Unsqueeze", "state", graph.ints(0))
    states, last = graph.ops("GRU", in_time, *parts, "", first, results=2, hidden_size=UNITS, linear_before_reset=1)
    graph.op("Squeeze", last, graph.ints(0), result="next_state")
    rows = graph.op("Transpose", graph.op("Squeeze", states, graph.ints(1)), perm=[1, 0, 2])
    scores = graph.op("Add", graph.op("MatMul", rows, constant(weights.out)), constant(weights.out_bias))
    graph.op("Softmax", scores, axis=-1, result="keys")
    return graph.model(
        "keypad",
        inputs={
            "audio": (TensorProto.FLOAT, ["batch", "samples"]),
            "state": (TensorProto.FLOAT, ["batch", UNITS]),
        },
        outputs={
            "keys": (TensorProto.FLOAT, ["batch", "frames", CLASSES]),
            "next_state": (TensorProto.FLOAT, ["batch", UNITS]),
        },
    )
