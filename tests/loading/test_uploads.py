import asyncio
import os
import tempfile
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from halimede.errors import Internal, Invalid
from halimede.loading.concurrency import LoadThreads
from halimede.loading.uploads import MAX_FOLDERS, Upload, Uploads, check_paths
from tests.models.configs import config_of, spec
from tests.models.fakes import loaded


def test_upload_writes_the_files_and_removes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    upload = Upload("m", [("1/a/b", b"x"), ("/c", b""), ("1/../d", b"y"), ("//1/./e", b"z")])
    files = {str(p.relative_to(upload.folder)): p.read_bytes() for p in upload.folder.rglob("*") if p.is_file()}
    assert files == {"1/a/b": b"x", "c": b"", "d": b"y", "1/e": b"z"}
    assert upload.folder.name == "m"
    upload.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("", "."),
        (".", "."),
        ("/", "."),
        ("a/", "a"),
        ("..", ".."),
        ("../a", "../a"),
        ("/../a", "../a"),
        ("a/../../b", "../b"),
    ],
)
def test_upload_refuses_a_path_that_leads_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, normal: str
) -> None:
    """(H114)"""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(Invalid) as raised:
        Upload("m", [("fine", b""), (path, b"")])
    text = f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model directory."
    assert str(raised.value) == text
    assert list(tmp_path.iterdir()) == []


class InlineThreads(LoadThreads):
    """Does the work at once."""

    def __init__(self) -> None:
        """There are no threads."""

    async def read_repository(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    async def write(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)


def test_upload_is_removed_with_the_last_version_that_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = config_of(spec("x", "INT32", [-1]))
    one, two, other = loaded(config, 1), loaded(config, 2), loaded(config, 3)

    async def scenario() -> None:
        uploads = Uploads(InlineThreads())
        upload = await uploads.receive("m", [("1/model", b"x")])
        uploads.use(upload, one)
        uploads.use(upload, two)
        await uploads.remove_unused(upload)
        for version in (one, other):
            await uploads.version_closed(version)
            assert upload.folder.exists()
        await uploads.version_closed(two)
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


def test_uploads_that_are_left_are_removed_when_they_are_unused_or_the_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def scenario() -> None:
        uploads = Uploads(InlineThreads())
        unused, used = [await uploads.receive(name, [("1/model", b"x")]) for name in ("unused", "used")]
        uploads.use(used, loaded(config_of(spec("x", "INT32", [-1]))))
        await uploads.remove_unused(unused)
        assert (unused.folder.exists(), used.folder.exists()) == (False, True)
        uploads.abandon()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("full", ["mkdir", "write"])
def test_upload_without_space_on_disk_fails_and_leaves_nothing(
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


def test_files_may_have_so_many_folders() -> None:
    paths = [f"{i}/{i}" for i in range(MAX_FOLDERS)]
    check_paths(paths)
    check_paths([*paths, "0/another"])
    with pytest.raises(Invalid, match=f"more than {MAX_FOLDERS} folders"):
        check_paths([*paths, "0/deeper/file"])


@pytest.mark.parametrize("path", ["/", "//", "//a//b", "../..", "a"])
def test_folders_of_odd_paths_are_counted(path: str) -> None:
    check_paths([path])
