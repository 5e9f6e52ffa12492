"""Files that are read whole, and pipes and devices, which are refused."""

import os
import threading
from pathlib import Path

import pytest

from halimede import config
from halimede.checking.configuration import review
from halimede.config import LabelFiles, TensorSpec, agents_of
from halimede.config.files import read_whole
from halimede.errors import Internal
from halimede.tensors import FP32

PATIENCE = 20.0
"""Seconds after which a reader counts as blocked."""
REFUSED = "it is not a regular file"


def within(work: object) -> Exception | None:
    """The exception that the work raised. Fails if the work blocks its thread."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "a pipe without a writer blocks the thread"
    return raised[0] if raised else None


def test_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\0text\n" * 100_000)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_whole(tmp_path / "file") == b"\0text\n" * 100_000
    assert read_whole(tmp_path / "link") == read_whole(tmp_path / "file")


def test_pipe_without_a_writer_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    error = within(lambda: read_whole(tmp_path / "pipe"))
    assert isinstance(error, OSError)
    assert (error.strerror, error.filename) == (REFUSED, str(tmp_path / "pipe"))


def test_pipe_with_a_writer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        os.write(writer, b'backend: "identity"')
        assert isinstance(within(lambda: read_whole(tmp_path / "pipe")), OSError)
    finally:
        os.close(writer)


@pytest.mark.parametrize("other", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_device_is_refused(tmp_path: Path, other: str) -> None:
    (tmp_path / "link").symlink_to(other)
    assert isinstance(within(lambda: read_whole(tmp_path / "link")), OSError)


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        read_whole(tmp_path)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("pipe", "file", "."):
        for _ in range(50):
            within(lambda name=name: read_whole(tmp_path / name))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 5


def test_configuration_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    os.mkfifo(folder / "config.pbtxt")
    error = within(lambda: config.read(folder))
    assert isinstance(error, Internal)
    assert str(error) == f"failed to open text file for read {folder}/config.pbtxt: {REFUSED}"
    assert within(lambda: agents_of(folder)) is None
    found: list[str] = []
    assert within(lambda: found.extend(each.text for each in review(folder).problems)) is None
    assert found == [f"cannot be read: {REFUSED}"]


def test_labels_that_are_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "labels.txt")
    error = within(lambda: LabelFiles(tmp_path, "m").of(TensorSpec("O", FP32, (2,), label_filename="labels.txt")))
    assert isinstance(error, Internal)
    assert REFUSED in str(error)


def test_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_whole(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, and 4 are allowed"):
        read_whole(tmp_path / "file", 4)
