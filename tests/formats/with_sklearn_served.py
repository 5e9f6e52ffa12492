"""Files of skops and folders of MLflow on a running server, without configurations."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import skops.io
import yaml
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.backends.fil.forests import FEATURES, matrix, of_xgboost, rows
from tests.compat.serving import Serving

IRIS = load_iris()
PIPELINE = make_pipeline(StandardScaler(), LogisticRegression()).fit(IRIS.data, IRIS.target)
BOOSTER = of_xgboost("regression")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("sklearn")
    for model in ("iris", "logged"):
        (folder / "models" / model / "1").mkdir(parents=True)
    skops.io.dump(PIPELINE, folder / "models" / "iris" / "1" / "model.skops")
    logged = folder / "models" / "logged" / "1"
    BOOSTER.save_model(logged / "model.ubj")
    flavour = {"data": "model.ubj", "model_class": "xgboost.core.Booster"}
    (logged / "MLmodel").write_text(yaml.safe_dump({"flavors": {"xgboost": flavour}}))
    with Serving(folder / "models", folder / "server.log", "--model-control-mode=explicit", "--load-model=*") as server:
        server.wait_until_live()
        yield server
        assert server.stop() == 0, server.log_text()[-3000:]


def infer(serving: Serving, model: str, name: str, given: Any, *outputs: str) -> dict[str, Any]:
    tensor = {"name": name, "datatype": "FP32", "shape": list(given.shape), "data": given.reshape(-1).tolist()}
    body: dict[str, Any] = {"inputs": [tensor]}
    if outputs:
        body["outputs"] = [{"name": each} for each in outputs]
    status, answer = serving.ask(f"/v2/models/{model}/infer", json.dumps(body).encode())
    assert status == 200, answer
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]}


def test_request_for_mlserver_is_answered(serving: Serving) -> None:
    found = infer(serving, "iris", "predict", IRIS.data.astype(np.float32))
    assert sorted(found) == ["predict", "predict_proba"]
    np.testing.assert_array_equal(found["predict"][:, 0], PIPELINE.predict(IRIS.data))
    np.testing.assert_allclose(found["predict_proba"], PIPELINE.predict_proba(IRIS.data), atol=1e-5)
    assert list(infer(serving, "iris", "predict", IRIS.data[:3], "predict_proba")) == ["predict_proba"]


def test_folder_of_mlflow(serving: Serving) -> None:
    given = rows(20)
    found = infer(serving, "logged", "input__0", given)["output__0"]
    np.testing.assert_allclose(found, BOOSTER.predict(matrix(given)), atol=1e-5)
    _, config = serving.ask("/v2/models/logged/config")
    assert (config["backend"], config["input"][0]["dims"]) == ("mlflow", [FEATURES])


def test_client_cannot_send_a_file(serving: Serving) -> None:
    body = {"parameters": {"config": '{"backend": "sklearn"}', "file:1/model.skops": "AAAA"}}
    status, answer = serving.ask("/v2/repository/models/sent/load", json.dumps(body).encode())
    assert status == 501
    assert "allow-code-upload" in answer["error"]
