import os
import resource
from pathlib import Path

import pytest

from halimede.platform.segments import FOLDER, Segment, SharedBytes, segment_name
from tests.processes import open_descriptors
from tests.segments import fresh_key, segment

PAGE = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in the place of the system's, with a segment `s` of two pages that were written."""
    (tmp_path / "s").write_bytes(bytes(range(256)) * 32)
    return tmp_path


def shared(folder: Path, offset: int = 0, byte_size: int = 2 * PAGE, key: str = "/s") -> SharedBytes:
    return SharedBytes(Segment(key, folder), offset, byte_size)


@pytest.mark.parametrize(("key", "name"), [("/a", "a"), ("a", "a"), ("///a.b", "a.b"), ("/é", "é"), ("/...", "...")])
def test_key_names_a_file(key: str, name: str) -> None:
    assert segment_name(key) == name


@pytest.mark.parametrize(
    "key", ["", "/", "///", "/a/b", "/../etc/passwd", "/.", "/..", "/a\0b", "/sem.a", "/" + "x" * 256, "/\ud800"]
)
def test_key_that_names_no_segment(key: str, folder: Path) -> None:
    assert segment_name(key) is None
    with pytest.raises(OSError, match="Invalid argument"):
        Segment(key, folder)


def test_segment_that_is_not_there(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Segment("/nope", folder)


def test_what_is_no_segment_is_not_opened(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "s")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for key in ("/link", "/folder", "/pipe"):
        with pytest.raises(OSError, match=r"symbolic link|directory|Invalid argument"):
            Segment(key, folder)


def test_segment_says_its_size(folder: Path) -> None:
    opened = Segment("//s", folder)
    assert opened.byte_size == 2 * PAGE
    opened.close()


def test_part_is_read_and_written(folder: Path) -> None:
    part = shared(folder, PAGE, PAGE)
    assert bytes(part.read(3, 6)) == b"\3\4\5"
    part.write(4, memoryview(b"xy"))
    assert bytes(part.read(3, 7)) == b"\3xy\6"
    assert (folder / "s").read_bytes()[PAGE + 3 : PAGE + 7] == b"\3xy\6"
    assert bytes(part.read(PAGE, PAGE)) == b""


def test_copy_of_a_part_cannot_be_written(folder: Path) -> None:
    with pytest.raises(TypeError):
        shared(folder).read(0, 1)[0] = 1


@pytest.mark.parametrize(("offset", "byte_size"), [(7, 8), (0, 0), (PAGE, 0)])
def test_part_that_the_system_refuses(folder: Path, offset: int, byte_size: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        shared(folder, offset, byte_size)


def test_part_of_a_segment_that_has_become_shorter(folder: Path) -> None:
    opened = Segment("/s", folder)
    os.truncate(folder / "s", PAGE)
    with pytest.raises(OSError, match="Invalid argument"):
        SharedBytes(opened, 0, 2 * PAGE)


def test_use_of_a_segment_that_has_become_shorter(folder: Path) -> None:
    part = shared(folder)
    os.truncate(folder / "s", PAGE)
    assert part.read(0, PAGE)[0] == 0
    part.write(0, memoryview(b"still there"))
    with pytest.raises(OSError, match="shorter"):
        part.read(PAGE - 1, PAGE + 1)
    with pytest.raises(OSError, match="shorter"):
        part.write(PAGE - 1, memoryview(b"ab"))


def test_what_was_read_does_not_change_with_the_segment(folder: Path) -> None:
    part = shared(folder)
    copied = part.read(PAGE - 2, PAGE + 2)
    os.truncate(folder / "s", 0)
    assert bytes(copied) == b"\xfe\xff\0\1"


def test_part_is_copied_to_another_segment(folder: Path) -> None:
    (folder / "t").write_bytes(bytes(2 * PAGE))
    part, other = shared(folder, PAGE, PAGE), shared(folder, key="/t")
    other.copy_from(PAGE - 1, part, 5, 3)
    assert (folder / "t").read_bytes() == bytes(PAGE - 1) + b"\5\6\7" + bytes(PAGE - 2)
    part.copy_from(0, part, 1, 4)
    assert bytes(part.read(0, 6)) == b"\1\2\3\4\4\5"


def test_copy_of_segments_that_have_become_shorter(folder: Path) -> None:
    (folder / "t").write_bytes(bytes(2 * PAGE))
    part, other = shared(folder), shared(folder, key="/t")
    os.truncate(folder / "s", PAGE)
    with pytest.raises(OSError, match="shorter"):
        other.copy_from(0, part, PAGE - 1, 2)
    os.truncate(folder / "t", PAGE)
    with pytest.raises(OSError, match="Bad address"):
        other.copy_from(PAGE, part, 0, 2)


def test_segment_without_its_pages_is_filled(folder: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(16 * PAGE)
    part = shared(folder, 0, 16 * PAGE, "/sparse")
    part.write(PAGE - 1, memoryview(b"abc"))
    assert bytes(part.read(PAGE - 2, PAGE + 3)) == b"\0abc\0"


def test_pages_that_were_never_written_are_not_made_by_reading() -> None:
    with segment(16 * PAGE) as (key, made):
        assert made.buf is not None
        part = SharedBytes(Segment(key), 0, 16 * PAGE)
        made.buf[PAGE - 1] = 7
        written = blocks(key)
        assert bytes(part.read(PAGE - 1, 15 * PAGE)) == b"\7" + bytes(14 * PAGE)
        assert bytes(part.read(16 * PAGE, 16 * PAGE)) == b""
        assert blocks(key) == written
        with pytest.raises(OSError, match="shorter"):
            part.read(PAGE, 16 * PAGE + 1)


def blocks(key: str) -> int:
    return (FOLDER / key.lstrip("/")).stat().st_blocks


def test_segment_for_whose_pages_there_is_no_room(folder: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(16 * PAGE)
    part = shared(folder, 0, 16 * PAGE, "/sparse")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            part.write(8 * PAGE, memoryview(b"abc"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def maps(name: str) -> bool:
    return name in Path("/proc/self/maps").read_text()


def test_part_is_mapped_until_it_is_gone(folder: Path) -> None:
    before = open_descriptors()
    part = shared(folder)
    copied = part.read(0, 4)
    assert maps(str(folder / "s"))
    del part
    assert not maps(str(folder / "s"))
    assert open_descriptors() == before
    assert bytes(copied) == b"\0\1\2\3"


def test_part_that_failed_leaves_no_descriptor(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(OSError, match="Invalid argument"):
            shared(folder, 1)
        with pytest.raises(OSError, match="Invalid argument"):
            Segment("/pipe", folder)
    assert open_descriptors() == before


def test_segment_of_another_library_is_found() -> None:
    with segment(PAGE) as (key, made):
        part = SharedBytes(Segment(key), 0, PAGE)
        part.write(0, memoryview(b"hello"))
        assert made.buf is not None
        assert bytes(made.buf[:5]) == b"hello"
    with pytest.raises(FileNotFoundError):
        Segment(fresh_key())
