"""Which modules an environment has, by the names of its files."""

import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from halimede.backends.python import modules
from halimede.backends.python.modules import ModulesOfEnvironments, distribution_of, is_installed

_FILES = (
    "bin/activate",
    "lib/python3.10/json/__init__.py",
    "lib/python3.10/site-packages/numpy/__init__.py",
    "lib/python3.10/site-packages/six.py",
    "lib/python3.10/site-packages/fast.cpython-310-x86_64-linux-gnu.so",
    "lib/python3.10/site-packages/google/protobuf/__init__.py",
)


def write(folder: Path, names: Sequence[str] = _FILES) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def archive(folder: Path, file: Path) -> Path:
    if file.suffix == ".zip":
        with zipfile.ZipFile(file, "w") as made:
            for path in sorted(folder.rglob("*")):
                made.write(path, path.relative_to(folder))
        return file
    with tarfile.open(file, "w:gz") as tar:
        tar.add(folder, ".")
    return file


@pytest.mark.parametrize("form", ["folder", "env.tar.gz", "env.zip"])
def test_modules_of_an_environment(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "made")
    known = ModulesOfEnvironments().of(path if form == "folder" else archive(path, tmp_path / form))
    assert known is not None
    there = ("numpy", "numpy.linalg", "six", "fast", "google.protobuf", "json", "os", "triton_python_backend_utils")
    assert [name for name in there if not known.has(name)] == []
    assert [name for name in ("torch", "google.cloud", "numpy2") if known.has(name)] == []
    assert (known.version, known.has_activate, known.is_open, known.is_too_old) == ((3, 10), True, False, False)


def test_old_environment_without_a_script_is_known(tmp_path: Path) -> None:
    known = ModulesOfEnvironments().of(write(tmp_path / "made", ["lib/python3.8/site-packages/six.py"]))
    assert known is not None
    assert (known.is_too_old, known.has_activate) == (True, False)


@pytest.mark.parametrize(
    ("name", "text", "is_open"),
    [
        ("pyvenv.cfg", "include-system-site-packages = true\n", True),
        ("pyvenv.cfg", "include-system-site-packages = false\n", False),
        ("lib/python3.10/site-packages/mine.pth", "/srv/code\n", True),
        ("lib/python3.10/site-packages/distutils-precedence.pth", "import os\n", False),
    ],
)
def test_folder_that_refers_to_others_is_open(tmp_path: Path, name: str, text: str, is_open: bool) -> None:
    folder = write(tmp_path / "made")
    (folder / name).write_text(text)
    known = ModulesOfEnvironments().of(folder)
    assert known is not None
    assert known.is_open is is_open


def test_nothing_is_known_of_a_broken_or_large_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "env.tar.gz"
    broken.write_bytes(b"no archive")
    assert ModulesOfEnvironments().of(broken) is None
    whole = archive(write(tmp_path / "made"), tmp_path / "whole.tar.gz")
    monkeypatch.setattr(modules, "MAX_ARCHIVE_BYTES", whole.stat().st_size - 1)
    assert ModulesOfEnvironments().of(whole) is None


def test_archive_is_read_once(tmp_path: Path) -> None:
    file = archive(write(tmp_path / "made"), tmp_path / "env.tar.gz")
    known = ModulesOfEnvironments()
    first = known.of(file)
    file.write_bytes(b"")
    assert known.of(file) is first


def test_module_of_the_server_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("one", "two"):
        (tmp_path / "spread" / part).mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    there = ("os", "os.path", "numpy", "numpy.linalg", "spread", "spread.one", "triton_python_backend_utils")
    assert [name for name in there if not is_installed(name)] == []
    assert [name for name in ("no_such_module", "spread.three") if is_installed(name)] == []


@pytest.mark.parametrize(
    ("module", "distribution"),
    [
        ("cv2", "opencv-python-headless"),
        ("PIL.Image", "pillow"),
        ("torch.nn.functional", "torch"),
        ("face_recognition", "face-recognition"),
        ("google.cloud.storage", "google-cloud-storage"),
        ("utils.text", ""),
        ("det_preprocess", ""),
        (".near", ""),
        ("detectron2", ""),
    ],
)
def test_distribution_of_a_module(module: str, distribution: str) -> None:
    assert distribution_of(module) == distribution
