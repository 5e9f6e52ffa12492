"""The build of the package (PEP 517): setuptools', or with `HALIMEDE_WHEEL=compiled` with the hot modules compiled.

Such a wheel takes a C compiler and a minute more, and is for one kind of interpreter and machine. mypyc reads the types
of what the package imports, so that its dependencies are needed to build it, too.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 # the hooks that stay as they are


def is_compiled() -> bool:
    return os.environ.get("HALIMEDE_WHEEL") == "compiled"


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    needs: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if is_compiled():
        project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
        needs += [*project["dependencies"], *project["optional-dependencies"]["compile"]]
    return needs
