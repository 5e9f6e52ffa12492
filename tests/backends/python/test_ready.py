"""Instances whose model has a say in its readiness (P9): its worker is asked by a socket of its own."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from halimede.backends.api import SelfAssessing
from halimede.backends.python.backend import PythonInstance
from tests.backends.python_rig import SCRIPTED, Rig, folder, scripted
from tests.processes import open_descriptors
from tests.workers.fakes import PATIENCE, on_loop, turning_loop

_READY = """
        def is_ready(self):
            return self.mood() if hasattr(self, "mood") else True
"""


@pytest.fixture
def rig() -> Iterator[Rig]:
    with turning_loop() as loop:
        made = Rig(loop)
        yield made
        made.backend.close()


class Answer:
    """What comes of a question, to wait for."""

    def __init__(self, rig: Rig, instance: SelfAssessing) -> None:
        self._said: list[bool] = []
        self.there = Event()
        on_loop(rig.loop, lambda: instance.ask_ready(self._told))

    def _told(self, ready: bool) -> None:
        self._said.append(ready)
        self.there.set()

    def wait(self, seconds: float = PATIENCE) -> bool:
        assert self.there.wait(seconds)
        (said,) = self._said
        return said


def ask(rig: Rig, instance: SelfAssessing) -> bool:
    return Answer(rig, instance).wait()


def test_model_without_is_ready_has_no_say(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED))
    assert not instance.reports_readiness
    assert ask(rig, instance)
    threads = "sum(each.name == 'readiness' for each in threading.enumerate())"
    returned = rig.run(instance, scripted(f"returned = [R([T([{threads}])])]"))
    assert returned.arrays()["OUTPUT0"].tolist() == [0], "nor a thread for it"
    instance.close()
    assert not ask(rig, instance)


@pytest.mark.rows("P9")
def test_model_is_asked_each_time(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED + _READY))
    assert instance.reports_readiness
    assert ask(rig, instance)
    for mood, ready in (("False", False), ("True", True), ("None", False), ("1 / 0", False), ("sys.exit(3)", False)):
        rig.run(instance, scripted(f"self.mood = lambda: {mood}\nreturned = [R([])]"))
        assert ask(rig, instance) is ready
    assert rig.run(instance, scripted("returned = [R([T([1])])]")).arrays()["OUTPUT0"].tolist() == [1]
    instance.close()


@pytest.mark.rows("P9", "P10")
def test_worker_that_takes_over_is_asked(rig: Rig, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED + _READY))
    changed = Event()
    on_loop(rig.loop, lambda: instance.watch(lambda healthy, expected: changed.set() if healthy else None))
    rig.run(instance, scripted("self.mood = lambda: False\nreturned = [R([])]"))
    assert not ask(rig, instance)
    os.kill(instance.pid, signal.SIGKILL)
    assert changed.wait(PATIENCE)
    assert instance.reports_readiness
    assert ask(rig, instance), "it begins anew"
    instance.close()


@pytest.mark.parametrize("end", [PythonInstance.close, lambda instance: os.kill(instance.pid, signal.SIGKILL)])
def test_worker_that_ends_while_it_is_asked_is_not_ready(
    rig: Rig, tmp_path: Path, end: Callable[[PythonInstance], None]
) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED + _READY))
    rig.run(instance, scripted("self.mood = lambda: time.sleep(60)\nreturned = [R([])]"))
    answer = Answer(rig, instance)
    assert not answer.there.is_set()
    end(instance)
    assert answer.wait(4.0) is False, "before the limit of the question"
    instance.close()


def test_nothing_is_left_of_the_socket(tmp_path: Path) -> None:
    where = folder(tmp_path, SCRIPTED + _READY)
    with turning_loop() as loop:
        made = Rig(loop)
        before = open_descriptors()
        for _ in range(3):
            instance = made.start(where)
            assert ask(made, instance)
            instance.close()
            on_loop(loop, lambda: None)
        assert open_descriptors() <= before
        made.backend.close()
