"""Where a worker begins, under an interpreter that lacks what it needs."""

import json
import sys
from pathlib import Path

import pytest

from halimede.workers.host.process import Interpreter, Process
from halimede.workers.host.worker import Worker, WorkerLost, WorkerRefused
from tests.workers.host.environment_fakes import script, virtual

LIMIT = 20.0
ORDER = {"directory": "/nowhere", "version": "1", "filename": "model.py", "name": "m", "complete": {}}


def refusal(python: Path) -> str:
    worker = Worker(Process(Interpreter(str(python))))
    try:
        with pytest.raises(WorkerRefused) as caught:
            worker.start(
                json.dumps({**ORDER, "padding": "x" * (4 << 20)}).encode(), LIMIT
            )  # more than a socket takes at once
        return str(caught.value)
    finally:
        worker.kill()
        worker.reap(LIMIT)


def test_interpreter_without_numpy_says_which_one_and_what_to_do(tmp_path: Path) -> None:
    python = virtual(tmp_path / "bare") / "bin" / "python"
    version = sys.version.split()[0]
    assert refusal(python) == (
        f"Python models need numpy, which cannot be imported by {python} (Python {version}): "
        f"No module named 'numpy'; it is installed there by: {python} -m pip install numpy"
    )


def test_numpy_that_cannot_be_imported_is_quoted_in_one_line(tmp_path: Path) -> None:
    folder = virtual(tmp_path / "broken")
    (site,) = folder.glob("lib/python*/site-packages")
    script(site / "numpy.py", 'raise ImportError("""\nbuilt for\n  another machine\n""")')
    assert "): built for another machine; it is installed" in refusal(folder / "bin" / "python")


def test_interpreter_that_ends_at_once_is_lost(tmp_path: Path) -> None:
    worker = Worker(Process(Interpreter(str(script(tmp_path / "python", "#!/bin/sh\nexit 3\n")))))
    with pytest.raises(WorkerLost):
        worker.start(json.dumps(ORDER).encode(), LIMIT)
    assert worker.reap(LIMIT) == "exit status 3"
