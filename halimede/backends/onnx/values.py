"""What `value_flow` needs of an ONNX file. Reads the nodes straight from the mapped file and skips the weights. Pure,
any thread.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from halimede.backends import value_flow
from halimede.backends.value_flow import Node, Operators
from halimede.backends.wire_format import Range, find, text

# Field numbers of onnx.proto: ModelProto.graph and functions, FunctionProto.node, GraphProto.node, initializer and
# input, TensorProto.name, ValueInfoProto.name, NodeProto.input, output, op_type and attribute, AttributeProto.g
# and graphs.
_GRAPH, _FUNCTIONS, _FUNCTION_NODE = 7, 25, 7
_NODE, _INITIALIZER, _INPUT = 1, 5, 11
_TENSOR_NAME, _VALUE_NAME = 8, 1
_TAKES, _GIVES, _TYPE, _ATTRIBUTE, _SUBGRAPHS = 1, 2, 4, 5, (6, 11)

MAX_NODES = 200_000
"""Nodes that are looked at, some seconds of work. A graph with more is taken for one that values decide."""
_HIDING = "Loop"
"""The kind of a node that may hide a loop, or a tensor that values size, in a branch."""
_OPERATORS = Operators(
    loops=frozenset({_HIDING, "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}),
    sizes={
        "AffineGrid": frozenset({1}),
        "BlackmanWindow": frozenset({0}),
        "CenterCropPad": frozenset({1}),
        "Col2Im": frozenset({1}),
        "ConstantOfShape": frozenset({0}),
        "CropAndResize": frozenset({3}),
        "DFT": frozenset({1}),
        "Expand": frozenset({1}),
        "HammingWindow": frozenset({0}),
        "HannWindow": frozenset({0}),
        "MaxUnpool": frozenset({2}),
        "MelWeightMatrix": frozenset({0, 1}),
        "OneHot": frozenset({1}),
        "Pad": frozenset({1}),
        "Range": frozenset({0, 1, 2}),
        "Resize": frozenset({1, 2, 3}),
        "Tile": frozenset({1, 2}),
        "Upsample": frozenset({1}),
    },
    shapes=frozenset({"Shape", "Size"}),
)


def values_decide(path: str) -> bool:
    """Whether values decide the work of a run. True for a file that is no ONNX protobuf, whose nodes are not known."""
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            whole = 0, len(view)
            bodies = (node for body in find(view, whole, _FUNCTIONS) for node in find(view, body, _FUNCTION_NODE))
            if any(_may_decide(view, node) for node in bodies):
                return True
            return any(_decided(view, graph) for graph in find(view, whole, _GRAPH))
    except (IndexError, OSError, RecursionError, ValueError):
        return True


def _decided(view: mmap.mmap, graph: Range) -> bool:
    given = {name for value in find(view, graph, _INPUT) for name in _texts(view, value, _VALUE_NAME)}
    # Old exporters list every weight as an input.
    weights = [name for tensor in find(view, graph, _INITIALIZER) for name in _texts(view, tensor, _TENSOR_NAME)]
    return value_flow.values_decide(_nodes(view, graph), given.difference(weights), _OPERATORS)


def _nodes(view: mmap.mmap, graph: Range) -> Iterator[Node]:
    for number, node in enumerate(find(view, graph, _NODE)):
        hides = number >= MAX_NODES or (_subgraphs(view, node) and _may_decide(view, node))
        kind = _HIDING if hides else _kind(view, node)
        yield Node(kind, list(_texts(view, node, _TAKES)), list(_texts(view, node, _GIVES)))


def _may_decide(view: mmap.mmap, node: Range) -> bool:
    """Whether a node, or one in the graphs within it, is of a kind that values can size. Values are not followed into
    functions and branches."""
    kind = _kind(view, node)
    return (
        kind in _OPERATORS.loops
        or kind in _OPERATORS.sizes
        or any(_may_decide(view, each) for graph in _subgraphs(view, node) for each in find(view, graph, _NODE))
    )


def _subgraphs(view: mmap.mmap, node: Range) -> list[Range]:
    return [graph for attribute in find(view, node, _ATTRIBUTE) for graph in find(view, attribute, *_SUBGRAPHS)]


def _kind(view: mmap.mmap, node: Range) -> str:
    return next(_texts(view, node, _TYPE), "")


def _texts(view: mmap.mmap, within: Range, number: int) -> Iterator[str]:
    return (text(view, place) for place in find(view, within, number))
