"""What a check makes of a backend that cannot be asked."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from halimede.backends.api import Severity
from halimede.checking.model import review_model
from halimede.config import Incomplete
from halimede.errors import Unavailable
from halimede.models.loader import LoadOptions
from halimede.models.repository import FoundModel
from tests.models.fakes import FakeBackend, OneBackend, repository

CONFIG = """
backend: "fake"
input { name: "x" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_INT32 dims: [ 1 ] }
"""


class NotInstalled(FakeBackend):
    """As a child process whose Python lacks the runtime: whatever it is asked fails."""

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        raise Unavailable("not installed")

    def runs_code(self, asked: Incomplete) -> bool:
        raise Unavailable("not installed")

    def faults(self, *_: object) -> list[object]:
        return []


@pytest.mark.parametrize("text", [CONFIG, 'backend: "fake"'])
def test_backend_that_cannot_be_asked_is_a_problem_of_the_model(tmp_path: Path, text: str) -> None:
    repository(tmp_path, {"m": text})
    model = review_model(FoundModel("m", tmp_path / "m"), OneBackend(NotInstalled()), LoadOptions(gpus=(0,)))
    assert ("not installed", Severity.ERROR) in [(each.text, each.severity) for each in model.problems]
