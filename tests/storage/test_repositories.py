"""Repositories in cloud storage: where their copies are, and repositories that fail."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from halimede.errors import Invalid, Unavailable
from halimede.storage.locations import Location
from halimede.storage.mirror import Storage
from halimede.storage.repositories import PREFIX, BrokenRepository, RemoteModel, RemoteRepositories
from tests.storage.test_mirror import FakeStorage, files

URL = "s3://bucket/models"


def opening(storage: FakeStorage) -> tuple[list[str], object]:
    opened: list[str] = []

    def open_storage(location: Location, credentials: Mapping[str, str]) -> Storage:
        opened.append(location.url)
        return storage

    return opened, open_storage


def copies(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(PREFIX)]  # noqa: PTH208 - names only


@pytest.fixture
def storage() -> FakeStorage:
    return FakeStorage({"models/m/1/x": b"content", "models/n/1/x": b"other"})


def test_path_of_this_machine_is_somebody_elses(tmp_path: Path) -> None:
    assert RemoteRepositories({}).models(str(tmp_path)) is None


@pytest.mark.rows("R24")
def test_copy_is_in_the_folder_of_the_environment_and_removed_at_the_end(storage: FakeStorage, tmp_path: Path) -> None:
    opened, open_storage = opening(storage)
    place = tmp_path / "mounted" / "here"
    repositories = RemoteRepositories({"TRITON_AWS_MOUNT_DIRECTORY": str(place)}, open_storage=open_storage)  # type: ignore[arg-type]
    models = repositories.models(URL)
    assert models is not None
    assert list(models) == list(repositories.models(URL) or ()) == ["m", "n"]
    assert opened == [URL]  # once
    model = models["m"]
    assert isinstance(model, RemoteModel)
    model.fetch()
    assert files(model.folder) == {"1/x": b"content"}
    assert [str(model.folder.relative_to(place)).startswith(name) for name in copies(place)] == [True]
    repositories.close()
    with pytest.raises(Unavailable, match="Server exiting"):
        model.mirror.fetch("n")
    repositories.close()
    assert copies(place) == []


def test_copy_of_a_killed_server_is_removed(storage: FakeStorage, tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}left").mkdir()
    _, open_storage = opening(storage)
    repositories = RemoteRepositories({"TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path)}, open_storage=open_storage)  # type: ignore[arg-type]
    assert repositories.models(URL) is not None
    assert f"{PREFIX}left" not in copies(tmp_path)
    repositories.close()


def test_repository_that_cannot_be_listed_is_a_broken_model(storage: FakeStorage, tmp_path: Path) -> None:
    storage.broken = Unavailable("no answer")
    _, open_storage = opening(storage)
    repositories = RemoteRepositories({"TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path)}, open_storage=open_storage)  # type: ignore[arg-type]
    models = repositories.models(URL)
    assert models is not None
    assert list(models) == [URL]
    assert isinstance(models[URL], BrokenRepository)
    with pytest.raises(Unavailable, match="no answer"):
        models[URL].fetch()
    assert models[URL].look() == models[URL].look()
    repositories.close()


def test_invalid_path_is_a_broken_model() -> None:
    models = RemoteRepositories({}).models("gs:///nothing")
    assert models is not None
    with pytest.raises(Invalid, match="Unable to parse 'gs:///nothing'"):
        models["gs:///nothing"].fetch()


def test_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "halimede.storage.stores", raising=False)
    models = RemoteRepositories({"TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path)}).models(URL)
    assert models is not None
    with pytest.raises(Unavailable, match=r"it needs is installed by: pip install 'halimede\[cloud\]'"):
        models[URL].fetch()
