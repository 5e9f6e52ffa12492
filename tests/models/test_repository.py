import os
from pathlib import Path

import pytest

from halimede.errors import Invalid
from halimede.models.repository import MAX_DEPTH, FoundModel, fingerprint, look, scan, version_names
from tests.models.fakes import repository


def test_scan_finds_directories_only(tmp_path: Path) -> None:
    """(R1)"""
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
    """(R5)"""
    repository(tmp_path / "one", {"both": "", "first": ""})
    repository(tmp_path / "two", {"both": "", "second": ""})
    catalog = scan([str(tmp_path / "one"), str(tmp_path / "two")])
    assert sorted(catalog.models) == ["first", "second"]
    assert catalog.duplicates == ("both",)


def test_scan_leaves_out_a_name_that_is_no_text(tmp_path: Path) -> None:
    repository(tmp_path, {"m": ""})
    folder = tmp_path / os.fsdecode(b"no\xfftext")
    folder.mkdir()
    catalog = scan([str(tmp_path)])
    assert (list(catalog.models), catalog.unnamed) == (["m"], (folder,))


def test_scan_of_an_unreadable_entry(tmp_path: Path) -> None:
    """As of a directory in one that may not be entered."""
    with pytest.raises(Invalid, match=r"^failed to stat file .*x: File name too long$"):
        scan([str(tmp_path / ("x" * 300))])


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_scan_of_a_path_that_is_not_a_directory_is_refused(tmp_path: Path, kind: str) -> None:
    """(C8)"""
    path = tmp_path / kind
    if kind == "file":
        path.touch()
    with pytest.raises(Invalid, match="repository path is not a valid directory"):
        scan([str(path)])


def test_scan_of_an_empty_path_is_not_one_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `--model-repository=$FORGOTTEN`."""
    repository(tmp_path, {"m": ""})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match="repository path is not a valid directory"):
        scan([""])


def test_scan_of_an_empty_repository_finds_nothing(tmp_path: Path) -> None:
    assert scan([str(tmp_path)]).models == {}


def test_version_names_are_the_directories_of_a_model(tmp_path: Path) -> None:
    repository(tmp_path, {"m": ""}, ["2", "10", "configs"])
    (tmp_path / "m" / "labels.txt").touch()
    assert sorted(version_names(tmp_path / "m")) == ["10", "2", "configs"]


def test_fingerprint_changes_with_the_content(tmp_path: Path) -> None:
    """(R9, R10)"""
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


def test_fingerprint_ignores_bytecode_caches(tmp_path: Path) -> None:
    """Triton's fingerprint does change (R10)."""
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


def test_scan_keeps_one_name_in_several_namespaces_apart(tmp_path: Path) -> None:
    """(R20)"""
    for where in ("one", "two"):
        repository(tmp_path / where, {"both": "", where: ""})
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    catalog = scan([one, two], namespaces=True)
    assert sorted(catalog.models) == [f"{one}::both", f"{one}::one", f"{two}::both", f"{two}::two"]
    assert catalog.duplicates == ()
    assert [found.folder.parent for found in catalog.named("both")] == [tmp_path / "one", tmp_path / "two"]
    assert [found.key for found in catalog.named("two")] == [f"{two}::two"]
    assert catalog.named("nope") == []


def test_links_that_lead_to_themselves_are_nothing(tmp_path: Path) -> None:
    repository(tmp_path, {"m": ""})
    for link in (tmp_path / "loop", tmp_path / "m" / "1" / "loop"):
        link.symlink_to(link)
    assert list(scan([str(tmp_path)]).models) == ["m"]
    assert [name for name, _ in fingerprint(tmp_path / "m")] == ["1", "config.pbtxt"]


def test_look_tells_when_a_file_came_whatever_its_own_time(tmp_path: Path) -> None:
    """`cp -p` keeps the time of writing, not that of the copy (D17)."""
    repository(tmp_path, {"m": ""})
    old, before = tmp_path / "m" / "1" / "old", look(tmp_path / "m").changed_at
    old.touch()
    os.utime(old, (1, 1))
    assert look(tmp_path / "m").changed_at >= before
    assert dict(fingerprint(tmp_path / "m"))["1/old"] == (10**9, 0)


def test_folder_with_too_many_files_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one with a link to the root of the file system."""
    monkeypatch.setattr("halimede.models.repository.MAX_ENTRIES", 3)
    for name in "abc":
        (tmp_path / name).mkdir()
    assert len(fingerprint(tmp_path)) == 3
    (tmp_path / "c" / "d").touch()
    with pytest.raises(OSError, match="the model has more than 3 files"):
        fingerprint(tmp_path)


def test_folders_that_are_too_deep_are_not_read(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(MAX_DEPTH - 1):
        deep /= "a"
        deep.mkdir()
    assert len(fingerprint(tmp_path)) == MAX_DEPTH - 1
    (deep / "a").mkdir()
    (deep / "a" / "a").mkdir()
    with pytest.raises(OSError, match=f"more than {MAX_DEPTH} folders are within each other"):
        fingerprint(tmp_path)
