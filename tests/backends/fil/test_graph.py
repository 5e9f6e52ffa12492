"""Forests as graphs: which ones ONNX can express, and thresholds of float64 for values of float32."""

from pathlib import Path

import numpy as np
import pytest

from halimede.backends.fil.forest import read_forest
from halimede.backends.fil.graph import graph_of, narrowed
from halimede.backends.fil.predictor import GraphForest, Gtil
from tests.backends.fakes import place
from tests.backends.fil.forests import of_lightgbm, of_xgboost, rows
from tests.backends.fil.rig import Rig, config_of

COMPARISONS = {2: np.less, 3: np.less_equal, 4: np.greater, 5: np.greater_equal}


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_no_float32_changes_its_side_of_a_threshold(comparison: int) -> None:
    random = np.random.default_rng(0)
    near = random.standard_normal(500).astype(np.float32)
    others = np.concatenate([near, np.nextafter(near, np.float32(9)), np.nextafter(near, np.float32(-9))])
    thresholds = np.repeat(near.astype(np.float64), 3) + np.tile([0.0, 1e-12, -1e-12], 500)
    narrow = narrowed(thresholds, np.full(len(thresholds), comparison))
    assert narrow.dtype == np.float32
    compare = COMPARISONS[comparison]
    for value in others[::7]:
        np.testing.assert_array_equal(compare(value, narrow), compare(np.float64(value), thresholds))


def test_categories_are_left_to_treelite(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    config = config_of([1], {"model_type": "xgboost_json", "is_classifier": "false"})
    for categories, kind in ((True, Gtil), (False, GraphForest)):
        of_xgboost("regression", categories=categories).save_model(rig.version / "xgboost.json")
        assert type(rig.open(config).create_instance(place())._predictor) is kind


@pytest.mark.parametrize("task", ["regression", "binary", "multi"])
def test_graph_and_treelite_agree(tmp_path: Path, task: str) -> None:
    of_lightgbm(task, missing=True).save_model(tmp_path / "model.txt")
    forest = read_forest(tmp_path / "model.txt", "lightgbm")
    graph = graph_of(forest)
    assert graph is not None
    given = rows(1000, missing=True)
    np.testing.assert_allclose(GraphForest(graph, 1).predict(given), Gtil(forest, 1).predict(given), atol=1e-6)


def test_sigmoid_with_a_factor_is_left_to_treelite(tmp_path: Path) -> None:
    of_lightgbm("binary", sigmoid=2.0).save_model(tmp_path / "model.txt")
    assert graph_of(read_forest(tmp_path / "model.txt", "lightgbm")) is None
