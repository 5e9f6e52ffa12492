"""The backend `python` with real worker processes: the life of a model, and what its mistakes become (contract P)."""

import asyncio
import json
import os
import re
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.backends.api import InstancePlace, ModelFolder, Placement
from halimede.backends.python import PythonBackend, PythonInstance, parse_settings
from halimede.config.model_config import InstanceGroup, InstanceKind, ModelConfig
from halimede.errors import Internal, Invalid, NotFound, Unsupported
from halimede.tensors import BF16, DATATYPES, Tensor, tensor_of
from tests.workers.fakes import FakeBatch, FakeRequest, FakeResponses, on_loop, text_tensor, turning_loop

SCRIPTED = """
    import os, sys, threading, time
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from triton_python_backend_utils import InferenceResponse as R

    def T(array, name="OUTPUT0"):
        return pb_utils.Tensor(name, np.array(array))

    class TritonPythonModel:
        def initialize(self, args):
            self.args = args

        def execute(self, requests):
            source = pb_utils.get_input_tensor_by_name(requests[0], "SOURCE").as_numpy()[0].decode()
            names = {"self": self, "requests": requests, **globals()}
            exec(source, names)
            return names.get("returned")
"""


def config(name: str = "m", **fields: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "backend": "python",
        "platform": "",
        "max_batch_size": 0,
        "inputs": (),
        "outputs": (),
        "model_filename": "model.py",
        "instance_groups": (InstanceGroup(f"{name}_0", InstanceKind.CPU),),
        "json": json.dumps({"name": name}),
        "message": b"",
    }
    return ModelConfig(name=name, **{**values, **fields})


def folder(root: Path, source: str | None, filename: str = "model.py") -> ModelFolder:
    version = root / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    if source is not None:
        (version / filename).write_text(textwrap.dedent(source))
    return ModelFolder(root / "m", version, 1)


PLACE = InstancePlace("m_0_0", InstanceKind.CPU, 0, 0, 1)


class Rig:
    """A backend on a loop that turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.backend = PythonBackend(loop, {})

    def start(self, where: ModelFolder, **fields: Any) -> PythonInstance:
        return self.backend.open(config(**fields), where).create_instance(PLACE)

    def begin(self, instance: PythonInstance, *requests: FakeRequest) -> FakeResponses:
        responses = FakeResponses()
        on_loop(self.loop, lambda: instance.execute(FakeBatch(*requests), responses))
        return responses

    def run(self, instance: PythonInstance, *requests: FakeRequest) -> FakeResponses:
        return self.begin(instance, *requests).wait()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with turning_loop() as loop:
        it = Rig(loop)
        yield it
        it.backend.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, PythonInstance, str]]:
    """One scripted model for many tests, and the path of its file."""
    where = folder(tmp_path_factory.mktemp("repository"), SCRIPTED)
    with turning_loop() as loop:
        it = Rig(loop)
        instance = it.start(where)
        yield it, instance, str(where.version / "model.py")
        instance.close()
        it.backend.close()


def scripted(source: str, *inputs: Tensor, **fields: Any) -> FakeRequest:
    return FakeRequest(text_tensor("SOURCE", textwrap.dedent(source)), *inputs, **fields)


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
            "model_config": '{"name": "m"}',
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


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"decoupled": True}, "decoupled"),
        ({"parameters": {"EXECUTION_ENV_PATH": "env.tar.gz"}}, "EXECUTION_ENV_PATH"),
    ],
)
def test_configuration_that_is_not_served_is_refused(
    rig: Rig, tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(Unsupported, match=text):
        rig.backend.open(config(**fields), folder(tmp_path, SCRIPTED))


@pytest.mark.rows("P72")
def test_wrong_value_for_force_cpu_is_refused(rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"^Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'$"):
        rig.backend.open(config(parameters={"FORCE_CPU_ONLY_INPUT_TENSORS": "maybe"}), folder(tmp_path, SCRIPTED))


# ---- execute


def test_output_is_what_the_model_computed(shared: tuple[Rig, PythonInstance, str]) -> None:
    rig, instance, _ = shared
    numbers = np.arange(150_528, dtype=np.float32)
    source = """
        returned = [R([pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(r, "X").as_numpy() * 2),
                       T([b"a", "é"], "OUTPUT1")], parameters={"k": 1}) for r in requests]
    """
    asked = scripted(source, tensor_of("X", DATATYPES["FP32"], numbers), outputs=["OUTPUT0", "OUTPUT1"])
    responses = rig.run(instance, asked)
    assert np.array_equal(responses.arrays()["OUTPUT0"], numbers * 2)
    assert responses.parameters[0] == {"k": 1}
    assert responses.times is not None
    assert 0 < responses.times[0] <= responses.times[1]


@pytest.mark.rows("P75", "P76", "P77")
@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('returned = [R([T([1], "OTHER"), T([2])])]', {"OUTPUT0": [2]}),
        ("returned = [R([])]", {}),
        ("returned = [R([T([[1.5], [2.5]])])]", {"OUTPUT0": [[1.5], [2.5]]}),
        ("returned = [R([T(5)])]", {"OUTPUT0": 5}),
    ],
)
def test_outputs_are_pruned_and_not_checked(
    shared: tuple[Rig, PythonInstance, str], source: str, found: dict[str, Any]
) -> None:
    rig, instance, _ = shared
    responses = rig.run(instance, scripted(source))
    assert {name: array.tolist() for name, array in responses.arrays().items()} == found


@pytest.mark.rows("P4")
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("returned = ()", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        (
            "returned = []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:0\n",
        ),
        (
            "returned = [R(), 5]",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        ),
        (
            "returned = [R(), T([1])]",
            "Expected an 'InferenceResponse' object in the execute function return list, "
            "found type '<class 'c_python_backend_utils.Tensor'>'.",
        ),
    ],
)
def test_wrong_return_fails_the_whole_batch(shared: tuple[Rig, PythonInstance, str], source: str, text: str) -> None:
    rig, instance, _ = shared
    responses = rig.run(instance, scripted(source), FakeRequest())
    text = f"Failed to process the request(s) for model 'm_0_0', message: {text}"
    assert [(type(error), error.message) for error in responses.failed.values()] == [(Internal, text)] * 2
    assert instance.healthy


@pytest.mark.rows("P5")
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise ValueError('no\\nluck')", "ValueError: no\nluck"),
        ("raise ValueError", "ValueError: <EMPTY MESSAGE>"),
        ("{}['a']", "KeyError: 'a'"),
        ("sys.exit(2)", "SystemExit: 2"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: <EMPTY MESSAGE>"),
        ("raise pb_utils.TritonModelException('m')", "TritonModelException: m"),
        ("T([1], '')", "TritonModelException: Tensor name cannot be an empty string."),
    ],
)
def test_exception_in_execute_fails_the_whole_batch(
    shared: tuple[Rig, PythonInstance, str], source: str, text: str
) -> None:
    rig, instance, path = shared
    responses = rig.run(instance, scripted(source), FakeRequest())
    inner = f"  {path}(8): T\n" if "T(" in source else ""
    text = (
        f"Failed to process the request(s) for model 'm_0_0', message: {text}\n\n"
        f"At:\n{inner}  <string>(1): <module>\n  {path}(17): execute\n"
    )
    assert [(type(error), error.message) for error in responses.failed.values()] == [(Internal, text)] * 2
    assert instance.healthy


def test_answer_that_cannot_be_written_fails_its_batch(shared: tuple[Rig, PythonInstance, str]) -> None:
    rig, instance, _ = shared
    responses = rig.run(instance, scripted("returned = [R([T(['\\udc80'])])]"))
    assert "UnicodeEncodeError" in responses.failed[0].message
    assert instance.healthy


@pytest.mark.rows("P46")
def test_error_of_one_request_leaves_the_others(shared: tuple[Rig, PythonInstance, str]) -> None:
    rig, instance, _ = shared
    source = """
        error = pb_utils.TritonError("not here", pb_utils.TritonError.NOT_FOUND)
        returned = [R([T([1])]), R([T([2])], error=error), R([T([3])])]
    """
    responses = rig.run(instance, scripted(source), FakeRequest(), FakeRequest())
    assert {i: responses.arrays(i)["OUTPUT0"].tolist() for i in responses.sent} == {0: [1], 2: [3]}
    assert isinstance(responses.failed[1], NotFound)
    assert responses.failed[1].message == "not here"


@pytest.mark.rows("P41")
def test_bf16_input_says_that_numpy_has_no_such_thing(shared: tuple[Rig, PythonInstance, str]) -> None:
    rig, instance, _ = shared
    tensor = tensor_of("X", BF16, np.zeros(2, np.uint16))
    source = 'pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()'
    responses = rig.run(instance, scripted(source, tensor))
    assert (
        "TritonModelException: Tensor dtype is BF16 and cannot be converted to NumPy. "
        "Use to_dlpack() and from_dlpack() instead." in responses.failed[0].message
    )


@pytest.mark.rows("P20", "P21", "P22", "P23", "P24", "P25", "P27")
def test_functions_of_the_interface_answer_as_triton_s(shared: tuple[Rig, PythonInstance, str]) -> None:
    rig, instance, _ = shared
    cases = {
        'pb_utils.get_input_tensor_by_name(requests[0], "nope")': "None",
        'pb_utils.get_output_tensor_by_name(R([T([1], "a")]), "a").name()': "'a'",
        'pb_utils.get_output_tensor_by_name(R(error=pb_utils.TritonError("e")), "a")': "None",
        'pb_utils.get_input_config_by_name({"input": [{"name": "a"}]}, "a")': "{'name': 'a'}",
        'pb_utils.get_output_config_by_name({"input": [{"name": "a"}]}, "a")': "None",
        'pb_utils.triton_string_to_numpy("TYPE_STRING").__name__': "'object_'",
        "[pb_utils.numpy_to_triton_type(pb_utils.triton_to_numpy_type(i)) for i in range(1, 14)]": str(
            list(range(1, 14))
        ),
        "pb_utils.triton_to_numpy_type(14)": "None",
        "pb_utils.numpy_to_triton_type(np.dtype('S3'))": "None",
        "pb_utils.numpy_to_triton_type(np.bytes_)": "13",
        "pb_utils.serialize_byte_tensor(np.array([], dtype=object))": "()",
        "pb_utils.serialize_byte_tensor(np.array(['a'], dtype=object))": "b'\\x01\\x00\\x00\\x00a'",
        "pb_utils.serialize_byte_tensor(np.zeros(1))": "None",
        "pb_utils.deserialize_bytes_tensor(b'\\x01\\0\\0\\0a').tolist()": "[b'a']",
        "pb_utils.using_decoupled_model_transaction_policy({})": "False",
        'pb_utils.using_decoupled_model_transaction_policy({"model_transaction_policy": {"decoupled": True}})': "True",
        "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL": "1",
        "pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": "2",
    }
    source = f"returned = [R([T([repr(eval(case)) for case in {list(cases)!r}])])]"
    found = rig.run(instance, scripted(source)).arrays()["OUTPUT0"].tolist()
    assert dict(zip(cases, (text.decode() for text in found), strict=True)) == cases


@pytest.mark.parametrize(
    "call",
    ["pb_utils.load_model('x')", "pb_utils.is_model_ready('x')", "requests[0].exec()", "requests[0].is_cancelled()"],
)
def test_what_is_not_offered_says_so(shared: tuple[Rig, PythonInstance, str], call: str) -> None:
    rig, instance, _ = shared
    assert "TritonModelException: This server does not" in rig.run(instance, scripted(call)).failed[0].message


# ---- response senders


@pytest.mark.rows("P48")
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("sender.send(R(), flags=5)", "Unable to send response. Unsupported flag provided."),
        ("sender.send()", "Inference Response object must be provided when the response flags is set to zero."),
        (
            "sender.send(flags=1)",
            "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
        ),
    ],
)
def test_misuse_of_a_sender_is_an_exception(shared: tuple[Rig, PythonInstance, str], source: str, text: str) -> None:
    rig, instance, _ = shared
    responses = rig.run(instance, scripted(f"sender = requests[0].get_response_sender()\n{source}"))
    assert f"message: TritonModelException: {text}\n\nAt:\n  <string>(2)" in responses.failed[0].message


@pytest.mark.rows("P48")
@pytest.mark.parametrize(
    "source",
    [
        "sender.send(R([T([1])]), flags=1)",
        "sender.send(R([T([1])])); sender.send(flags=1); returned = [None]",
        "sender.send(R([T([1])]), flags=1); returned = [R([T([2])])]",
        "sender.send(R([T([1])])); sender.send(R([T([2])]))",
        "sender.send(R([T([1])]), flags=1); raise ValueError",
        "threading.Timer(0.05, lambda: sender.send(R([T([1])]), flags=1)).start()",
    ],
)
def test_first_response_of_a_sender_is_the_answer(shared: tuple[Rig, PythonInstance, str], source: str) -> None:
    rig, instance, _ = shared
    responses = rig.run(instance, scripted(f"sender = requests[0].get_response_sender()\n{source}"))
    assert responses.arrays()["OUTPUT0"].tolist() == [1]
    assert responses.failed == {}


@pytest.mark.parametrize("source", ["", "returned = [None]", "requests[0].get_response_sender()"])
def test_request_that_is_never_answered_is_left_open(shared: tuple[Rig, PythonInstance, str], source: str) -> None:
    rig, instance, _ = shared
    responses = rig.run(instance, scripted(source))
    assert (responses.sent, responses.failed) == ({}, {})


# ---- the end of a process


@pytest.mark.rows("P10")
def test_death_fails_the_batch_and_all_after_it(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    responses = rig.run(instance, scripted("os._exit(3)"), FakeRequest())
    text = "Stub process 'm_0_0' is not healthy."
    assert [(type(error), error.message) for error in responses.failed.values()] == [(Internal, text)] * 2
    assert not instance.healthy
    with pytest.raises(Internal, match=f"^{text}$"):
        rig.begin(instance, FakeRequest())
    instance.close()


def test_kill_of_an_idle_worker_is_noticed(rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    responses = rig.begin(instance, scripted("threading.Event().wait()"))
    os.kill(instance.pid, signal.SIGKILL)
    responses.wait()
    assert responses.failed[0].message == "Stub process 'm_0_0' is not healthy."
    assert f"worker process {instance.pid} of 'm_0_0' ended" in caplog.text


def test_worker_that_corrupts_its_stream_is_ended(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    source = """
        for name in os.listdir("/proc/self/fd"):
            path = f"/proc/self/fd/{name}"
            if os.path.lexists(path) and "socket:" in os.readlink(path):
                os.write(int(name), b"nonsense" * 20)
    """
    responses = rig.run(instance, scripted(source))
    assert responses.failed[0].message == "Stub process 'm_0_0' is not healthy."
    assert not instance.healthy


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
    described = rig.backend.describe('{"name": "m", "max_batch_size": 0}', folder(tmp_path, source), "model.py")
    assert described == {
        "name": "m",
        "max_batch_size": 8,
        "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [4]}],
    }


def test_describe_without_the_function_says_nothing(rig: Rig, tmp_path: Path) -> None:
    assert rig.backend.describe('{"name": "m"}', folder(tmp_path, SCRIPTED), "model.py") is None


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
        rig.backend.describe('{"name": "m"}', folder(tmp_path, source), "model.py")


def test_describe_ends_at_its_limit(tmp_path: Path) -> None:
    with turning_loop() as loop:
        backend = PythonBackend(loop, {"auto-complete-timeout-seconds": "1"})
        where = folder(tmp_path, "import threading; threading.Event().wait()")
        with pytest.raises(
            Internal, match=r"^Timed out while completing the configuration of 'm': no answer within 1 seconds"
        ):
            backend.describe('{"name": "m"}', where, "model.py")


# ---- settings


@pytest.mark.rows("P70")
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("shm-default-byte-size", "1000", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("shm-growth-byte-size", "0", "shm-growth-byte-size can't be smaller than or equal to zero."),
        ("stub-timeout-seconds", "0", "stub-timeout-seconds can't be smaller than or equal to zero."),
        ("thread-pool-size", "0", "thread-pool-size can't be less than 1."),
        ("stub-timeout-seconds", "soon", "stub-timeout-seconds must be an integer, not 'soon'"),
    ],
)
def test_bad_setting_is_refused(name: str, value: str, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_settings({name: value})
    assert caught.value.message == text


def test_limits_come_from_the_settings() -> None:
    settings = parse_settings({"stub-timeout-seconds": "7", "auto-complete-timeout-seconds": "9", "unknown": "x"})
    assert (settings.finish_limit, settings.describe_limit) == (7.0, 9.0)


def test_batches_go_to_the_worker_from_the_loop(rig: Rig, tmp_path: Path) -> None:
    model = rig.backend.open(config(), folder(tmp_path, SCRIPTED))
    assert model.placement is Placement.LOOP
    assert not model.inline_safe
