"""What `value_flow` needs of a model of OpenVINO."""

from typing import Any

from halimede.backends import value_flow
from halimede.backends.value_flow import Node, Operators

_OPERATORS = Operators(
    loops=frozenset({"If", "Loop", "TensorIterator"}),
    sizes={
        "AdaptiveAvgPool": frozenset({1}),
        "AdaptiveMaxPool": frozenset({1}),
        "BatchToSpace": frozenset({1, 2, 3}),
        "Broadcast": frozenset({1}),
        "ConvolutionBackpropData": frozenset({2}),
        "DFT": frozenset({2}),
        "EmbeddingSegmentsSum": frozenset({3}),
        "Eye": frozenset({0, 1, 3}),
        "GroupConvolutionBackpropData": frozenset({2}),
        "IDFT": frozenset({2}),
        "IRDFT": frozenset({2}),
        "Interpolate": frozenset({1, 2}),
        "Multinomial": frozenset({1}),
        "OneHot": frozenset({1}),
        "Pad": frozenset({1, 2}),
        "PriorBox": frozenset({0, 1}),
        "PriorBoxClustered": frozenset({0, 1}),
        "RDFT": frozenset({2}),
        "RandomUniform": frozenset({0}),
        "Range": frozenset({0, 1, 2}),
        "SpaceToBatch": frozenset({1, 2, 3}),
        "Tile": frozenset({1}),
    },
    shapes=frozenset({"ShapeOf"}),
)
_SOURCES = frozenset({"Parameter", "ReadValue"})
"""Kinds of nodes that bring values: inputs, and states, which are made of earlier inputs."""


def values_decide(model: Any) -> bool:
    """Whether values in the input may decide the work of a run."""
    nodes = [
        Node(
            op.get_type_name(),
            [each.get_source_output().get_node().get_name() for each in op.inputs()],
            [op.get_name()],
        )
        for op in model.get_ordered_ops()
    ]
    inputs = [name for node in nodes if node.kind in _SOURCES for name in node.gives]
    return value_flow.values_decide(nodes, inputs, _OPERATORS)
