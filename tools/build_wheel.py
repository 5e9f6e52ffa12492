"""The build backend of the package (PEP 517): that of setuptools, with the hot modules compiled on request.

`HALIMEDE_WHEEL=compiled` builds a wheel with compiled modules. That needs a C compiler and a minute more, and the wheel
fits one kind of interpreter and machine. mypyc reads the types of imported packages, so the build needs the
dependencies of the package too.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 # all hooks except the one that is replaced below


def is_compiled() -> bool:
    return os.environ.get("HALIMEDE_WHEEL") == "compiled"


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """The requirements of the build; for a compiled wheel also the package's dependencies and the extra `compile`."""
    needs: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if is_compiled():
        project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
        needs += [*project["dependencies"], *project["optional-dependencies"]["compile"]]
    return needs
