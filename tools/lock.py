"""Writes the locks in `requirements/`: each package that an installation gets, with its version and hashes.

`python -m tools.lock` resolves again, with the newest versions that `pyproject.toml` allows. It needs uv. The locks
hold for Python 3.11 to 3.13 on Linux, and name no index, so any mirror serves.
"""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
LOCKS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ci": ("demo", "compile", "dev"),
        "openvino": ("openvino",),
        "tflite": ("tflite",),
        "trees": ("trees",),
        "dist": ("dist",),
        "docs": ("docs",),
        "server": ("onnx", "openvino", "fil", "redis", "trace", "gpu", "re2", "decrypt", "cloud", "compile"),
    }
)
"""The extras of each lock. `server` is for images that serve models, the others are for CI."""
FIRST = "ci"
"""The others get the versions of this one: their packages are installed beside it."""
_HEADER = "# Written by `python -m tools.lock`: the core packages and those of the extras {extras}.\n"


def resolved(name: str) -> str:
    """The lock with the newest versions. Raises CalledProcessError, and FileNotFoundError without uv."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-annotate", "--no-header", "pyproject.toml"]
    for extra in LOCKS[name]:
        command += ["--extra", extra]
    if name != FIRST:
        command += ["--constraint", str(FOLDER / f"{FIRST}.txt")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return _HEADER.format(extras=", ".join(LOCKS[name])) + done.stdout


def constraints(lock: Path) -> str:
    """The versions of a lock as constraints, which cannot have hashes: pip takes these only for what is pinned."""
    return re.sub(r" *\\\n +--hash=\S+", "", lock.read_text())


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name in LOCKS:
        (FOLDER / f"{name}.txt").write_text(resolved(name))
        print(f"requirements/{name}.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
