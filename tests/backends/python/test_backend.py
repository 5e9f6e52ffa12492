"""The backend `python` with real worker processes: the life of a model from its description to its end (contract P)."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from halimede.backends.api import BackendContext, Placement
from halimede.backends.python.backend import PythonBackend
from halimede.backends.python.settings import parse_settings
from halimede.errors import Internal, Invalid, Unsupported
from halimede.tensors import DATATYPES, tensor_of
from tests.backends.fakes import asked
from tests.backends.python_rig import SCRIPTED, Rig, config, folder
from tests.rights import open_folder
from tests.workers.fakes import FakeRequest, turning_loop


@pytest.fixture
def rig() -> Iterator[Rig]:
    with turning_loop() as loop:
        it = Rig(loop)
        yield it
        it.backend.close()


# ---- initialize and the rest of a life


@pytest.mark.rows("P2", "P13", "P26")
def test_initialize_gets_strings_only(rig: Rig, tmp_path: Path) -> None:
    source = """
        import json, sys
        import triton_python_backend_utils as pb_utils
        from sibling import WORD

        class TritonPythonModel:
            def initialize(self, args):
                seen = {"args": args, "name": __name__, "dir": pb_utils.get_model_dir(), "word": WORD}
                open(args["model_repository"] + "/seen.json", "w").write(json.dumps(seen))
    """
    where = folder(tmp_path, source)
    (where.version / "sibling.py").write_text("WORD = 'beside the model'")
    rig.start(where).close()
    assert json.loads((where.model / "seen.json").read_text()) == {
        "args": {
            "model_config": config().json,
            "model_instance_kind": "CPU",
            "model_instance_name": "m_0_0",
            "model_instance_device_id": "0",
            "model_repository": str(where.model),
            "model_version": "1",
            "model_name": "m",
        },
        "name": "1.model",
        "dir": str(where.version),
        "word": "beside the model",
    }


def test_model_without_initialize_and_finalize_is_served(rig: Rig, tmp_path: Path) -> None:
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
    """
    instance = rig.start(folder(tmp_path, source, "other.py"), model_filename="other.py")
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    requests = [FakeRequest(tensor_of("X", DATATYPES["INT8"], array + i), outputs=["X"]) for i in range(3)]
    responses = rig.run(instance, *requests)
    assert [responses.arrays(i)["X"].tolist() for i in range(3)] == [(array + i).tolist() for i in range(3)]
    instance.close()
    assert not instance.healthy


def test_instances_are_processes_of_their_own(rig: Rig, tmp_path: Path) -> None:
    where = folder(tmp_path, SCRIPTED)
    first, second = rig.start(where), rig.start(where)
    assert len({os.getpid(), first.pid, second.pid}) == 3
    first.close()
    second.close()


# ---- broken models


@pytest.mark.parametrize(
    ("source", "text"),
    [
        pytest.param(
            "import nothere_xyz",
            "^ModuleNotFoundError: No module named 'nothere_xyz'\n\nAt:\n  {path}\\(1\\): <module>\n"
            "  <frozen importlib._bootstrap>\\(\\d+\\): _call_with_frames_removed\n"
            "  <frozen importlib._bootstrap_external>\\(\\d+\\): exec_module\n"
            "  <frozen importlib._bootstrap>\\(\\d+\\): _load_unlocked\n"
            "  <frozen importlib._bootstrap>\\(\\d+\\): _find_and_load_unlocked\n"
            "  <frozen importlib._bootstrap>\\(\\d+\\): _find_and_load\n$",
            id="import",
        ),
        pytest.param("def f() return 1", "^SyntaxError: expected ':' \\(model.py, line 1\\)$", id="syntax"),
        pytest.param("x = 1", "^AttributeError: module '1.model' has no attribute 'TritonPythonModel'$", id="no class"),
        pytest.param(
            """
            class TritonPythonModel:
                def initialize(self, args):
                    self.deep()
                def deep(self):
                    raise RuntimeError("not\\ntoday")
            """,
            "^RuntimeError: not\ntoday\n\nAt:\n  {path}\\(6\\): deep\n  {path}\\(4\\): initialize\n$",
            id="initialize",
        ),
        pytest.param(
            """
            class TritonPythonModel:
                def __init__(self):
                    raise ValueError
            """,
            "^ValueError: <EMPTY MESSAGE>\n\nAt:\n  {path}\\(4\\): __init__\n$",
            id="constructor",
        ),
        pytest.param(
            """
            import sys
            class TritonPythonModel:
                def initialize(self, args):
                    sys.exit(3)
            """,
            "^SystemExit: 3\n\nAt:\n  {path}\\(5\\): initialize\n$",
            id="exit",
        ),
        pytest.param(
            """
            import os
            class TritonPythonModel:
                def initialize(self, args):
                    os._exit(3)
            """,
            "^Stub process 'm_0_0' is not healthy\\.$",
            id="death",
        ),
        pytest.param(None, "^Python model file not found in '{path}'$", id="no file"),
    ],
)
def test_broken_model_is_refused_in_triton_s_words(rig: Rig, tmp_path: Path, source: str | None, text: str) -> None:
    where = folder(tmp_path, source)
    path = re.escape(str(where.version / "model.py"))
    with pytest.raises(Internal, match=text.replace("{path}", path)):
        rig.start(where)


@pytest.mark.rows("P3")
def test_model_without_execute_fails_its_requests(rig: Rig, tmp_path: Path) -> None:
    where = folder(tmp_path, "class TritonPythonModel: pass")
    instance = rig.start(where)
    responses = rig.run(instance, FakeRequest(), FakeRequest())
    text = (
        "Failed to process the request(s) for model 'm_0_0', message: "
        f"Python model {where.version / 'model.py'} does not implement `execute` method."
    )
    assert [error.message for error in responses.failed.values()] == [text, text]
    instance.close()


@pytest.mark.rows("P72")
def test_wrong_value_for_force_cpu_is_refused(rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"^Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'$"):
        rig.backend.open(config(parameters={"FORCE_CPU_ONLY_INPUT_TENSORS": "maybe"}), folder(tmp_path, SCRIPTED))


# ---- describe


@pytest.mark.rows("P1", "P31")
def test_describe_gives_the_configuration_that_the_model_completed(rig: Rig, tmp_path: Path) -> None:
    source = """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [4]})
                config.set_max_batch_size(8)
                return config
    """
    described = rig.backend.describe(asked(), folder(tmp_path, source), "model.py")
    assert described == {
        **json.loads(asked().json),
        "max_batch_size": 8,
        "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [4]}],
    }


@pytest.mark.parametrize(("last", "imported"), [("pass", False), ("TritonPythonModel.more = 1", True)])
def test_describe_without_the_function_says_nothing(rig: Rig, tmp_path: Path, last: str, imported: bool) -> None:
    """If the file shows that there is none, the model is not even imported."""
    source = f"""
        open(__file__ + ".imported", "w").close()
        class TritonPythonModel:
            def execute(self, requests): ...
        {last}
    """
    where = folder(tmp_path, source)
    assert rig.backend.describe(asked(), where, "model.py") is None
    assert (where.version / "model.py.imported").exists() is imported


@pytest.mark.rows("P1")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            "return None",
            "^auto_complete_config function in model 'm' must return a valid pb.ModelConfig object\\.$",
        ),
        ("raise ValueError('ac')", "^ValueError: ac\n\nAt:\n  .*model.py\\(5\\): auto_complete_config\n$"),
    ],
)
def test_describe_refuses_in_triton_s_words(rig: Rig, tmp_path: Path, body: str, text: str) -> None:
    source = f"""
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                {body}
    """
    with pytest.raises(Internal, match=text):
        rig.backend.describe(asked(), folder(tmp_path, source), "model.py")


def test_describe_ends_at_its_limit(tmp_path: Path) -> None:
    with turning_loop() as loop:
        backend = PythonBackend(BackendContext(loop, {"auto-complete-timeout-seconds": "1"}))
        where = folder(tmp_path, "import threading; threading.Event().wait()")
        with pytest.raises(
            Internal, match=r"^Timed out while completing the configuration of 'm': no answer within 1 seconds"
        ):
            backend.describe(asked(), where, "model.py")


# ---- settings


@pytest.mark.rows("P70")
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("shm-default-byte-size", "1048575", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("shm-growth-byte-size", "0", "shm-growth-byte-size can't be smaller than or equal to zero."),
        ("stub-timeout-seconds", "0", "stub-timeout-seconds can't be smaller than or equal to zero."),
        ("thread-pool-size", "0", "thread-pool-size can't be less than 1."),
        ("stub-timeout-seconds", "soon", "stub-timeout-seconds must be an integer, not 'soon'"),
        ("execution-timeout-seconds", "-1", "execution-timeout-seconds can't be smaller than zero."),
        ("restart-wait-seconds", "-1", "restart-wait-seconds can't be smaller than zero."),
    ],
)
def test_bad_setting_is_refused(name: str, value: str, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_settings({name: value})
    assert caught.value.message == text


@pytest.mark.rows("P70")
def test_smallest_shared_memory_is_less_than_the_text_says() -> None:
    parse_settings({"shm-default-byte-size": "1048576"})


def test_limits_come_from_the_settings() -> None:
    settings = parse_settings({"stub-timeout-seconds": "7", "auto-complete-timeout-seconds": "9", "unknown": "x"})
    assert (settings.finish_limit, settings.describe_limit) == (7.0, 9.0)
    assert (settings.execution_limit, settings.patience) == (0.0, 2.0)
    settings = parse_settings({"execution-timeout-seconds": "60", "restart-wait-seconds": "0"})
    assert (settings.execution_limit, settings.patience) == (60.0, 0.0)


def test_batches_go_to_the_worker_from_the_loop(rig: Rig, tmp_path: Path) -> None:
    model = rig.backend.open(config(), folder(tmp_path, SCRIPTED))
    assert model.placement is Placement.LOOP
    assert not model.inline_safe


# ---- in a sandbox (docs/sandbox.md); its attacks are in tests/compat/test_sandbox.py


def test_completion_of_a_configuration_runs_in_the_sandbox() -> None:
    source = """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                try:
                    open("/etc/shadow")
                except PermissionError:
                    config.set_max_batch_size(7)
                return config
    """
    with turning_loop() as loop, open_folder() as where:
        rig = Rig(loop, {"sandbox": "on"})
        completed = rig.backend.describe(asked(), folder(where, source), "")
        assert completed is not None
        assert completed["max_batch_size"] == 7
        rig.backend.close()


def test_model_in_the_servers_process_is_refused_in_a_sandbox(tmp_path: Path) -> None:
    with turning_loop() as loop:
        rig = Rig(loop, {"sandbox": "on"})
        with pytest.raises(Invalid, match="and the models of this server run in a sandbox"):
            rig.backend.open(config(parameters={"EXECUTION": "in_process"}), folder(tmp_path, SCRIPTED))
        rig.backend.close()
