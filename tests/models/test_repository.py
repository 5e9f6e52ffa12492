import os
from pathlib import Path

import pytest

from halimede.errors import Invalid
from halimede.models.repository import FoundModel, fingerprint, scan, version_names
from tests.models.fakes import repository


def test_scan_finds_directories_only(tmp_path: Path) -> None:
    """Contract R1."""
    repository(tmp_path, {"b": None, "a": ""})
    (tmp_path / "README").write_text("no model")
    catalog = scan([str(tmp_path)])
    assert list(catalog.models.values()) == [FoundModel("a", tmp_path / "a"), FoundModel("b", tmp_path / "b")]
    assert catalog.duplicates == ()


def test_scan_follows_links_to_directories(tmp_path: Path) -> None:
    repository(tmp_path / "elsewhere", {"real": ""})
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "linked").symlink_to(tmp_path / "elsewhere" / "real")
    assert list(scan([str(tmp_path / "models")]).models) == ["linked"]


def test_scan_takes_a_name_of_two_repositories_for_neither(tmp_path: Path) -> None:
    """Contract R5."""
    repository(tmp_path / "one", {"both": "", "first": ""})
    repository(tmp_path / "two", {"both": "", "second": ""})
    catalog = scan([str(tmp_path / "one"), str(tmp_path / "two")])
    assert sorted(catalog.models) == ["first", "second"]
    assert catalog.duplicates == ("both",)


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_scan_of_what_is_no_directory_is_refused(tmp_path: Path, kind: str) -> None:
    """Contract C8."""
    path = tmp_path / kind
    if kind == "file":
        path.touch()
    with pytest.raises(Invalid, match="repository path is not a valid directory"):
        scan([str(path)])


def test_scan_of_an_empty_repository_finds_nothing(tmp_path: Path) -> None:
    assert scan([str(tmp_path)]).models == {}


def test_version_names_are_the_directories_of_a_model(tmp_path: Path) -> None:
    repository(tmp_path, {"m": ""}, ["2", "10", "configs"])
    (tmp_path / "m" / "labels.txt").touch()
    assert sorted(version_names(tmp_path / "m")) == ["10", "2", "configs"]


def test_fingerprint_changes_with_the_content(tmp_path: Path) -> None:
    """Contract R9, R10."""
    repository(tmp_path, {"m": ""})
    folder = tmp_path / "m"
    seen = [fingerprint(folder)]
    (folder / "1" / "model.onnx").write_text("a")
    seen.append(fingerprint(folder))
    os.utime(folder / "1" / "model.onnx", (1, 1))
    seen.append(fingerprint(folder))
    (folder / "2").mkdir()
    seen.append(fingerprint(folder))
    (folder / "1" / "model.onnx").rename(folder / "2" / "model.onnx")
    seen.append(fingerprint(folder))
    assert len(set(seen)) == 5


def test_fingerprint_does_not_change_with_what_python_leaves(tmp_path: Path) -> None:
    """Contract R10 tells of the real server that it does there."""
    repository(tmp_path, {"m": ""})
    before = fingerprint(tmp_path / "m")
    (tmp_path / "m" / "1" / "__pycache__").mkdir()
    (tmp_path / "m" / "1" / "__pycache__" / "model.pyc").touch()
    assert fingerprint(tmp_path / "m") == before


def test_fingerprint_follows_links_and_not_in_circles(tmp_path: Path) -> None:
    repository(tmp_path, {"m": ""})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "m" / "1" / "data").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "m" / "1" / "round").symlink_to(tmp_path / "m")
    (tmp_path / "m" / "1" / "lost").symlink_to(tmp_path / "nothing")
    before = fingerprint(tmp_path / "m")
    (tmp_path / "elsewhere" / "weights").touch()
    assert {name for name, _ in set(fingerprint(tmp_path / "m")).difference(before)} == {"1/data/weights"}
