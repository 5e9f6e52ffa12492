"""What a client or the log is told of an exception of a model."""

import os
import sys
from pathlib import Path

import pytest

from halimede.workers.child.model import UserModel, explain

UNAVAILABLE = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


class Untold(Exception):
    """Its text raises `other`."""

    other: type[Exception]

    def __str__(self) -> str:
        raise self.other


class Alike(Untold): ...


class First(Untold): ...


class Second(Untold): ...


Untold.other = ValueError
Alike.other = Alike
First.other, Second.other = Second, First


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (Untold(), [f"Untold: {UNAVAILABLE}", "ValueError: <EMPTY MESSAGE>"]),
        (Alike(), [f"Alike: {UNAVAILABLE}"]),
        pytest.param(First(), [f"First: {UNAVAILABLE}", f"Second: {UNAVAILABLE}"], id="in a circle"),
    ],
)
def test_exception_without_a_text_is_told_with_the_one_that_its_text_raises(error: Exception, kinds: list[str]) -> None:
    told = explain(error).split("\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: ")
    assert [each.partition("\n\nAt:\n")[0] for each in told] == kinds


@pytest.mark.parametrize(("age", "kept"), [(0.0, False), (10.0, True)])
def test_bytecode_of_a_source_that_may_change_within_its_second_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, kept: bool
) -> None:
    """A model may be loaded, changed and loaded again, with as many letters as before."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    file = tmp_path / "1" / "model.py"
    file.parent.mkdir()
    file.write_text("class TritonPythonModel: ...")
    os.utime(file, (file.stat().st_mtime - age,) * 2)
    assert UserModel(str(tmp_path), "1", "model.py").load().__name__ == "TritonPythonModel"
    assert (file.parent / "__pycache__").exists() == kept
