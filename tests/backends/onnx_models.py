"""Small ONNX models for the tests, built with the `onnx` package."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

Dims = Sequence[int | str | None] | None

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}


def value(name: str, datatype: str, dims: Dims) -> Any:
    return helper.make_tensor_value_info(name, TYPES[datatype], dims)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: dict[str, npt.NDArray[Any]] | None = None,
) -> bytes:
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


def identity(datatype: str, dims: Dims) -> bytes:
    """y = x"""
    node = helper.make_node("Identity", ["x"], ["y"])
    return model([node], [value("x", datatype, dims)], [value("y", datatype, dims)])


def add_and_subtract(dims: Dims) -> bytes:
    """sum = a + b, difference = a - b"""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    return model(
        nodes, [value(n, "FP32", dims) for n in ("a", "b")], [value(n, "FP32", dims) for n in ("sum", "difference")]
    )


def mlp(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bytes:
    """y = relu(x @ first) @ second"""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], ["y"]),
    ]
    sizes = (value("x", "FP32", ["batch", first.shape[0]]), value("y", "FP32", ["batch", second.shape[1]]))
    return model(nodes, sizes[:1], sizes[1:], {"first": first, "second": second})


def row_sums() -> bytes:
    """y[i] = sum of x[i, :]: an output with nothing but the batch dimension"""
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    axes = {"axes": np.array([1], dtype=np.int64)}
    return model([node], [value("x", "FP32", ["batch", 4])], [value("y", "FP32", ["batch"])], axes)


def halves() -> bytes:
    """y = x with each row cut in two: twice as many rows as the batch has"""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    shape = {"shape": np.array([-1, 2], dtype=np.int64)}
    return model([node], [value("x", "FP32", ["batch", 4])], [value("y", "FP32", ["rows", 2])], shape)


def overridable() -> bytes:
    """y = x + bias, where a request may bring its own bias"""
    node = helper.make_node("Add", ["x", "bias"], ["y"])
    inputs = [value("x", "FP32", [2]), value("bias", "FP32", [2])]
    return model([node], inputs, [value("y", "FP32", [2])], {"bias": np.ones(2, np.float32)})


def lookup() -> bytes:
    """y = table[x], of three rows: an index beyond them is a failure while the model runs"""
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    table = {"table": np.array([10, 20, 30], dtype=np.float32)}
    return model([node], [value("x", "INT64", ["batch", 1])], [value("y", "FP32", ["batch", 1])], table)


def sequence() -> bytes:
    """q = [x]: an output that is no tensor"""
    node = helper.make_node("SequenceConstruct", ["x"], ["q"])
    output = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None)
    return model([node], [value("x", "FP32", ["n"])], [output])


def float8() -> bytes:
    """y = x in 8 bits: a datatype that the protocol does not have"""
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT8E4M3FN, ["n"])
    graph = helper.make_graph([node], "g", [value("x", "FP32", ["n"])], [output])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return bytes(made.SerializeToString())


def text_and_brain_float() -> bytes:
    """Passes a text and a BF16 tensor on"""
    nodes = [helper.make_node("Identity", ["t"], ["u"]), helper.make_node("Identity", ["x"], ["y"])]
    inputs = [value("t", "BYTES", [1]), value("x", "BF16", [1])]
    return model(nodes, inputs, [value("u", "BYTES", [1]), value("y", "BF16", [1])])


def facts_of_a_batch(rank: int) -> bytes:
    """y = as many rows as x has pairs of elements, each: the number of elements of x, and the shape of n, of that
    rank"""
    nodes = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Shape", ["n"], ["shape"]),
        helper.make_node("Concat", ["size", "shape"], ["facts"], axis=0),
        helper.make_node("Unsqueeze", ["facts", "zero"], ["row"]),
        helper.make_node("Div", ["size", "two"], ["pairs"]),
        helper.make_node("Concat", ["pairs", "one"], ["repeats"], axis=0),
        helper.make_node("Tile", ["row", "repeats"], ["y"]),
    ]
    inputs = [value("x", "FP32", ["all"]), value("n", "INT32", [f"d{i}" for i in range(rank)])]
    constants = {name: np.array([i], np.int64) for i, name in enumerate(("zero", "one", "two"))}
    return model(nodes, inputs, [value("y", "INT64", ["batch", 1 + rank])], constants)


def sums_by_bounds() -> bytes:
    """y[i, 0] = sum of x[n[i]] to x[n[i + 1] - 1]"""
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["behind"]),
        helper.make_node("Concat", ["none", "behind"], ["sums"], axis=0),
        helper.make_node("Gather", ["sums", "n"], ["at"]),
        helper.make_node("Slice", ["at", "zero", "last"], ["begins"]),
        helper.make_node("Slice", ["at", "one", "far"], ["ends"]),
        helper.make_node("Sub", ["ends", "begins"], ["totals"]),
        helper.make_node("Unsqueeze", ["totals", "one"], ["y"]),
    ]
    constants: dict[str, npt.NDArray[Any]] = {
        "axis": np.array(0, np.int64),
        "none": np.zeros(1, np.float32),
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "last": np.array([-1], np.int64),
        "far": np.array([2**60], np.int64),
    }
    inputs = [value("x", "FP32", ["all"]), value("n", "INT32", ["bounds"])]
    return model(nodes, inputs, [value("y", "FP32", ["batch", 1])], constants)
