"""Where the batch strategy of a model is found, and which files are refused."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from halimede.backends.api import ModelFolder
from halimede.config import DynamicBatching, ModelConfig
from halimede.errors import Invalid, NotFound
from halimede.models.policies import policy_for
from halimede.models.strategies import strategy_of
from halimede.scheduling.policy import Batch
from tests.backends.fakes import message_of
from tests.fakes import inference
from tests.models.configs import config_of, given, spec

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "batching" / "batch_strategy.py"
CODE = "class BatchStrategy:\n    def __init__(self, config): self.name = {!r}\n    start = include = finish = print\n"
_WITH_A_DATACLASS = f"""from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Limits:
    rows: int = 3

{CODE.format("m")}"""


def config(batching: bool = True, parameters: Mapping[str, str] | None = None) -> ModelConfig:
    made = config_of(spec("x", "INT32", [-1]), max_batch_size=8, batching=DynamicBatching((8,)) if batching else None)
    values = {name: {"string_value": value} for name, value in (parameters or {}).items()}
    return replace(made, parameters=parameters or {}, message=message_of({"parameters": values}))


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    (tmp_path / "m" / "1").mkdir(parents=True)
    return ModelFolder(tmp_path / "m", tmp_path / "m" / "1", 1)


def write(folder: Path, text: str, name: str = "batch_strategy.py") -> None:
    (folder / name).write_text(text)


@pytest.mark.rows("S40")
def test_strategy_of_the_version_goes_before_that_of_the_model(folder: ModelFolder) -> None:
    assert strategy_of(config(), folder) is None
    write(folder.model, CODE.format("model"))
    assert vars(strategy_of(config(), folder)) == {"name": "model"}
    write(folder.version, CODE.format("version"))
    assert vars(strategy_of(config(), folder)) == {"name": "version"}
    write(folder.model, CODE.format("named"), "other.py")
    named = config(parameters={"TRITON_BATCH_STRATEGY_PATH": "other.py"})
    assert vars(strategy_of(named, folder)) == {"name": "named"}
    assert strategy_of(config(batching=False), folder) is None


@pytest.mark.rows("S40")
@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("missing.py", NotFound, "Batching library path not found: missing.py"),
        ("../outside.py", Invalid, "Batching library path escapes model repository."),
        ("/etc/passwd", Invalid, "Batching library path escapes model repository."),
    ],
)
def test_path_that_cannot_be_is_refused(folder: ModelFolder, path: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        strategy_of(config(parameters={"TRITON_BATCH_STRATEGY_PATH": path}), folder)
    assert str(caught.value) == text


@pytest.mark.rows("S40")
@pytest.mark.parametrize("code", ["", "BatchStrategy = 3", "class BatchStrategy:\n    start = include = print\n"])
def test_class_that_lacks_something_is_refused(folder: ModelFolder, code: str) -> None:
    write(folder.model, code)
    with pytest.raises(Invalid) as caught:
        strategy_of(config(), folder)
    file = folder.model / "batch_strategy.py"
    assert str(caught.value) == f"{file} does not define all required custom batching functions for model m"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("syntax error", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (CODE.format("x").replace("self.name = 'x'", "raise OSError('no')"), "OSError: no"),
    ],
)
def test_strategy_that_breaks_fails_the_load(folder: ModelFolder, code: str, words: str) -> None:
    write(folder.model, code)
    with pytest.raises(Invalid, match=words):
        strategy_of(config(), folder)


def test_file_that_changes_within_a_second_is_read_anew_and_leaves_nothing_behind(
    folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for name in ("old", "new"):
        write(folder.model, CODE.format(name))
        assert vars(strategy_of(config(), folder)) == {"name": name}
    assert {path.name for path in folder.model.iterdir()} == {"1", "batch_strategy.py"}


def test_strategy_may_have_dataclasses(folder: ModelFolder) -> None:
    write(folder.model, _WITH_A_DATACLASS)
    assert strategy_of(config(), folder) is not None
    assert str(folder.model / "batch_strategy.py") not in sys.modules


@pytest.mark.parametrize(("most", "sizes"), [({"MAX_BATCH_BYTES": "16"}, [2, 1]), ({}, [3])])
def test_example_limits_batches_by_bytes(folder: ModelFolder, most: Mapping[str, str], sizes: list[int]) -> None:
    write(folder.model, EXAMPLE.read_text())
    settings = config(parameters=most)
    policy = policy_for(settings, 0, strategy_of(settings, folder))
    for i in range(3):
        tensor = given("x", "INT32", [1, 2])
        assert policy.admit(inference(str(i), batch_size=1, inputs=[tensor]), 0) is None
    got = []
    while isinstance(step := policy.next((0,), 0), Batch):
        got.append(len(step.rows))
    assert got == sizes
