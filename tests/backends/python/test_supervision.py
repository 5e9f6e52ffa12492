"""Python workers that die, hang or do not come up again (P10, limitation D6): with real processes."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from halimede.backends.api import Supervised
from halimede.backends.child.settings import execution_limit
from halimede.backends.python.backend import PythonInstance
from halimede.errors import Error, Internal, Invalid
from halimede.workers.host.restarts import DELAYS
from tests.backends.python_rig import SCRIPTED, Rig, config, folder, scripted
from tests.processes import ended, is_gone, open_descriptors
from tests.workers.fakes import PATIENCE, FakeBatch, FakeRequest, FakeResponses, FakeStream, on_loop, turning_loop

UNHEALTHY = "Stub process 'm_0_0' is not healthy."


PATIENT = {"restart-wait-seconds": "60"}
"""A worker is expected back however busy the machine is."""


@pytest.fixture
def rig() -> Iterator[Rig]:
    with turning_loop() as loop:
        it = Rig(loop, PATIENT)
        yield it
        it.backend.close()


class Watch:
    """What an instance says of itself: (healthy, expected), in order."""

    def __init__(self, rig: Rig, instance: PythonInstance) -> None:
        self.said: list[tuple[bool, bool]] = []
        self._changed = threading.Condition()
        on_loop(rig.loop, lambda: instance.watch(self._note))

    def _note(self, healthy: bool, expected: bool) -> None:
        with self._changed:
            self.said.append((healthy, expected))
            self._changed.notify_all()

    def until(self, *said: tuple[bool, bool]) -> None:
        """Until exactly this was said."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.said) >= len(said), PATIENCE), self.said
            assert self.said == list(said)


DOWN, HOPELESS, UP = (False, True), (False, False), (True, False)


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.01)


def pid_of(rig: Rig, instance: PythonInstance) -> int:
    """The process that answers a request."""
    return int(rig.run(instance, scripted("returned = [R([T([os.getpid()])])]")).arrays()["OUTPUT0"][0])


DEATHS = {
    "exit": ("os._exit(3)", "exit status 3"),
    "exit in a thread": (
        "threading.Thread(target=os._exit, args=(4,)).start(); threading.Event().wait()",
        "exit status 4",
    ),
    "segfault": ("import ctypes; ctypes.string_at(0)", "killed by signal 11 (SIGSEGV)"),
    "abort": ("os.abort()", "killed by signal 6 (SIGABRT)"),
    "kill": ("os.kill(os.getpid(), 9)", "killed by signal 9 (SIGKILL)"),
    "kill of its process group": ("os.killpg(os.getpgrp(), 9)", "killed by signal 9 (SIGKILL)"),
    "closes its pipes": ("os.closerange(3, 4096); threading.Event().wait()", "it closed its connection and was killed"),
    "corrupts its stream": (
        """
        for name in os.listdir("/proc/self/fd"):
            path = f"/proc/self/fd/{name}"
            if os.path.lexists(path) and "socket:" in os.readlink(path):
                os.write(int(name), b"nonsense" * 20)
        threading.Event().wait()
        """,
        "killed by signal 9 (SIGKILL)",
    ),
}


@pytest.mark.rows("P10")
@pytest.mark.parametrize(("source", "how"), DEATHS.values(), ids=DEATHS.keys())
def test_death_fails_the_batch_and_another_worker_serves_the_next(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str, how: str
) -> None:
    caplog.set_level(logging.INFO)
    instance = rig.start(folder(tmp_path, SCRIPTED))
    watch = Watch(rig, instance)
    first = pid_of(rig, instance)
    responses = rig.run(instance, scripted(source), FakeRequest())
    assert [(type(error), error.message) for error in responses.failed.values()] == [(Internal, UNHEALTHY)] * 2
    watch.until(DOWN, UP)
    assert is_gone(first)
    second = pid_of(rig, instance)
    assert (second, instance.restarts, instance.healthy) == (instance.pid, 1, True)
    assert second != first
    assert f"worker process {first} of 'm_0_0' ended: {how}; it is started again" in caplog.text
    assert f"worker process {second} of 'm_0_0' serves: restart 1" in caplog.text
    instance.close()
    assert is_gone(second)


def test_instance_says_that_it_is_supervised(rig: Rig, tmp_path: Path) -> None:
    assert isinstance(rig.start(folder(tmp_path, SCRIPTED)), Supervised)


def test_idle_worker_that_is_killed_is_replaced(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    watch = Watch(rig, instance)
    os.kill(instance.pid, signal.SIGKILL)
    watch.until(DOWN, UP)
    assert pid_of(rig, instance) == instance.pid


def test_broken_instance_refuses_what_it_is_given(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, NEVER_AGAIN))
    watch = Watch(rig, instance)
    rig.run(instance, scripted("os._exit(3)"))
    assert watch.said[0] == DOWN
    with pytest.raises(Internal, match=f"^{UNHEALTHY}$"):
        rig.begin(instance, FakeRequest())
    assert not instance.healthy
    instance.close()


@pytest.mark.parametrize("source", ["raise SystemExit(3)", "sys.exit()", "raise KeyboardInterrupt"])
def test_exceptions_that_end_programs_end_no_worker(rig: Rig, tmp_path: Path, source: str) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    pid = instance.pid
    responses = rig.run(instance, scripted(source))
    assert responses.failed[0].message.startswith("Failed to process the request(s) for model 'm_0_0', message: ")
    assert pid_of(rig, instance) == pid
    instance.close()


def test_exit_in_a_thread_of_a_model_ends_that_thread_only(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    pid = instance.pid
    source = """
        thread = threading.Thread(target=sys.exit, args=(3,))
        thread.start()
        thread.join()
        returned = [R([T([1])])]
    """
    assert rig.run(instance, scripted(source)).arrays()["OUTPUT0"].tolist() == [1]
    assert pid_of(rig, instance) == pid
    instance.close()


def test_fork_that_comes_back_from_execute_answers_once_and_ends(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    source = """
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        returned = [R([T([child])])]
    """
    child = int(rig.run(instance, scripted(source)).arrays()["OUTPUT0"][0])
    assert child > 0
    assert is_gone(child)
    assert pid_of(rig, instance) == instance.pid
    instance.close()


@pytest.mark.parametrize("end", ["kill", "close", "die"])
def test_programs_of_a_model_end_with_its_worker(rig: Rig, tmp_path: Path, end: str) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    source = """
        import subprocess
        returned = [R([T([subprocess.Popen(["sleep", "60"]).pid])])]
    """
    child = int(rig.run(instance, scripted(source)).arrays()["OUTPUT0"][0])
    assert not ended(child)
    if end == "kill":
        os.kill(instance.pid, signal.SIGKILL)
    elif end == "die":
        rig.run(instance, scripted("os._exit(0)"))
    else:
        instance.close()
    until(lambda: ended(child))


# ---- a worker that hangs


HANGS = {
    "waits": "threading.Event().wait()",
    "computes": "while True: pass",
    "holds the interpreter": "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "is stopped": "os.kill(os.getpid(), 19)",
    "prints": "while True: print(flush=True)",
}


@pytest.mark.parametrize("source", HANGS.values(), ids=HANGS.keys())
def test_worker_that_hangs_is_killed_and_replaced(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED), parameters={"EXECUTION_TIMEOUT_SECONDS": "0.4"})
    watch = Watch(rig, instance)
    first = pid_of(rig, instance)
    responses = rig.run(instance, scripted(source))
    text = "Failed to process the request(s) for model 'm_0_0', message: the time limit for execute is over"
    assert [(type(error), error.message) for error in responses.failed.values()] == [(Internal, text)]
    watch.until(DOWN, UP)
    assert pid_of(rig, instance) != first
    assert is_gone(first)
    assert f"worker process {first} of 'm_0_0' is killed: it exceeded its time limit" in caplog.text
    instance.close()


def test_sender_that_waits_for_its_reader_does_not_hang(tmp_path: Path) -> None:
    """Contract G32: what a client does not read is not the model's fault."""
    source = """
        sender = requests[0].get_response_sender()
        for _ in range(40):
            sender.send(R([T(np.zeros(200_000, np.uint8))]))
        sender.send(flags=1)
    """
    with turning_loop() as loop:
        rig = Rig(loop, {"execution-timeout-seconds": "1"})
        instance = rig.start(folder(tmp_path, SCRIPTED), decoupled=True)
        stream = rig.stream(instance, scripted(source))
        stream.clogged.add(0)
        stream.wait_until(lambda: bool(stream.waiting))
        time.sleep(1.5)
        assert instance.healthy
        stream.clogged.clear()
        for resume in stream.waiting:
            on_loop(loop, resume)
        stream.wait()
        assert len(stream.said[0]) == 41
        instance.close()


class Releasing(FakeStream):
    """A request that is over lets go whoever waits for its reader, as the runner does."""

    def fail(self, i: int, error: Error, final: bool = True) -> None:
        super().fail(i, error, final)
        for resume in self.waiting:
            resume()


def test_time_of_a_dead_worker_is_not_counted_against_the_next(tmp_path: Path) -> None:
    source = """
        sender = requests[0].get_response_sender()
        for _ in range(40):
            sender.send(R([T(np.zeros(200_000, np.uint8))]))
    """
    with turning_loop() as loop:
        rig = Rig(loop, {"execution-timeout-seconds": "1", **PATIENT})
        instance = rig.start(folder(tmp_path, SCRIPTED), decoupled=True)
        watch = Watch(rig, instance)
        stream = Releasing()
        stream.clogged.add(0)
        rig.pass_on(instance, stream, scripted(source))
        stream.wait_until(lambda: bool(stream.waiting))
        os.kill(instance.pid, signal.SIGKILL)
        watch.until(DOWN, UP)
        second = instance.pid
        time.sleep(1.5)
        assert (instance.pid, instance.restarts) == (second, 1)
        instance.close()


def test_model_that_sends_without_end_to_a_quick_reader_hangs(tmp_path: Path) -> None:
    source = """
        sender = requests[0].get_response_sender()
        while True:
            time.sleep(0.02)
            sender.send(R([T(np.zeros(1_200_000, np.uint8))]))
    """
    with turning_loop() as loop:
        rig = Rig(loop, {"execution-timeout-seconds": "1"})
        instance = rig.start(folder(tmp_path, SCRIPTED), decoupled=True)
        stream = rig.stream(instance, scripted(source))
        stream.wait()
        what, final = stream.said[0][-1]
        assert (what.endswith("the time limit for execute is over"), final) == (True, True)
        instance.close()


@pytest.mark.parametrize(("text", "seconds"), [(None, 7.0), ("0", 0.0), ("2.5", 2.5), ("30", 30.0)])
def test_limit_is_the_model_s_own_or_the_backend_s(text: str | None, seconds: float) -> None:
    parameters = {} if text is None else {"EXECUTION_TIMEOUT_SECONDS": text}
    assert execution_limit(config(parameters=parameters), 7.0) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf"])
def test_limit_that_is_no_number_of_seconds_is_refused(rig: Rig, tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        rig.backend.open(config(parameters={"EXECUTION_TIMEOUT_SECONDS": text}), folder(tmp_path, SCRIPTED))
    assert caught.value.message == (
        f"model 'm': the parameter 'EXECUTION_TIMEOUT_SECONDS' must be a number of seconds, not '{text}'"
    )


# ---- a worker that does not come up again


NEVER_AGAIN = SCRIPTED.replace(
    "self.args = args",
    """note = args["model_repository"] + "/started"
            if os.path.exists(note):
                raise RuntimeError("never again")
            open(note, "w").close()""",
)
HANGS_LATER = NEVER_AGAIN.replace(
    'raise RuntimeError("never again")',
    'print(os.getpid(), file=open(note, "w"), flush=True); threading.Event().wait()',
)


def test_worker_that_cannot_be_started_is_tried_again_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with turning_loop() as loop:
        rig = Rig(loop, PATIENT)
        where = folder(tmp_path, NEVER_AGAIN)
        instance = rig.start(where)
        watch = Watch(rig, instance)
        rig.run(instance, scripted("os._exit(3)"))
        until(lambda: "could not be started again" in caplog.text)
        (where.model / "started").unlink()
        watch.until(DOWN, UP)
        assert "'m_0_0' could not be started again: RuntimeError: never again" in caplog.text
        assert pid_of(rig, instance) == instance.pid
        instance.close()
        rig.backend.close()


@pytest.mark.parametrize("wait", ["0", "1"])
def test_requests_wait_no_longer_than_the_operator_wants(tmp_path: Path, wait: str) -> None:
    with turning_loop() as loop:
        rig = Rig(loop, {"restart-wait-seconds": wait})
        instance = rig.start(folder(tmp_path, NEVER_AGAIN))
        watch = Watch(rig, instance)
        rig.run(instance, scripted("os._exit(3)"))
        until(lambda: HOPELESS in watch.said)  # at once where its start had taken more than a second
        assert watch.said[0] == HOPELESS or (wait, watch.said[0]) == ("1", DOWN)
        instance.close()
        rig.backend.close()


def test_requests_do_not_wait_for_a_worker_that_hangs_while_it_is_warmed_up(tmp_path: Path) -> None:
    with turning_loop() as loop:
        rig = Rig(loop, {"restart-wait-seconds": "1"})
        instance = rig.start(folder(tmp_path, SCRIPTED))
        begun = threading.Event()
        instance.warm_again_by(lambda over: begun.set())
        watch = Watch(rig, instance)
        rig.run(instance, scripted("os._exit(3)"))
        assert begun.wait(PATIENCE)
        until(lambda: HOPELESS in watch.said)  # at once where its start had taken more than a second
        assert watch.said in ([DOWN, HOPELESS], [HOPELESS])
        instance.close()
        rig.backend.close()


def test_worker_that_dies_while_it_is_warmed_up_is_replaced_and_later_than_the_first_time(
    rig: Rig, tmp_path: Path
) -> None:
    """Each is warmed up well, or dies of it: neither says that it serves its clients."""
    instance = rig.start(folder(tmp_path, SCRIPTED))
    sources = iter(["returned = [R([T([1])])]", "os._exit(4)", "returned = [R([T([1])])]"])
    begun: list[float] = []

    class Warming(FakeResponses):
        def __init__(self, over: Callable[[], None]) -> None:
            super().__init__()
            self._ended = over

        def finished(self, nobody: Collection[int] = ()) -> None:
            super().finished(nobody)
            self._ended()

    def warm(over: Callable[[], None]) -> None:
        begun.append(time.monotonic())
        instance.execute(FakeBatch(scripted(next(sources))), Warming(over))

    instance.warm_again_by(warm)
    watch = Watch(rig, instance)
    rig.run(instance, scripted("os._exit(3)"))
    watch.until(DOWN, UP)
    rig.run(instance, scripted("os._exit(3)"))
    until(lambda: len(begun) == 3 and instance.healthy)
    assert watch.said[-1] == UP
    assert watch.said.count(UP) == 2
    assert begun[2] - begun[1] >= DELAYS[2]
    assert pid_of(rig, instance) == instance.pid
    instance.close()


def test_close_while_a_worker_is_to_be_started_later_starts_none(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, NEVER_AGAIN))
    watch = Watch(rig, instance)
    rig.run(instance, scripted("os._exit(3)"))
    until(lambda: len(watch.said) > 1 or not instance.healthy)
    instance.close()
    assert not instance.healthy
    assert "restart m_0_0" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("by", ["instance", "backend"])
def test_close_while_a_worker_starts_ends_it(rig: Rig, tmp_path: Path, by: str) -> None:
    where = folder(tmp_path, HANGS_LATER)
    instance = rig.start(where)
    rig.run(instance, scripted("os._exit(3)"))
    note = where.model / "started"
    until(lambda: note.read_text().endswith("\n"))
    starting = int(note.read_text())
    began = time.monotonic()
    if by == "backend":
        rig.backend.close()
    instance.close()
    until(lambda: is_gone(starting))
    assert time.monotonic() - began < PATIENCE / 2
    until(lambda: "restart m_0_0" not in [thread.name for thread in threading.enumerate()])
    assert not instance.healthy


def test_death_while_the_worker_is_closed_brings_none_back(rig: Rig, tmp_path: Path) -> None:
    source = SCRIPTED + "\n        def finalize(self):\n            os._exit(3)\n"
    instance = rig.start(folder(tmp_path, source))
    watch = Watch(rig, instance)
    pid = instance.pid
    instance.close()
    assert is_gone(pid)
    assert (watch.said, instance.restarts) == ([], 0)


def test_many_deaths_leave_nothing(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    watch = Watch(rig, instance)

    def die_and_return(times: int) -> None:
        for _ in range(times):
            pid_of(rig, instance)
            so_far = len(watch.said)
            rig.run(instance, scripted("os._exit(1)"))
            until(lambda so_far=so_far: len(watch.said) == so_far + 2)  # type: ignore[misc]  # mypy and the default

    die_and_return(1)
    descriptors = open_descriptors()
    die_and_return(5)
    until(lambda: open_descriptors() <= descriptors)
    assert watch.said == [DOWN, UP] * 6
    assert instance.restarts == 6
    instance.close()


def test_answers_of_a_flight_that_broke_off_are_one_each(rig: Rig, tmp_path: Path) -> None:
    """Senders that answered before the death have said so; the others fail."""
    instance = rig.start(folder(tmp_path, SCRIPTED), decoupled=True)
    source = """
        requests[0].get_response_sender().send(R([T([1])]), 1)
        os._exit(3)
    """
    stream = rig.stream(instance, scripted(source), FakeRequest()).wait()
    assert stream.said[0] in ([([1], True)], [(UNHEALTHY, True)])
    assert stream.said[1] == [(UNHEALTHY, True)]
    instance.close()
