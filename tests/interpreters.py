"""The Pythons of this machine that a model's environment may have, and environments of them with numpy.

An environment is made once and kept in `.cache/environments` (`make clean` removes it).
"""

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"

_CACHE = Path(__file__).resolve().parents[1] / ".cache" / "environments"
_LIMIT = 300.0


@cache
def found() -> dict[str, Path]:
    """The interpreter of each version that is there: the tests' own, pyenv's, or one on PATH. Starts none of them."""
    candidates = {version: [*_of_pyenv(version), *_on_path(version)] for version in VERSIONS}
    candidates[OWN] = [Path(sys.executable)]
    return {version: paths[0] for version, paths in candidates.items() if paths}


def other() -> str | None:
    """The oldest one that is not the tests' own."""
    return next((version for version in VERSIONS if version in found() and version != OWN), None)


def absent() -> list[str]:
    return [version for version in VERSIONS if version not in found()]


def _of_pyenv(version: str) -> list[Path]:
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    return [python for folder in sorted(root.glob(f"{version}.*")) if (python := folder / "bin" / "python").exists()]


def _on_path(version: str) -> list[Path]:
    path = shutil.which(f"python{version}")
    if path is None or Path(path).read_bytes()[:2] == b"#!":  # a script that only knows where one may be
        return []
    return [Path(path)]


class NoNumpy(Exception):
    """It cannot be installed for this Python; the text says why."""


def environment(version: str) -> Path:
    """The folder of a virtual environment with numpy. Raises NoNumpy."""
    python = found()[version]
    folder = _CACHE / f"{version}-{hashlib.sha256(bytes(python.resolve())).hexdigest()[:8]}"
    ready = folder / "ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(str(python), "-m", "venv", "--without-pip", str(folder))
        _run(sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q", "numpy")
        ready.touch()
    return folder


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if done.returncode != 0:
        raise NoNumpy(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
