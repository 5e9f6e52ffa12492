"""A Python-based backend through a real worker process (R83), and what the log says of a model's failures."""

import json
import logging
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.api import ModelFolder
from halimede.errors import Internal
from tests.backends.fakes import asked
from tests.backends.python_rig import SCRIPTED, Rig, folder, scripted
from tests.workers.fakes import on_loop, turning_loop

FACTS = """
    import json, sys
    import numpy as np
    import triton_python_backend_utils as pb_utils
    import beside

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.set_max_batch_size(beside.SIZE)
            return config

        def initialize(self, args):
            args.pop("model_config")
            self.facts = [__name__, __file__, sys.path, pb_utils.get_model_dir(), args]

        def execute(self, requests):
            texts = np.array([json.dumps(self.facts).encode()], object)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", texts)]) for _ in requests]
"""


@pytest.fixture
def rig() -> Iterator[Rig]:
    with turning_loop() as loop:
        it = Rig(loop)
        yield it
        it.backend.close()


def served_by(root: Path, source: str) -> ModelFolder:
    """A model with a `model.py` of its own, which is not to be used, and a backend with this source."""
    code = root / "backends" / "fw" / "model.py"
    code.parent.mkdir(parents=True)
    code.write_text(textwrap.dedent(source))
    (code.parent / "beside.py").write_text("SIZE = 7\n")
    return replace(folder(root, "raise RuntimeError('not me')"), code=code)


def test_class_of_the_backend_serves_the_model(rig: Rig, tmp_path: Path) -> None:
    where = served_by(tmp_path, FACTS)
    instance = rig.start(where, model_filename="weights.bin")
    [text] = rig.run(instance, scripted("")).arrays()["OUTPUT0"]
    name, file, path, model_dir, args = json.loads(text)
    assert (name, file, model_dir) == ("model", str(where.code), str(where.version))
    inside = [entry for entry in path if entry.startswith(str(tmp_path))]
    assert inside == [str(tmp_path / "backends" / "fw")]
    assert args["model_repository"] == str(where.model)
    instance.close()


def test_backend_completes_configurations(rig: Rig, tmp_path: Path) -> None:
    where = served_by(tmp_path, FACTS)
    completed = rig.backend.describe(asked(), where, "")
    assert completed == {**json.loads(asked().json), "max_batch_size": 7}


def test_module_called_model_elsewhere_is_not_taken(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is found by its path, whatever else of that name the path has."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.py").write_text("raise RuntimeError('not me')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    rig.start(served_by(tmp_path, FACTS)).close()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise ValueError('no framework')", "ValueError: no framework\n\nAt:\n  {code}(1): <module>\n"),
        ("x = 1", "AttributeError: module 'model' has no attribute 'TritonPythonModel'"),
    ],
)
def test_backend_that_cannot_be_loaded(rig: Rig, tmp_path: Path, source: str, text: str) -> None:
    where = served_by(tmp_path, source)
    with pytest.raises(Internal) as caught:
        rig.start(where)
    assert str(caught.value).startswith(text.format(code=where.code))


# ---- what the log says


@pytest.fixture
def tables(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tracebacks in the log so far: file, line, heading, text."""
    monkeypatch.setattr(logging.getLogger("halimede"), "propagate", True)
    return lambda: [
        (record.filename, record.lineno, record.getMessage(), vars(record)["table"])
        for record in caplog.records
        if "table" in vars(record)
    ]


def test_failure_of_execute_is_in_the_log_with_its_source(rig: Rig, tmp_path: Path, tables: Any) -> None:
    where = folder(tmp_path, SCRIPTED.replace("exec(source, names)", "self.fail(requests)") + _FAIL)
    instance = rig.start(where)
    for _ in range(3):
        error = rig.run(instance, scripted("")).failed[0]
        assert "ValueError: 12345" in str(error)
        assert "At:\n" in str(error)
    instance.close()
    [(file, line, heading, text)] = tables()
    assert (file, heading) == ("model.py", "exception in execute of model 'm' instance m_0_0:")
    assert line > 1
    assert 'raise ValueError("12345")' in text
    assert "halimede" not in text


_FAIL = """
        def fail(self, requests):
            raise ValueError("12345")
"""


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("1 / 0", "the import"),
        ("class TritonPythonModel:\n    def initialize(self, args): 1 / 0", "initialize"),
        ("class TritonPythonModel:\n    def __init__(self): 1 / 0", "initialize"),
    ],
)
def test_failure_of_a_load_is_in_the_log(rig: Rig, tmp_path: Path, tables: Any, source: str, where: str) -> None:
    with pytest.raises(Internal, match="ZeroDivisionError"):
        rig.start(folder(tmp_path, source))
    [(_, _, heading, text)] = tables()
    assert heading == f"exception in {where} of model 'm' instance m_0_0:"
    assert text.endswith("ZeroDivisionError: division by zero")


def test_failure_of_auto_complete_config_is_in_the_log(rig: Rig, tmp_path: Path, tables: Any) -> None:
    source = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config): 1 / 0"
    with pytest.raises(Internal, match="ZeroDivisionError"):
        rig.backend.describe(asked(), folder(tmp_path, source), "model.py")
    assert [heading for *_, heading, _ in tables()] == ["exception in auto_complete_config of model 'm':"]


def test_failure_of_finalize_and_of_a_thread_are_in_the_log(
    rig: Rig, tmp_path: Path, tables: Any, caplog: pytest.LogCaptureFixture
) -> None:
    source = SCRIPTED + "\n        def finalize(self):\n            raise KeyError('in finalize')\n"
    instance = rig.start(folder(tmp_path, source))
    work = """
        thread = threading.Thread(target=lambda: 1 / 0, name="helper")
        thread.start()
        thread.join()
        returned = [R([T([1])])]
    """
    assert rig.run(instance, scripted(work)).arrays()["OUTPUT0"].tolist() == [1]
    assert [heading for *_, heading, _ in tables()] == ["exception in thread 'helper' of model 'm' instance m_0_0:"]
    instance.close()
    on_loop(rig.loop, lambda: None)  # what the worker said last is read there
    assert [heading for *_, heading, _ in tables()[1:]] == ["exception in finalize of model 'm' instance m_0_0:"]
    assert sum("finalize" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("decoupled", [False, True])
def test_failure_of_an_asynchronous_execute_is_in_the_log(
    rig: Rig, tmp_path: Path, tables: Any, decoupled: bool
) -> None:
    source = """
        class TritonPythonModel:
            async def execute(self, requests):
                raise ValueError("late")
    """
    instance = rig.start(folder(tmp_path, source), decoupled=decoupled)
    if decoupled:
        [(text, final)] = rig.stream(instance, scripted("")).wait().said[0]
        assert final
    else:
        text = str(rig.run(instance, scripted("")).failed[0])
    assert "ValueError: late" in text
    [(_, _, heading, rows)] = tables()
    assert heading == "exception in execute of model 'm' instance m_0_0:"
    assert 'raise ValueError("late")' in rows
    instance.close()


def test_mistake_of_a_model_without_an_exception_has_no_traceback(rig: Rig, tmp_path: Path, tables: Any) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    assert "Expected a list" in str(rig.run(instance, scripted("returned = 5")).failed[0])
    instance.close()
    assert tables() == []


def test_answer_that_cannot_be_written_is_in_the_log(rig: Rig, tmp_path: Path, tables: Any) -> None:
    """Here a number with more digits than Python writes."""
    instance = rig.start(folder(tmp_path, SCRIPTED))
    assert 0 in rig.run(instance, scripted("returned = [R([T([1])], parameters={'long': 10 ** 5000})]")).failed
    assert rig.run(instance, scripted("returned = [R([T([2])])]")).arrays()["OUTPUT0"].tolist() == [2]
    instance.close()
    [(_, _, heading, text)] = tables()
    assert heading == "exception in an answer of model 'm' instance m_0_0:"
    assert "ValueError: Exceeds the limit" in text
