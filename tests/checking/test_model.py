"""What a check makes of a backend that cannot be asked."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from halimede.backends.api import Backend, Fault, ModelFolder, Severity
from halimede.backends.child.backend import ChildBackend
from halimede.checking.advice import advised
from halimede.checking.model import ModelReview, review_model
from halimede.config import Incomplete
from halimede.config.model_config import Description
from halimede.errors import ADVICE, Cause, Error, Invalid, Unavailable
from halimede.models.loader import LoadOptions
from halimede.models.repository import FoundModel
from tests.backends.child.odd import TRAITS as ODD
from tests.backends.fakes import context, idle_loop
from tests.models.fakes import FakeBackend, OneBackend, repository

CONFIG = """
backend: "fake"
input { name: "x" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_INT32 dims: [ 1 ] }
"""


def review(root: Path, backend: Backend, text: str) -> ModelReview:
    repository(root, {"m": text})
    return review_model(FoundModel("m", root / "m"), OneBackend(backend), LoadOptions(gpus=(0,)))


class NotInstalled(FakeBackend):
    """As a child process whose Python lacks the runtime: whatever it is asked fails."""

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        raise Unavailable("not installed")

    def runs_code(self, asked: Incomplete) -> bool:
        raise Unavailable("not installed")

    def faults(self, *_: object) -> list[Fault]:
        return []


@pytest.mark.parametrize("text", [CONFIG, 'backend: "fake"'])
def test_backend_that_cannot_be_asked_is_a_problem_of_the_model(tmp_path: Path, text: str) -> None:
    model = review(tmp_path, NotInstalled(), text)
    assert ("not installed", Severity.ERROR) in [(each.text, each.severity) for each in model.problems]


class Refuses(FakeBackend):
    """`describe` raises `error`."""

    def __init__(self, error: Error) -> None:
        super().__init__()
        self._error = error

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description:
        raise self._error

    def runs_code(self, asked: Incomplete) -> bool:
        return False

    def faults(self, *_: object) -> list[Fault]:
        return [Fault("also wrong", cause=self._error.cause)]


@pytest.mark.parametrize(
    ("cause", "code", "instead"),
    [
        (Cause.FILE, "model-file", ADVICE[Cause.FILE]),
        (Cause.ENVIRONMENT, "environment", ADVICE[Cause.ENVIRONMENT]),
        (Cause.CONFIGURATION, "model-file", ""),
    ],
)
def test_cause_of_an_error_decides_the_advice(tmp_path: Path, cause: Cause, code: str, instead: str) -> None:
    model = review(tmp_path, Refuses(Invalid("not this").blaming(cause)), 'backend: "fake"')
    found = [(each.code, each.text, advised(each).instead) for each in model.problems]
    assert {(code, "not this", instead), (code, "also wrong", instead)} <= set(found)


def test_model_whose_files_nobody_looked_at_has_a_note(tmp_path: Path) -> None:
    model = review(tmp_path, FakeBackend(), CONFIG)
    text = "the model's files were not looked at: backend 'fake' only loads models"
    assert ("not-seen", text, Severity.NOTE) in [(each.code, each.text, each.severity) for each in model.problems]
    assert not model.is_hidden


def test_model_in_a_child_whose_files_nobody_looked_at_has_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # the child imports the backend
    with idle_loop() as loop:
        backend = ChildBackend(ODD, context(loop))
        model = review(tmp_path, backend, CONFIG.replace("fake", "odd"))
        backend.close()
    assert [each.code for each in model.problems] == ["not-seen"]
