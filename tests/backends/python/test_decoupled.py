"""Decoupled models and `async def execute`, in real worker processes and in this one: any number of responses, also
after `execute` returned (P6, P7, P48).
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.python.backend import PythonInstance
from tests.backends.python_rig import ASYNCHRONOUS, SCRIPTED, Rig, both_ways, folder, scripted
from tests.workers.fakes import FakeRequest, turning_loop

Shared = tuple[Rig, PythonInstance, str]

FAILED = "Failed to process the request(s) for model 'm_0_0', message: "
CLOSED = "Unable to send response. Response sender has been closed."
NOT_NONE = "Python model 'm_0_0' is using the decoupled mode and the execute function must return None."


def started(root: Path, source: str, decoupled: bool, kind: type[Rig] = Rig) -> Iterator[Shared]:
    where = folder(root, source)
    with turning_loop() as loop:
        rig = kind(loop)
        instance = rig.start(where, decoupled=decoupled)
        yield rig, instance, str(where.version / "model.py")
        instance.close()
        rig.backend.close()


@both_ways
def decoupled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    yield from started(tmp_path_factory.mktemp("decoupled"), SCRIPTED, True, request.param)


@both_ways
def asynchronous(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    yield from started(tmp_path_factory.mktemp("asynchronous"), ASYNCHRONOUS, False, request.param)


@both_ways
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Decoupled and asynchronous."""
    yield from started(tmp_path_factory.mktemp("both"), ASYNCHRONOUS, True, request.param)


def test_sender_sends_zero_one_or_many_responses(decoupled: Shared) -> None:
    rig, instance, _ = decoupled
    source = """
        for count, request in enumerate(requests):
            sender = request.get_response_sender()
            for number in range(count):
                sender.send(R([T([number])]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    stream = rig.stream(instance, scripted(source), FakeRequest(), FakeRequest()).wait()
    assert stream.said == [
        [(None, True)],
        [([0], False), (None, True)],
        [([0], False), ([1], False), (None, True)],
    ]
    assert stream.times is not None
    assert 0 < stream.times[0] <= stream.times[1]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param("s.send(R([T([1])]), 1)", [([1], True)], id="final with a response"),
        pytest.param("s.send(R([])); s.send(R([T([1], 'OTHER')]), 1)", [({}, False), ({}, True)], id="pruned"),
        pytest.param(
            "s.send(R(error=pb_utils.TritonError('bad'))); s.send(R([T([2])])); s.send(flags=1)",
            [("bad", False), ([2], False), (None, True)],
            id="goes on after an error",
        ),
        pytest.param("s.send(R(error=pb_utils.TritonError('bad')), 1)", [("bad", True)], id="final error"),
        pytest.param(
            "requests[0].get_response_sender().send(R([T([s is requests[0].get_response_sender()])]), 1)",
            [([True], True)],
            id="one sender for a request",
        ),
    ],
)
def test_stream_is_what_the_sender_sent(decoupled: Shared, source: str, said: list[Any]) -> None:
    rig, instance, _ = decoupled
    stream = rig.stream(instance, scripted(f"s = requests[0].get_response_sender()\n{source}")).wait()
    assert stream.said == [said]


def test_response_has_its_parameters(decoupled: Shared) -> None:
    rig, instance, _ = decoupled
    source = "requests[0].get_response_sender().send(R([], parameters={'a': 1}), 1)"
    assert rig.stream(instance, scripted(source)).wait().parameters == [{"a": 1}]


@pytest.mark.rows("P6")
def test_instance_is_free_while_a_thread_goes_on_answering(decoupled: Shared) -> None:
    rig, instance, _ = decoupled
    source = """
        self.go = threading.Event()

        def answer(sender=requests[0].get_response_sender()):
            self.go.wait(20)
            for number in range(3):
                sender.send(R([T([number])]))
            sender.send(flags=1)

        threading.Thread(target=answer).start()
    """
    first = rig.stream(instance, scripted(source)).wait_free()
    assert first.open
    second = rig.stream(instance, scripted("requests[0].get_response_sender().send(flags=1); self.go.set()")).wait()
    assert first.wait().said == [[([0], False), ([1], False), ([2], False), (None, True)]]
    assert second.said == [[(None, True)]]


def test_thread_may_keep_the_request_and_ask_for_its_sender_later(decoupled: Shared) -> None:
    rig, instance, _ = decoupled
    stream = rig.stream(instance, scripted("self.kept = requests[0]")).wait_free()
    assert stream.said == [[]]
    last = "requests[0].get_response_sender().send(flags=1)"
    rig.stream(instance, scripted(f"self.kept.get_response_sender().send(R([T([1])]), 1); {last}")).wait()
    assert stream.wait().said == [[([1], True)]]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("pass", []),
        ("requests[0].get_response_sender().send(R([T([1])]))", [([1], False)]),
        ("requests.clear()", []),
        ("threading.Thread(target=lambda request: None, args=(requests.pop(),)).start()", []),
    ],
)
def test_request_that_nobody_can_answer_any_more_is_over(decoupled: Shared, source: str, said: list[Any]) -> None:
    """The real server leaves the client waiting for ever."""
    rig, instance, _ = decoupled
    assert rig.stream(instance, scripted(source)).wait().said == [[*said, (None, True)]]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ValueError('x')", []),
        ("s.send(R([T([1])])); raise ValueError('x')", [([1], False)]),
    ],
)
def test_exception_fails_what_is_not_over(decoupled: Shared, source: str, said: list[Any]) -> None:
    rig, instance, path = decoupled
    body = f"requests[1].get_response_sender().send(flags=1)\ns = requests[0].get_response_sender()\n{source}"
    stream = rig.stream(instance, scripted(body), FakeRequest()).wait()
    error = f"{FAILED}ValueError: x\n\nAt:\n  <string>(3): <module>\n  {path}(17): execute\n"
    assert stream.said == [[*said, (error, True)], [(None, True)]]


@pytest.mark.rows("P6")
@pytest.mark.parametrize("returned", ["[None]", "[]", "5"])
def test_decoupled_execute_must_return_nothing(decoupled: Shared, returned: str) -> None:
    rig, instance, _ = decoupled
    stream = rig.stream(instance, scripted(f"returned = {returned}")).wait()
    assert stream.said == [[(f"{FAILED}{NOT_NONE}", True)]]


@pytest.mark.rows("P48")
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("s.send(R([]), 5)", "Unable to send response. Unsupported flag provided."),
        ("s.send()", "Inference Response object must be provided when the response flags is set to zero."),
        ("s.send(flags=1); s.send(R([]))", CLOSED),
        ("s.send(flags=1); s.send(flags=1)", CLOSED),
    ],
)
def test_misuse_of_a_sender_is_an_exception(decoupled: Shared, source: str, text: str) -> None:
    rig, instance, _ = decoupled
    catching = f"""
s = requests[0].get_response_sender()
try:
    {source}
except pb_utils.TritonModelException as error:
    requests[1].get_response_sender().send(R(error=pb_utils.TritonError(str(error))), 1)
"""
    assert rig.stream(instance, scripted(catching), FakeRequest()).wait().said[1] == [(text, True)]


def test_sender_is_closed_after_an_exception_in_execute(decoupled: Shared) -> None:
    rig, instance, _ = decoupled
    rig.stream(instance, scripted("self.kept = requests[0].get_response_sender(); 1 / 0")).wait()
    source = """
        try:
            self.kept.send(R([]))
        except pb_utils.TritonModelException as error:
            requests[0].get_response_sender().send(R(error=pb_utils.TritonError(str(error))), 1)
    """
    assert rig.stream(instance, scripted(source)).wait().said == [[(CLOSED, True)]]


def test_answers_of_many_threads_arrive_whole(decoupled: Shared) -> None:
    rig, instance, _ = decoupled
    source = """
        def answer(sender, number):
            for _ in range(50):
                sender.send(R([T([number] * 5000)]))
            sender.send(flags=1)

        for number, request in enumerate(requests):
            threading.Thread(target=answer, args=(request.get_response_sender(), number)).start()
    """
    stream = rig.stream(instance, scripted(source), *(FakeRequest() for _ in range(7))).wait()
    assert stream.said == [[([number] * 5000, False)] * 50 + [(None, True)] for number in range(8)]


def test_death_of_the_worker_ends_what_is_still_open(tmp_path: Path) -> None:
    for rig, instance, _ in started(tmp_path, SCRIPTED, True):
        first = rig.stream(instance, scripted("self.kept = list(requests)"), FakeRequest()).wait_free()
        second = rig.stream(instance, scripted("time.sleep(20)"))
        os.kill(instance.pid, signal.SIGKILL)
        text = "Stub process 'm_0_0' is not healthy."
        assert first.wait().said == [[(text, True)], [(text, True)]]
        assert second.wait().said == [[(text, True)]]


# ---- async def execute


@pytest.mark.rows("P7")
def test_executes_of_an_asynchronous_decoupled_model_overlap(both: Shared) -> None:
    rig, instance, _ = both
    source = """
        self.go = asyncio.Event()
        await asyncio.wait_for(self.go.wait(), 20)
        requests[0].get_response_sender().send(R([T([1])]), 1)
    """
    first = rig.stream(instance, scripted(source)).wait_free()
    assert first.open
    rig.stream(instance, scripted("self.go.set()\nrequests[0].get_response_sender().send(flags=1)")).wait()
    assert first.wait().said == [[([1], True)]]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("await asyncio.sleep(0)\nraise ValueError('x')", "ValueError: x\n\nAt:\n  <string>(3): body\n"),
        ("raise SystemExit(3)", "SystemExit: 3\n\nAt:\n  <string>(2): body\n"),
        ("return []", NOT_NONE),
    ],
)
def test_failure_of_an_asynchronous_decoupled_model_reaches_its_client(both: Shared, source: str, text: str) -> None:
    """The real server leaves the client waiting for ever. Since Python 3.13 the frame that awaited is listed too."""
    rig, instance, _ = both
    [[(message, final)]] = rig.stream(instance, scripted(source)).wait().said
    assert final
    assert str(message).startswith(FAILED + text)


@pytest.mark.rows("P7")
def test_asynchronous_execute_runs_to_its_end(asynchronous: Shared) -> None:
    rig, instance, _ = asynchronous
    source = """
        one, two = await asyncio.gather(asyncio.sleep(0.01, 1), asyncio.sleep(0, 2))
        return [R([T([one, two])])]
    """
    assert rig.run(instance, scripted(source)).arrays()["OUTPUT0"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("await asyncio.sleep(0)\nraise ValueError('x')", "ValueError: x\n\nAt:\n  <string>(3): body\n"),
        ("raise SystemExit(3)", "SystemExit: 3\n\nAt:\n  <string>(2): body\n"),
        ("return ()", "Expected a list in the execute return, found type '<class 'tuple'>'."),
    ],
)
def test_failure_of_an_asynchronous_execute_fails_its_batch(asynchronous: Shared, source: str, text: str) -> None:
    rig, instance, _ = asynchronous
    assert rig.run(instance, scripted(source)).failed[0].message.startswith(FAILED + text)


def test_exit_in_a_task_does_not_end_the_loop(asynchronous: Shared) -> None:
    rig, instance, _ = asynchronous
    source = """
        async def leave():
            raise SystemExit

        task = asyncio.create_task(leave())
        await asyncio.wait([task])
        return [R([T([type(task.exception()).__name__])])]
    """
    assert rig.run(instance, scripted(source)).arrays()["OUTPUT0"].tolist() == [b"SystemExit"]
