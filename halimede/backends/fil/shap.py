"""SHAP values of a forest: how much each feature moved a prediction away from the mean prediction (BX12).

Path-dependent TreeSHAP, as the training libraries compute it for `pred_contribs`, for any forest that treelite reads. A
leaf contributes to each feature on its path. Let z be the part of the training rows that follow the path at the splits
of a feature, and o whether the row at hand does. The average over all orders of the features is then an integral:

    leaf * (o_j - z_j) * integral over t in [0, 1] of the product over i != j of (z_i * (1 - t) + o_i * t)

The product is a polynomial, so Gauss-Legendre quadrature with few points is exact. This needs no recursion and no
special cases, and runs on all rows and paths at once. Load threads make a `Shap`; any thread may call it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.backends.fil.forest import Forest
from halimede.errors import Cause, Unsupported

Array = npt.NDArray[Any]

MAX_DEPTH = 32
_LEAF, _CATEGORICAL = 0, 2
"""Treelite's numbers for types of nodes."""
_COMPARISONS = {1: np.equal, 2: np.less, 3: np.less_equal, 4: np.greater, 5: np.greater_equal}
"""By treelite's number of the operator."""
_LARGEST_CATEGORY = float(1 << 24)
"""Above this, float32 has no odd numbers. Treelite finds such a category in no set."""
_SMALLEST_PART = 1e-30
_BLOCK = 4_000_000
"""Numbers in an intermediate array, for a block of rows."""


@dataclass(slots=True)
class _Path:
    """A path from a root to a leaf: the splits of each feature as (split, whether the path goes left)."""

    splits: dict[int, list[tuple[int, bool]]]
    parts: dict[int, float]
    leaf: Array


@dataclass(frozen=True, slots=True)
class _Split:
    """A split. `categories` are those of a categorical one, else None; `in_right` says that they go right."""

    feature: int
    default_left: bool
    operator: int
    threshold: Any
    categories: Array | None
    in_right: bool


class _Paths:
    """The paths of a forest that have equally many features, as arrays."""

    def __init__(self, paths: Sequence[_Path], features: int) -> None:
        size = len(paths[0].splits)
        self.features = np.array([list(path.splits) for path in paths]).T.copy()  # [size, paths]
        parts = np.array([[path.parts[feature] for feature in path.splits] for path in paths]).T
        self.parts = np.maximum(parts, _SMALLEST_PART)
        splits = [split for k in range(size) for path in paths for split in list(path.splits.values())[k]]
        counts = [len(list(path.splits.values())[k]) for k in range(size) for path in paths]
        self.splits = np.array([split for split, _ in splits])
        self.goes_left = np.array([left for _, left in splits])
        self.starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self.leaves = np.array([path.leaf for path in paths]).T.copy()  # [outputs, paths]
        points, weights = np.polynomial.legendre.leggauss((size + 1) // 2)
        self.points, self.weights = (points + 1) / 2, weights / 2

    def add(self, left: Array, result: Array) -> None:
        """Adds the contributions for rows whose decisions are `left` [rows, splits] to `result` [rows, outputs,
        features + 1]."""
        size, paths = self.features.shape
        follows = np.logical_and.reduceat(left[:, self.splits] == self.goes_left, self.starts, axis=1)
        ones = follows.reshape(len(left), size, paths)
        sums = np.zeros(ones.shape)
        for point, weight in zip(self.points, self.weights, strict=True):
            factors = self.parts * (1 - point) + ones * point
            sums += weight * factors.prod(axis=1, keepdims=True) / factors
        sums *= ones - self.parts
        width = result.shape[2]
        places = self.features.reshape(-1)
        for row, of_row in zip(result, sums, strict=True):
            for output, leaves in zip(row, self.leaves, strict=True):
                output += np.bincount(places, (of_row * leaves).reshape(-1), minlength=width)


class Shap:
    """Computes SHAP values. The last of a row's values is the bias, so a row adds up to the margin.

    Raises Unsupported if the file lacks the numbers of training rows, or has deep trees.
    """

    def __init__(self, forest: Forest) -> None:
        self._features, self._outputs = forest.features, forest.classes
        self._splits: list[_Split] = []
        self._bias = np.array(forest.header("base_scores"), np.float64)[: self._outputs].copy()
        groups: defaultdict[int, list[_Path]] = defaultdict(list)
        for path in self._paths_of(forest):
            self._bias += path.leaf * np.prod(list(path.parts.values()))
            if path.splits:
                groups[len(path.splits)].append(path)
        self._groups = [_Paths(paths, self._features) for paths in groups.values()]
        self._by_comparison = self._grouped()
        widest = max((group.features.size for group in self._groups), default=1)
        self._rows = max(1, _BLOCK // widest)

    def __call__(self, rows: Array) -> Array:
        """SHAP values [rows, outputs, features + 1] as float32, for rows in the dtype of the forest."""
        result = np.zeros((len(rows), self._outputs, self._features + 1))
        result[:, :, -1] = self._bias
        for start in range(0, len(rows), self._rows):
            block = slice(start, start + self._rows)
            left = self._left(rows[block])
            for group in self._groups:
                group.add(left, result[block])
        return result.astype(np.float32)

    def _paths_of(self, forest: Forest) -> Iterator[_Path]:
        trees = forest.model.num_tree
        per_output = trees if forest.is_of_vectors else trees // self._outputs
        scale = 1 / per_output if bool(forest.header("average_tree_output")[0]) else 1.0
        classes = forest.header("class_id")
        for number in range(trees):
            yield from self._paths_of_tree(forest, number, int(classes[number]), scale)

    def _paths_of_tree(self, forest: Forest, number: int, output: int, scale: float) -> Iterator[_Path]:
        def field(name: str) -> Array:
            array: Array = forest.tree(number, name)
            return array

        lefts, rights, kinds = field("cleft"), field("cright"), field("node_type")
        cover = _cover(field)
        leaf_values, vectors = field("leaf_value"), field("leaf_vector")
        begins, ends = field("leaf_vector_begin"), field("leaf_vector_end")
        split_numbers = self._add_splits(field, kinds)
        features = field("split_index")

        def leaf_of(node: int) -> Array:
            leaf = np.zeros(self._outputs)
            if vectors.size:
                leaf[:] = vectors[int(begins[node]) : int(ends[node])]
            else:
                leaf[max(output, 0)] = leaf_values[node]
            return leaf * scale

        stack: list[tuple[int, dict[int, list[tuple[int, bool]]], dict[int, float], int]] = [(0, {}, {}, 0)]
        while stack:
            node, splits, parts, depth = stack.pop()
            if depth >= MAX_DEPTH:
                text = f"Tree depths above {MAX_DEPTH} not supported. Shap cannot be considered accurate at this depth."
                raise Unsupported(text).blaming(Cause.FILE)
            if kinds[node] == _LEAF:
                yield _Path(splits, parts, leaf_of(node))
                continue
            feature = int(features[node])
            for child, goes_left in ((int(lefts[node]), True), (int(rights[node]), False)):
                part = float(cover[child]) / float(cover[node]) if cover[node] else 0.0
                stack.append(
                    (
                        child,
                        {**splits, feature: [*splits.get(feature, []), (split_numbers[node], goes_left)]},
                        {**parts, feature: parts.get(feature, 1.0) * part},
                        depth + 1,
                    )
                )

    def _add_splits(self, field: Any, kinds: Array) -> dict[int, int]:
        """Adds the splits of a tree to those of the forest. Returns the number of each by its node."""
        features, defaults, thresholds = field("split_index"), field("default_left"), field("threshold")
        operators, sets = field("cmp"), field("category_list")
        begins, ends = field("category_list_begin"), field("category_list_end")
        in_right = field("category_list_right_child")
        numbers = {}
        for node in np.flatnonzero(kinds != _LEAF).tolist():
            numbers[node] = len(self._splits)
            is_set = kinds[node] == _CATEGORICAL
            chosen = np.array(sets[int(begins[node]) : int(ends[node])]) if is_set else None
            operator = 0 if is_set else int(operators[node])
            split = _Split(
                int(features[node]), bool(defaults[node]), operator, thresholds[node], chosen, bool(in_right[node])
            )
            self._splits.append(split)
        return numbers

    def _grouped(self) -> list[tuple[int, list[Array]]]:
        """The splits that compare, by their operator: their numbers, features, thresholds and default directions."""
        by_operator: defaultdict[int, list[int]] = defaultdict(list)
        for number, split in enumerate(self._splits):
            if split.categories is None:
                by_operator[split.operator].append(number)
        grouped = []
        for operator, numbers in by_operator.items():
            splits = [self._splits[number] for number in numbers]
            features, thresholds = [each.feature for each in splits], [each.threshold for each in splits]
            arrays = numbers, features, thresholds, [each.default_left for each in splits]
            grouped.append((operator, [np.array(each) for each in arrays]))
        return grouped

    def _left(self, rows: Array) -> Array:
        """Whether each row goes left at each split: [rows, splits]."""
        left = np.zeros((len(rows), len(self._splits)), np.bool_)
        for operator, (numbers, features, thresholds, defaults) in self._by_comparison:
            given = rows[:, features]
            left[:, numbers] = np.where(np.isnan(given), defaults, _COMPARISONS[operator](given, thresholds))
        for number, split in enumerate(self._splits):
            if split.categories is not None:
                given = rows[:, split.feature]
                known = (given >= 0) & (given <= _LARGEST_CATEGORY)
                codes = np.where(known, given, 0).astype(np.uint32)
                is_in = known & np.isin(codes, split.categories)
                left[:, number] = np.where(np.isnan(given), split.default_left, is_in != split.in_right)
        return left


def _cover(field: Any) -> Array:
    """The training rows that came to each node, or their weights. Raises Unsupported if the file does not say."""
    for name in ("data_count", "sum_hess"):
        present = field(f"{name}_present")
        if present.size and present.all():
            found: Array = field(name)
            return found
    raise Unsupported("Model does not have node statistics.").blaming(Cause.FILE)
