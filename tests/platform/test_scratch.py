"""Folders that go with their process: locked while it lives, and found by the next one where it was killed."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from halimede.platform.scratch import Scratch, remove_leftovers, user_cache

PREFIX = "halimede-test-"
PATIENCE = 20.0

_MAKES_ONE = """
import sys, time
from pathlib import Path
from halimede.platform.scratch import Scratch
mine = Scratch(sys.argv[1], Path(sys.argv[2]))
(mine.path / "file").write_text("content")
print(mine.path, flush=True)
time.sleep(60)
"""


def test_folder_is_there_until_it_is_removed(tmp_path: Path) -> None:
    mine = Scratch(PREFIX, tmp_path)
    (mine.path / "a" / "b").mkdir(parents=True)
    assert mine.path.parent == tmp_path
    assert mine.path.stat().st_mode & 0o777 == 0o700
    mine.remove()
    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_process_that_lives_is_left_alone(tmp_path: Path) -> None:
    mine = Scratch(PREFIX, tmp_path)
    assert remove_leftovers(PREFIX, tmp_path) == []
    assert mine.path.is_dir()
    mine.remove()


def test_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _MAKES_ONE, PREFIX, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        path = Path(child.stdout.readline().strip())
        assert (path / "file").read_text() == "content"
        assert remove_leftovers(PREFIX, tmp_path) == []
        child.kill()
        child.wait(PATIENCE)
    assert remove_leftovers(PREFIX, tmp_path) == [path]
    assert not path.exists()


def test_what_is_no_folder_of_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{PREFIX}file").write_text("")
    (tmp_path / "other").mkdir()
    assert remove_leftovers(PREFIX, tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 4


def test_folder_that_was_taken_for_a_leftover_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def made_and_swept_once(prefix: str, dir: Path) -> str:
        made.append(mkdtemp(prefix=prefix, dir=dir))
        if len(made) == 1:
            assert remove_leftovers(PREFIX, tmp_path) == [Path(made[0])]
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_swept_once)
    mine = Scratch(PREFIX, tmp_path)
    assert [str(mine.path)] == made[1:]
    mine.remove()


def test_place_where_nothing_can_be_locked_is_refused_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="no folder can be locked in"):
        Scratch(PREFIX, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/halimede"),
        ({"XDG_CACHE_HOME": "x", "HOME": "/h"}, "/h/.cache/halimede"),  # a relative one does not count
        ({"HOME": "/h"}, "/h/.cache/halimede"),
        ({}, f"{tempfile.gettempdir()}/halimede-{os.geteuid()}"),
    ],
)
def test_user_cache_is_in_the_home_unless_the_environment_names_another(
    environment: dict[str, str], folder: str
) -> None:
    assert user_cache(environment) == Path(folder)
