"""SHAP values are those of the library that trained the forest (BX12)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import treelite
from sklearn.ensemble import ExtraTreesClassifier, GradientBoostingRegressor, RandomForestRegressor

from halimede.errors import Unsupported
from tests.backends.fil.forests import (
    CLASSES,
    FEATURES,
    checkpoint_of,
    matrix,
    of_lightgbm,
    of_xgboost,
    rows,
    stump,
    target,
)
from tests.backends.fil.rig import Rig, config_of

KINDS = {"plain": {}, "missing": {"missing": True}, "categories": {"missing": True, "categories": True}}
DIMS = {"regression": [FEATURES + 1], "binary": [FEATURES + 1], "multi": [CLASSES, FEATURES + 1]}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def shap_of(rig: Rig, kind: str, task: str, given: Any) -> Any:
    fields = {"model_type": kind, "is_classifier": str(task != "regression").lower()}
    config = config_of([1], fields, shap=DIMS[task])
    return rig.outputs(config, given, "treeshap_output")["treeshap_output"]


@pytest.mark.rows("BX12")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", DIMS)
def test_values_are_those_of_xgboost(rig: Rig, task: str, kind: str) -> None:
    booster = of_xgboost(task, trees=20, **KINDS[kind])
    booster.save_model(rig.version / "xgboost.json")
    given = rows(300, **KINDS[kind])
    got = shap_of(rig, "xgboost_json", task, given)
    expected = booster.predict(matrix(given, kind == "categories"), pred_contribs=True)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


@pytest.mark.rows("BX12")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", DIMS)
def test_values_are_those_of_lightgbm(rig: Rig, task: str, kind: str) -> None:
    booster = of_lightgbm(task, trees=20, **KINDS[kind])
    booster.save_model(rig.version / "model.txt")
    given = rows(300, **KINDS[kind])
    got = shap_of(rig, "lightgbm", task, given)
    expected = booster.predict(given.astype(np.float64), pred_contrib=True).reshape(got.shape)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "estimator",
    [
        RandomForestRegressor(10, max_depth=8, random_state=0),
        GradientBoostingRegressor(n_estimators=10, random_state=0),
    ],
    ids=type,
)
def test_values_of_a_row_add_up_to_its_prediction(rig: Rig, estimator: Any) -> None:
    seen = rows(400, 1)
    estimator.fit(seen, target(seen, "regression"))
    checkpoint_of(estimator, rig.version / "checkpoint.tl")
    given = rows(100)
    got = shap_of(rig, "treelite_checkpoint", "regression", given)
    np.testing.assert_allclose(got.sum(axis=1), estimator.predict(given), atol=1e-4)
    assert np.abs(got[:, 7]).max() < np.abs(got[:, 2]).max(), "the target does not depend on feature 7"


def test_values_of_leaves_with_a_number_for_each_class(rig: Rig) -> None:
    seen = rows(400, 1)
    estimator = ExtraTreesClassifier(10, max_depth=6, random_state=0).fit(seen, target(seen, "multi"))
    checkpoint_of(estimator, rig.version / "checkpoint.tl")
    given = rows(100)
    got = shap_of(rig, "treelite_checkpoint", "multi", given)
    np.testing.assert_allclose(got.sum(axis=2), estimator.predict_proba(given), atol=1e-5)


def test_feature_that_no_split_asks_for_has_no_value(rig: Rig) -> None:
    """One split that halves the training rows: both leaves are equally far from the mean."""
    booster = of_xgboost("regression", trees=1, max_depth=1, base_score=0.5)
    booster.save_model(rig.version / "xgboost.json")
    got = shap_of(rig, "xgboost_json", "regression", rows(20))
    assert (np.count_nonzero(got[:, :-1], axis=1) == 1).all()


@pytest.mark.rows("BX12")
def test_file_without_statistics_is_refused(rig: Rig) -> None:
    stump(rig.version / "checkpoint.tl", FEATURES)
    config = config_of([1], {"model_type": "treelite_checkpoint", "is_classifier": "true"}, shap=[FEATURES + 1])
    with pytest.raises(Unsupported, match=r"^Model does not have node statistics\.$"):
        rig.open(config)


@pytest.mark.rows("BX12")
def test_deep_tree_is_refused(rig: Rig) -> None:
    estimator = RandomForestRegressor(1, bootstrap=False, random_state=0)
    # Each split takes one row off, so the tree is as deep as there are rows.
    estimator.fit(np.arange(40, dtype=float)[:, None] * np.ones(FEATURES), 3.0 ** np.arange(40))
    model = treelite.sklearn.import_model(estimator)
    model.serialize(rig.version / "checkpoint.tl")
    config = config_of([1], {"model_type": "treelite_checkpoint", "is_classifier": "false"}, shap=[FEATURES + 1])
    with pytest.raises(Unsupported, match="Tree depths above 32 not supported"):
        rig.open(config)
