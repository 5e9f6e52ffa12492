"""Estimators of scikit-learn in files of skops."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from pandas import DataFrame
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from halimede.backends.api import ModelFolder
from halimede.backends.sklearn.backend import SklearnBackend, SklearnInstance
from halimede.errors import Cause, Internal, Invalid, Unavailable, Unknown
from halimede.tensors import FP32, INT64
from tests.backends.fakes import (
    Array,
    FakeBatch,
    FakeResponses,
    asked,
    context,
    idle_loop,
    model_config,
    place,
    request,
)
from tests.backends.fakes import spec as tensor_spec

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.standard_normal((200, 4)).astype(np.float32)
LABELS = (ROWS[:, 0] + ROWS[:, 1] > 0).astype(np.int64)
Specs = Mapping[str, tuple[str, Sequence[int]]]


class Rig:
    def __init__(self, root: Path) -> None:
        self.version = root / "m" / "1"
        self.version.mkdir(parents=True)
        self.folder = ModelFolder(root / "m", self.version, 1)
        with idle_loop() as loop:
            self.backend = SklearnBackend(context(loop))

    def dump(self, estimator: Any) -> None:
        skops.io.dump(estimator, self.version / "model.skops")

    def instance(
        self, inputs: Specs, outputs: Specs, parameters: Mapping[str, str] | None = None, batch: int = 256
    ) -> SklearnInstance:
        config = model_config(
            [tensor_spec(name, kind, dims) for name, (kind, dims) in inputs.items()],
            [tensor_spec(name, kind, dims) for name, (kind, dims) in outputs.items()],
            batch,
            backend="sklearn",
            parameters=parameters or {},
        )
        return self.backend.open(replace(config, model_filename=""), self.folder).create_instance(place())


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def run(instance: SklearnInstance, given: Mapping[str, tuple[str, Array]], *outputs: str) -> dict[str, Array]:
    responses = FakeResponses()
    rows = len(next(iter(given.values()))[1])
    instance.execute(FakeBatch(request(given, outputs, rows)), responses)
    return responses.scattered


INPUT: Specs = {"predict": ("FP32", [4])}


def test_outputs_are_named_after_methods(rig: Rig) -> None:
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, LABELS)
    rig.dump(estimator)
    outputs: Specs = {
        "predict": ("INT64", [1]),
        "predict_proba": ("FP64", [2]),
        "decision_function": ("FP32", [1]),
    }
    found = run(rig.instance(INPUT, outputs), {"predict": ("FP32", ROWS)}, *outputs)
    np.testing.assert_array_equal(found["predict"][:, 0], estimator.predict(ROWS))
    np.testing.assert_allclose(found["predict_proba"], estimator.predict_proba(ROWS), atol=1e-12)
    np.testing.assert_allclose(found["decision_function"][:, 0], estimator.decision_function(ROWS), atol=1e-5)
    assert {name: (str(each.dtype), each.shape) for name, each in found.items()} == {
        "predict": ("int64", (200, 1)),
        "predict_proba": ("float64", (200, 2)),
        "decision_function": ("float32", (200, 1)),
    }
    assert list(run(rig.instance(INPUT, outputs), {"predict": ("FP32", ROWS)}, "predict")) == ["predict"]


def test_labels_that_are_texts(rig: Rig) -> None:
    names = np.array(["no", "yes"])[LABELS]
    estimator = LogisticRegression().fit(ROWS, names)
    rig.dump(estimator)
    found = run(rig.instance(INPUT, {"predict": ("BYTES", [1])}), {"predict": ("FP32", ROWS[:5])}, "predict")
    assert found["predict"].tolist() == [[name.encode()] for name in estimator.predict(ROWS[:5]).tolist()]


def test_configuration_is_completed(rig: Rig) -> None:
    rig.dump(LogisticRegression().fit(ROWS, LABELS))
    described = rig.backend.describe(asked(), rig.folder, "model.skops")
    assert [(each.name, each.datatype, each.shape) for each in described.inputs] == [("predict", FP32, (-1, 4))]
    assert [(each.name, each.datatype, each.shape) for each in described.outputs] == [
        ("predict", INT64, (-1, 1)),
        ("predict_proba", FP32, (-1, 2)),
    ]
    assert described.max_batch_size == 8192
    rig.dump(LinearRegression().fit(ROWS, ROWS[:, :2]))
    described = rig.backend.describe(asked(max_batch_size=10_000), rig.folder, "model.skops")
    assert [(each.name, each.shape) for each in described.outputs] == [("predict", (-1, 2))]
    assert described.max_batch_size == 10_000
    rig.dump(StandardScaler().fit(ROWS))
    described = rig.backend.describe(asked(), rig.folder, "model.skops")
    assert [(each.name, each.shape) for each in described.outputs] == [("transform", (-1, 4))]


def test_types_that_nobody_trusts(rig: Rig) -> None:
    estimator = RandomForestClassifier(5, random_state=0).fit(ROWS, LABELS)
    rig.dump(estimator)
    types = ",".join(skops.io.get_untrusted_types(file=rig.version / "model.skops"))
    outputs: Specs = {"predict": ("INT64", [1])}
    if types:
        with pytest.raises(Invalid, match="has types that are not trusted") as caught:
            rig.instance(INPUT, outputs)
        assert caught.value.cause is Cause.CONFIGURATION
        assert types in caught.value.advice
    found = run(rig.instance(INPUT, outputs, {"trusted_types": types}), {"predict": ("FP32", ROWS)}, "predict")
    np.testing.assert_array_equal(found["predict"][:, 0], estimator.predict(ROWS))


def test_function_of_somebody_is_not_loaded(rig: Rig) -> None:
    rig.dump(make_pipeline(FunctionTransformer(shout), LinearRegression()).fit(ROWS, LABELS))
    with pytest.raises(Invalid, match=r"not trusted: .*shout"):
        rig.instance(INPUT, {"predict": ("FP64", [1])})


def shout(rows: Any) -> Any:
    """Somebody's own code."""
    return rows * 2


def test_columns_as_inputs_of_their_own(rig: Rig) -> None:
    table = DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "town": ["a", "b", "a", "c"]})
    encode = ColumnTransformer([("town", OneHotEncoder(handle_unknown="ignore"), ["town"])], remainder="passthrough")
    estimator = make_pipeline(encode, LinearRegression()).fit(table, [1.0, 3.0, 2.0, 5.0])
    rig.dump(estimator)
    types = ",".join(skops.io.get_untrusted_types(file=rig.version / "model.skops"))
    instance = rig.instance(
        {"town": ("BYTES", [1]), "size": ("FP64", [1])}, {"predict": ("FP64", [1])}, {"trusted_types": types}
    )
    given = {
        "town": ("BYTES", np.array([[b"a"], [b"c"]], object)),
        "size": ("FP64", np.array([[3.0], [4.0]])),
    }
    found = run(instance, given, "predict")["predict"]
    np.testing.assert_allclose(found[:, 0], [2.0, 5.0], atol=1e-9)


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        (INPUT, {"predict_log": ("FP64", [2])}, "output 'predict_log' is not a method of LogisticRegression"),
        (INPUT, {"fit": ("FP64", [2])}, "output 'fit' is not a method"),
        ({"x": ("FP32", [5])}, {"predict": ("INT64", [1])}, "input 'x' has 5 columns, and LogisticRegression has 4"),
    ],
)
def test_configuration_that_does_not_fit(rig: Rig, inputs: Specs, outputs: Specs, text: str) -> None:
    rig.dump(LogisticRegression().fit(ROWS, LABELS))
    with pytest.raises(Invalid, match=text):
        rig.instance(inputs, outputs)


def test_dims_that_the_estimator_does_not_return(rig: Rig) -> None:
    rig.dump(LogisticRegression().fit(ROWS, LABELS))
    instance = rig.instance(INPUT, {"predict_proba": ("FP64", [3])})
    with pytest.raises(Internal, match=r"returns 2 values for a row, and the configuration has dims \[3\]"):
        run(instance, {"predict": ("FP32", ROWS[:2])}, "predict_proba")


def test_rows_that_the_estimator_refuses(rig: Rig) -> None:
    rig.dump(LogisticRegression().fit(ROWS, LABELS))
    instance = rig.instance(INPUT, {"predict": ("INT64", [1])})
    with pytest.raises(Invalid, match="predict: Input X contains NaN"):
        run(instance, {"predict": ("FP32", np.full((1, 4), np.nan, np.float32))}, "predict")
    assert run(instance, {"predict": ("FP32", ROWS[:1])}, "predict")["predict"].shape == (1, 1)


def test_files_that_cannot_be_read(rig: Rig) -> None:
    with pytest.raises(Unavailable, match="unable to find"):
        rig.instance(INPUT, {"predict": ("INT64", [1])})
    (rig.version / "model.skops").write_bytes(b"no archive")
    with pytest.raises(Unknown, match="cannot be read by skops") as caught:
        rig.instance(INPUT, {"predict": ("INT64", [1])})
    assert caught.value.cause is Cause.FILE
