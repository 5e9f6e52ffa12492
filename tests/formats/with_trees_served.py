"""The forests of examples/train_forests.py on a running server, and the commands of docs/trees.md."""

import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.ensemble import RandomForestRegressor

from tests.compat.serving import Serving

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "trees.md"
SECONDS = 120


def run(*words: str, folder: Path = ROOT, status: int = 0) -> str:
    """What a command prints. `python` and `halimede` are those of this environment."""
    program = {"python": [sys.executable], "halimede": [sys.executable, "-m", "halimede"]}[words[0]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*program, *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def forests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository that the example trains."""
    folder = tmp_path_factory.mktemp("trees")
    run("python", str(EXAMPLES / "train_forests.py"), str(folder / "forests"))
    return folder / "forests"


@pytest.fixture(scope="module")
def serving(forests: Path) -> Iterator[Serving]:
    with Serving(forests, forests.parent / "server.log", "--model-control-mode=explicit", "--load-model=*") as server:
        server.wait_until_live()
        yield server
        assert server.stop() == 0, server.log_text()[-3000:]


def asked(serving: Serving, model: str, rows: Any, **outputs: Any) -> dict[str, Any]:
    """The outputs by name, which must be the same over HTTP and gRPC."""
    rows = np.ascontiguousarray(rows, np.float32)
    answers = []
    for library, url in ((httpclient, serving.http_url), (grpcclient, serving.grpc_url)):
        given = library.InferInput("input__0", list(rows.shape), "FP32")
        given.set_data_from_numpy(rows)
        with library.InferenceServerClient(url) as client:
            result = client.infer(model, [given])
            names = [each["name"] for each in result.get_response()["outputs"]] if library is httpclient else None
            names = names or [each.name for each in result.get_response().outputs]
            answers.append({name: result.as_numpy(name) for name in names})
    first, second = answers
    assert sorted(first) == sorted(second)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    return first


@pytest.mark.rows("BX1", "BX8", "BX12")
def test_probabilities_and_their_reasons(serving: Serving) -> None:
    data = load_breast_cancer()
    found = asked(serving, "tumours", data.data[:300])
    probability, values = found["output__0"], found["treeshap_output"]
    assert probability.shape == (300,), "dims [1] are no dimension of the response"
    assert values.shape == (300, 31)
    assert ((probability > 0.5) == data.target[:300]).mean() > 0.97
    margins = np.log(probability.astype(float) / (1 - probability.astype(float)))
    np.testing.assert_allclose(values.sum(axis=1), margins, atol=1e-2)


def test_regression(serving: Serving) -> None:
    data = load_diabetes()
    found = asked(serving, "progression", data.data)["output__0"]
    assert found.shape == (442,)
    assert np.corrcoef(found, data.target)[0, 1] > 0.7


def test_forest_without_configuration(serving: Serving) -> None:
    data = load_digits()
    found = asked(serving, "digits", data.data)["output__0"]
    assert (found.argmax(axis=1) == data.target).mean() > 0.97
    _, config = serving.ask("/v2/models/digits/config")
    assert (config["backend"], config["default_model_filename"]) == ("fil", "checkpoint.tl")
    assert config["max_batch_size"] == 8192
    assert [(each["name"], each["dims"]) for each in config["input"]] == [("input__0", [64])]
    assert [(each["name"], each["dims"]) for each in config["output"]] == [("output__0", [10])]
    assert "dynamic_batching" in config


@pytest.mark.rows("BX1")
def test_complete_configuration_is_not_changed(serving: Serving) -> None:
    _, config = serving.ask("/v2/models/progression/config")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (1024, [10])
    assert list(config["parameters"]) == ["is_classifier", "model_type"]


def test_row_with_too_few_features(serving: Serving) -> None:
    tensor = {"name": "input__0", "datatype": "FP32", "shape": [1, 9], "data": [0] * 9}
    status, answer = serving.ask("/v2/models/progression/infer", json.dumps({"inputs": [tensor]}).encode())
    assert status == 400
    assert (
        "unexpected shape for input 'input__0' for model 'progression'. Expected [-1,10], got [1,9]" in answer["error"]
    )


@pytest.mark.rows("BX16")
def test_broken_file_is_refused_and_the_old_forest_goes_on(serving: Serving, forests: Path) -> None:
    path = forests / "tumours" / "1" / "xgboost.json"
    good = path.read_text()
    try:
        path.write_text(good[: len(good) // 2])
        status, answer = serving.ask("/v2/repository/models/tumours/load", b"{}")
        assert status == 400
        assert answer["error"].startswith(
            "load failed for model 'tumours': version 1 is at UNAVAILABLE state: Unknown: "
        )
    finally:
        path.write_text(good)
    assert asked(serving, "tumours", load_breast_cancer().data[:1])["output__0"].shape == (1,)


def test_pickle_is_converted_and_served(serving: Serving, forests: Path, tmp_path: Path) -> None:
    data = load_diabetes()
    forest = RandomForestRegressor(10, random_state=0).fit(data.data, data.target)
    (tmp_path / "forest.pkl").write_bytes(pickle.dumps(forest))
    said = run("halimede", "convert", "forest.pkl", "--to", "treelite", folder=tmp_path)
    assert said.splitlines()[0] == "checkpoint.tl"
    assert "halimede init checkpoint.tl REPO" in said
    said = run("halimede", "init", "checkpoint.tl", str(forests), "--name", "converted", folder=tmp_path)
    assert str(forests / "converted" / "1" / "checkpoint.tl") in said
    try:
        assert serving.ask("/v2/repository/models/converted/load", b"{}")[0] == 200
        found = asked(serving, "converted", data.data)["output__0"]
        np.testing.assert_allclose(found, forest.predict(data.data.astype(np.float32)), rtol=1e-5)
    finally:
        serving.ask("/v2/repository/models/converted/unload", b"{}")
        shutil.rmtree(forests / "converted")


def test_server_never_opens_a_pickle(serving: Serving, forests: Path) -> None:
    """A pickle under the name of a forest is a file that cannot be read, and nothing of it runs."""
    mark = forests.parent / "ran"
    folder = forests / "evil" / "1"
    folder.mkdir(parents=True)
    (folder / "xgboost.model").write_bytes(b"cos\nsystem\n(S'touch " + os.fsencode(mark) + b"'\ntR.")
    try:
        status, _ = serving.ask("/v2/repository/models/evil/load", b"{}")
        assert status == 400
        assert not mark.exists()
    finally:
        shutil.rmtree(folder.parent)


def test_commands_of_the_page(forests: Path, serving: Serving) -> None:
    text = PAGE.read_text()
    commands = re.findall(r"^\$ (.*(?:\\\n.*)*)", text, re.MULTILINE)
    named = [each.split()[0] for each in commands]
    assert {"python", "halimede", "curl"} <= set(named), named
    body = re.search(r"-d '(\{.*?\})'", text, re.DOTALL)
    path = re.search(r"localhost:8000(/v2/\S+/infer)", text)
    assert body is not None
    assert path is not None
    status, answer = serving.ask(path[1], body[1].encode())
    assert status == 200
    printed = re.search(r'^(\{"model_name".*\})$', text, re.MULTILINE)
    assert printed is not None
    expected = json.loads(printed[1])
    assert answer["outputs"][0]["shape"] == expected["outputs"][0]["shape"]
    assert math.isclose(answer["outputs"][0]["data"][0], expected["outputs"][0]["data"][0], rel_tol=0.05)


def test_explanation_of_the_page(serving: Serving, tmp_path: Path) -> None:
    picture = tmp_path / "shap.svg"
    said = run("python", str(EXAMPLES / "explain_forest.py"), "--url", serving.http_url)
    assert "in truth" in said
    assert "mean of the training data" in said
    if find_spec("matplotlib"):
        run("python", str(EXAMPLES / "explain_forest.py"), "--url", serving.http_url, "--svg", str(picture))
        assert "<svg" in picture.read_text()
