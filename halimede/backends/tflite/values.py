"""What `value_flow` needs of a model of TensorFlow Lite."""

from typing import Any

from halimede.backends import value_flow
from halimede.backends.value_flow import Node, Operators

_OPERATORS = Operators(
    loops=frozenset({"CALL_ONCE", "IF", "STABLEHLO_WHILE", "WHILE"}),
    sizes={
        "BATCH_TO_SPACE_ND": frozenset({1, 2}),
        "BROADCAST_TO": frozenset({1}),
        "CONV_3D_TRANSPOSE": frozenset({0}),
        "FILL": frozenset({0}),
        "MIRROR_PAD": frozenset({1}),
        "MULTINOMIAL": frozenset({1}),
        "ONE_HOT": frozenset({1}),
        "PAD": frozenset({1}),
        "PADV2": frozenset({1}),
        "RANDOM_STANDARD_NORMAL": frozenset({0}),
        "RANDOM_UNIFORM": frozenset({0}),
        "RANGE": frozenset({0, 1, 2}),
        "RESIZE_BILINEAR": frozenset({1}),
        "RESIZE_NEAREST_NEIGHBOR": frozenset({1}),
        "RFFT2D": frozenset({1}),
        "SCATTER_ND": frozenset({2}),
        "SEGMENT_SUM": frozenset({1}),
        "SPACE_TO_BATCH_ND": frozenset({1, 2}),
        "SPARSE_TO_DENSE": frozenset({1}),
        "TILE": frozenset({1}),
        "TRANSPOSE_CONV": frozenset({0}),
        "UNSORTED_SEGMENT_MAX": frozenset({2}),
        "UNSORTED_SEGMENT_MIN": frozenset({2}),
        "UNSORTED_SEGMENT_PROD": frozenset({2}),
        "UNSORTED_SEGMENT_SUM": frozenset({2}),
    },
    shapes=frozenset({"RANK", "SHAPE"}),
)


def values_decide(interpreter: Any) -> bool:
    """Whether values in the input may decide the work of a run (`value_flow`)."""
    # The runtime lists the operators of the first signature only, and not in its public interface.
    if len(interpreter.get_signature_list()) > 1 or not hasattr(interpreter, "_get_ops_details"):
        return True
    nodes = [
        Node(each["op_name"], each["inputs"].tolist(), each["outputs"].tolist())
        for each in interpreter._get_ops_details()
    ]
    inputs = [each["index"] for each in interpreter.get_input_details()]
    return any(node.kind.startswith("Flex") for node in nodes) or value_flow.values_decide(nodes, inputs, _OPERATORS)
