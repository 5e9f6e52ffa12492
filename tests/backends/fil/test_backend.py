"""Files, parameters, shapes and refusals of forests (BX1 to BX16)."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from halimede.backends.fil.settings import file_of, settings_of, warnings_of
from halimede.errors import Cause, Error, Internal, Invalid, Unavailable, Unknown, Unsupported
from halimede.tensors import FP32
from tests.backends.fakes import FakeBatch, FakeResponses, asked
from tests.backends.fil.forests import CLASSES, FEATURES, checkpoint_of, of_lightgbm, of_xgboost, rows, stump, target
from tests.backends.fil.rig import Rig, asking, config_of

STUMP: Mapping[str, str] = {"model_type": "treelite_checkpoint"}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    stump(rig.version / "checkpoint.tl", FEATURES)
    return rig


GIVEN = np.zeros((4, FEATURES), np.float32)
GIVEN[1, 0], GIVEN[2, 0], GIVEN[3, 0] = 4.0, 3.9, np.nan
POSITIVE = [0.25, 0.75, 0.25, 0.25]


@pytest.mark.rows("BX4", "BX5", "BX7")
@pytest.mark.parametrize(
    ("fields", "dims", "expected"),
    [
        ({"is_classifier": "false"}, [1], POSITIVE),
        ({"is_classifier": "true"}, [1], [0, 1, 0, 0]),
        ({"is_classifier": "true", "threshold": "0.2"}, [1], [1, 1, 1, 1]),
        ({"is_classifier": "true", "threshold": "0.75"}, [1], [0, 0, 0, 0]),  # not above it
        ({"is_classifier": "true", "predict_proba": "true"}, [1], POSITIVE),
        ({"is_classifier": "true", "predict_proba": "true"}, [2], [[1 - p, p] for p in POSITIVE]),
        ({"output_class": "true"}, [1], [0, 1, 0, 0]),
        ({"output_class": "false", "is_classifier": "true"}, [1], POSITIVE),
        ({"output_class": "True", "is_classifier": "true"}, [1], [0, 1, 0, 0]),
    ],
)
def test_what_a_row_of_the_output_has(rig: Rig, fields: dict[str, str], dims: list[int], expected: object) -> None:
    assert rig.predict(config_of(dims, {**STUMP, **fields}), GIVEN).tolist() == expected


@pytest.mark.rows("BX8")
@pytest.mark.parametrize(
    ("dims", "reshape", "fields", "shape"),
    [
        ([1], None, {"is_classifier": "true"}, (4,)),
        ([1, 1, 1], None, {"is_classifier": "true"}, (4,)),
        ([2], None, {"is_classifier": "true", "predict_proba": "true"}, (4, 2)),
        ([1, 2], None, {"is_classifier": "true", "predict_proba": "true"}, (4, 2)),
        ([1, 1], [1], {"is_classifier": "true"}, (4,)),
        ([1, 2], [2, 1], {"is_classifier": "true", "predict_proba": "true"}, (4, 2)),
    ],
)
def test_dimensions_of_size_1_are_dropped(
    rig: Rig, dims: list[int], reshape: list[int] | None, fields: dict[str, str], shape: tuple[int, ...]
) -> None:
    assert rig.predict(config_of(dims, {**STUMP, **fields}, reshape=reshape), GIVEN).shape == shape


@pytest.mark.rows("BX8")
def test_first_dimension_of_any_size_is_the_batch(rig: Rig) -> None:
    fields = {**STUMP, "is_classifier": "true", "predict_proba": "true"}
    assert rig.predict(config_of([-1, 2], fields, batch=0), GIVEN).shape == (4, 2)
    assert rig.predict(config_of([-1, 1], fields, batch=0), GIVEN).tolist() == POSITIVE


@pytest.mark.rows("BX9")
@pytest.mark.parametrize(
    ("config", "text"),
    [
        (config_of([7], {**STUMP, "is_classifier": "false"}), "has 7 numbers in a row by its dims"),
        (config_of([2], {**STUMP, "is_classifier": "true"}), "for probabilities set predict_proba"),
        (config_of([1], STUMP, features=9), r"has dims \[9\], and the model has 8 features"),
        (config_of([1], STUMP, shap=[9, 9]), "has 81 numbers in a row by its dims, and the model returns 9"),
    ],
)
def test_dims_that_do_not_fit_the_model_are_refused(rig: Rig, config: object, text: str) -> None:
    with pytest.raises(Invalid, match=text) as caught:
        rig.open(config)  # type: ignore[arg-type]
    assert caught.value.cause is Cause.CONFIGURATION


@pytest.mark.rows("BX9")
@pytest.mark.parametrize("count", [7, 9])
def test_row_with_another_number_of_features_fails(rig: Rig, count: int) -> None:
    instance = rig.instance(config_of([1], STUMP, features=-1))
    with pytest.raises(Invalid, match=f"has {count} numbers in a row, and the model has 8 features"):
        instance.execute(FakeBatch(asking(np.zeros((2, count)), "output__0")), FakeResponses())
    responses = FakeResponses()
    instance.execute(FakeBatch(asking(GIVEN, "output__0")), responses)
    assert responses.scattered["output__0"].tolist() == [0, 1, 0, 0]


@pytest.mark.rows("BX9", "BX10")
@pytest.mark.parametrize(
    ("config", "text"),
    [
        (config_of([-1], STUMP), "Backends with variable-shape outputs must request desired output shape"),
        (config_of([1], STUMP, datatype="FP64"), "incorrect type FP64 for input with required type FP32"),
        (replace(config_of([1], STUMP), outputs=()), "No output with name output__0 in configuration."),
    ],
)
def test_what_triton_notices_when_it_runs(rig: Rig, config: object, text: str) -> None:
    instance = rig.instance(config)  # type: ignore[arg-type]
    with pytest.raises(Internal) as caught:
        instance.execute(FakeBatch(asking(GIVEN, "output__0")), FakeResponses())
    assert caught.value.message == text
    [fault] = rig.backend.faults(asked(parameters=parameter_values(STUMP)), config, rig.folder, "")  # type: ignore[arg-type]
    assert (fault.text, fault.cause) == (text, Cause.CONFIGURATION)


def parameter_values(fields: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {name: {"string_value": value} for name, value in fields.items()}


@pytest.mark.rows("BX3")
@pytest.mark.parametrize("name", ["is_classifier", "predict_proba", "xgboost_allow_unknown_field"])
@pytest.mark.parametrize("value", ["True", "1", "yes", ""])
def test_switch_that_is_not_a_lower_case_word(rig: Rig, name: str, value: str) -> None:
    with pytest.raises(Internal) as caught:
        rig.open(config_of([1], {**STUMP, name: value}))
    assert caught.value.message == f"Expected 'true' or 'false' for parameter '{name}', got: '{value}'"


@pytest.mark.rows("BX3", "BX14")
def test_number_that_is_none_means_the_default() -> None:
    settings = settings_of({"threshold": "half", "chunk_size": "many", "cpu_nthread": "all", "transfer_threshold": "x"})
    assert settings == settings_of({})
    assert (settings.threshold, settings.chunk_size, settings.threads) == (0.5, 1, -1)


@pytest.mark.rows("BX14")
def test_tuning_changes_no_result(rig: Rig) -> None:
    expected = rig.predict(config_of([1], STUMP), rows(500)).tolist()
    tuning = ("layout", "breadth_first"), ("layout", "unknown"), ("chunk_size", "4"), ("transfer_threshold", "100")
    for name, value in (*tuning, ("cpu_nthread", "2"), ("use_experimental_optimizations", "true")):
        assert rig.predict(config_of([1], {**STUMP, name: value}), rows(500)).tolist() == expected


@pytest.mark.rows("BX14")
def test_chunk_size_below_1_is_refused() -> None:
    with pytest.raises(Invalid, match="Bad input for parameter chunk_size"):
        settings_of({"chunk_size": "0"})


@pytest.mark.rows("BX4", "BX15")
def test_removed_parameters_have_a_warning_and_no_effect(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    old = {"algo": "ALGO_AUTO", "threads_per_tree": "8", "storage_type": "DENSE", "blocks_per_sm": "x"}
    with caplog.at_level(logging.WARNING):
        rig.open(config_of([1], {**STUMP, "output_class": "true", **old}))
    said = "The `{}` parameter has been removed in 25.09 release."
    assert [record.getMessage() for record in caplog.records] == [
        f"model 'm': {said.format('output_class')} Use `is_classifier` instead.",
        f"model 'm': {said.format('algo')} Use `layout` instead.",
        f"model 'm': {said.format('threads_per_tree')} Use `chunk_size` instead.",
        f"model 'm': {said.format('storage_type')}",
        f"model 'm': {said.format('blocks_per_sm')}",
    ]
    assert warnings_of({"is_classifier": "true", "layout": "layered"}) == []


@pytest.mark.rows("BX2")
@pytest.mark.parametrize(
    ("kind", "configured", "file", "read_as"),
    [
        (None, "", "xgboost.model", "xgboost"),
        ("xgboost", "", "xgboost.model", "xgboost"),
        ("xgboost_json", "", "xgboost.json", "xgboost_json"),
        ("xgboost_ubj", "", "xgboost.ubj", "xgboost_ubj"),
        ("lightgbm", "", "model.txt", "lightgbm"),
        ("treelite_checkpoint", "", "checkpoint.tl", "treelite_checkpoint"),
        ("lightgbm", "trees.txt", "trees.txt", "lightgbm"),
        ("lightgbm", "xgboost.json", "model.txt", "lightgbm"),  # found by the search for usual files
        (None, "checkpoint.tl", "checkpoint.tl", "treelite_checkpoint"),
        (None, "other", "other", "xgboost"),
    ],
)
def test_file_and_its_type(kind: str | None, configured: str, file: str, read_as: str) -> None:
    settings = settings_of({} if kind is None else {"model_type": kind})
    assert file_of(settings, configured) == (file, read_as)


@pytest.mark.rows("BX2")
def test_unknown_type_is_refused(rig: Rig) -> None:
    with pytest.raises(Unsupported) as caught:
        rig.open(config_of([1], {"model_type": "catboost"}))
    assert caught.value.message == "catboost not recognized as a valid serialization format."


@pytest.mark.rows("BX2")
def test_file_of_an_old_configuration_that_was_written_again(rig: Rig) -> None:
    """XGBoost writes UBJSON or JSON today, whatever the name of the file."""
    booster = of_xgboost("regression")
    fields = {"model_type": "xgboost", "is_classifier": "false"}
    results = []
    for form in ("ubj", "json"):
        (rig.version / "xgboost.model").write_bytes(booster.save_raw(form))
        results.append(rig.predict(config_of([1], fields), rows(100)))
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.rows("BX2")
def test_old_binary_file(rig: Rig) -> None:
    """`old.model` was written by XGBoost 3.0.5, which can still write this format, with these predictions."""
    (rig.version / "xgboost.model").write_bytes(Path(__file__).with_name("old.model").read_bytes())
    given = np.array([[0] * 8, [1] * 8, [-1] * 8, [1, -1] * 4], np.float32)
    expected = [0.5642397999763489, 0.471250057220459, 0.5642397999763489, 0.3686869144439697]
    config = config_of([1], {"is_classifier": "true", "predict_proba": "true"})
    np.testing.assert_allclose(rig.predict(config, given), expected, atol=1e-6)


@pytest.mark.rows("BX13")
def test_field_that_the_reader_does_not_know(rig: Rig) -> None:
    document = json.loads(of_xgboost("regression").save_raw("json"))
    document["learner"]["from_the_future"] = 1
    (rig.version / "xgboost.json").write_text(json.dumps(document))
    fields = {"model_type": "xgboost_json", "is_classifier": "false"}
    with pytest.raises(Unknown):
        rig.open(config_of([1], fields))
    rig.open(config_of([1], {**fields, "xgboost_allow_unknown_field": "true"}))


@pytest.mark.rows("BX16")
@pytest.mark.parametrize(
    ("kind", "file", "content", "error"),
    [
        ("xgboost_json", "xgboost.json", b'{"learner": ', Unknown),
        ("xgboost_json", "xgboost.json", b"", Unknown),
        ("xgboost_ubj", "xgboost.ubj", b"{L\0\0\0", Unknown),
        ("lightgbm", "model.txt", b"tree\nversion=v99\n", Unknown),
        ("xgboost", "xgboost.model", b"not a forest", Unknown),
        ("treelite_checkpoint", "checkpoint.tl", b"\x09\0\0\0\0\0\0\0\0\0\0\0\0\0", Unknown),
    ],
)
def test_file_that_cannot_be_read(rig: Rig, kind: str, file: str, content: bytes, error: type[Error]) -> None:
    (rig.version / file).write_bytes(content)
    with pytest.raises(error) as caught:
        rig.open(config_of([1], {"model_type": kind}))
    assert caught.value.cause is Cause.FILE
    assert caught.value.message


@pytest.mark.rows("BX16")
def test_file_that_is_not_there(rig: Rig) -> None:
    path = rig.version / "xgboost.json"
    with pytest.raises(Unavailable) as caught:
        rig.open(config_of([1], {"model_type": "xgboost_json"}))
    assert (caught.value.message, caught.value.cause) == (f'Could not open model file "{path}"', Cause.FILE)


@pytest.mark.rows("BX16")
def test_model_with_several_targets_is_refused(rig: Rig) -> None:
    seen = rows(100)
    estimator = RandomForestRegressor(2, random_state=0).fit(seen, seen[:, :2])
    checkpoint_of(estimator, rig.version / "checkpoint.tl")
    with pytest.raises(Unsupported, match="Multi-target model not supported"):
        rig.open(config_of([2], {**STUMP, "is_classifier": "false"}))


def test_configuration_is_completed_from_the_file(rig: Rig) -> None:
    of_xgboost("multi").save_model(rig.version / "xgboost.json")
    of_lightgbm("regression").save_model(rig.version / "model.txt")
    cases: tuple[tuple[dict[str, str], str, int], ...] = (
        ({}, "xgboost.json", CLASSES),
        ({}, "model.txt", 1),
        ({}, "checkpoint.tl", 2),
        ({"is_classifier": "true"}, "checkpoint.tl", 1),
        ({"is_classifier": "false"}, "checkpoint.tl", 1),
        ({"is_classifier": "true", "predict_proba": "true"}, "xgboost.json", CLASSES),
    )
    for fields, file, size in cases:
        described = rig.backend.describe(asked(parameters=parameter_values(fields)), rig.folder, file)
        [given], [result] = described.inputs, described.outputs
        assert (given.name, given.datatype, given.shape) == ("input__0", FP32, (-1, FEATURES))
        assert (result.name, result.datatype, result.shape) == ("output__0", FP32, (-1, size))
        config = replace(config_of([size], fields), model_filename=file)
        assert rig.predict(config, GIVEN).shape == ((4,) if size == 1 else (4, size))


def test_completed_classifier_returns_probabilities(rig: Rig) -> None:
    seen = rows(200, 1)
    estimator = RandomForestClassifier(5, random_state=0).fit(seen, target(seen, "multi"))
    checkpoint_of(estimator, rig.version / "checkpoint.tl")
    config = replace(config_of([CLASSES], {}), model_filename="checkpoint.tl")
    np.testing.assert_allclose(rig.predict(config, rows(50)), estimator.predict_proba(rows(50)), atol=1e-6)


def test_outputs_that_nobody_asked_for_are_not_computed(rig: Rig) -> None:
    of_xgboost("regression").save_model(rig.version / "xgboost.json")
    config = config_of([1], {"model_type": "xgboost_json", "is_classifier": "false"}, shap=[FEATURES + 1])
    assert list(rig.outputs(config, GIVEN, "treeshap_output")) == ["treeshap_output"]
    assert list(rig.outputs(config, GIVEN, "output__0")) == ["output__0"]
    assert sorted(rig.outputs(config, GIVEN)) == ["output__0", "treeshap_output"]


def test_no_rows(rig: Rig) -> None:
    assert rig.predict(config_of([1], STUMP), np.zeros((0, FEATURES), np.float32)).shape == (0,)
