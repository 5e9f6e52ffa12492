"""What a client or the log is told of an exception of a model."""

import csv
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from halimede.workers.child.model import ModelFailed, UserModel, explain
from halimede.workers.child.requests import InferenceRequest

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


@pytest.mark.parametrize(
    ("error", "name"),
    [(csv.Error("x"), "_csv.Error"), (struct.error("x"), "error"), (ValueError("x"), "ValueError")],
)
def test_class_of_an_exception_that_was_made_in_c_has_its_module_in_its_name(error: BaseException, name: str) -> None:
    assert explain(error).startswith(f"{name}: ")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., UserModel]:
    """Makes one of a source; imports of it are forgotten."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "modules", sys.modules.copy())

    def made(body: str, filename: str = "model.py") -> UserModel:
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / filename).write_text(f"class TritonPythonModel:\n    {body}\n")
        return UserModel(str(tmp_path), "1", filename)

    return made


def test_file_of_a_model_ends_in_py(model: Callable[..., UserModel]) -> None:
    with pytest.raises(ModelFailed, match=r'^Model name must end with \'\.py\'\. Model name is "model\.txt"\.$'):
        model("pass", "model.txt").load()


@pytest.mark.parametrize(
    ("body", "completed"),
    [
        ("auto_complete_config = lambda config: config", '{"name": "m"}'),
        ('auto_complete_config = lambda config: type(config)(\'{"name": "n"}\')', '{"name": "n"}'),
        ("pass", "null"),
    ],
)
def test_completed_configuration_is_json(model: Callable[..., UserModel], body: str, completed: str) -> None:
    assert model(body).complete({"name": "m"}, "m") == completed


def test_completed_configuration_that_is_no_json_is_refused(model: Callable[..., UserModel]) -> None:
    broken = model("def auto_complete_config(config):\n        config.as_dict()['a'] = {1}\n        return config")
    with pytest.raises(ModelFailed, match=r"^TypeError: Object of type set is not JSON serializable"):
        broken.complete({"name": "m"}, "m")


@pytest.mark.parametrize("made", ["None", "'{}'", "[]"])
def test_completed_configuration_that_is_no_dictionary_is_refused(model: Callable[..., UserModel], made: str) -> None:
    broken = model(f"def auto_complete_config(config):\n        config._model_config = {made}\n        return config")
    with pytest.raises(ModelFailed, match=r"in model 'm' must return a valid pb\.ModelConfig object\.$"):
        broken.complete({"name": "m"}, "m")


def test_model_may_empty_the_list_of_its_requests(model: Callable[..., UserModel]) -> None:
    emptying = model("execute = lambda self, requests: [requests.pop() and None for _ in range(len(requests))]")
    emptying.start({})
    assert emptying.execute([InferenceRequest("", 0, [], [], "m") for _ in range(2)]) == [None, None]
