"""The build backend of the package (PEP 517): that of setuptools, with the hot modules compiled on request, and the
version from git.

`HALIMEDE_WHEEL=compiled` builds a wheel with compiled modules. That needs a C compiler and a minute more, and the wheel
fits one kind of interpreter and machine. mypyc reads the types of imported packages, so the build needs the
dependencies of the package too.
"""

import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 # all hooks except the one that is replaced below

GIVEN = "HALIMEDE_VERSION"
"""The environment variable with the version, for a build that has the files of a commit and no git."""
WRITTEN = Path("halimede", "__init__.py")
"""The module that has the version, relative to the root of the sources."""

_LINE = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
_DESCRIBED = re.compile(r"v(.+)-(\d+)-g([0-9a-f]+)")


def is_compiled() -> bool:
    return os.environ.get("HALIMEDE_WHEEL") == "compiled"


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """The requirements of the build; for a compiled wheel also the package's dependencies and the extra `compile`."""
    needs: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if is_compiled():
        project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
        needs += [*project["dependencies"], *project["optional-dependencies"]["compile"]]
    return needs


def version() -> str:
    """The version of what is built from the sources in the current folder.

    At a tag `v1.2.3` it is 1.2.3. At another commit it is the next version, which the sources name, with the number
    of commits since the last tag and the commit: 1.3.0.dev45+g0123abc. Without git (an sdist) it is what the sources
    name.
    """
    if given := os.environ.get(GIVEN):
        return given
    written = _LINE.search(WRITTEN.read_text())
    if written is None:
        raise ValueError(f"{WRITTEN} has no line with __version__")
    if not Path(".git").exists():  # in a folder of another repository git would describe that one
        return written[1]
    if described := _DESCRIBED.fullmatch(_git("describe", "--tags", "--long", "--match", "v[0-9]*")):
        tag, commits, commit = described.groups()
        if commits == "0":
            return tag
    else:
        commits, commit = _git("rev-list", "--count", "HEAD"), _git("rev-parse", "--short", "HEAD")
    return f"{written[1]}.dev{commits}+g{commit}" if commit else written[1]


def stamp(root: Path, version: str) -> None:
    """Writes the version into the package in `root`, which is a copy of the sources."""
    module = root / WRITTEN
    text = _LINE.sub(f'__version__ = "{version}"', module.read_text())
    module.unlink()  # it may be a hard link to the source
    module.write_text(text)


def _git(*words: str) -> str:
    """What git prints. Empty if it fails, as `describe` does without a tag, and if there is no git."""
    try:
        done = subprocess.run(
            ["git", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
