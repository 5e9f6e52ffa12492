"""Which form of the hot modules is imported: Python, or what mypyc made of it (docs/decisions/compiled.md).

In a clone the compiled form lies beside the package, in a folder of `build/` for each kind of interpreter, with the
digest of the sources that it was made of. It is used where these are the sources that lie here. A wheel that was built
so has it in the package, where Python's own finders come upon it before the sources.
Standard library only, since no module of the package may be imported before.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, SourceFileLoader
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
BUILT_IN = "requests" + SUFFIX
"""Lies in a package that was installed compiled."""


def digest() -> str:
    """Of all sources of the package, since a constant of one module may be part of what was made of another."""
    total, start = blake2b(digest_size=16), len(str(PACKAGE)) + 1
    # Every start waits for it, and with `Path` it takes twice as long.
    for folder, _, names in sorted(os.walk(PACKAGE)):
        for name in sorted(name for name in names if name.endswith(".py")):
            with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                source = file.read()
            total.update(f"{folder[start:]}/{name} {len(source)}\n".encode())
            total.update(source)
    return total.hexdigest()


class Finder:
    """Finds modules at these files, by their full names: compiled ones, or sources."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            return None
        loader = SourceFileLoader if file.suffix == ".py" else ExtensionFileLoader
        return spec_from_file_location(name, file, loader=loader(name, str(file)))


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
    if (PACKAGE / BUILT_IN).is_file():
        if wanted == "off":
            _find(PACKAGE.parent, PACKAGE.rglob("*" + SUFFIX), ".py")
            return f"pure Python: {VARIABLE} is off"
        return "compiled"
    why = f"{VARIABLE} is off" if wanted == "off" else missing()
    if not why:
        _find(FOLDER, FOLDER.rglob("*" + SUFFIX), SUFFIX)
        return "compiled"
    if wanted == "only":
        raise ImportError(f"{VARIABLE}=only: {why}")
    return f"pure Python: {why}"


def _find(root: Path, compiled: Iterable[Path], suffix: str) -> None:
    """Has these modules, which lie compiled under `root`, found at the files beside them of that suffix."""
    files = {}
    for path in compiled:
        name = path.name.removesuffix(SUFFIX)
        files[".".join([*path.relative_to(root).parts[:-1], name])] = path.with_name(name + suffix)
    sys.meta_path.insert(0, Finder(files))


FORM = install()
"""What this process runs."""
