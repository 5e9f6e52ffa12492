"""Which form of the hot modules is imported: Python, or what mypyc made of it (docs/decisions/compiled.md).

The compiled form lies beside the package, in a folder of `build/` for each kind of interpreter, with the digest of the
sources that it was made of. It is used in a clone, where these are the sources that lie here; otherwise Python's own
finders find the modules as ever.
Standard library only, since no module of the package may be imported before.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

VARIABLE = "HALIMEDE_COMPILED"
"""`off`: Python in any case. `only`: nothing is imported where there is no compiled form of these sources."""
PACKAGE = Path(__file__).parent
SUFFIX = EXTENSION_SUFFIXES[0]
FOLDER = PACKAGE.parent / "build" / "compiled" / SUFFIX.strip(".").removesuffix(".so")
DIGEST = "sources.digest"
CLONE = PACKAGE.parent / "pyproject.toml"
"""Lies beside the package in a clone only: where it is installed, `build` is another package's."""


def digest() -> str:
    """Of all sources of the package, since a constant of one module may be part of what was made of another."""
    total = blake2b(digest_size=16)
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_bytes()
        total.update(f"{path.relative_to(PACKAGE)} {len(source)}\n".encode())
        total.update(source)
    return total.hexdigest()


class Finder:
    """Finds modules of which there is a compiled form, by their full names."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            return None
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))


def missing() -> str:
    """Why there is no compiled form that may be used; empty where there is one."""
    try:
        made_of = (FOLDER / DIGEST).read_bytes()
    except OSError:
        return "not compiled"
    if not CLONE.is_file():
        return "not compiled"
    try:
        same = made_of == digest().encode()
    except (OSError, ValueError) as error:  # such as an editor's lock, a link to nowhere
        return f"the sources cannot be read: {error}"
    return "" if same else "compiled from other sources"


def install() -> str:
    """Has the compiled form imported from now on, where there is one; says in a few words which it is."""
    wanted = os.environ.get(VARIABLE, "")
    why = f"{VARIABLE} is off" if wanted == "off" else missing()
    if not why:
        files = {".".join(path.relative_to(FOLDER).parts): path for path in FOLDER.rglob("*" + SUFFIX)}
        sys.meta_path.insert(0, Finder({name.removesuffix(SUFFIX): path for name, path in files.items()}))
        return "compiled"
    if wanted == "only":
        raise ImportError(f"{VARIABLE}=only: {why}")
    return f"pure Python: {why}"


FORM = install()
"""What this process runs."""
