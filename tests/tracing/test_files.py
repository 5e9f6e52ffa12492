import json
import logging
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from halimede.errors import Internal
from halimede.traces import TENSORS, TIMESTAMPS, RootTrace
from halimede.tracing import writer as writing
from halimede.tracing.files import MAX_KEPT, FileStream, TraceFile
from halimede.tracing.text import text_of
from halimede.tracing.writer import Writer
from tests.tracing.traces import Traced, response_for


def trace(level: int = TIMESTAMPS) -> RootTrace:
    traced = Traced(level)
    traced.begin()
    found = traced.answered()
    assert found is not None
    return found


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.002)


class Disk:
    """Streams to one path, and their writer. The writer is closed before a test looks at the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = Writer(gather=0)
        self.file = TraceFile(str(folder / "trace.json"))

    def stream(self, frequency: int = 0, ends: bool = False) -> FileStream:
        return FileStream(self.file, frequency, self.writer, ends)

    def written(self) -> dict[str, int]:
        """The number of traces in each file."""
        return {path.name: len(traces(path)) for path in self.after()}

    def after(self) -> list[Path]:
        """The files, when all is written."""
        assert self.writer.close(10)
        return sorted(self.folder.iterdir())


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def traces(path: Path) -> list[Any]:
    return [one for one in json.loads(path.read_text()) if "model_name" in one]


def test_all_traces_are_in_one_file_without_a_frequency(disk: Disk) -> None:
    """The file is complete when the setting ends (T6)."""
    (disk.folder / "trace.json").write_text("[of an earlier server]")
    for _ in range(2):
        stream = disk.stream()
        stream.take(trace())
        stream.take(trace())
        stream.close()
    assert disk.written() == {"trace.json": 4}


def test_each_file_has_as_many_traces_as_the_frequency_says(disk: Disk) -> None:
    """The rest goes to another file. The numbers go on when settings are replaced (T6)."""
    stream = disk.stream(2)
    for _ in range(3):
        stream.take(trace())
    stream.close()
    stream = disk.stream(1)
    stream.take(trace())
    stream.close()
    assert disk.written() == {"trace.json.0": 2, "trace.json.1": 1, "trace.json.2": 1}


def test_finished_setting_makes_a_numbered_file(disk: Disk) -> None:
    stream = disk.stream()
    stream.take(trace())
    stream.finish()
    stream.close()
    assert disk.written() == {"trace.json.0": 1}


@pytest.mark.parametrize("frequency", [0, 100_000])
@pytest.mark.parametrize("level", [TIMESTAMPS, TIMESTAMPS | TENSORS])
def test_memory_of_an_unfinished_file_is_bounded(disk: Disk, frequency: int, level: int) -> None:
    """Most traces are in the file long before the end, also if the thread makes their text."""
    stream, one = disk.stream(frequency), trace(level)
    size = len(text_of(one))
    count = 3 * MAX_KEPT // size
    for _ in range(count):
        stream.take(one)
    until(lambda: not disk.writer.busy)
    (path,) = disk.folder.iterdir()
    assert 0 < (count - len(traces(path))) * size <= MAX_KEPT + 2000
    stream.close()
    assert disk.written() == {path.name: count}


@pytest.mark.parametrize("level", [TIMESTAMPS, TENSORS])
@pytest.mark.parametrize("end", [FileStream.finish, FileStream.close])
def test_all_traces_of_a_count_are_in_one_file(disk: Disk, end: Callable[[FileStream], None], level: int) -> None:
    """Also if the setting ends before its count is reached (T6)."""
    stream, one = disk.stream(ends=True), trace(TIMESTAMPS | level)
    count = 2 * MAX_KEPT // len(text_of(one))
    for _ in range(count):
        stream.take(one)
    end(stream)
    assert disk.written() == {"trace.json.0": count}


def test_long_text_is_made_on_the_thread(disk: Disk) -> None:
    """Long texts are those of tensors and of many responses. The traces stay in their order."""
    stream, many = disk.stream(), Traced()
    many.begin()
    for _ in range(200):
        many.answered(response_for(), final=False)
    long = many.answered()
    assert long is not None
    for one in (trace(), long, trace(TENSORS), trace()):
        stream.take(one)
    assert [type(each) for each in stream._kept] == [str, RootTrace, RootTrace, str]
    stream.close()
    assert disk.writer.close(10)
    (path,) = disk.folder.iterdir()
    objects = json.loads(path.read_text())
    assert len(objects) > 200
    assert [one["activity"] for one in objects if "activity" in one] == ["TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT"]
    assert "model_name" in objects[2]
    assert objects[-1]["timestamps"][0]["name"] == "HTTP_SEND_END"


def test_request_without_tensors_makes_no_trace_at_level_tensors(disk: Disk) -> None:
    stream, traced = disk.stream(1), Traced(TENSORS)
    traced.request.inputs.clear()
    traced.begin()
    nothing = traced.answered(Internal("broke"))
    assert nothing is not None
    stream.take(nothing)
    stream.take(trace(TENSORS))
    assert [path.read_text().count("activity") for path in disk.after()] == [2]


def test_path_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(tmp_path / "not there")
    stream = disk.stream(1)
    for _ in range(3):
        stream.take(trace())
    until(lambda: not disk.writer.busy)
    (tmp_path / "not there").mkdir()
    stream.take(trace())
    assert disk.written() == {"trace.json.3": 1}
    errors = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "failed creating trace file" in errors[0]
    assert "trace.json.0: No such file or directory" in errors[0]


def test_full_disk_leaves_whole_arrays(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size, count in ((0, 1), (limits[0], 1), (3000, 5), (limits[0], 1)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            disk.file.whole.append([text_of(trace())] * count)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert disk.written() == {"trace.json": 2}


@pytest.mark.parametrize(("frequency", "name"), [(0, "trace.json"), (2, "trace.json.0")])
def test_file_whose_first_traces_were_dropped_begins_with_the_next(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, frequency: int, name: str
) -> None:
    """The old file of an earlier server is replaced, and need not be whole. No number is left out."""
    (disk.folder / name).write_text("[of an earlier server")
    stream = disk.stream(frequency)
    for bound in (-1, writing.MAX_QUEUED_BYTES):
        monkeypatch.setattr(writing, "MAX_QUEUED_BYTES", bound)
        stream.take(trace())
        stream.take(trace())
        stream.close()
    assert disk.written() == {name: 2}


def test_file_that_cannot_be_opened_at_first_is_replaced_later(disk: Disk) -> None:
    """The old content at the path is not kept."""
    path, later = disk.folder / "trace.json", disk.folder / "later"
    path.symlink_to(later / "trace.json")
    disk.file.whole.append([text_of(trace())])
    later.mkdir()
    path.write_text("[of an earlier server")
    disk.file.whole.append([text_of(trace())])
    assert len(traces(path)) == 1


def test_writer_that_falls_behind_drops_traces_and_logs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writing, "MAX_QUEUED_BYTES", 3000)
    writer = Writer(gather=0.3)
    written: list[int] = []
    kept = [writer.put(partial(written.append, number), 1000, 2) for number in range(8)]
    assert kept == [True] * 4 + [False] * 4
    assert writer.close(10)
    assert written == [0, 1, 2, 3]
    assert [record.message for record in caplog.records] == [
        "traces are dropped: they arrive faster than the disk or collector takes them; lower the trace rate",
        "8 traces were dropped",
    ]


def test_writer_goes_on_after_a_job_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(gather=0)
    written: list[int] = []

    def broken() -> None:
        raise ValueError("no")

    writer.put(broken, 1)
    writer.put(partial(written.append, 1), 1)
    assert writer.close(10)
    assert written == [1]
    assert "failed to write a trace" in caplog.text
