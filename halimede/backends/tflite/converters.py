"""TensorFlow's converter to TensorFlow Lite, for `halimede convert`. Runs in TensorFlow's process (`converter`), and
imports nothing of this package.

A function gets an order: `source`, `target`, the `inputs` and `outputs` with name and shape, and the `parameters` of
the model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

Order = Mapping[str, Any]


def from_saved_model(order: Order) -> None:
    parameters = order["parameters"]
    signature = parameters.get("TF_SIGNATURE_DEF")
    converter = tf.lite.TFLiteConverter.from_saved_model(
        order["source"],
        signature_keys=[signature] if signature else None,
        tags=[parameters.get("TF_GRAPH_TAG", "serve")],
    )
    Path(order["target"]).write_bytes(converter.convert())


def from_graph(order: Order) -> None:
    shapes = {each["name"]: [None if size < 0 else size for size in each["shape"]] for each in order["inputs"]}
    outputs = [each["name"] for each in order["outputs"]]
    converter = tf.compat.v1.lite.TFLiteConverter.from_frozen_graph(order["source"], list(shapes), outputs, shapes)
    Path(order["target"]).write_bytes(converter.convert())
