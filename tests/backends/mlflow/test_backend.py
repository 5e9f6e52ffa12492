"""Folders of MLflow, each served by the backend of its flavour."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
import yaml
from sklearn.linear_model import LinearRegression

from halimede.backends.api import ModelFolder
from halimede.backends.mlflow.backend import MlflowBackend, target_of
from halimede.config.model_config import Description
from halimede.errors import Invalid, Unavailable, Unsupported
from tests.backends import onnx_models
from tests.backends.fakes import FakeBatch, FakeResponses, asked, context, idle_loop, model_config, place, request
from tests.backends.fakes import spec as tensor_spec
from tests.backends.fil.forests import FEATURES, Array, matrix, of_lightgbm, of_xgboost, rows


class Rig:
    def __init__(self, root: Path) -> None:
        self.version = root / "m" / "1"
        self.version.mkdir(parents=True)
        self.folder = ModelFolder(root / "m", self.version, 1)
        with idle_loop() as loop:
            self.backend = MlflowBackend(context(loop))

    def write(self, **flavours: Mapping[str, Any]) -> None:
        """An `MLmodel` as MLflow writes it, with a flavour for its own Python."""
        python = {"loader_module": "mlflow.any", "python_version": "3.11.7", "env": {"conda": "conda.yaml"}}
        document = {
            "flavors": {**flavours, "python_function": python},
            "mlflow_version": "3.1.0",
            "signature": {"inputs": json.dumps([{"type": "tensor"}])},
        }
        (self.version / "MLmodel").write_text(yaml.safe_dump(document))

    def predicted(self, given: Array) -> Array:
        """The first output that the configuration gets, for these rows."""
        described = self.backend.describe(asked(), self.folder, "MLmodel")
        assert isinstance(described, Description)
        [first] = described.inputs
        config = model_config(
            [tensor_spec(first.name, str(first.datatype), list(first.shape or ())[1:])],
            [tensor_spec(each.name, str(each.datatype), list(each.shape or ())[1:]) for each in described.outputs],
            1000,
            backend="mlflow",
        )
        instance = self.backend.open(replace(config, model_filename="MLmodel"), self.folder).create_instance(place())
        responses = FakeResponses()
        name = described.outputs[0].name
        tensors = {first.name: (str(first.datatype), given.astype(first.datatype.numpy))}
        instance.execute(FakeBatch(request(tensors, [name], len(given))), responses)
        found: Array = responses.scattered[name]
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize("ending", ["ubj", "json"])
def test_flavour_xgboost(rig: Rig, ending: str) -> None:
    booster = of_xgboost("multi")
    booster.save_model(rig.version / f"model.{ending}")
    rig.write(xgboost={"data": f"model.{ending}", "model_class": "xgboost.core.Booster", "xgb_version": "3.2.0"})
    given = rows(50)
    np.testing.assert_allclose(rig.predicted(given), booster.predict(matrix(given)), atol=1e-5)


def test_flavour_lightgbm(rig: Rig) -> None:
    booster = of_lightgbm("regression")
    booster.save_model(rig.version / "model.lgb")
    rig.write(lightgbm={"data": "model.lgb", "model_class": "lightgbm.basic.Booster", "lgb_version": "4.7.0"})
    given = rows(50)
    np.testing.assert_allclose(rig.predicted(given), booster.predict(given.astype(np.float64)), atol=1e-5)


def test_flavour_sklearn_of_skops(rig: Rig) -> None:
    given = rows(50)
    estimator = LinearRegression().fit(given, given[:, 0] * 2)
    skops.io.dump(estimator, rig.version / "model.skops")
    rig.write(sklearn={"pickled_model": "model.skops", "serialization_format": "skops", "sklearn_version": "1.9"})
    np.testing.assert_allclose(rig.predicted(given)[:, 0], estimator.predict(given), atol=1e-5)


def test_flavour_onnx(rig: Rig) -> None:
    (rig.version / "model.onnx").write_bytes(onnx_models.identity("FP32", ["batch", FEATURES]))
    rig.write(onnx={"data": "model.onnx", "onnx_version": "1.23"})
    np.testing.assert_array_equal(rig.predicted(rows(5)), rows(5))


@pytest.mark.parametrize(
    "flavours",
    [
        {},
        {"sklearn": {"pickled_model": "model.pkl", "serialization_format": "cloudpickle"}},
        {"prophet": {"data": "x"}},
    ],
)
def test_model_that_only_code_could_serve_is_refused(rig: Rig, flavours: dict[str, Any]) -> None:
    rig.write(**flavours)
    with pytest.raises(Unsupported, match="none of them can be served without running its code") as caught:
        target_of(rig.version / "MLmodel")
    assert "mlflow.pyfunc in a model.py" in caught.value.advice
    [fault] = rig.backend.faults(asked(), None, rig.folder, "MLmodel")
    assert "has the flavours" in fault.text


@pytest.mark.parametrize("text", ["", "flavors: 3", "[", "!!python/object/apply:os.system [true]"])
def test_description_that_is_none(rig: Rig, text: str) -> None:
    (rig.version / "MLmodel").write_text(text)
    with pytest.raises(Invalid, match="is not a description of MLflow"):
        target_of(rig.version / "MLmodel")


def test_description_that_is_not_there(rig: Rig) -> None:
    with pytest.raises(Unavailable, match="unable to read"):
        target_of(rig.version / "MLmodel")


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/passwd", "a/../../b"])
def test_file_outside_of_the_folder_is_refused(rig: Rig, name: str) -> None:
    rig.write(onnx={"data": name})
    with pytest.raises(Invalid, match="must stay within the version directory"):
        target_of(rig.version / "MLmodel")
