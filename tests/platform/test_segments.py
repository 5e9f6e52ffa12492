import os
import resource
from pathlib import Path

import pytest

from halimede.platform.segments import FOLDER, Mapping, Segment, segment_name
from tests.processes import open_descriptors
from tests.segments import fresh_key, segment

PAGE = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in the place of the system's, with a segment `s` of two pages that were written."""
    (tmp_path / "s").write_bytes(bytes(range(256)) * 32)
    return tmp_path


def mapped(folder: Path, offset: int = 0, byte_size: int = 2 * PAGE, key: str = "/s") -> Mapping:
    return Mapping(Segment(key, folder), offset, byte_size)


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


def test_mapping_reads_and_writes_the_segment(folder: Path) -> None:
    mapping = mapped(folder, PAGE, PAGE)
    assert bytes(mapping.read(3, 6)) == b"\3\4\5"
    mapping.write(4, memoryview(b"xy"))
    assert bytes(mapping.read(3, 7)) == b"\3xy\6"
    assert (folder / "s").read_bytes()[PAGE + 3 : PAGE + 7] == b"\3xy\6"
    assert bytes(mapping.read(PAGE, PAGE)) == b""


def test_view_of_a_mapping_cannot_be_written(folder: Path) -> None:
    with pytest.raises(TypeError):
        mapped(folder).read(0, 1)[0] = 1


@pytest.mark.parametrize(("offset", "byte_size"), [(7, 8), (0, 0), (PAGE, 0)])
def test_mapping_that_the_system_refuses(folder: Path, offset: int, byte_size: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        mapped(folder, offset, byte_size)


def test_mapping_of_a_segment_that_has_become_shorter(folder: Path) -> None:
    opened = Segment("/s", folder)
    os.truncate(folder / "s", PAGE)
    with pytest.raises(OSError, match="Invalid argument"):
        Mapping(opened, 0, 2 * PAGE)


def test_use_of_a_segment_that_has_become_shorter(folder: Path) -> None:
    mapping = mapped(folder)
    os.truncate(folder / "s", PAGE)
    assert mapping.read(0, PAGE)[0] == 0
    mapping.write(0, memoryview(b"still there"))
    with pytest.raises(OSError, match="shorter"):
        mapping.read(PAGE - 1, PAGE + 1)
    with pytest.raises(OSError, match="shorter"):
        mapping.write(PAGE - 1, memoryview(b"ab"))


def test_segment_without_its_pages_is_filled(folder: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(16 * PAGE)
    mapping = mapped(folder, 0, 16 * PAGE, "/sparse")
    mapping.write(PAGE - 1, memoryview(b"abc"))
    assert bytes(mapping.read(PAGE - 2, PAGE + 3)) == b"\0abc\0"


def test_pages_that_were_never_written_are_not_made_by_reading() -> None:
    with segment(16 * PAGE) as (key, made):
        assert made.buf is not None
        mapping = Mapping(Segment(key), 0, 16 * PAGE)
        made.buf[PAGE - 1] = 7
        written = blocks(key)
        assert bytes(mapping.read(PAGE - 1, 15 * PAGE)) == b"\7" + bytes(14 * PAGE)
        assert bytes(mapping.read(16 * PAGE, 16 * PAGE)) == b""
        assert blocks(key) == written
        with pytest.raises(OSError, match="shorter"):
            mapping.read(PAGE, 16 * PAGE + 1)


def blocks(key: str) -> int:
    return (FOLDER / key.lstrip("/")).stat().st_blocks


def test_written_part_of_a_sparse_segment_is_not_copied() -> None:
    with segment(16 * PAGE) as (key, made):
        assert made.buf is not None
        mapping = Mapping(Segment(key), 0, 16 * PAGE)
        made.buf[PAGE : 3 * PAGE] = bytes(2 * PAGE)
        view, copied = mapping.read(PAGE, 3 * PAGE), mapping.read(PAGE, 3 * PAGE + 1)
        made.buf[PAGE] = 7
        assert (view[0], copied[0]) == (7, 0)
        assert view.readonly
        assert copied.readonly


def test_segment_for_whose_pages_there_is_no_room(folder: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(16 * PAGE)
    mapping = mapped(folder, 0, 16 * PAGE, "/sparse")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            mapping.write(8 * PAGE, memoryview(b"abc"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def maps(name: str) -> bool:
    return name in Path("/proc/self/maps").read_text()


def test_mapping_is_there_until_its_last_view_is_gone(folder: Path) -> None:
    before = open_descriptors()
    mapping = mapped(folder)
    view = mapping.read(0, 4)
    del mapping
    assert maps(str(folder / "s"))
    assert bytes(view) == b"\0\1\2\3"
    del view
    assert not maps(str(folder / "s"))
    assert open_descriptors() == before


def test_mapping_that_failed_leaves_no_descriptor(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(OSError, match="Invalid argument"):
            mapped(folder, 1)
        with pytest.raises(OSError, match="Invalid argument"):
            Segment("/pipe", folder)
    assert open_descriptors() == before


def test_segment_of_another_library_is_found() -> None:
    with segment(PAGE) as (key, made):
        mapping = Mapping(Segment(key), 0, PAGE)
        mapping.write(0, memoryview(b"hello"))
        assert made.buf is not None
        assert bytes(made.buf[:5]) == b"hello"
    with pytest.raises(FileNotFoundError):
        Segment(fresh_key())
