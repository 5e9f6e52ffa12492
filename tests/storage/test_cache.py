"""Files that outlive a server: what is taken from the cache, what is fetched again, and damage."""

import logging
import os
import time
from pathlib import Path

import pytest

from halimede.errors import Unavailable
from halimede.storage import cache as caches
from halimede.storage import mirror as mirrors
from halimede.storage.cache import FileCache
from halimede.storage.mirror import Mirror
from halimede.storage.repositories import RemoteModel, RemoteRepositories
from tests.storage.test_mirror import MODEL, FakeStorage, files
from tests.storage.test_repositories import URL, opening


@pytest.fixture
def storage() -> FakeStorage:
    return FakeStorage({f"models/m/{path}": data for path, data in MODEL.items()})


def started(storage: FakeStorage, folder: Path) -> Path:
    """The folder of the model after a server with an empty copy has fetched it."""
    root = folder / f"copy-{time.monotonic_ns()}"
    root.mkdir()
    mirror = Mirror("s3://bucket/models", "models", storage, root, cache=FileCache(folder / "cache"))
    storage.reads.clear()
    mirror.fetch("m")
    return mirror.folder_of("m")


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "files").iterdir())


def test_next_server_downloads_nothing(storage: FakeStorage, tmp_path: Path) -> None:
    first = started(storage, tmp_path)
    assert sorted(set(storage.reads)) == sorted(MODEL)
    second = started(storage, tmp_path)
    assert storage.reads == []
    assert files(second) == files(first) == MODEL
    times = [(folder / "1" / "a").stat().st_mtime_ns for folder in (first, second)]
    assert times[0] == times[1]  # the rules for changed models look at it


def test_next_server_downloads_what_has_changed(storage: FakeStorage, tmp_path: Path) -> None:
    started(storage, tmp_path)
    storage.content["models/m/1/a"] = b"9876543210"
    assert files(started(storage, tmp_path)) == {**MODEL, "1/a": b"9876543210"}
    assert storage.reads == ["1/a"]


def test_repository_of_another_place_has_files_of_its_own(storage: FakeStorage, tmp_path: Path) -> None:
    """Its objects may have the same names, sizes, times and etags: some storages have etags that are no digests."""
    started(storage, tmp_path)
    other = Mirror("s3://else/models", "models", storage, tmp_path, cache=FileCache(tmp_path / "cache"))
    storage.reads.clear()
    other.fetch("m")
    assert sorted(storage.reads) == sorted(MODEL)


@pytest.mark.parametrize("damage", [b"", b"0123456780", b"01234"])
def test_damaged_file_is_fetched_again(
    storage: FakeStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    """A disk or a crash damages what a file system said was written."""
    started(storage, tmp_path)
    for file in kept(tmp_path):
        if file.read_bytes() == MODEL["1/a"]:
            file.write_bytes(damage)
    caplog.set_level(logging.WARNING, caches.__name__)
    for _ in range(2):  # the second server finds it whole
        assert files(started(storage, tmp_path)) == MODEL
    assert [record.getMessage() for record in caplog.records] == [
        "cache of models: '1/a' of 's3://bucket/models' is damaged; it is fetched again"
    ]
    assert storage.reads == []


def test_broken_download_is_not_kept(storage: FakeStorage, tmp_path: Path) -> None:
    storage.spoilt["models/m/1/a"] = b"0123456780"
    with pytest.raises(Unavailable, match="sent other bytes"):
        started(storage, tmp_path)
    assert kept(tmp_path) == []
    storage.spoilt.clear()
    assert files(started(storage, tmp_path)) == MODEL
    assert len(kept(tmp_path)) == len(MODEL)


def test_file_with_several_pieces_is_kept_whole(
    storage: FakeStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "PIECE_BYTES", 3)
    started(storage, tmp_path)
    assert files(started(storage, tmp_path)) == MODEL
    assert storage.reads == []


def test_cache_on_another_file_system_is_copied(
    storage: FakeStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    first = started(storage, tmp_path)
    second = started(storage, tmp_path)
    assert (storage.reads, files(second)) == ([], MODEL)
    assert (first / "1" / "a").stat().st_mtime_ns == (second / "1" / "a").stat().st_mtime_ns
    assert len(kept(tmp_path)) == len(MODEL)


def test_cache_that_is_full_only_costs_the_next_start(
    storage: FakeStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caches, "_link", refuse)
    caplog.set_level(logging.WARNING, caches.__name__)
    assert files(started(storage, tmp_path)) == MODEL
    assert len(caplog.records) == len(MODEL)
    assert "cannot be kept: No space left on device" in caplog.text


def test_file_that_nobody_uses_is_removed(storage: FakeStorage, tmp_path: Path) -> None:
    started(storage, tmp_path)
    unused, used, _ = kept(tmp_path)
    for file, age in ((unused, 1.1), (used, 0.9)):
        stamp = time.time() - age * caches.UNUSED_SECONDS
        os.utime(file, (stamp, file.stat().st_mtime))
    FileCache(tmp_path / "cache").tidy()
    assert not unused.exists()
    assert used.exists()
    started(storage, tmp_path)
    assert used.stat().st_atime > time.time() - 60


def test_copies_lie_beside_the_cache_and_leave_with_the_server(storage: FakeStorage, tmp_path: Path) -> None:
    for _ in range(2):
        _, open_storage = opening(storage)
        storage.reads.clear()
        repositories = RemoteRepositories({}, open_storage=open_storage, cache=str(tmp_path / "cache"))  # type: ignore[arg-type]
        (model,) = (repositories.models(URL) or {}).values()
        assert isinstance(model, RemoteModel)
        model.fetch()
        assert files(model.folder) == MODEL
        assert (model.folder / "1" / "a").stat().st_nlink == 2
        repositories.close()
        assert [path.name for path in (tmp_path / "cache").iterdir()] == ["files"]
    assert storage.reads == []


def test_cache_that_cannot_be_opened_is_the_reason(storage: FakeStorage, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _, open_storage = opening(storage)
    environment = {"TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path)}
    repositories = RemoteRepositories(environment, open_storage=open_storage, cache=str(tmp_path / "file"))  # type: ignore[arg-type]
    (broken,) = (repositories.models(URL) or {}).values()
    with pytest.raises(Unavailable, match="failed to open the cache of 's3://bucket/models'"):
        broken.fetch()
