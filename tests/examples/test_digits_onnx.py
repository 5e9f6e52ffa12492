"""Both versions of the digits classifier, run by onnxruntime on images that they were not trained on."""

from pathlib import Path

import build_repository
import digits_onnx
import numpy as np
import onnxruntime
import pytest
from build_repository import BuildError
from digits_onnx import Images, TrainingError, build_classifier, split, train_versions
from numpy.typing import NDArray
from sklearn.neural_network import MLPClassifier


@pytest.fixture(scope="module")
def held_out() -> Images:
    return split()[1]


def probabilities(session: onnxruntime.InferenceSession, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    result: NDArray[np.float32] = session.run(["probabilities"], {"image": pixels})[0]
    return result


@pytest.mark.parametrize(("version", "least"), [("1", 0.94), ("2", 0.96)])
def test_classifier_is_right_on_held_out_images(
    demo_repository: Path, held_out: Images, version: str, least: float
) -> None:
    session = onnxruntime.InferenceSession(demo_repository / "digits" / version / "model.onnx")
    answers = probabilities(session, held_out.pixels)
    assert answers.sum(axis=1) == pytest.approx(np.ones(len(answers)), abs=1e-5)
    assert (answers.argmax(axis=1) == held_out.digits).mean() >= least


def test_highest_version_is_the_better_one(demo_repository: Path, held_out: Images) -> None:
    folders = sorted(folder for folder in (demo_repository / "digits").iterdir() if folder.is_dir())
    assert [folder.name for folder in folders] == ["1", "2"]
    right = []
    for folder in folders:
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        right.append((probabilities(session, held_out.pixels).argmax(axis=1) == held_out.digits).sum())
    assert right[1] > right[0]


def test_split_shares_no_image_and_is_reproducible(held_out: Images) -> None:
    train, again = split()
    np.testing.assert_array_equal(again.pixels, held_out.pixels)
    assert (len(train.digits), len(again.digits)) == (1347, 450)
    assert not {image.tobytes() for image in train.pixels} & {image.tobytes() for image in again.pixels}


def build_digits(root: Path) -> None:
    recipes = [recipe for recipe in build_repository.RECIPES if recipe.name == "digits"]
    build_repository.build(root / "repository", root / "cache", recipes, lambda line: None)


def test_training_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    # What scikit-learn calls at the end of each round.
    monkeypatch.setattr(MLPClassifier, "_update_no_improvement_count", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build_digits(tmp_path)
    assert list((tmp_path / "repository").iterdir()) == []


def test_training_that_does_not_settle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits_onnx, "ROUNDS", 2)
    with pytest.raises(TrainingError):
        train_versions()
    with pytest.raises(BuildError, match=r"^the training of digits failed: "):
        build_digits(tmp_path)
    assert list((tmp_path / "repository").iterdir()) == []


def test_classifier_of_two_layers_equals_the_arithmetic() -> None:
    random = np.random.default_rng(0)
    first, bias, second, last = (random.normal(size=shape) for shape in ((64, 5), 5, (5, 10), 10))
    image = random.uniform(0, 16, (3, 8, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(build_classifier([(first, bias), (second, last)]).SerializeToString())
    scores = np.exp(np.maximum(image.reshape(3, 64) / 16 @ first + bias, 0) @ second + last)
    np.testing.assert_allclose(
        probabilities(session, image), scores / scores.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6
    )
