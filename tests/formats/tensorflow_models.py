"""Builds models of TensorFlow and TensorFlow Lite: `python tensorflow_models.py FOLDER`, where tensorflow is installed.

Each model NAME becomes FOLDER/NAME.savedmodel, and if it can be converted FOLDER/NAME.tflite. `frozen.graphdef` is a
frozen graph. Imports nothing of this repository: it runs in an environment of its own."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

Compute = Callable[..., Mapping[str, Any]]
WIDTHS = (2, 512, 4096, None)
TYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "bfloat16", "string", "complex64"),
)


def spec(name: str, dims: Sequence[int | None] | None, kind: str = "float32") -> Any:
    return tf.TensorSpec(dims, tf.as_dtype(kind), name=name)


def echo(dims: Sequence[int | None] | None, kind: str = "float32") -> tuple[Sequence[Any], Compute]:
    return [spec("INPUT0", dims, kind)], lambda INPUT0: {"OUTPUT0": tf.identity(INPUT0)}  # noqa: N803


def with_control(INPUT0: Any, READY: Any) -> Mapping[str, Any]:  # noqa: N803
    return {"OUTPUT0": INPUT0 + READY * 0}


def failing(INPUT0: Any) -> Mapping[str, Any]:  # noqa: N803
    with tf.control_dependencies([tf.debugging.assert_non_negative(INPUT0[:, :1], message="negative")]):
        return {"OUTPUT0": tf.identity(INPUT0)}


def models() -> Mapping[str, tuple[Sequence[Any], Compute]]:
    """Inputs and function of each model."""
    return {
        **{f"echo_{width}": echo([None, width]) for width in WIDTHS},
        "flat_2": echo([2]),
        "flat_1_2": echo([1, 2]),
        "elements": echo([None]),
        "scalar": echo([]),
        "any_rank": echo(None),
        "bytes_2": echo([None, 2], "string"),
        **{f"type_{kind}": echo([None, 2], kind) for kind in TYPES},
        "control": ([spec("INPUT0", [None, 2]), spec("READY", [None, 1])], with_control),
        "failing": ([spec("INPUT0", [None, 2])], failing),
        "less": ([spec("INPUT0", [None, 2])], lambda INPUT0: {"OUTPUT0": INPUT0[1:]}),  # noqa: N803
        "counted": ([spec("x", [1])], lambda x: {"y": tf.range(tf.cast(x[0], tf.int32))}),
        "two": (
            [spec("a", [None, 2]), spec("b", [None, 2])],
            lambda a, b: {"sum": a + b, "difference": a - b, "wide": tf.tile(a, [1, tf.shape(a)[1]])},
        ),
    }


def save(folder: Path, name: str, inputs: Sequence[Any], compute: Compute) -> None:
    module = tf.Module()
    module.run = tf.function(compute, input_signature=inputs)
    path = str(folder / f"{name}.savedmodel")
    tf.saved_model.save(module, path, signatures={"serving_default": module.run})
    try:
        converter = tf.lite.TFLiteConverter.from_saved_model(path)
        (folder / f"{name}.tflite").write_bytes(converter.convert())
    except Exception as error:  # TensorFlow Lite lacks some types and operators
        print(f"{name} has no form for TensorFlow Lite: {str(error)[:100]}")


def save_signatures(folder: Path) -> None:
    """A model with two signatures, none of which is the default."""
    module = tf.Module()
    given = [spec("x", [None, 2])]
    module.twice = tf.function(lambda x: {"y": x + x}, input_signature=given)
    module.negative = tf.function(lambda x: {"y": -x}, input_signature=given)
    tf.saved_model.save(
        module, str(folder / "named.savedmodel"), signatures={"twice": module.twice, "negative": module.negative}
    )


def save_graph(folder: Path) -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
        s = tf.compat.v1.placeholder(tf.string, [None], name="s")
        weights = tf.constant(np.eye(4, dtype=np.float32) * 2)
        tf.identity(tf.linalg.matmul(x, weights), name="twice")
        tf.negative(x, name="negative")
        tf.strings.join([s, s], name="doubled")
    (folder / "frozen.graphdef").write_bytes(graph.as_graph_def().SerializeToString())


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (inputs, compute) in models().items():
        save(folder, name, inputs, compute)
    save_signatures(folder)
    save_graph(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
