"""What is said of a model that loads for long."""

import _thread
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from halimede.workers.child.progress import Progress, located, moments

PATIENCE = 20.0


def test_moments_grow_apart_up_to_a_limit() -> None:
    assert list(islice(moments(), 8)) == [5, 15, 30, 60, 120, 240, 360, 480]


class Waits:
    """The waits of the watching thread: each ends when it is told so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.ends = threading.Semaphore(0)
        self.looked = threading.Semaphore(0)

    def __call__(self, over: threading.Event, seconds: float) -> bool:
        self.asked.append(seconds)
        self.looked.release()
        assert self.ends.acquire(timeout=PATIENCE)
        return over.is_set()

    def pass_one(self) -> None:
        """The wait that is under way ends, and what follows is done."""
        assert self.looked.acquire(timeout=PATIENCE)
        self.ends.release()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that imports `slow_part`, which calls the builtin `hold` while it is imported."""
    (tmp_path / "slow_part.py").write_text("import builtins\nbuiltins.hold()\n")
    path = tmp_path / "model.py"
    path.write_text("def initialize():\n    import slow_part\n")
    monkeypatch.syspath_prepend(tmp_path)
    return path


def test_progress_says_what_is_being_imported_and_from_where(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, int, str]] = []
    told, waits = threading.Event(), Waits()

    def emit(*line: Any) -> None:
        said.append(line)
        told.set()

    def hold() -> None:
        waits.pass_one()
        assert told.wait(PATIENCE)

    monkeypatch.setattr("builtins.hold", hold, raising=False)
    monkeypatch.chdir(model.parent)
    names: dict[str, Any] = {}
    exec(compile(model.read_text(), str(model), "exec"), names)
    with Progress(emit, "model 'm': still initializing", "model.py", waits):
        names["initialize"]()
    sys.modules.pop("slow_part")
    waits.ends.release()
    assert said == [
        ("model.py", 2, "model 'm': still initializing after 5 s (importing slow_part, initialize, model.py line 2)")
    ]
    assert 0 < waits.asked[0] <= 5


def test_progress_that_is_over_says_nothing() -> None:
    said: list[Any] = []
    waits = Waits()
    with Progress(lambda *line: said.append(line), "m", "/m/model.py", waits):
        pass
    waits.pass_one()
    assert said == []


def test_progress_ends_with_the_server() -> None:
    waits, before = Waits(), _thread._count()

    def gone(*line: Any) -> None:
        raise BrokenPipeError

    with Progress(gone, "m", "/m/model.py", waits):
        waits.pass_one()
        limit = time.monotonic() + PATIENCE
        while _thread._count() > before and time.monotonic() < limit:
            time.sleep(0.001)
        assert _thread._count() <= before
    assert len(waits.asked) == 1


def test_watcher_is_no_thread_that_a_model_sees() -> None:
    waits, seen = Waits(), threading.enumerate()
    with Progress(lambda *line: None, "m", "/m/model.py", waits):
        assert waits.looked.acquire(timeout=PATIENCE)
        assert threading.enumerate() == seen
        waits.ends.release()


def test_place_outside_of_the_model_is_not_named() -> None:
    assert located(None, "/m/model.py") == ("model.py", 0, "")
    assert located(sys._getframe(), "/m/model.py")[:2] == ("model.py", 0)
