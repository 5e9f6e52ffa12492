"""The Pythons of this machine: the one that runs, pyenv's, and those on PATH. Standard library only."""

import os
import shutil
import sys
from functools import cache
from pathlib import Path

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


@cache
def found() -> dict[str, Path]:
    """The interpreter of each version that is there: this one, pyenv's, or one on PATH. Starts none of them."""
    candidates = {version: [*_of_pyenv(version), *_on_path(version)] for version in VERSIONS}
    candidates[OWN] = [Path(sys.executable)]
    return {version: paths[0] for version, paths in candidates.items() if paths}


def _of_pyenv(version: str) -> list[Path]:
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    return [python for folder in sorted(root.glob(f"{version}.*")) if (python := folder / "bin" / "python").exists()]


def _on_path(version: str) -> list[Path]:
    path = shutil.which(f"python{version}")
    if path is None or Path(path).read_bytes()[:2] == b"#!":  # a script that only knows where one may be
        return []
    return [Path(path)]
