"""The file of `--auth` is read again when it changes. The test has the clock and the threads."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from halimede.errors import Invalid
from halimede.identities.file import parse
from halimede.identities.guard import Guard
from halimede.options import ServerOptions
from halimede.serving.identity_file import LOOK_SECONDS, IdentityWatch, changes, open_guard
from tests.front.http_fakes import HeldOffload

ALICE = "[alice]\nroles = ['infer']\n"


class Rig:
    """A watch over a file, whose looks the test makes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        guard = open_guard(ServerOptions(auth=str(path)))
        assert guard is not None
        self.guard: Guard = guard
        self.offload = HeldOffload()
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.watch = IdentityWatch(path, guard, self.offload, lambda delay, call: self.later.append((delay, call)))
        self.watch.begin()
        self._read()

    def _read(self) -> None:
        self.offload.run()
        # Many identities are taken over in several turns of the loop, and so are few on a busy machine.
        while self.later and self.later[-1][0] == 0:
            self.later.pop()[1]()

    def look(self) -> None:
        """Looks twice: a change is only read if the file then stays as it is."""
        self.look_once()
        self.look_once()

    def look_once(self) -> None:
        ((delay, call),) = self.later
        assert delay == LOOK_SECONDS
        self.later.clear()
        call()
        self._read()

    @property
    def names(self) -> list[str]:
        return list(self.guard.identities)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "auth.toml"
    file.write_text(ALICE)
    return file


def test_server_without_the_flag_has_no_guard() -> None:
    assert open_guard(ServerOptions()) is None


def test_file_that_cannot_be_used_ends_the_start(path: Path) -> None:
    path.write_text("[alice]")
    with pytest.raises(Invalid, match=r"--auth: '.*auth.toml': \['alice'\]: 'roles' is missing"):
        open_guard(ServerOptions(auth=str(path)))


def test_empty_file_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text("")
    guard = open_guard(ServerOptions(auth=str(path)))
    assert guard is not None
    assert "every request is refused" in caplog.text


def test_change_is_taken(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(path)
    with caplog.at_level(logging.INFO, "halimede"):
        rig.look()
        assert caplog.text == ""
        path.write_text(ALICE + "[bob]\nroles = []\n")
        rig.look()
    assert rig.names == ["alice", "bob"]
    assert "was read again: added 'bob'" in caplog.text


def test_secret_of_a_cluster_is_swapped_as_a_whole(tmp_path: Path) -> None:
    """Kubernetes mounts a secret as links into a directory, and replaces the directory's link."""
    for name, text in (("1", ALICE), ("2", "[bob]\nroles = ['infer']\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "auth.toml").write_text(text)
        (tmp_path / name / "auth.toml").chmod(0o440)
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "auth.toml").symlink_to("..data/auth.toml")
    rig = Rig(tmp_path / "auth.toml")
    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").replace(tmp_path / "..data")
    rig.look()
    assert rig.names == ["bob"]


def test_mistake_changes_nothing_and_is_told_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(path)
    path.write_text("[alice")
    for _ in range(3):
        rig.look()
    assert rig.names == ["alice"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "it is not TOML" in record.getMessage()
    assert "the identities stay as they were" in record.getMessage()
    path.write_text("[bob]\nroles = []\n")
    rig.look()
    assert rig.names == ["bob"]


def test_file_that_is_gone_and_comes_back(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(path)
    path.unlink()
    rig.look()
    rig.look()
    assert rig.names == ["alice"]
    assert len(caplog.records) == 1
    path.write_text("[bob]\nroles = []\n")
    rig.look()
    assert rig.names == ["bob"]


def test_watch_ends(path: Path) -> None:
    rig = Rig(path)
    ((_, call),) = rig.later
    rig.watch.end()
    call()
    assert len(rig.offload) == 0


def test_changes_in_words() -> None:
    old = parse("[a]\nroles=[]\n[b]\nroles=[]\n[c]\nroles=[]")
    new = parse("[a]\nroles=[]\n[b]\nroles=['read']\n" + "".join(f"[n{i}]\nroles=[]\n" for i in range(12)))
    told = changes(old, new)
    assert told.startswith("added 'n0', 'n1'")
    assert told.endswith("'n9' and 2 more, changed 'b', removed 'c'")


def test_file_that_is_being_written_is_not_read(path: Path) -> None:
    """The first half is a file, too, in which a key does not expire."""
    rig = Rig(path)
    path.write_text("[bob]\nroles = ['infer']\n")
    rig.look_once()
    path.write_text("[bob]\nroles = ['infer']\nexpires = 2020-01-01\n")
    rig.look_once()
    assert rig.names == ["alice"]
    rig.look_once()
    assert rig.guard.identities["bob"].expires is not None


def test_file_whose_mode_was_wrong_is_read_when_it_is_right(path: Path) -> None:
    rig = Rig(path)
    path.write_text("[bob]\nroles = ['infer']\n")
    path.chmod(0o622)
    rig.look()
    assert rig.names == ["alice"]
    path.chmod(0o600)
    rig.look()
    assert rig.names == ["bob"]
