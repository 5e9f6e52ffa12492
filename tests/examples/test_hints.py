"""The lines that a server prints after its start, for the demo and for each of its models alone."""

from pathlib import Path

import pytest

from tests.compat.serving import Serving
from tests.compat.test_hints import lines_of, run

WITH_LINES = (
    "digits",
    "minilm",
    "pooling",
    "shape_classifier",
    "shape_segmenter",
    "text_embedding",
    "tokenizer",
    "writer",
)
WITHOUT = ("image_decoder", "shapes", "keypad")
"""They take the bytes of a picture, or a piece of sound of a certain length."""


def answered(line: str) -> None:
    printed, other = run(line)
    assert "model_name" in printed
    assert '"error"' not in printed
    assert other == "200" or "curl" not in line


def test_lines_of_the_demo_get_an_answer(demo_server: Serving) -> None:
    for line in lines_of(demo_server):
        answered(line)


@pytest.mark.parametrize("name", WITH_LINES)
def test_lines_of_each_model_get_an_answer(name: str, demo_repository: Path, tmp_path: Path) -> None:
    flags = ("--model-control-mode=explicit", f"--load-model={name}")
    with Serving(demo_repository, tmp_path / "log", *flags) as serving:
        for line in lines_of(serving):
            answered(line)


def test_models_of_the_demo_are_all_here(demo_repository: Path) -> None:
    names = {path.name for path in demo_repository.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert names == {*WITH_LINES, *WITHOUT}


@pytest.mark.parametrize("name", WITHOUT)
def test_model_that_needs_real_data_has_no_lines(name: str, demo_repository: Path, tmp_path: Path) -> None:
    flags = ("--model-control-mode=explicit", f"--load-model={name}")
    with Serving(demo_repository, tmp_path / "log", *flags) as serving:
        serving.wait_until_live()
        assert serving.stop() == 0
        # `shapes` comes with classifiers that take zeros.
        assert f"models/{name}/" not in serving.log_text()
