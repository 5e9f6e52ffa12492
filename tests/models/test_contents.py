"""The digest of a version's contents changes if and only if a part of the version does."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from halimede.backends.api import ModelFolder
from halimede.errors import Internal
from halimede.models.contents import digest_of
from tests.models.configs import config_of


def a_model(root: Path) -> ModelFolder:
    for name, text in {
        "config.pbtxt": "c",
        "labels.txt": "l",
        "1/model.py": "one",
        "1/data/w": "w",
        "2/model.py": "two",
        "warmup/x": "x",
        "1/__pycache__/model.pyc": "p",
    }.items():
        (root / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "m" / name).write_text(text)
    return ModelFolder(root / "m", root / "m" / "1", 1)


def digest(folder: ModelFolder) -> bytes:
    return digest_of(config_of(), folder)


def test_copies_are_equal_whenever_they_were_made(tmp_path: Path) -> None:
    here, there = a_model(tmp_path / "a"), a_model(tmp_path / "b")
    for path in (tmp_path / "b").rglob("*"):
        os.utime(path, (1, 1))
    assert digest(here) == digest(there)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: (m / "1/model.py").write_text("ONE"),
        lambda m: (m / "1/data/w").write_text(""),
        lambda m: (m / "1/data/w").rename(m / "1/data/v"),
        lambda m: (m / "labels.txt").unlink(),
        lambda m: (m / "helper.py").write_text(""),
    ],
)
def test_contents_change_with_parts_of_the_version(tmp_path: Path, change: Callable[[Path], object]) -> None:
    folder = a_model(tmp_path)
    before = digest(folder)
    change(tmp_path / "m")
    assert digest(folder) != before


@pytest.mark.parametrize("name", ["1/2/w", "1/warmup/w", "1/linked/w"])
def test_files_of_a_version_count_wherever_they_lie(tmp_path: Path, name: str) -> None:
    folder = a_model(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "m/1/linked").symlink_to(tmp_path / "elsewhere")
    path = tmp_path / "m" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("before")
    before = digest(folder)
    path.write_text("after")
    assert digest(folder) != before


def test_contents_follow_links(tmp_path: Path) -> None:
    folder = a_model(tmp_path)
    (tmp_path / "m/1").rename(tmp_path / "one")
    (tmp_path / "m/1").symlink_to(tmp_path / "one")
    before = digest(folder)
    (tmp_path / "one/model.py").write_text("changed")
    assert digest(folder) != before


def test_versions_without_files_are_not_the_same(tmp_path: Path) -> None:
    folder = a_model(tmp_path)
    for name in "34":
        (tmp_path / "m" / name).mkdir()
    three, four = (replace(folder, version=folder.model / name, number=int(name)) for name in "34")
    assert digest(three) != digest(four)


@pytest.mark.parametrize("name", ["2/model.py", "warmup/x", "1/__pycache__/model.pyc"])
def test_contents_ignore_other_files(tmp_path: Path, name: str) -> None:
    folder = a_model(tmp_path)
    before = digest(folder)
    (tmp_path / "m" / name).write_text("other")
    assert digest(folder) == before


def test_code_of_a_backend_and_the_configuration_count(tmp_path: Path) -> None:
    folder, code = a_model(tmp_path), tmp_path / "backend" / "model.py"
    code.parent.mkdir()
    code.write_text("1")
    with_code = ModelFolder(folder.model, folder.version, 1, code)
    before = digest(with_code)
    assert before != digest(folder)
    code.write_text("2")
    assert digest(with_code) != before
    assert digest_of(replace(config_of(), message=b"other"), folder) != digest(folder)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    folder = a_model(tmp_path)
    (tmp_path / "m/1/sick").symlink_to("/proc/self/mem")
    with pytest.raises(Internal, match=r"failed to read .*/1/sick: Input/output error"):
        digest(folder)


def test_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_model(tmp_path)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(Internal, match=r"failed to read .*/m: Permission denied"):
        digest(folder)
