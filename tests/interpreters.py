"""The Pythons of this machine that a model's environment may have, and environments of them with numpy.

An environment is made once and kept in `.cache/environments` (`make clean` removes it).
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tools.interpreters import OWN as OWN
from tools.interpreters import VERSIONS as VERSIONS
from tools.interpreters import found as found

_CACHE = Path(__file__).resolve().parents[1] / ".cache" / "environments"
_LIMIT = 300.0


def other() -> str | None:
    """The oldest one that is not the tests' own."""
    return next((version for version in VERSIONS if version in found() and version != OWN), None)


def absent() -> list[str]:
    return [version for version in VERSIONS if version not in found()]


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
