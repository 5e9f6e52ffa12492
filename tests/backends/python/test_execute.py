"""Requests through a real worker process, or a thread of this one: what a model returns, its mistakes, and its senders
(contract P).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from halimede.backends.python.backend import PythonInstance
from halimede.errors import Internal, Invalid, NotFound
from halimede.tensors import BF16, DATATYPES, tensor_of
from tests.backends.python_rig import SCRIPTED, Rig, both_ways, folder, scripted
from tests.workers.fakes import FakeRequest, turning_loop


@both_ways
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Rig, PythonInstance, str]]:
    """One scripted model for many tests, and the path of its file."""
    where = folder(tmp_path_factory.mktemp("repository"), SCRIPTED)
    with turning_loop() as loop:
        it = request.param(loop)
        instance = it.start(where)
        yield it, instance, str(where.version / "model.py")
        instance.close()
        it.backend.close()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, PythonInstance]]:
    """One that is reached by frames."""
    with turning_loop() as loop:
        it = Rig(loop)
        instance = it.start(folder(tmp_path_factory.mktemp("worker"), SCRIPTED))
        yield it, instance
        it.close(instance)


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


def beyond() -> FakeRequest:
    """A request that no frame can carry."""
    return FakeRequest(correlation_id=-1)


def test_request_that_cannot_be_passed_on_fails_alone(worker: tuple[Rig, PythonInstance]) -> None:
    rig, instance = worker
    source = """
        error = pb_utils.TritonError("not here", pb_utils.TritonError.NOT_FOUND)
        self.kept = requests[2].get_response_sender()
        returned = [R([T([len(requests)])]), R(error=error), None]
    """
    asked = [beyond(), scripted(source), beyond(), FakeRequest(), FakeRequest()]
    responses = rig.begin(instance, *asked).wait_free()
    assert {i: type(error) for i, error in responses.failed.items()} == {0: Invalid, 2: Invalid, 3: NotFound}
    assert "cannot be passed on" in responses.failed[0].message
    assert responses.arrays(1)["OUTPUT0"].tolist() == [3]
    assert responses.later == [4]
    rig.run(instance, scripted("self.kept.send(R([T([9])]), 1); returned = [R([])]"))
    assert responses.wait().arrays(4)["OUTPUT0"].tolist() == [9]


def test_batch_of_which_nothing_can_be_passed_on_is_over(worker: tuple[Rig, PythonInstance]) -> None:
    rig, instance = worker
    responses = rig.run(instance, beyond(), beyond())
    assert {i: type(error) for i, error in responses.failed.items()} == {0: Invalid, 1: Invalid}
    assert rig.run(instance, scripted("returned = [R([T([1])])]")).arrays()["OUTPUT0"].tolist() == [1]


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
def test_request_that_nobody_will_answer_is_given_up(shared: tuple[Rig, PythonInstance, str], source: str) -> None:
    rig, instance, _ = shared
    responses = rig.run(instance, scripted(source))
    assert (responses.sent, responses.failed, responses.given_up) == ({}, {}, {0})


def test_instance_is_free_while_senders_wait(shared: tuple[Rig, PythonInstance, str]) -> None:
    """What one execute promised, the next one answers, gives up, or both in a batch where another was answered."""
    rig, instance, _ = shared
    source = """
        self.kept = [request.get_response_sender() for request in requests[1:]]
        returned = [R([T([0])]), None, None]
    """
    first = rig.begin(instance, scripted(source), FakeRequest(), FakeRequest()).wait_free()
    assert first.arrays(0)["OUTPUT0"].tolist() == [0]
    assert first.later == [1, 2]
    second = rig.run(instance, scripted("self.kept.pop().send(R([T([2])]), 1); returned = [R([T([9])])]"))
    assert second.arrays()["OUTPUT0"].tolist() == [9]
    assert first.later == [1]
    rig.run(instance, scripted("self.kept.clear(); returned = [R([T([9])])]"))
    first.wait()
    assert first.arrays(2)["OUTPUT0"].tolist() == [2]
    assert (set(first.sent), first.given_up, first.failed) == ({0, 2}, {1}, {})


def test_sender_sends_once_after_execute_too(shared: tuple[Rig, PythonInstance, str]) -> None:
    rig, instance, _ = shared
    first = rig.begin(instance, scripted("self.kept = requests[0].get_response_sender()")).wait_free()
    source = """
        self.kept.send(R([T([1])]))
        self.kept.send(R([T([2])]), 1)
    """
    second = rig.run(instance, scripted(source))
    assert first.wait().arrays()["OUTPUT0"].tolist() == [1]
    assert "Non-decoupled model cannot send more than one response." in second.failed[0].message
