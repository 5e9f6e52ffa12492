"""Loads of models that a Python-based backend serves (R42, R43, R83)."""

import json
from pathlib import Path

import pytest

from halimede.config import ModelConfig
from halimede.errors import Error
from halimede.models.loader import LoadedVersion, LoadOptions, load
from halimede.models.repository import FoundModel
from tests.models.fakes import FakeBackend, OneBackend, repository

TENSORS = 'input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }'


class Python(OneBackend):
    """Only the backend `python` is there."""

    def __contains__(self, name: object) -> bool:
        return name == "python"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "backends" / "fw").mkdir(parents=True)
    (tmp_path / "backends" / "fw" / "model.py").touch()
    return tmp_path / "backends"


def loaded(root: Path, text: str, backend: FakeBackend, directory: Path) -> LoadedVersion | Error:
    folder = repository(root / "models", {"m": text}) / "m"
    options = LoadOptions(backend_directory=directory)
    return load(FoundModel("m", folder), [1], Python(backend), options).versions[1]


def config_of(version: LoadedVersion | Error) -> ModelConfig:
    assert isinstance(version, LoadedVersion), version
    return version.config


def test_backend_python_runs_the_code_of_the_backend(tmp_path: Path, directory: Path) -> None:
    backend = FakeBackend()
    config = config_of(loaded(tmp_path, f'backend: "fw" {TENSORS}', backend, directory))
    [(_, folder)] = backend.opened
    assert (folder.code, folder.model.name) == (directory / "fw" / "model.py", "m")
    shown = json.loads(config.json)
    assert (shown["backend"], shown["runtime"], shown["parameters"]) == ("fw", "model.py", {})


def test_completion_sees_the_runtime_that_was_found(tmp_path: Path, directory: Path) -> None:
    values = {
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
    }
    backend = FakeBackend(description=values)
    assert config_of(loaded(tmp_path, 'backend: "fw"', backend, directory)).inputs[0].dims == (2,)
    [(text, folder, _)] = backend.described
    assert json.loads(text)["runtime"] == "model.py"
    assert folder.code == directory / "fw" / "model.py"


@pytest.mark.parametrize("own", ["", "/own.tar.gz"])
def test_environment_beside_the_code_is_for_models_without_their_own(tmp_path: Path, directory: Path, own: str) -> None:
    archive = directory / "fw" / "pb_exec_env_model.py.tar.gz"
    archive.touch()
    more = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{own}" }} }}' if own else ""
    config = config_of(loaded(tmp_path, f'backend: "fw" {TENSORS} {more}', FakeBackend(), directory))
    assert config.parameters["EXECUTION_ENV_PATH"] == (own or str(archive))


def test_library_of_a_backend_of_this_server_is_no_code(tmp_path: Path, directory: Path) -> None:
    backend = FakeBackend()
    text = f'backend: "python" runtime: "libtriton_python.so" {TENSORS}'
    assert json.loads(config_of(loaded(tmp_path, text, backend, directory)).json)["runtime"] == "libtriton_python.so"
    assert backend.opened[0][1].code is None


def test_unknown_backend_is_an_error_of_the_version(tmp_path: Path, directory: Path) -> None:
    error = loaded(tmp_path, f'backend: "none" {TENSORS}', FakeBackend(), directory)
    assert str(error).startswith("unable to find backend library for backend 'none'")
