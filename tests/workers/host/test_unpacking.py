"""Archives of every kind, and those that want to write where they must not."""

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from halimede.platform.scratch import remove_tree
from halimede.workers.host.unpacking import BadArchive, UnpackingAbandoned, unpack

MODIFIED = 1_600_000_000
Fill = Callable[[tarfile.TarFile], None]


def wanted() -> bool:
    return False


def file(name: str, content: bytes = b"x", mode: int = 0o644) -> Fill:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = len(content), mode, MODIFIED
        tar.addfile(info, io.BytesIO(content))

    return add


def special(name: str, kind: bytes, target: str = "") -> Fill:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info)

    return add


def folder(name: str) -> Fill:
    return special(name, tarfile.DIRTYPE)


def link(name: str, target: str) -> Fill:
    return special(name, tarfile.SYMTYPE, target)


def same(name: str, target: str) -> Fill:
    return special(name, tarfile.LNKTYPE, target)


def tar_of(where: Path, *members: Fill, mode: str = "w:gz") -> Path:
    path = where / "archive"
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]  # one of several literals
        for add in members:
            add(tar)
    return path


def unpacked(archive: Path, where: Path) -> Path:
    to = where / "to"
    to.mkdir()
    unpack(archive, to, wanted)
    return to


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar_is_unpacked_with_modes_times_and_links(mode: str, tmp_path: Path) -> None:
    members = (
        folder("./bin"),
        file("./bin/run", b"#!/bin/sh\n", 0o755),
        file("lib/deep/down/module.py", b"pass\n"),
        link("bin/python", "/usr/bin/python-of-elsewhere"),
        link("lib64", "lib"),
        same("bin/again", "./bin/run"),
    )
    to = unpacked(tar_of(tmp_path, *members, mode=mode), tmp_path)
    run = to / "bin" / "run"
    assert run.read_bytes() == b"#!/bin/sh\n"
    assert os.access(run, os.X_OK)
    assert run.stat().st_mtime == MODIFIED
    assert not os.access(to / "lib/deep/down/module.py", os.X_OK)
    assert (to / "bin" / "python").readlink() == Path("/usr/bin/python-of-elsewhere")
    assert (to / "lib64/deep/down/module.py").read_bytes() == b"pass\n"
    assert (to / "bin" / "again").samefile(run)


def test_zip_is_unpacked_with_modes_and_links(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with zipfile.ZipFile(archive, "w") as found:
        for name, mode, content in (
            ("bin/run", stat.S_IFREG | 0o755, "#!/bin/sh\n"),
            ("bin/python", stat.S_IFLNK | 0o777, "/usr/bin/python-of-elsewhere"),
            ("plain", 0, "made by a program that knows no modes"),
        ):
            info = zipfile.ZipInfo(name, (2020, 9, 13, 12, 26, 40))
            info.external_attr = mode << 16
            found.writestr(info, content)
        found.mkdir("empty")
    to = unpacked(archive, tmp_path)
    assert os.access(to / "bin/run", os.X_OK)
    assert (to / "plain").read_text() == "made by a program that knows no modes"
    assert (to / "bin/python").readlink() == Path("/usr/bin/python-of-elsewhere")
    assert (to / "empty").is_dir()
    assert abs((to / "bin/run").stat().st_mtime - MODIFIED) <= 24 * 3600  # a zip knows the local time only


def test_bits_that_give_rights_are_taken_away(tmp_path: Path) -> None:
    to = unpacked(tar_of(tmp_path, file("run", mode=0o6777), file("none", mode=0)), tmp_path)
    assert (to / "run").stat().st_mode & 0o7000 == 0
    assert (to / "none").stat().st_mode & 0o777 == 0o600


def test_later_member_of_a_name_is_the_one_that_counts(tmp_path: Path) -> None:
    members = (file("a", b"old"), same("b", "a"), file("a", b"new"), link("c", "/etc/passwd"), file("c", b"mine"))
    to = unpacked(tar_of(tmp_path, *members), tmp_path)
    assert [(to / name).read_bytes() for name in "abc"] == [b"new", b"old", b"mine"]
    assert not (to / "c").is_symlink()


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (lambda o: [file("/etc/evil")], "'/etc/evil' does not lie in the archive's own folder"),
        (lambda o: [file("a/../../evil")], "'a/../../evil' does not lie in the archive's own folder"),
        (lambda o: [link("../evil", "x")], "'../evil' does not lie in the archive's own folder"),
        (lambda o: [link("out", o), file("out/evil")], "'out' is a folder and something else too"),
        (lambda o: [link("a", "."), link("a/out", o)], "'a' is a folder and something else too"),
        (lambda o: [folder("out"), link("out", o), file("out/evil")], "'out' is a folder and something else too"),
        (lambda o: [file("a"), file("a/evil")], "'a' is a folder and something else too"),
        (lambda o: [same("evil", "/etc/passwd")], "'/etc/passwd' does not lie in the archive's own folder"),
        (lambda o: [same("evil", "../outside/secret")], "'../outside/secret' does not lie in the archive's own folder"),
        (
            lambda o: [link("out", o), same("evil", "out/secret")],
            "'evil' is another name of 'out/secret', which is not there",
        ),
        (lambda o: [same("a", "a")], "'a' is another name of 'a', which is not there"),
        (lambda o: [same("a", ".")], "'a' is another name of '.', which is not there"),
        (lambda o: [special("pipe", tarfile.FIFOTYPE)], "'pipe' is a device or a pipe"),
        (lambda o: [special("null", tarfile.CHRTYPE)], "'null' is a device or a pipe"),
    ],
)
def test_archive_that_would_leave_its_folder_is_refused(
    members: Callable[[str], list[Fill]], text: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    with pytest.raises(BadArchive) as caught:
        unpacked(tar_of(tmp_path, *members(str(outside))), tmp_path)
    assert str(caught.value) == text
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret": "secret"}
    assert not (tmp_path / "evil").exists()


def test_link_that_leads_outside_is_not_written_through(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    to = unpacked(tar_of(tmp_path, link("a", str(secret)), same("b", "a"), file("b", b"evil")), tmp_path)
    assert secret.read_text() == "secret"
    assert (to / "b").read_bytes() == b"evil"


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\0", b"PK\3\4", b"PK\3\4" + bytes(100)])
def test_file_that_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(content)
    with pytest.raises(BadArchive, match=r".+"):
        unpacked(archive, tmp_path)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_archive_that_is_cut_off_anywhere_is_refused(mode: str, tmp_path: Path) -> None:
    content = tar_of(tmp_path, file("a", os.urandom(5000)), file("b", os.urandom(5000)), mode=mode).read_bytes()
    for n, end in enumerate(range(0, len(content) - 8, 997)):
        (tmp_path / "cut").write_bytes(content[:end])
        with pytest.raises(BadArchive, match=r".+"):
            unpack(tmp_path / "cut", _new(tmp_path / str(n)), wanted)


def test_archive_with_wrong_bytes_is_unpacked_or_refused(tmp_path: Path) -> None:
    content = tar_of(tmp_path, file("a", os.urandom(3000)), link("b", "a"), same("c", "a"), mode="w:gz").read_bytes()
    refusals = []
    for n, at in enumerate(range(0, len(content), 41)):
        (tmp_path / "wrong").write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            unpack(tmp_path / "wrong", _new(tmp_path / str(n)), wanted)
        except (BadArchive, OSError) as error:
            refusals.append(str(error))
    assert len(refusals) > 50
    assert all(refusals)


@pytest.mark.parametrize("claimed", [1 << 40, 1 << 62, 1 << 80])
def test_name_that_is_said_to_have_no_end_is_refused(claimed: int, tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, claimed
    (tmp_path / "archive").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"y" * 2048)
    with pytest.raises(BadArchive, match=r".+"):
        unpacked(tmp_path / "archive", tmp_path)


def test_zip_whose_member_has_no_name_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with zipfile.ZipFile(archive, "w") as found:
        found.writestr("?", "x")
    archive.write_bytes(archive.read_bytes().replace(b"?", b"\0"))
    with pytest.raises(BadArchive, match="a member has no name"):
        unpacked(archive, tmp_path)


def test_folders_in_each_other_have_a_bound_and_can_be_removed(tmp_path: Path) -> None:
    to = unpacked(tar_of(tmp_path, *(folder("a/" * deep) for deep in range(1, 201))), tmp_path)
    remove_tree(to)
    assert not to.exists()
    with pytest.raises(BadArchive, match=r"^'a/a/.*\.\.\.' lies in more than 200 folders$"):
        unpacked(tar_of(tmp_path, *(folder("a/" * deep) for deep in range(1, 1900))), tmp_path)


def _new(path: Path) -> Path:
    path.mkdir()
    return path


def test_what_is_unwanted_is_given_up_within_a_member(tmp_path: Path) -> None:
    asked: list[int] = []

    def unwanted() -> bool:
        asked.append(1)
        return len(asked) > 3

    archive = tar_of(tmp_path, file("large", bytes(8 << 20)), file("b"))
    with pytest.raises(UnpackingAbandoned):
        unpack(archive, _new(tmp_path / "to"), unwanted)
    assert (tmp_path / "to" / "large").stat().st_size < 8 << 20
