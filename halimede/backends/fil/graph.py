"""A forest as a graph around one operator, `TreeEnsembleRegressor`. ONNX Runtime computes it faster than treelite's own
predictor does (docs/decisions/forests.md). Load threads.

The graph gives the same predictions: thresholds are moved to float32 so that no float32 falls on the other side.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from halimede.backends.fil.forest import Forest

Array = npt.NDArray[Any]

INPUT, OUTPUT, _SCORES = "rows", "values", "scores"
_LEAF, _COMPARES = 0, 1
"""Treelite's numbers for types of nodes; a third type has sets of categories."""
_MODES = {1: "BRANCH_EQ", 2: "BRANCH_LT", 3: "BRANCH_LEQ", 4: "BRANCH_GT", 5: "BRANCH_GTE"}
"""By treelite's number of the comparison."""
_OPERATORS = {
    "identity": "",
    "identity_multiclass": "",
    "exponential": "Exp",
    "sigmoid": "Sigmoid",
    "multiclass_ova": "Sigmoid",
    "softmax": "Softmax",
}
"""Postprocessors that ONNX has an operator for."""


def graph_of(forest: Forest) -> bytes | None:
    """The graph, from rows [n, features] of float32 to values [n, classes]. None if ONNX cannot express the forest,
    which has categorical splits or a rare postprocessor then."""
    post = str(forest.header("postprocessor"))
    operator = _OPERATORS.get(post)
    if operator is None or (operator == "Sigmoid" and float(forest.header("sigmoid_alpha")[0]) != 1):
        return None
    trees = _Trees(forest)
    if not trees.can_be_expressed:
        return None
    bases = np.array(forest.header("base_scores"), np.float64)[: forest.classes]
    nodes = [
        helper.make_node(
            "TreeEnsembleRegressor",
            [INPUT],
            [_SCORES if operator else OUTPUT],
            domain="ai.onnx.ml",
            n_targets=forest.classes,
            base_values=bases.tolist(),
            **trees.attributes,
        )
    ]
    if operator:
        nodes.append(helper.make_node(operator, [_SCORES], [OUTPUT]))
    graph = helper.make_graph(
        nodes,
        "forest",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", forest.features])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", forest.classes])],
    )
    versions = [helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("", 17)]
    content: bytes = helper.make_model(graph, opset_imports=versions, ir_version=8).SerializeToString()
    return content


class _Trees:
    """The attributes of the operator: a list for each property of the nodes of all trees, and of the leaves."""

    def __init__(self, forest: Forest) -> None:
        self.can_be_expressed = True
        self.attributes: dict[str, Any] = {}
        self._lists: dict[str, list[Any]] = {}
        count = forest.model.num_tree
        per_class = count if forest.is_of_vectors else count // forest.classes
        self._scale = 1 / per_class if bool(forest.header("average_tree_output")[0]) else 1.0
        self._classes = forest.header("class_id")
        for number in range(count):
            if not self._add(forest, number):
                self.can_be_expressed = False
                return
        self.attributes = self._lists

    def _extend(self, **columns: Any) -> None:
        for name, values in columns.items():
            self._lists.setdefault(name, []).extend(values if isinstance(values, list) else values.tolist())

    def _add(self, forest: Forest, number: int) -> bool:
        """Adds a tree. False if it has a split that is no comparison."""
        kinds = forest.tree(number, "node_type")
        is_leaf = kinds == _LEAF
        if not (is_leaf | (kinds == _COMPARES)).all():
            return False
        comparisons = forest.tree(number, "cmp")
        thresholds = narrowed(forest.tree(number, "threshold"), comparisons)
        count = len(kinds)
        self._extend(
            nodes_treeids=[number] * count,
            nodes_nodeids=list(range(count)),
            nodes_featureids=np.where(is_leaf, 0, forest.tree(number, "split_index")).astype(int),
            nodes_values=np.where(is_leaf, 0, thresholds).astype(float),
            nodes_modes=[
                "LEAF" if leaf else _MODES[int(each)] for leaf, each in zip(is_leaf, comparisons, strict=True)
            ],
            nodes_truenodeids=np.where(is_leaf, 0, forest.tree(number, "cleft")).astype(int),
            nodes_falsenodeids=np.where(is_leaf, 0, forest.tree(number, "cright")).astype(int),
            nodes_missing_value_tracks_true=np.where(is_leaf, 0, forest.tree(number, "default_left")).astype(int),
        )
        leaves = np.flatnonzero(is_leaf)
        width = forest.classes if forest.is_of_vectors else 1
        values = forest.tree(number, "leaf_vector") if width > 1 else forest.tree(number, "leaf_value")[leaves]
        # The vectors of all leaves are one after the other, in the order of the leaves.
        targets = list(range(width)) * len(leaves) if width > 1 else [max(int(self._classes[number]), 0)] * len(leaves)
        self._extend(
            target_treeids=[number] * (len(leaves) * width),
            target_nodeids=np.repeat(leaves, width),
            target_ids=targets,
            target_weights=(values.astype(float) * self._scale).reshape(-1),
        )
        return True


def narrowed(thresholds: Array, comparisons: Array) -> Array:
    """Thresholds as float32, such that each float32 is on the same side as of the float64: `x <= t` holds for the same
    x if t is rounded down, and `x < t` if it is rounded up. An equality keeps its value."""
    if thresholds.dtype == np.float32:
        return thresholds
    with np.errstate(over="ignore"):
        nearest = thresholds.astype(np.float32)
    down = np.isin(comparisons, (3, 4)) & (nearest > thresholds)
    up = np.isin(comparisons, (2, 5)) & (nearest < thresholds)
    result = np.where(down, np.nextafter(nearest, np.float32(-np.inf)), nearest)
    narrow: Array = np.where(up, np.nextafter(result, np.float32(np.inf)), result)
    return narrow
