"""Programs that run for a load: their output, their end, and the end of what they started."""

import os
import threading
import time
from pathlib import Path

import pytest

from halimede.errors import Unavailable
from halimede.workers.host.programs import Programs

PATIENCE = 20.0
VARIABLES = dict(os.environ)


def until(holds: Path, text: str = "") -> None:
    limit = time.monotonic() + PATIENCE
    while not (holds.exists() and holds.read_text() > text) and time.monotonic() < limit:
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process ends soon. One that is not our child leaves no zombie that we could see."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_output_of_a_program_in_a_folder_is_kept_in_its_order(tmp_path: Path) -> None:
    output = tmp_path / "output"
    for command in ("pwd; echo problem >&2", "exit 3"):
        status = Programs().run_in(tmp_path, ["sh", "-c", command], VARIABLES, PATIENCE, output, lambda: None)
    assert status == 3
    assert output.read_text() == f"{tmp_path}\nproblem\n"


def test_program_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 60 & echo $! > child; wait"]
    status = Programs().run_in(tmp_path, command, VARIABLES, 1.0, tmp_path / "output", lambda: None)
    assert status is None
    assert is_gone(int((tmp_path / "child").read_text()))


def test_program_ends_when_its_watcher_raises(tmp_path: Path) -> None:
    def tick() -> None:
        until(tmp_path / "child", "\n")
        raise Unavailable("enough")

    command = ["sh", "-c", "sleep 60 & echo $! > child; wait"]
    with pytest.raises(Unavailable, match=r"^enough$"):
        Programs().run_in(tmp_path, command, VARIABLES, PATIENCE, tmp_path / "output", tick)
    assert is_gone(int((tmp_path / "child").read_text()))


def test_end_of_the_server_kills_the_program_with_what_it_started(tmp_path: Path) -> None:
    programs = Programs()

    def close() -> None:
        until(tmp_path / "child", "\n")
        programs.close()

    closer = threading.Thread(target=close)
    closer.start()
    command = ["sh", "-c", "sleep 60 & echo $! > child; wait"]
    with pytest.raises(Unavailable, match=r"^the server is exiting$"):
        programs.run_in(tmp_path, command, VARIABLES, PATIENCE, tmp_path / "output", lambda: None)
    closer.join(PATIENCE)
    assert is_gone(int((tmp_path / "child").read_text()))
    with pytest.raises(Unavailable):
        programs.run(["true"], VARIABLES, PATIENCE)
