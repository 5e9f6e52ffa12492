"""A worker's process by itself: how its end is told, and what ends with it."""

import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from halimede.workers.host.process import Interpreter, Process, exit_words
from tests.workers.fakes import PATIENCE


@pytest.fixture
def process() -> Iterator[Process]:
    it = Process()
    yield it
    it.kill()
    it.socket.close()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit status 0"),
        (3, "exit status 3"),
        (-11, "killed by signal 11 (SIGSEGV)"),
        (-9, "killed by signal 9 (SIGKILL)"),
        (-50, "killed by signal 50"),
    ],
)
def test_exit_status_in_words(status: int, words: str) -> None:
    assert exit_words(status) == words


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_process_that_died_tells_by_which_signal(process: Process, number: signal.Signals) -> None:
    os.kill(process.pid, number)
    assert process.reap(PATIENCE) == f"killed by signal {int(number)} ({number.name})"
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_process_that_does_not_end_is_killed_when_it_is_buried(process: Process) -> None:
    assert process.reap(0.05) == "it closed its connection and was killed"
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_process_ends_with_its_socket(process: Process) -> None:
    process.socket.shutdown(socket.SHUT_RDWR)
    assert process.wait(PATIENCE)


def test_process_leads_a_group_of_its_own(process: Process) -> None:
    assert os.getpgid(process.pid) == process.pid != os.getpgrp()


def test_process_may_be_killed_and_waited_for_on_many_threads(process: Process) -> None:
    ended: list[bool] = []
    threads = [threading.Thread(target=lambda: ended.append(process.wait(PATIENCE))) for _ in range(4)]
    threads += [threading.Thread(target=process.kill) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert ended == [True] * 4


def test_interpreter_finds_its_own_libraries_first_and_tells_the_worker_what_was_there() -> None:
    there, nothing = {"LD_LIBRARY_PATH": "/there", "A": "b"}, {"A": "b"}
    assert Interpreter("python", there).start_variables == there
    assert Interpreter("python", there).command("main.py", "3") == ["python", "main.py", "3", ""]
    mine = Interpreter("python", there, "/mine/lib")
    assert mine.start_variables == {"LD_LIBRARY_PATH": "/mine/lib:/there", "A": "b"}
    assert mine.command("main.py", "3") == ["python", "main.py", "3", "", "/there"]
    mine = Interpreter("python", nothing, "/mine/lib", label="model=m")
    assert mine.start_variables == {"LD_LIBRARY_PATH": "/mine/lib", "A": "b"}
    assert mine.command("main.py", "3") == ["python", "main.py", "3", "model=m", ""]
