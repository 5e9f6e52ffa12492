"""Small forests of each library, trained in a moment, and forests that are built by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import treelite
import xgboost
from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

Array = npt.NDArray[Any]

FEATURES = 8
CLASSES = 3
CATEGORIES = 12


def rows(count: int, seed: int = 0, *, missing: bool = False, categories: bool = False) -> Array:
    """Random rows of float32. With `categories`, feature 0 is the code of a category; with `missing`, a tenth of the
    other values is."""
    random = np.random.default_rng(seed)
    given = random.standard_normal((count, FEATURES)).astype(np.float32)
    if missing:
        given[random.random(given.shape) < 0.1] = np.nan
    if categories:
        given[:, 0] = random.integers(0, CATEGORIES, count)
    return given


def target(given: Array, task: str) -> Array:
    """Something to learn: a function of the rows that needs several splits and some interaction."""
    known = np.nan_to_num(given)
    score = known[:, 1] * known[:, 2] + np.sin(known[:, 3]) + 0.3 * (known[:, 0].astype(int) % 3)
    learned: dict[str, Array] = {
        "regression": score,
        "binary": (score > 0.3).astype(np.float32),
        "multi": np.digitize(score, [0, 0.8]).astype(np.float32),
    }
    return learned[task]


OBJECTIVES = {"regression": "reg:squarederror", "binary": "binary:logistic", "multi": "multi:softprob"}


def of_xgboost(task: str, *, missing: bool = False, categories: bool = False, trees: int = 12, **options: Any) -> Any:
    """A Booster. `options` are parameters of the training."""
    given = rows(800, 1, missing=missing, categories=categories)
    kinds = ["c" if categories and i == 0 else "q" for i in range(FEATURES)]
    data = xgboost.DMatrix(given, target(given, task), feature_types=kinds, enable_categorical=categories)
    fields = {"objective": OBJECTIVES[task], "max_depth": 5, "nthread": 1, "max_cat_to_onehot": 2, **options}
    if task == "multi":
        fields["num_class"] = CLASSES
    return xgboost.train(fields, data, trees)


def matrix(given: Array, categories: bool = False) -> Any:
    """Rows as XGBoost takes them."""
    kinds = ["c" if categories and i == 0 else "q" for i in range(FEATURES)]
    return xgboost.DMatrix(given, feature_types=kinds, enable_categorical=categories)


def of_lightgbm(task: str, *, missing: bool = False, categories: bool = False, trees: int = 12, **options: Any) -> Any:
    given = rows(800, 1, missing=missing, categories=categories).astype(np.float64)
    objectives = {"regression": "regression", "binary": "binary", "multi": "multiclass"}
    fields: dict[str, Any] = {
        "objective": objectives[task],
        "verbose": -1,
        "num_threads": 1,
        "num_leaves": 15,
        "min_data_per_group": 5,
        **options,
    }
    if task == "multi":
        fields["num_class"] = CLASSES
    data = lightgbm.Dataset(given, target(given, task), categorical_feature=[0] if categories else [])
    return lightgbm.train(fields, data, trees)


def stump(path: Path, features: int, *, threshold: float = 4.0, leaves: Sequence[float] = (0.25, 0.75)) -> Path:
    """A checkpoint with one split of the first feature, whose leaves are probabilities of class 1."""
    builder = ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=Metadata(
            num_feature=features,
            task_type="kBinaryClf",
            average_tree_output=False,
            num_target=1,
            num_class=[1],
            leaf_vector_shape=(1, 1),
        ),
        tree_annotation=TreeAnnotation(num_tree=1, target_id=[0], class_id=[0]),
        postprocessor=PostProcessorFunc(name="identity"),
        base_scores=[0.0],
    )
    builder.start_tree()
    builder.start_node(0)
    builder.numerical_test(
        feature_id=0, threshold=threshold, default_left=True, opname="<", left_child_key=1, right_child_key=2
    )
    builder.end_node()
    for key, leaf in enumerate(leaves, 1):
        builder.start_node(key)
        builder.leaf(leaf)
        builder.end_node()
    builder.end_tree()
    builder.commit().serialize(path)
    return path


def checkpoint_of(estimator: Any, path: Path) -> Path:
    """A forest of scikit-learn as treelite's checkpoint."""
    treelite.sklearn.import_model(estimator).serialize(path)
    return path
