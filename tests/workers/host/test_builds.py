"""Environments built from lists, with an installer that a test plays: each built once, none half, failures in words."""

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from halimede.errors import Error, Internal, Unavailable
from halimede.workers.host.activation import Ended
from halimede.workers.host.builds import LOCK_GRACE, NOTE, Builds
from halimede.workers.host.programs import Programs, Tick

PATIENCE = 20.0
LIMIT = 100.0


class Player(Programs):
    """Plays interpreters, `venv` and pip. `install` is what pip does: it gets the folder of the environment, and
    returns its status and output."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.installed: list[list[str]] = []
        self.folders: list[Path] = []
        self.paused: Callable[[], None] = lambda: None
        self.install: Callable[[Path], tuple[int | None, bytes]] = lambda folder: (0, b"")
        self.tick: Tick = lambda: None

    def run(self, command: Sequence[str], variables: Mapping[str, str], limit: float) -> Ended:
        return Ended(0, json.dumps([[3, 11, 7], [command[0]]]).encode(), b"")

    def run_in(
        self, folder: Path, command: Sequence[str], variables: Mapping[str, str], limit: float, output: Path, tick: Tick
    ) -> int | None:
        self.check_open()
        self.tick = tick
        if command[1:3] == ["-m", "venv"]:
            scripts = Path(command[3]) / "bin"
            scripts.mkdir(parents=True)
            (scripts / "python").touch(0o755)
            (scripts / "activate").write_text(f"VIRTUAL_ENV={command[3]}\n")
            (scripts / "tool").write_text(f"#!{command[3]}/bin/python\n")
            (scripts / "data").write_text(f"made in {command[3]}\n")
            (Path(command[3]) / "pyvenv.cfg").write_text("home = /usr/bin\n")
            return 0
        self.installed.append(list(command))
        self.folders.append(folder)
        made = Path(command[0]).parents[1]
        status, said = self.install(made)
        with output.open("ab") as sink:
            sink.write(said)
        tick()
        return status

    def pause(self, seconds: float) -> None:
        self.paused()
        time.sleep(0.001)


@pytest.fixture
def player() -> Iterator[Player]:
    it = Player()
    yield it
    it.close()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "environments"


@pytest.fixture
def builds(player: Player, cache: Path) -> Builds:
    return made_by(player, cache)


def made_by(player: Player, cache: Path) -> Builds:
    return Builds(cache, LIMIT, player, {"PATH": "/nowhere"}, lambda path: path.read_text(), lambda: player.now)


def write(folder: Path, text: str = "idna\n", name: str = "requirements.txt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def refusal(builds: Builds, file: Path) -> str:
    with pytest.raises(Internal) as caught:
        builds.folder(file)
    return str(caught.value)


def left(cache: Path) -> list[str]:
    """What lies in the cache, except locks."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_environment_is_built_once_for_equal_lists(builds: Builds, player: Player, cache: Path, tmp_path: Path) -> None:
    folders = [builds.folder(write(tmp_path / name)) for name in ("a", "b")]
    assert folders[0] == folders[1]
    assert folders[0].parent == cache
    assert len(player.installed) == 1
    assert player.installed[0][-3:] == ["-r", f"{tmp_path}/a/requirements.txt", "numpy"]
    assert player.folders == [tmp_path / "a"]
    assert left(cache) == [folders[0].name]
    assert f"from '{tmp_path}/a/requirements.txt' with pip for Python 3.11.7" in (folders[0] / NOTE).read_text()


def test_later_server_finds_it(builds: Builds, player: Player, cache: Path, tmp_path: Path) -> None:
    file = write(tmp_path)
    folder = builds.folder(file)
    os.utime(folder / NOTE, (1, 1))
    assert made_by(player, cache).folder(file) == folder
    assert len(player.installed) == 1
    assert (folder / NOTE).stat().st_mtime > 1  # the time of its last use


def test_list_that_was_changed_is_built_beside_the_old_one(
    builds: Builds, player: Player, cache: Path, tmp_path: Path
) -> None:
    folders = {builds.folder(write(tmp_path, text)) for text in ("idna==3.1", "idna==3.2")}
    assert len(folders) == len(left(cache)) == 2


def test_scripts_name_the_place_where_the_environment_stays(builds: Builds, tmp_path: Path) -> None:
    folder = builds.folder(write(tmp_path))
    assert (folder / "bin" / "tool").read_text() == f"#!{folder}/bin/python\n"
    assert (folder / "bin" / "activate").read_text() == f"VIRTUAL_ENV={folder}\n"
    assert str(folder) not in (folder / "bin" / "data").read_text()  # no script: it may be binary


def test_project_is_installed_by_its_dependencies(builds: Builds, player: Player, tmp_path: Path) -> None:
    seen: list[str] = []

    def install(made: Path) -> tuple[int, bytes]:
        seen.append((made.parent / "requirements.txt").read_text())
        return 0, b""

    player.install = install
    builds.folder(write(tmp_path, '[project]\ndependencies = ["idna", "attrs>=1"]', "pyproject.toml"))
    assert seen == ["idna\nattrs>=1\n"]


def test_failure_says_why_and_leaves_only_its_output(
    builds: Builds, player: Player, cache: Path, tmp_path: Path
) -> None:
    player.install = lambda made: (1, b"Collecting x\nERROR: No matching distribution found for x\n")
    file = write(tmp_path)
    told = refusal(builds, file)
    [log] = left(cache)
    assert told == (
        f"The Python environment of '{file}' cannot be built: pip ended with exit status 1: "
        f"ERROR: No matching distribution found for x; the whole output is in '{cache}/{log}'"
    )
    assert (cache / log).read_text().startswith("Collecting x")
    player.install = lambda made: (0, b"")
    player.now += 1
    folder = builds.folder(file)
    assert left(cache) == [folder.name]


def test_build_that_takes_too_long_names_the_flag(builds: Builds, player: Player, tmp_path: Path) -> None:
    player.install = lambda made: (None, b"Downloading torch\nBuilding wheel for x\n")
    assert "cannot be built: it took longer than 100 s (--python-environment-timeout-secs): " in refusal(
        builds, write(tmp_path)
    )


def test_loads_of_the_same_list_wait_for_one_build(builds: Builds, player: Player, tmp_path: Path) -> None:
    waiting = threading.Event()
    player.paused = waiting.set

    def install(made: Path) -> tuple[int, bytes]:
        assert waiting.wait(PATIENCE)  # until another load waits for the lock
        return 0, b""

    player.install = install
    files = [write(tmp_path / name) for name in "abcd"]
    with ThreadPoolExecutor(4) as threads:
        folders = set(threads.map(builds.folder, files))
    assert len(folders) == len(player.installed) == 1


def test_loads_that_waited_for_a_build_fail_with_it(builds: Builds, player: Player, tmp_path: Path) -> None:
    waiting = threading.Event()
    player.paused = waiting.set

    def install(made: Path) -> tuple[int, bytes]:
        assert waiting.wait(PATIENCE)
        return 1, b"ERROR: no"

    player.install = install
    files = [write(tmp_path / name) for name in "ab"]
    with ThreadPoolExecutor(2) as threads:
        told = set(threads.map(lambda file: refusal(builds, file), files))
    assert len(told) == len(player.installed) == 1


def test_lock_that_another_process_never_releases_ends_the_wait(
    builds: Builds, player: Player, cache: Path, tmp_path: Path
) -> None:
    file = write(tmp_path)
    folder = builds.folder(file)
    (folder / NOTE).unlink()  # as if it were not built

    def pass_time() -> None:
        player.now += LIMIT

    player.paused = pass_time
    with folder.with_suffix(".lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert refusal(builds, file) == (
            f"The Python environment of '{file}' cannot be built: another process has held '{folder}.lock' "
            f"for {LIMIT + LOCK_GRACE:g} s"
        )


def test_environment_that_is_not_whole_is_built_again(builds: Builds, player: Player, tmp_path: Path) -> None:
    file = write(tmp_path)
    folder = builds.folder(file)
    (folder / "bin" / "python").unlink()  # its interpreter was removed
    (folder / "rest").touch()
    assert builds.folder(file) == folder
    assert (folder / "bin" / "python").exists()
    assert not (folder / "rest").exists()
    assert len(player.installed) == 2


def test_what_a_killed_build_left_is_removed_by_the_next(builds: Builds, cache: Path, tmp_path: Path) -> None:
    (cache / "building-x" / "environment").mkdir(parents=True)
    folder = builds.folder(write(tmp_path))
    assert left(cache) == [folder.name]


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("server", "the server is exiting"),
        ("unload", "the build of the Python environment of '{}' was given up: unloaded meanwhile"),
    ],
)
def test_build_ends_with_the_server_and_with_an_unload(
    builds: Builds, player: Player, cache: Path, tmp_path: Path, end: str, text: str
) -> None:
    unloads: list[str] = []

    def install(made: Path) -> tuple[int, bytes]:
        if end == "server":
            player.close()
        else:
            unloads.append("m")
        return 0, b""

    player.install = install
    file = write(tmp_path)
    with pytest.raises(Unavailable) as caught:
        builds.folder(file, lambda: bool(unloads))
    assert str(caught.value) == text.format(file)
    assert left(cache) == []


def test_close_waits_until_a_build_has_removed_what_it_made(
    builds: Builds, player: Player, cache: Path, tmp_path: Path
) -> None:
    begun = threading.Event()

    def install(made: Path) -> tuple[int, bytes]:
        begun.set()
        assert player._closed.wait(PATIENCE)
        return 0, b""

    player.install = install
    errors: list[Error] = []

    def load() -> None:
        try:
            builds.folder(write(tmp_path))
        except Error as error:
            errors.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    assert begun.wait(PATIENCE)
    player.close()
    builds.close()
    assert left(cache) == []
    thread.join(PATIENCE)
    assert [str(error) for error in errors] == ["the server is exiting"]


def test_progress_is_logged_from_time_to_time(
    builds: Builds, player: Player, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def install(made: Path) -> tuple[int, bytes]:
        (made.parent / "output.txt").write_bytes(b"Collecting torch\nDownloading torch-2.0.whl (800 MB)\n")
        for seconds in (1, 5, 6, 20, 34, 35, 36):
            player.now = seconds
            player.tick()
        return 0, b""

    player.install = install
    file = write(tmp_path)
    builds.folder(file)
    assert [record.message for record in caplog.records if "still" in record.message] == [
        f"still building the Python environment of '{file}' after {seconds} s: Downloading torch-2.0.whl (800 MB)"
        for seconds in (5, 35)
    ]


def test_list_with_hashes_must_have_numpy(builds: Builds, tmp_path: Path) -> None:
    file = write(tmp_path, "idna==3.1 --hash=sha256:00\n")
    assert refusal(builds, file) == (
        f"The list of packages '{file}' cannot be used: it has hashes, so it must list numpy too, which workers need"
    )
    builds.folder(write(tmp_path, "idna==3.1 --hash=sha256:00\nnumpy==1.26.4 --hash=sha256:00\n"))


def test_directory_that_cannot_be_made_is_said(player: Player, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = refusal(made_by(player, tmp_path / "file" / "cache"), write(tmp_path))
    assert told == (
        f"The Python environment of '{tmp_path}/requirements.txt' cannot be built in '{tmp_path}/file/cache' "
        f"(--python-environment-directory): [Errno 20] Not a directory: '{tmp_path}/file/cache'"
    )
