"""Decides whether the hot modules are imported as Python or as compiled by mypyc (docs/decisions/compiled.md).

In a clone the compiled modules are in a folder of `build/`, one per kind of interpreter, with the digest of their
sources. They are used if the digest is that of the present sources. A compiled wheel has them in the package, where
Python finds them before the sources. Standard library only: this module is imported before all others of the package.
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
"""The environment variable. `off`: Python in any case. `only`: an ImportError if these sources are not compiled."""
PACKAGE = Path(__file__).parent
SUFFIX = EXTENSION_SUFFIXES[0]
"""The end of the name of a compiled module: it names interpreter and platform."""
FOLDER = PACKAGE.parent / "build" / "compiled" / SUFFIX.strip(".").removesuffix(".so")
"""The compiled modules of a clone, for this kind of interpreter."""
DIGEST = "sources.digest"
"""The file in FOLDER with the digest of the sources."""
CLONE = PACKAGE.parent / "pyproject.toml"
"""Exists in a clone only. Beside an installed package, a folder `build` would belong to another package."""
BUILT_IN = "requests" + SUFFIX
"""A module that is in the package if the wheel is compiled."""


def digest() -> str:
    """The digest of all sources of the package. mypyc inlines constants of other modules, so all of them count."""
    total, start = blake2b(digest_size=16), len(str(PACKAGE)) + 1
    # Every start waits for this; with `Path` it takes twice as long.
    for folder, _, names in sorted(os.walk(PACKAGE)):
        for name in sorted(name for name in names if name.endswith(".py")):
            with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                source = file.read()
            total.update(f"{folder[start:]}/{name} {len(source)}\n".encode())
            total.update(source)
    return total.hexdigest()


class Finder:
    """Finds modules by their full names at the given files, which may be compiled modules or sources."""

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
    """Why no compiled modules can be used; empty if they can."""
    try:
        made_of = (FOLDER / DIGEST).read_bytes()
    except OSError:
        return "not compiled"
    if not CLONE.is_file():
        return "not compiled"
    try:
        same = made_of == digest().encode()
    except (OSError, ValueError) as error:  # such as an editor's lock file, which is a broken link
        return f"the sources cannot be read: {error}"
    return "" if same else "compiled from other sources"


def install() -> str:
    """Installs the finder for the compiled modules, if they can be used. Returns the form in words, for the log.

    Raises ImportError if the variable is `only` and they cannot.
    """
    wanted = os.environ.get(VARIABLE, "")
    if (PACKAGE / BUILT_IN).is_file():
        if wanted == "off":
            # Python would find the compiled modules first, so the sources need a finder.
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
    """Installs a finder for modules. `compiled` are their compiled files under `root`; `suffix` is that of the files
    beside these at which the finder finds them."""
    files = {}
    for path in compiled:
        name = path.name.removesuffix(SUFFIX)
        files[".".join([*path.relative_to(root).parts[:-1], name])] = path.with_name(name + suffix)
    sys.meta_path.insert(0, Finder(files))


FORM = install()
"""The form that this process runs, in words."""
