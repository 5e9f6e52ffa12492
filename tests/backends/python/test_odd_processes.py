"""Models that do odd things with their process: it serves on, or another takes its place, and no request is lost."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from halimede.backends.python.backend import PythonInstance
from tests.backends.python.test_supervision import DOWN, PATIENT, UP, Watch, pid_of, until
from tests.backends.python_rig import SCRIPTED, Rig, folder, scripted
from tests.processes import ended
from tests.workers.fakes import PATIENCE, turning_loop


@pytest.fixture
def rig() -> Iterator[Rig]:
    with turning_loop() as loop:
        it = Rig(loop, PATIENT)
        yield it
        it.backend.close()


@pytest.fixture
def instance(rig: Rig, tmp_path: Path) -> Iterator[PythonInstance]:
    it = rig.start(folder(tmp_path, SCRIPTED))
    yield it
    it.close()


def answer(rig: Rig, instance: PythonInstance, source: str) -> Any:
    """The elements of OUTPUT0."""
    return rig.run(instance, scripted(source)).arrays()["OUTPUT0"].tolist()


HARMLESS = {
    "closes its standard output and error": "os.close(1); os.close(2)",
    "closes the objects of both": "sys.stdout.close(); sys.stderr.close()",
    "has none of both": "sys.stdout = sys.stderr = None",
    "closes its standard input": "os.close(0)",
    "changes its directory": "os.chdir('/')",
    "has a directory that is gone": "import tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
    "changes its signal handlers": """
        import signal
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
    """,
    "has its signals by default": """
        import signal
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
    """,
    "blocks its signals": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))",
    "changes its environment": "os.environ.clear()",
    "forgets its modules": "[sys.modules.pop(name) for name in list(sys.modules) if name.startswith('triton')]",
    "forgets its path": "sys.path.clear()",
    "collects no garbage": "import gc; gc.disable()",
    "traces": "sys.settrace(lambda *_: None)",
    "may hold few files": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))",
    "is nice": "os.nice(19)",
    "has another session": "os.fork() or (os.setsid(), os._exit(0))",
    "starts threads that fail": "[threading.Thread(target=lambda: 1 / 0).start() for _ in range(3)]",
    "starts threads that go on": """
        for _ in range(9):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    """,
}


@pytest.mark.parametrize("source", HARMLESS.values(), ids=HARMLESS.keys())
def test_process_serves_on_and_is_replaced_as_ever(rig: Rig, instance: PythonInstance, source: str) -> None:
    watch = Watch(rig, instance)
    pid = instance.pid
    assert answer(rig, instance, f"{dedent(source)}\nreturned = [R([T([1])])]") == [1]
    assert "ValueError: as ever" in rig.run(instance, scripted("raise ValueError('as ever')")).failed[0].message
    assert pid_of(rig, instance) == pid
    os.kill(pid, signal.SIGKILL)
    watch.until(DOWN, UP)
    assert pid_of(rig, instance) == instance.pid


def test_print_without_a_standard_output_fails_the_request_alone(rig: Rig, instance: PythonInstance) -> None:
    pid = instance.pid
    answer(rig, instance, "os.close(1)\nreturned = [R([T([1])])]")
    assert "Bad file descriptor" in rig.run(instance, scripted("print('x', flush=True)")).failed[0].message
    assert pid_of(rig, instance) == pid


# ---- other processes


def test_fork_that_lives_on_is_no_client_of_the_server(rig: Rig, instance: PythonInstance) -> None:
    """It neither keeps the connection open nor outlives the worker, where it has no session of its own."""
    watch = Watch(rig, instance)
    source = "child = os.fork()\nif not child:\n    time.sleep(60)\nreturned = [R([T([child])])]"
    children = [answer(rig, instance, source)[0] for _ in range(3)]
    assert not any(map(ended, children))
    os.kill(instance.pid, signal.SIGKILL)
    watch.until(DOWN, UP)
    until(lambda: all(map(ended, children)))


def test_fork_with_a_session_of_its_own_does_not_hide_a_death(rig: Rig, instance: PythonInstance) -> None:
    watch = Watch(rig, instance)
    source = "child = os.fork()\nif not child:\n    os.setsid(); time.sleep(60)\nreturned = [R([T([child])])]"
    [child] = answer(rig, instance, source)
    try:
        os.kill(instance.pid, signal.SIGKILL)
        watch.until(DOWN, UP)
        assert pid_of(rig, instance) == instance.pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_fork_that_uses_the_request_does_not_disturb_its_parent(rig: Rig, instance: PythonInstance) -> None:
    source = """
        child = os.fork()
        if not child:
            requests[0].get_response_sender().send(R([T([2])]))
            os._exit(0)
        returned = [R([T([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, 1])])]
    """
    assert answer(rig, instance, source)[1] == 1
    assert answer(rig, instance, "returned = [R([T([3])])]") == [3]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_in_execute(rig: Rig, instance: PythonInstance, method: str) -> None:
    source = f"""
        import multiprocessing
        with multiprocessing.get_context({method!r}).Pool(2) as pool:
            returned = [R([T(pool.map(abs, [-1, -2, 3]))])]
    """
    for _ in range(2):
        assert answer(rig, instance, source) == [1, 2, 3]


def test_forked_children_can_be_ended_from_the_first_moment(rig: Rig, instance: PythonInstance) -> None:
    """A signal that comes before the child has handlers of its own is not lost with those of the worker."""
    source = """
        import signal, time
        ended = 0
        for _ in range(200):
            child = os.fork()
            if not child:
                time.sleep(10)
                os._exit(0)
            os.kill(child, signal.SIGTERM)
            ended += os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
        returned = [R([T([ended])])]
    """
    assert answer(rig, instance, source) == [200]


def test_subprocess_without_a_session_ends_with_the_worker(rig: Rig, instance: PythonInstance) -> None:
    source = """
        import subprocess
        said = subprocess.run(["sh", "-c", "echo $(ls /proc/self/fd | wc -l)"], capture_output=True, close_fds=False)
        returned = [R([T([int(said.stdout)])])]
    """
    assert answer(rig, instance, source)[0] <= 4, "descriptors of the worker leak into the programs of its model"


# ---- the end


ENDS = {
    "a thread that does not end": "threading.Thread(target=threading.Event().wait).start()",
    "a thread at exit": "import atexit; atexit.register(threading.Event().wait)",
    "many threads": "[threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(20)]",
    "a stopped process": "os.fork() or os.kill(os.getpid(), 19)",
}


@pytest.mark.parametrize("source", ENDS.values(), ids=ENDS.keys())
def test_close_is_not_held_for_ever(tmp_path: Path, source: str) -> None:
    """As the real server's unload of such a model is."""
    with turning_loop() as loop:
        rig = Rig(loop, {"stub-timeout-seconds": "1"})
        instance = rig.start(folder(tmp_path, SCRIPTED))
        pid = instance.pid
        answer(rig, instance, f"{source}\nreturned = [R([T([1])])]")
        began = time.monotonic()
        instance.close()
        assert time.monotonic() - began < PATIENCE / 2
        until(lambda: ended(pid))
        rig.backend.close()


DEATHS = {
    "recursion that the stack does not hold": """
        sys.setrecursionlimit(10**7)
        class Deep:
            def __repr__(self):
                return repr(self)
        repr(Deep())
    """,
    "a timer that the model forgot": """
        import signal
        def late(_, frame):
            while frame is not None and frame.f_code.co_qualname != "TritonPythonModel.execute":
                frame = frame.f_back
            if frame is None:
                raise TimeoutError("late")
            signal.setitimer(signal.ITIMER_REAL, 0.1)  # it is not forgotten yet
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        returned = [R([T([1])])]
    """,
    "an error of C++": "import ctypes; ctypes.CDLL(None).abort()",
    "memory that is not there": "import ctypes; ctypes.memset(8, 1, 1)",
}
if sys.version_info >= (3, 12):  # which raises RecursionError
    del DEATHS["recursion that the stack does not hold"]


@pytest.mark.parametrize("source", DEATHS.values(), ids=DEATHS.keys())
def test_death_is_followed_by_another_process(rig: Rig, instance: PythonInstance, source: str) -> None:
    watch = Watch(rig, instance)
    rig.run(instance, scripted(source))
    watch.until(DOWN, UP)
    assert pid_of(rig, instance) == instance.pid


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_process_that_a_model_spawns_has_the_interface(rig: Rig, instance: PythonInstance, method: str) -> None:
    source = f"""
        import multiprocessing
        with multiprocessing.get_context("{method}").Pool(1) as pool:
            tensor = pool.apply_async(pb_utils.Tensor, ("X", np.array([1, 2]))).get({PATIENCE})
            models = pool.apply_async(pb_utils.InferenceRequest, ("", 0, [tensor], ["Y"], b"m")).get({PATIENCE})
        returned = [R([T([tensor.name(), str(tensor.as_numpy().tolist()), models.inputs()[0].name()])])]
    """
    assert answer(rig, instance, source) == [b"X", b"[1, 2]", b"X"]
