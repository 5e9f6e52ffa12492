import os
import tempfile
from errno import ENOSPC
from pathlib import Path

import pytest

from halimede.errors import Internal, Invalid
from halimede.models.upload import Upload


def test_upload_writes_the_files_and_removes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    upload = Upload("m", [("1/a/b", b"x"), ("c", b""), ("1/../d", b"y")])
    files = {str(p.relative_to(upload.folder)): p.read_bytes() for p in upload.folder.rglob("*") if p.is_file()}
    assert files == {"1/a/b": b"x", "c": b"", "d": b"y"}
    assert upload.folder.name == "m"
    upload.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "normal"), [("", "."), (".", "."), ("/a", "/a"), ("..", ".."), ("../a", "../a"), ("a/../../b", "../b")]
)
def test_upload_refuses_a_path_that_leads_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, normal: str
) -> None:
    """Contract H114."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(Invalid) as raised:
        Upload("m", [("fine", b""), (path, b"")])
    text = f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model directory."
    assert str(raised.value) == text
    assert list(tmp_path.iterdir()) == []


def test_upload_is_let_go_of_by_the_last() -> None:
    upload = Upload("m", [])
    upload.hold(2)
    assert upload.used
    assert [upload.let_go(), upload.let_go()] == [False, True]
    upload.remove()


@pytest.mark.parametrize("full", ["mkdir", "write"])
def test_upload_that_finds_no_space_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if full == "mkdir":
        monkeypatch.setattr(os, "mkdir", refuse)
    else:
        monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(Internal, match="failed to write the files of model 'm': No space left on device"):
        Upload("m", [("1/model", b"x")])
    assert list(tmp_path.iterdir()) == []
