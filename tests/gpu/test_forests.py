"""Forests on a GPU by nvforest, beside the same forests on the CPU. scikit-learn trains them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from halimede.backends.api import ModelFolder
from halimede.config.model_config import InstanceKind, ModelConfig
from halimede.errors import Unavailable
from tests.backends.fakes import FakeBatch, FakeResponses, context, idle_loop, model_config, place, request, spec

pytest.importorskip("nvforest")
sklearn: Any = pytest.importorskip("sklearn.ensemble")
treelite: Any = pytest.importorskip("treelite")

from halimede.backends.fil.backend import ForestBackend  # noqa: E402 - it needs treelite

Array = npt.NDArray[Any]
FEATURES, TREES = 8, 20


def rows(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, FEATURES)).astype(np.float32)


def trained(kind: str) -> Any:
    given = rows(1000, 1)
    score = given[:, 1] * given[:, 2] + np.sin(given[:, 3])
    if kind == "regression":
        return sklearn.RandomForestRegressor(TREES, max_depth=6, random_state=0).fit(given, score)
    if kind == "boosted":
        return sklearn.GradientBoostingRegressor(n_estimators=TREES, max_depth=4, random_state=0).fit(given, score)
    if kind == "boosted_binary":
        classifier = sklearn.GradientBoostingClassifier(n_estimators=TREES, max_depth=4, random_state=0)
        return classifier.fit(given, score > 0.3)
    classes = (score > 0.3).astype(int) if kind == "binary" else np.digitize(score, [0, 0.8])
    return sklearn.RandomForestClassifier(TREES, max_depth=6, random_state=0).fit(given, classes)


SIZES = {"regression": 1, "boosted": 1, "binary": 2, "boosted_binary": 2, "multi": 3}


class Forests:
    """A forest on the CPU and on GPU 0."""

    def __init__(self, root: Path, kind: str) -> None:
        version = root / "m" / "1"
        version.mkdir(parents=True)
        self.model = trained(kind)
        treelite.sklearn.import_model(self.model).serialize(str(version / "checkpoint.tl"))
        self._folder = ModelFolder(version.parent, version, 1)
        self._is_classifier = SIZES[kind] > 1
        self._outputs = SIZES[kind]
        with idle_loop() as loop:
            self.backend = ForestBackend(context(loop))

    def config(self, on_gpu: bool, outputs: int, parameters: Mapping[str, str]) -> ModelConfig:
        given: Any = {"kind": InstanceKind.GPU, "gpus": (0,)} if on_gpu else {}
        fields = {"model_type": "treelite_checkpoint", "is_classifier": str(self._is_classifier).lower(), **parameters}
        return replace(
            model_config(
                [spec("input__0", "FP32", [FEATURES])],
                [spec("output__0", "FP32", [outputs])],
                20_000,
                backend="fil",
                parameters=fields,
                **given,
            ),
            model_filename="",
        )

    def predict(
        self, given: Array, on_gpu: bool, outputs: int = 0, parameters: Mapping[str, str] = MappingProxyType({})
    ) -> Array:
        config = self.config(on_gpu, outputs or self._outputs, parameters)
        placed = place(kind=InstanceKind.GPU) if on_gpu else place()
        instance = self.backend.open(config, self._folder).create_instance(placed)
        responses = FakeResponses()
        asked = request({"input__0": ("FP32", given)}, ["output__0"], len(given))
        instance.execute(FakeBatch(asked), responses)
        instance.close()
        return responses.scattered["output__0"]


@pytest.mark.parametrize("kind", SIZES)
def test_gpu_answers_as_the_cpu(kind: str, tmp_path: Path) -> None:
    forests = Forests(tmp_path, kind)
    more = {"predict_proba": "true"} if SIZES[kind] > 1 else {}
    for count in (1, 7, 1000):
        given = rows(count, count)
        there, here = (forests.predict(given, on_gpu, parameters=more) for on_gpu in (True, False))
        assert there.shape == here.shape
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)
    found = forests.model.predict_proba(given) if SIZES[kind] > 1 else forests.model.predict(given)
    np.testing.assert_allclose(there.reshape(found.shape), found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["binary", "boosted_binary", "multi"])
def test_classes(kind: str, tmp_path: Path) -> None:
    forests = Forests(tmp_path, kind)
    given = rows(500, 2)
    there, here = (forests.predict(given, on_gpu, 1) for on_gpu in (True, False))
    assert (there == here).mean() > 0.99  # a tie may fall either way
    assert len(np.unique(there)) == SIZES[kind]


@pytest.mark.parametrize("layout", ["depth_first", "breadth_first", "layered"])
@pytest.mark.parametrize("chunk_size", ["1", "32"])
def test_layouts_and_chunks_change_nothing(layout: str, chunk_size: str, tmp_path: Path) -> None:
    forests = Forests(tmp_path, "regression")
    given = rows(300, 3)
    there = forests.predict(given, True, parameters={"layout": layout, "chunk_size": chunk_size})
    np.testing.assert_allclose(there, forests.predict(given, False), rtol=1e-4, atol=1e-5)


def test_gpu_that_is_not_there(tmp_path: Path) -> None:
    forests = Forests(tmp_path, "regression")
    model = forests.backend.open(forests.config(True, 1, {}), forests._folder)
    with pytest.raises(Unavailable, match="nvforest could not use GPU 99"):
        model.create_instance(place(kind=InstanceKind.GPU, device_id=99))


def test_backend_takes_the_gpus_that_it_is_offered(tmp_path: Path) -> None:
    assert list(Forests(tmp_path, "regression").backend.usable_gpus([0])) == [0]
