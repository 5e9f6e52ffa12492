"""Predictions are those of the library that trained the forest, for 10,000 random rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)

from tests.backends.fil.forests import CLASSES, Array, checkpoint_of, matrix, of_lightgbm, of_xgboost, rows, target
from tests.backends.fil.rig import Rig, config_of

TASKS = ("regression", "binary", "multi")
DIMS = {"regression": [1], "binary": [2], "multi": [CLASSES]}
KINDS = {"plain": {}, "missing": {"missing": True}, "categories": {"missing": True, "categories": True}}
COUNT = 10_000


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def parameters(kind: str, task: str) -> dict[str, str]:
    classifies = "false" if task == "regression" else "true"
    return {"model_type": kind, "is_classifier": classifies, "predict_proba": classifies}


def shaped(expected: Array, task: str) -> Array:
    """A library's result as the backend answers: of a binary classifier both probabilities."""
    return np.stack([1 - expected, expected], axis=1) if task == "binary" and expected.ndim == 1 else expected


@pytest.mark.rows("BX2", "BX7", "BX11")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("ending", ["json", "ubj"])
def test_forest_of_xgboost(rig: Rig, task: str, kind: str, ending: str) -> None:
    booster = of_xgboost(task, **KINDS[kind])
    booster.save_model(rig.version / f"xgboost.{ending}")
    given = rows(COUNT, **KINDS[kind])
    got = rig.predict(config_of(DIMS[task], parameters(f"xgboost_{ending}", task)), given)
    expected = booster.predict(matrix(given, kind == "categories"))
    np.testing.assert_allclose(got, shaped(expected, task), rtol=0, atol=1e-5)


@pytest.mark.rows("BX2", "BX7", "BX11")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", TASKS)
def test_forest_of_lightgbm(rig: Rig, task: str, kind: str) -> None:
    booster = of_lightgbm(task, **KINDS[kind])
    booster.save_model(rig.version / "model.txt")
    given = rows(COUNT, **KINDS[kind])
    got = rig.predict(config_of(DIMS[task], parameters("lightgbm", task)), given)
    np.testing.assert_allclose(got, shaped(booster.predict(given.astype(np.float64)), task), rtol=0, atol=1e-5)


ESTIMATORS: dict[str, tuple[Any, str]] = {
    "RandomForestRegressor": (RandomForestRegressor(20, max_depth=6, random_state=0), "regression"),
    "ExtraTreesRegressor": (ExtraTreesRegressor(20, max_depth=6, random_state=0), "regression"),
    "GradientBoostingRegressor": (GradientBoostingRegressor(n_estimators=20, random_state=0), "regression"),
    "HistGradientBoostingRegressor": (HistGradientBoostingRegressor(max_iter=20, random_state=0), "regression"),
    "IsolationForest": (IsolationForest(n_estimators=20, random_state=0), "isolation"),
    "RandomForestClassifier": (RandomForestClassifier(20, max_depth=6, random_state=0), "binary"),
    "RandomForestClassifier of 3": (RandomForestClassifier(20, max_depth=6, random_state=0), "multi"),
    "ExtraTreesClassifier": (ExtraTreesClassifier(20, max_depth=6, random_state=0), "multi"),
    "GradientBoostingClassifier": (GradientBoostingClassifier(n_estimators=20, random_state=0), "binary"),
    "GradientBoostingClassifier of 3": (GradientBoostingClassifier(n_estimators=20, random_state=0), "multi"),
    "HistGradientBoostingClassifier": (HistGradientBoostingClassifier(max_iter=20, random_state=0), "binary"),
    "HistGradientBoostingClassifier of 3": (HistGradientBoostingClassifier(max_iter=20, random_state=0), "multi"),
}


@pytest.mark.rows("BX2", "BX7")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_forest_of_scikit_learn(rig: Rig, name: str) -> None:
    estimator, task = ESTIMATORS[name]
    seen = rows(800, 1)
    estimator.fit(seen, target(seen, "regression" if task == "isolation" else task))
    checkpoint_of(estimator, rig.version / "checkpoint.tl")
    given = rows(COUNT)
    if task == "isolation":
        expected, task = -estimator.score_samples(given), "regression"
    elif task == "regression":
        expected = estimator.predict(given)
    else:
        expected = estimator.predict_proba(given)
    got = rig.predict(config_of(DIMS[task], parameters("treelite_checkpoint", task)), given)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.rows("BX6")
@pytest.mark.parametrize("objective", ["multi:softmax", "multi:softprob"])
def test_probabilities_of_a_model_that_was_trained_to_return_classes(rig: Rig, objective: str) -> None:
    booster = of_xgboost("multi", objective=objective)
    booster.save_model(rig.version / "xgboost.json")
    given = rows(500)
    margins = booster.predict(matrix(given), output_margin=True)
    powers = np.exp(margins - margins.max(axis=1, keepdims=True))
    got = rig.predict(config_of([CLASSES], parameters("xgboost_json", "multi")), given)
    np.testing.assert_allclose(got, powers / powers.sum(axis=1, keepdims=True), atol=1e-5)


def test_one_class_against_all_others_keeps_its_own_probabilities(rig: Rig) -> None:
    booster = of_lightgbm("multi", objective="multiclassova")
    booster.save_model(rig.version / "model.txt")
    given = rows(500)
    got = rig.predict(config_of([CLASSES], parameters("lightgbm", "multi")), given)
    np.testing.assert_allclose(got, booster.predict(given.astype(np.float64)), atol=1e-5)


@pytest.mark.rows("BX4", "BX7")
@pytest.mark.parametrize("task", ["binary", "multi"])
def test_class_of_a_row(rig: Rig, task: str) -> None:
    booster = of_xgboost(task)
    booster.save_model(rig.version / "xgboost.json")
    given = rows(500)
    probabilities = booster.predict(matrix(given))
    expected = probabilities > 0.5 if task == "binary" else probabilities.argmax(axis=1)
    fields = {"model_type": "xgboost_json", "is_classifier": "true"}
    got = rig.predict(config_of([1], fields), given)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)


@pytest.mark.rows("BX11")
@pytest.mark.parametrize("code", [-1.0, 3.9, 1e9, 40.0, np.inf])
def test_category_that_no_row_of_the_training_had(rig: Rig, code: float) -> None:
    booster = of_xgboost("regression", categories=True)
    booster.save_model(rig.version / "xgboost.json")
    given = rows(50, categories=True)
    known = given.copy()
    known[:, 0] = 3 if code == 3.9 else 20  # a code is cut to a whole number; 20 is in no set
    given[:, 0] = code
    config = config_of([1], parameters("xgboost_json", "regression"))
    np.testing.assert_array_equal(rig.predict(config, given), rig.predict(config, known))
