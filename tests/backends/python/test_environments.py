"""The backend `python` and models that bring an environment: who runs there, and what its lack does to a load."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from halimede.backends.api import ModelFolder
from halimede.errors import Internal
from tests.backends.fakes import asked
from tests.backends.python_rig import SCRIPTED, Rig, folder, scripted
from tests.workers.fakes import PATIENCE, turning_loop
from tests.workers.host.environment_fakes import packed, virtual, with_numpy

WHERE = 'returned = [R([T([sys.prefix.encode()]), T([os.environ.get("VIRTUAL_ENV", "").encode()], "OUTPUT1")])]'
COMPLETING = """
    import sys

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.add_output({"name": sys.prefix, "data_type": "TYPE_INT32", "dims": [1]})
            return config

        def execute(self, requests):
            pass
"""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with turning_loop() as it:
        yield it


@pytest.fixture
def rig(loop: asyncio.AbstractEventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    it = Rig(loop)
    yield it
    it.backend.close()
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return with_numpy(virtual(tmp_path / "own"))


def parameters(path: Path | str) -> dict[str, str]:
    return {"EXECUTION_ENV_PATH": str(path)}


def answer(rig: Rig, where: ModelFolder, path: Path | str) -> list[list[bytes]]:
    instance = rig.start(where, parameters=parameters(path))
    try:
        arrays = rig.run(instance, scripted(WHERE, outputs=("OUTPUT0", "OUTPUT1"))).arrays()
        return [arrays[name].tolist() for name in ("OUTPUT0", "OUTPUT1")]
    finally:
        instance.close()


def test_model_runs_in_the_environment_that_it_names(rig: Rig, own: Path, tmp_path: Path) -> None:
    where = folder(tmp_path, SCRIPTED)
    assert answer(rig, where, own) == [[str(own).encode()]] * 2
    (where.model / "env").symlink_to(own)
    assert answer(rig, where, "$$TRITON_MODEL_DIRECTORY/env") == [[str(own).encode()]] * 2


def test_model_without_an_environment_runs_as_the_server_does(rig: Rig, tmp_path: Path) -> None:
    assert answer(rig, folder(tmp_path, SCRIPTED), "")[0] == [sys.prefix.encode()]


def test_archive_serves_models_from_one_unpacked_folder(rig: Rig, own: Path, tmp_path: Path) -> None:
    archive = packed(own, tmp_path / "env.tar.gz")
    answers = [answer(rig, folder(tmp_path / name, SCRIPTED), archive) for name in ("a", "b")]
    (unpacked,) = (tmp_path / "scratch").glob("*/*")
    assert answers == [[[str(unpacked).encode()]] * 2] * 2


def test_configuration_is_completed_in_that_environment(rig: Rig, own: Path, tmp_path: Path) -> None:
    config = asked(parameters={"EXECUTION_ENV_PATH": {"string_value": str(own)}})
    completed = rig.backend.describe(config, folder(tmp_path, COMPLETING), "")
    assert completed is not None
    assert [output["name"] for output in completed["output"]] == [str(own)]


def test_worker_that_died_comes_back_in_the_same_environment(rig: Rig, own: Path, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED), parameters=parameters(own))
    died = instance.pid
    os.kill(died, signal.SIGKILL)
    until = time.monotonic() + PATIENCE
    while not (instance.healthy and instance.pid != died) and time.monotonic() < until:
        time.sleep(0.01)
    assert rig.run(instance, scripted(WHERE)).arrays()["OUTPUT0"].tolist() == [str(own).encode()]
    instance.close()


def test_environment_that_is_not_there_fails_the_load(rig: Rig, tmp_path: Path) -> None:
    where, text = folder(tmp_path, SCRIPTED), r"^Failed to get the canonical path for /no/env\.$"
    with pytest.raises(Internal, match=text):
        rig.start(where, parameters=parameters("/no/env"))
    config = asked(parameters={"EXECUTION_ENV_PATH": {"string_value": "/no/env"}})
    with pytest.raises(Internal, match=text):
        rig.backend.describe(config, where, "")


def test_environment_without_numpy_fails_the_load_in_words(rig: Rig, tmp_path: Path) -> None:
    bare = virtual(tmp_path / "bare")
    with pytest.raises(Internal, match=rf"^Python models need numpy, .+ {bare}/bin/python -m pip install numpy$"):
        rig.start(folder(tmp_path, SCRIPTED), parameters=parameters(bare))


def test_stub_of_the_models_own_is_not_used_and_the_log_says_so(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where = folder(tmp_path, SCRIPTED)
    (where.model / "triton_python_backend_stub").write_bytes(b"\x7fELF")
    instance = rig.start(where)
    (record,) = [record for record in caplog.records if "stub" in record.getMessage()]
    assert record.levelname == "WARNING"
    assert f"'{where.model}/triton_python_backend_stub' is not used" in record.getMessage()
    assert "EXECUTION_ENV_PATH" in record.getMessage()
    instance.close()
