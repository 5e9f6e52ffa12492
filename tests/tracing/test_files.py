import json
import logging
import resource
from pathlib import Path
from typing import Any

import pytest

from halimede.traces import Group
from halimede.tracing import writer as writing
from halimede.tracing.files import KEPT, FileStream, TraceFile
from halimede.tracing.text import group_text
from halimede.tracing.writer import Writer
from tests.tracing.traces import Traced


def group() -> Group:
    traced = Traced()
    traced.begin()
    found = traced.answered()
    assert found is not None
    return found


class Disk:
    """Streams over one file, and a writer that is closed to see what was written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = Writer(gather=0)
        self.file = TraceFile(str(folder / "trace.json"))

    def stream(self, frequency: int = 0) -> FileStream:
        return FileStream(self.file, frequency, self.writer)

    def written(self) -> dict[str, int]:
        """The traces in each file."""
        assert self.writer.close(10)
        return {path.name: len(traces(path)) for path in sorted(self.folder.iterdir())}


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def traces(path: Path) -> list[Any]:
    return [one for one in json.loads(path.read_text()) if "model_name" in one]


def test_without_a_frequency_all_is_in_one_file_at_the_end(disk: Disk) -> None:
    """Contract T6."""
    (disk.folder / "trace.json").write_text("[of an earlier server]")
    for _ in range(2):
        stream = disk.stream()
        stream.take(group())
        stream.take(group())
        stream.close()
    assert disk.written() == {"trace.json": 4}


def test_with_a_frequency_each_file_has_so_many(disk: Disk) -> None:
    """Contract T6: the rest is in the next one; the numbers go on when settings are replaced."""
    stream = disk.stream(2)
    for _ in range(3):
        stream.take(group())
    stream.close()
    stream = disk.stream(1)
    stream.take(group())
    stream.close()
    assert disk.written() == {"trace.json.0": 2, "trace.json.1": 1, "trace.json.2": 1}


def test_as_many_as_wanted_make_a_file_with_a_number(disk: Disk) -> None:
    stream = disk.stream()
    stream.take(group())
    stream.finish()
    stream.close()
    assert disk.written() == {"trace.json.0": 1}


@pytest.mark.parametrize("frequency", [0, 100_000])
def test_what_is_kept_in_memory_is_bounded(disk: Disk, frequency: int) -> None:
    stream = disk.stream(frequency)
    one = group()
    for _ in range(2 * KEPT // 1000):
        stream._write(one)
        assert stream._size <= KEPT + 2000
    (path,) = disk.folder.iterdir()
    assert 0 < len(traces(path)) < 2 * KEPT // 1000
    stream._close(frequency > 0)
    assert len(traces(path)) == 2 * KEPT // 1000
    assert disk.written() == {path.name: 2 * KEPT // 1000}


def test_path_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(tmp_path / "not there")
    stream = disk.stream(1)
    for _ in range(3):
        stream._write(group())
    (tmp_path / "not there").mkdir()
    stream._write(group())
    errors = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "failed creating trace file" in errors[0]
    assert "trace.json.0: No such file or directory" in errors[0]
    assert disk.written() == {"trace.json.3": 1}


def test_disk_that_is_full_for_a_while_leaves_whole_arrays(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    stream = disk.stream(100)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size, groups in ((0, 1), (limits[0], 1), (3000, 5), (limits[0], 1)):
        stream._texts += [group_text(group()) for _ in range(groups)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            stream._flush(True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert disk.written() == {"trace.json.0": 2}


def test_writer_that_does_not_keep_up_loses_traces_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writing, "MAX_WAITING", 3 * group().cost)
    writer = Writer(gather=0.3)
    written: list[Group] = []
    kept = [writer.put_group(group(), written.append) for _ in range(8)]
    assert kept == [True] * 4 + [False] * 4
    assert writer.close(10)
    assert len(written) == 4
    assert [record.message for record in caplog.records] == [
        "Traces are lost: they cannot be written as quickly as they come",
        "4 traces were lost",
    ]


def test_writer_goes_on_after_work_that_breaks(caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(gather=0)
    written: list[Group] = []

    def broken(one: Group) -> None:
        raise ValueError("no")

    writer.put_group(group(), broken)
    writer.put_group(group(), written.append)
    assert writer.close(10)
    assert len(written) == 1
    assert "writing a trace broke" in caplog.text
