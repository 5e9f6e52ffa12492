"""`is_cancelled` of requests and senders, asked from a real worker process (P44, P82)."""

from collections.abc import Iterator

import pytest

from halimede.backends.python.backend import PythonInstance
from tests.backends.python_rig import SCRIPTED, InProcessRig, Rig, folder, scripted
from tests.workers.fakes import FakeRequest, turning_loop

Shared = tuple[Rig, PythonInstance]


@pytest.fixture(
    scope="module",
    params=[(kind, decoupled) for kind in (Rig, InProcessRig) for decoupled in (False, True)],
    ids=["single", "decoupled", "in_process-single", "in_process-decoupled"],
)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    kind, decoupled = request.param
    with turning_loop() as loop:
        rig = kind(loop)
        instance = rig.start(folder(tmp_path_factory.mktemp("repository"), SCRIPTED), decoupled=decoupled)
        yield rig, instance
        instance.close()
        rig.backend.close()


def answers(rig: Rig, instance: PythonInstance, *requests: FakeRequest) -> list[object]:
    """The one output of each request, whichever way the model answers."""
    stream = rig.stream(instance, *requests).wait()
    return [said[0][0] for said in stream.said]


BOTH = """
for request in requests:
    sender = request.get_response_sender()
    sender.send(R([T([request.is_cancelled(), sender.is_cancelled()])]), 1)
"""


def test_each_request_is_asked_for_itself(shared: Shared) -> None:
    rig, instance = shared
    gone = FakeRequest()
    gone.cancelled = True
    found = answers(rig, instance, scripted(BOTH), gone, FakeRequest())
    assert found == [[False, False], [True, True], [False, False]]


@pytest.mark.rows("P82")
def test_model_that_polls_learns_it(shared: Shared) -> None:
    """From execute, while the main thread computes, and from many threads at once."""
    rig, instance = shared
    source = """
        def poll(sender):
            while not sender.is_cancelled():
                pass

        sender = requests[0].get_response_sender()
        threads = [threading.Thread(target=poll, args=(sender,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        poll(sender)
        for thread in threads:
            thread.join()
        sender.send(R([T([1])]), 1)
    """
    request = scripted(source)
    stream = rig.stream(instance, request)
    assert not stream.free
    request.cancelled = True
    assert stream.wait().said == [[([1], True)]]


def test_thread_that_polls_between_batches_learns_it(shared: Shared) -> None:
    """The main thread waits for a batch then, and other batches come and go."""
    rig, instance = shared
    source = """
        def poll(sender):
            while not sender.is_cancelled():
                time.sleep(0.001)
            sender.send(R([T([1])]), 1)

        thread = threading.Thread(target=poll, args=(requests[0].get_response_sender(),))
        thread.start()
    """
    request = scripted(source)
    stream = rig.stream(instance, request)
    for _ in range(50):
        assert answers(rig, instance, scripted(BOTH)) == [[False, False]]
    request.cancelled = True
    assert stream.wait().said == [[([1], True)]]


def test_request_that_is_over_can_still_be_asked(shared: Shared) -> None:
    rig, instance = shared
    source = "self.kept = requests[0].get_response_sender(); self.kept.send(R([T([1])]), 1)"
    request = scripted(source)
    request.cancelled = True
    answers(rig, instance, request)
    source = "requests[0].get_response_sender().send(R([T([self.kept.is_cancelled()])]), 1)"
    assert answers(rig, instance, scripted(source)) == [[False]]
