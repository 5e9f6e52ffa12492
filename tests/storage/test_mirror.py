"""The copy of a repository: what is fetched, what is not, and failures of the storage."""

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from halimede.errors import Error, Internal, Invalid, NotFound, Unavailable
from halimede.storage import mirror as mirrors
from halimede.storage.mirror import Mirror
from halimede.storage.objects import Object
from tests.storage.emulators import md5_etag

MODEL = {"config.pbtxt": b"name", "1/a": b"0123456789", "1/deep/b": b"bee"}


@dataclass
class FakeStorage:
    """Of one bucket: `content` by key. `reads` are the keys of the pieces that were read; `broken` is raised by all."""

    content: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    spoilt: dict[str, bytes] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    lists: int = 0
    broken: Error | None = None
    modified_ns: int = 1_700_000_000_000_000_000

    def folders(self, prefix: str) -> list[str]:
        self._check()
        start = len(prefix) + 1 if prefix else 0
        return sorted({key[start:].split("/")[0] for key in self.content if "/" in key[start:]})

    def objects(self, prefix: str) -> list[Object]:
        self._check()
        return [
            Object(key[len(prefix) + 1 :], key, len(data), self.etags.get(key, md5_etag(data)), self.modified_ns)
            for key, data in self.content.items()
            if key.startswith(f"{prefix}/")
        ]

    def read(self, wanted: Object, start: int, end: int) -> bytes:
        self._check()
        self.reads.append(wanted.path)
        return self.spoilt.get(wanted.key, self.content[wanted.key])[start:end]

    def _check(self) -> None:
        self.lists += 1
        if self.broken is not None:
            raise self.broken


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def storage() -> FakeStorage:
    return FakeStorage({f"models/m/{path}": data for path, data in MODEL.items()})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mirror(storage: FakeStorage, clock: Clock, tmp_path: Path) -> Mirror:
    return Mirror("s3://bucket/models", "models", storage, tmp_path, clock=clock)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def states(root: Path) -> int:
    return sum(1 for name in os.listdir(root) if name.startswith("."))  # noqa: PTH208 - names only


@pytest.mark.rows("R24")
def test_model_is_copied(mirror: Mirror, storage: FakeStorage, tmp_path: Path) -> None:
    storage.content["models/else"] = b"no folder"
    assert mirror.names() == ["m"]
    mirror.fetch("m")
    assert mirror.folder_of("m") == tmp_path / "m"
    assert files(tmp_path / "m") == MODEL


def test_only_changed_files_are_fetched_again(mirror: Mirror, storage: FakeStorage, tmp_path: Path) -> None:
    mirror.fetch("m")
    before = (tmp_path / "m" / "1" / "a").stat()
    storage.reads.clear()
    mirror.fetch("m")
    assert storage.reads == []
    storage.content["models/m/config.pbtxt"] = b"NAME"
    storage.content["models/m/2/c"] = b"new"
    del storage.content["models/m/1/deep/b"]
    mirror.fetch("m")
    assert sorted(storage.reads) == ["2/c", "config.pbtxt"]
    assert files(tmp_path / "m") == {"config.pbtxt": b"NAME", "1/a": MODEL["1/a"], "2/c": b"new"}
    after = (tmp_path / "m" / "1" / "a").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert states(tmp_path) == 1


def test_file_of_the_same_size_and_second_has_another_time(
    mirror: Mirror, storage: FakeStorage, clock: Clock, tmp_path: Path
) -> None:
    mirror.fetch("m")
    before = (tmp_path / "m" / "1" / "a").stat().st_mtime_ns
    listed = mirror.look("m")
    storage.content["models/m/1/a"] = b"9876543210"
    clock.now += mirrors.LISTED_SECONDS
    assert mirror.look("m") != listed
    mirror.fetch("m")
    assert (tmp_path / "m" / "1" / "a").stat().st_mtime_ns != before


def test_large_file_comes_in_pieces(
    mirror: Mirror, storage: FakeStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "PIECE_BYTES", 4)
    mirror.fetch("m")
    assert storage.reads.count("1/a") == 3
    assert files(tmp_path / "m") == MODEL


@pytest.mark.parametrize("spoilt", [b"012345678!", b"short"])
def test_wrong_bytes_are_refused_and_the_copy_stays(
    mirror: Mirror, storage: FakeStorage, tmp_path: Path, spoilt: bytes
) -> None:
    mirror.fetch("m")
    storage.content["models/m/1/a"] = b"abcdefghij"
    storage.spoilt["models/m/1/a"] = spoilt
    with pytest.raises(Unavailable, match=r"'s3://bucket/models' sent (other|5) bytes of '1/a'"):
        mirror.fetch("m")
    assert files(tmp_path / "m") == MODEL
    assert states(tmp_path) == 1
    del storage.spoilt["models/m/1/a"]
    mirror.fetch("m")
    assert files(tmp_path / "m")["1/a"] == b"abcdefghij"


def test_storage_with_etags_that_are_not_digests(
    mirror: Mirror, storage: FakeStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage.etags = {key: f'"{number:032x}"' for number, key in enumerate(storage.content)}
    mirror.fetch("m")
    assert files(tmp_path / "m") == MODEL
    assert "only the sizes of downloaded files are checked" in caplog.text


def test_storage_that_fails_leaves_the_copy(mirror: Mirror, storage: FakeStorage, tmp_path: Path) -> None:
    mirror.fetch("m")
    storage.broken = Unavailable("no answer")
    with pytest.raises(Unavailable, match="no answer"):
        mirror.fetch("m")
    assert files(tmp_path / "m") == MODEL


def test_models_stay_known_in_an_outage(mirror: Mirror, storage: FakeStorage, clock: Clock) -> None:
    assert mirror.names() == ["m"]
    looked = mirror.look("m")
    storage.broken = Unavailable("no answer")
    asked = storage.lists
    assert [mirror.names() for _ in range(3)] == [["m"]] * 3
    assert storage.lists == asked + 1  # nobody waits for it again and again
    assert mirror.look("m") == looked
    storage.broken = None
    storage.content["models/new/1/x"] = b""
    clock.now += mirrors.OUTAGE_SECONDS
    assert mirror.names() == ["m", "new"]


def test_one_listing_serves_the_looks_at_all_models(mirror: Mirror, storage: FakeStorage, clock: Clock) -> None:
    storage.content["models/other/1/x"] = b"xyz"
    looks = [mirror.look(name) for name in ("m", "other", "nope")]
    assert storage.lists == 1
    assert [[path for path, _ in listed] for listed, _ in looks] == [sorted(MODEL), ["1/x"], []]
    assert [changed for _, changed in looks] == [storage.modified_ns, storage.modified_ns, 0]
    clock.now += mirrors.LISTED_SECONDS
    storage.broken = Unavailable("no answer")
    assert [mirror.look(name) for name in ("m", "other", "nope")] == looks


def test_repository_that_was_never_listed(mirror: Mirror, storage: FakeStorage) -> None:
    storage.broken = Unavailable("no answer")
    for _ in range(2):
        with pytest.raises(Unavailable, match="no answer"):
            mirror.names()


def test_model_that_is_not_there(mirror: Mirror) -> None:
    with pytest.raises(NotFound, match="there is no model 'nope' in 's3://bucket/models'"):
        mirror.fetch("nope")


@pytest.mark.parametrize("path", ["../../out", "1/../../../out", "1//x", "1/./x", "1/a\0b"])
def test_object_that_leads_out_is_refused(mirror: Mirror, storage: FakeStorage, tmp_path: Path, path: str) -> None:
    storage.content[f"models/m/{path}"] = b"x"
    with pytest.raises(Invalid, match="cannot be the path of a file within a model"):
        mirror.fetch("m")
    assert not (tmp_path / "m").exists()


def test_object_that_stands_for_a_folder(mirror: Mirror, storage: FakeStorage, tmp_path: Path) -> None:
    storage.content.update({"models/m/1": b"", "models/m/7": b""})
    mirror.fetch("m")
    assert files(tmp_path / "m") == MODEL
    assert (tmp_path / "m" / "7").is_dir()


def test_copy_that_cannot_be_written(mirror: Mirror, tmp_path: Path) -> None:
    tmp_path.rmdir()
    with pytest.raises(Internal, match="failed to write the copy of 's3://bucket/models/m': No such file"):
        mirror.fetch("m")


def test_fetch_gives_up_at_the_end(storage: FakeStorage, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Server exiting"):
        Mirror("s3://bucket/models", "models", storage, tmp_path, lambda: True).fetch("m")
    assert states(tmp_path) == 0


def test_long_fetch_logs_its_progress(
    mirror: Mirror, storage: FakeStorage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    read = storage.read

    def slowly(wanted: Object, start: int, end: int) -> bytes:
        clock.now += mirrors.PROGRESS_SECONDS
        return read(wanted, start, end)

    storage.read = slowly  # type: ignore[method-assign]
    mirror.fetch("m")
    assert "fetching model 'm' from 's3://bucket/models': 0 of 0 MiB" in caplog.text
    assert "fetched model 'm' from 's3://bucket/models': 3 files, 0.0 MiB, in " in caplog.text


class MeetingStorage(FakeStorage):
    """Each read waits until all files of two models are being read."""

    def __init__(self, content: dict[str, bytes]) -> None:
        super().__init__(content)
        self._all = threading.Barrier(2 * len(MODEL))

    def read(self, wanted: Object, start: int, end: int) -> bytes:
        self._all.wait(10)
        return super().read(wanted, start, end)


def test_files_of_several_models_are_fetched_at_once(tmp_path: Path) -> None:
    storage = MeetingStorage({f"models/{name}/{path}": data for name in "mn" for path, data in MODEL.items()})
    mirror = Mirror("s3://bucket/models", "models", storage, tmp_path)
    with ThreadPoolExecutor() as threads:
        list(threads.map(mirror.fetch, "mn"))
    assert files(mirror.folder_of("m")) == files(mirror.folder_of("n")) == MODEL


def test_two_that_want_the_same_fetch_it_once(mirror: Mirror, storage: FakeStorage) -> None:
    threads = [threading.Thread(target=mirror.fetch, args=("m",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(storage.reads) == sorted(MODEL)
