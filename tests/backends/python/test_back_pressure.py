"""Readers that are slower than the senders of a real worker process (G32, G34)."""

from collections.abc import Iterator

import pytest

from halimede.backends.python.backend import PythonInstance
from tests.backends.python_rig import ASYNCHRONOUS, SCRIPTED, Rig, folder, scripted
from tests.workers.fakes import FakeRequest, FakeStream, on_loop, turning_loop

Shared = tuple[Rig, PythonInstance]

COUNT = 40
AHEAD = 6
"""Responses of 0.4 MB that a sender sends before its reader takes one."""

IN_EXECUTE = f"""
for number in range({COUNT}):
    s.send(R([T(np.full(100_000, number, np.int32))]))
s.send(flags=1)
"""
IN_A_THREAD = f"""
def answer(s=s):
    for number in range({COUNT}):
        s.send(R([T(np.full(100_000, number, np.int32))]))
    s.send(flags=1)

threading.Thread(target=answer).start()
"""
SENDER = "s = requests[0].get_response_sender()\n"
QUICK = scripted(SENDER + "s.send(flags=1)")


@pytest.fixture(scope="module", params=[SCRIPTED, ASYNCHRONOUS], ids=["plain", "async"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with turning_loop() as loop:
        rig = Rig(loop)
        instance = rig.start(folder(tmp_path_factory.mktemp("repository"), request.param), decoupled=True)
        yield rig, instance
        instance.close()
        rig.backend.close()


def clogged(shared: Shared, source: str, *others: FakeRequest, most_ahead: int = 0) -> FakeStream:
    """A batch whose first request has a client that does not read, when its sender waits."""
    rig, instance = shared
    stream = FakeStream(1 + len(others))
    stream.clogged.add(0)
    rig.pass_on(instance, stream, scripted(SENDER + source, most_ahead=most_ahead), *others)
    stream.wait_until(lambda: len(stream.said[0]) >= (most_ahead or AHEAD))
    return stream


def read_on(shared: Shared, stream: FakeStream) -> None:
    def resume() -> None:
        stream.clogged.clear()
        for each in stream.waiting:
            each()

    on_loop(shared[0].loop, resume)


@pytest.mark.parametrize("source", [IN_EXECUTE, IN_A_THREAD], ids=["execute", "thread"])
def test_sender_waits_for_its_reader_and_loses_nothing(shared: Shared, source: str) -> None:
    stream = clogged(shared, source)
    read_on(shared, stream)
    said = stream.wait().said[0]
    assert [(what[0], final) for what, final in said[:-1]] == [(number, False) for number in range(COUNT)]
    assert said[-1] == (None, True)


@pytest.mark.parametrize("most", [1, 4])
def test_sender_waits_from_the_number_on_that_may_be_ahead(shared: Shared, most: int) -> None:
    rig, instance = shared
    stream = clogged(shared, IN_A_THREAD, most_ahead=most)
    assert rig.stream(instance, QUICK).wait().said == [[(None, True)]]
    assert len(stream.said[0]) == most
    read_on(shared, stream)
    assert len(stream.wait().said[0]) == COUNT + 1


def test_worker_serves_others_while_a_thread_waits(shared: Shared) -> None:
    rig, instance = shared
    stream = clogged(shared, IN_A_THREAD)
    for _ in range(20):
        assert rig.stream(instance, QUICK).wait().said == [[(None, True)]]
    assert len(stream.said[0]) == AHEAD
    read_on(shared, stream)
    assert len(stream.wait().said[0]) == COUNT + 1


def test_reader_of_the_same_batch_does_not_wait(shared: Shared) -> None:
    both = """
def answer(s, count):
    for number in range(count):
        s.send(R([T(np.full(100_000, number, np.int32))]))
    s.send(flags=1)

threading.Thread(target=answer, args=(s, 8)).start()
threading.Thread(target=answer, args=(requests[1].get_response_sender(), 30)).start()
"""
    stream = clogged(shared, both, FakeRequest())
    stream.wait_until(lambda: len(stream.said[1]) == 31)
    assert len(stream.said[0]) == AHEAD
    read_on(shared, stream)
    assert len(stream.wait().said[0]) == 9


def test_sender_whose_batch_fails_meanwhile_is_told(shared: Shared) -> None:
    """The server releases those who wait for the reader of a request that is over."""
    rig, instance = shared
    source = """
def answer(s=s):
    try:
        for number in range(8):
            s.send(R([T(np.full(100_000, number, np.int32))]))
            threading.Timer(0, go.set).start() if number == 5 else None
    except pb_utils.TritonModelException as error:
        self.told = str(error)
        told.set()

go = threading.Event()
told = self.event = threading.Event()
threading.Thread(target=answer).start()
go.wait(20)
raise ValueError("broke")
"""
    stream = clogged(shared, source).wait()
    assert "ValueError: broke" in stream.said[0][-1][0]
    read_on(shared, stream)
    source = "self.event.wait(20); s.send(R([T([self.told])]), 1)"
    assert rig.stream(instance, scripted(SENDER + source)).wait().said == [
        [([b"Unable to send response. Response sender has been closed."], True)]
    ]
