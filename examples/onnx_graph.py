"""Writes an ONNX model node by node, for the models of the demo.

Uses only standard operators of one opset, so every ONNX runtime can read the result. Knows nothing of any model.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

OPSET, IR_VERSION = 20, 10  # Gelu needs opset 20, LayerNormalization 17; older opsets need many nodes for each

Kind = tuple[int, list[str | int]]  # of an input or output: TensorProto type and axes; a variable axis has a name


class Graph:
    """Collects nodes and constants. Each method that adds one returns the name of its result."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        result = result or f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [result], name=result, **attributes))
        return result

    def ops(self, kind: str, *inputs: str, results: int, **attributes: Any) -> list[str]:
        """Adds a node with several results, and returns their names."""
        names = [f"{kind}_{len(self._nodes)}_{i}" for i in range(results)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], **attributes))
        return names

    def constant(self, value: NDArray[Any], name: str = "") -> str:
        """Adds a constant. If there is a constant of this name already, it is used and `value` is ignored."""
        name = name or f"constant_{len(self._constants)}"
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64), "ints_" + "_".join(map(str, values)))

    def scalar(self, value: float) -> str:
        return self.constant(np.array(value, np.float32), f"scalar_{value}")

    def model(self, name: str, inputs: Mapping[str, Kind], outputs: Mapping[str, Kind]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            name,
            inputs=[helper.make_tensor_value_info(key, *value) for key, value in inputs.items()],
            outputs=[helper.make_tensor_value_info(key, *value) for key, value in outputs.items()],
            initializer=list(self._constants.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
