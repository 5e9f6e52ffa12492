"""Folders and archives that look like environments: what runs in them is the shell, or the Python of the tests."""

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

SAYS_VERSION = """#!/bin/sh
printf '[[{version}], {{"PATH": "%s"}}]' "$PATH"
"""


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def packed(folder: Path, archive: Path) -> Path:
    """The folder's content as conda-pack lays it out: without a folder around it."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(folder, arcname=".")
    return archive


def conda_like(folder: Path, activate: str = "") -> Path:
    """An environment in conda-pack's layout: its `activate` finds its own place, and names it in CONDA_PREFIX. Its
    interpreter is the Python of the tests."""
    script(folder / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script(
        folder / "bin" / "activate",
        'CONDA_PREFIX="$(dirname "$(dirname "${BASH_SOURCE[0]}")")"\nexport CONDA_PREFIX\n'
        'PATH="$CONDA_PREFIX/bin:$PATH"\n' + activate,
        0o644,
    )
    return folder


def virtual(folder: Path, *options: str) -> Path:
    """A virtual environment of the Python of the tests, which sees numpy where that has it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, str(folder)], check=True, timeout=60)
    return folder


def with_numpy(folder: Path) -> Path:
    """Lets a virtual environment of this Python see the packages of the tests' own."""
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "outside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder
