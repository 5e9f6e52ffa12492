"""Which modules a Python environment has: the server's own, a folder or an archive of EXECUTION_ENV_PATH (P71).

Runs nothing: of folders and archives the names of files are read. Load threads; blocks.
"""

import os
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from lzma import LZMAError
from pathlib import Path
from types import MappingProxyType

from halimede.workers.host.activation import ACTIVATE, OLDEST

MAX_ARCHIVE_BYTES = 1 << 30
"""Of an archive whose names are read. Reading them means to decompress it, at some 100 MB a second."""

OF_THE_SERVER = frozenset({"triton_python_backend_utils", "c_python_backend_utils"})
"""The modules that the server brings into each worker."""

_FORMER = frozenset({"asynchat", "asyncore", "distutils", "imp", "smtpd"})
"""Modules of the standard library up to Python 3.11."""
_OF_PYTHON = re.compile(r"^(?:\./)?lib(?:64)?/python(\d+)\.(\d+)/(.+)$")
_UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, ValueError, zlib.error, LZMAError)


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of an environment that is not the server's own.

    `names` are dotted, down to the second level; a module in `packages` may have others below it. `is_open`: there may
    be more, because the environment refers to other folders. `version` is that of its Python; empty if it is unknown.
    """

    names: frozenset[str]
    packages: frozenset[str]
    version: tuple[int, ...] = ()
    has_activate: bool = True
    is_open: bool = False

    def has(self, module: str) -> bool:
        first, *others = module.split(".")
        if first in OF_THE_SERVER or first in sys.stdlib_module_names or first in _FORMER:
            return True
        # Of a regular package nobody looks further down: its other modules may be made when it is imported.
        return first in self.names and (not others or first in self.packages or f"{first}.{others[0]}" in self.names)

    @property
    def is_too_old(self) -> bool:
        return bool(self.version) and self.version < OLDEST


class ModulesOfEnvironments:
    """Remembers what it has read: the models of a repository often share an environment. One thread at a time."""

    def __init__(self) -> None:
        self._read: dict[Path, Modules | None] = {}

    def of(self, environment: Path) -> Modules | None:
        """The modules of a folder or an archive that exists. None if they cannot be known."""
        if environment not in self._read:
            self._read[environment] = _read(environment)
        return self._read[environment]


def is_for_all(module: str) -> bool:
    """Whether a module lies where the Python of each worker looks: in the server's working directory, or PYTHONPATH."""
    places = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return PathFinder.find_spec(module.partition(".")[0], places) is not None


def is_installed(module: str) -> bool:
    """Whether the server's own Python finds a module. Imports nothing."""
    first, *others = module.split(".")
    if first in OF_THE_SERVER:
        return True
    try:
        spec = find_spec(first)
        # A namespace package such as `google` is there as soon as one of its parts is.
        while spec is not None and others and _is_namespace(spec):
            first = f"{first}.{others.pop(0)}"
            spec = PathFinder.find_spec(first, spec.submodule_search_locations)
    except Exception:  # code of foreign finders: nothing is known, so nothing is said
        return True
    return spec is not None


def _is_namespace(spec: ModuleSpec) -> bool:
    return spec.origin is None and spec.submodule_search_locations is not None


def _read(environment: Path) -> Modules | None:
    try:
        if environment.is_dir():
            return _of_folder(environment)
        if environment.stat().st_size > MAX_ARCHIVE_BYTES:
            return None
        return _modules(_names_in(environment))
    except _UNREADABLE:  # the load says so
        return None


def _names_in(archive: Path) -> Iterator[str]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as found:
            yield from found.namelist()
        return
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            yield member.name


def _of_folder(folder: Path) -> Modules | None:
    names = [ACTIVATE] if (folder / ACTIVATE).exists() else []
    is_open = "true" in _setting(folder / "pyvenv.cfg", "include-system-site-packages")
    for lib in sorted(folder.glob("lib*/python3.*")):
        for place in (lib, lib / "site-packages"):
            inside = f"{place.relative_to(folder)}/"
            for path in place.iterdir() if place.is_dir() else ():
                names.append(f"{inside}{path.name}")
                if path.is_dir() and place is not lib:
                    names += [f"{inside}{path.name}/{each.name}" for each in path.iterdir()]
                # Other folders belong to the environment then.
                is_open |= path.suffix == ".pth" and path.name not in _HARMLESS
    return _modules(names, is_open)


_HARMLESS = frozenset({"distutils-precedence.pth", "_virtualenv.pth", "matplotlib.pth"})


def _setting(file: Path, name: str) -> str:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:  # an environment of conda has no such file
        return ""
    return next((line.partition("=")[2].lower() for line in lines if line.partition("=")[0].strip() == name), "")


def _modules(names: Iterable[str], is_open: bool = False) -> Modules:
    """From the paths of the files in an environment."""
    found: set[str] = set()
    packages: set[str] = set()
    version: tuple[int, ...] = ()
    has_activate = False
    for name in names:
        has_activate |= name.removeprefix("./") == ACTIVATE
        match = _OF_PYTHON.match(name)
        if match is None:
            continue
        version = int(match[1]), int(match[2])
        parts = match[3].removeprefix("site-packages/").split("/")
        plain = [part.partition(".")[0] for part in parts[:2]]
        found.update((plain[0], ".".join(plain)))
        if len(parts) > 1 and plain[1] == "__init__":
            packages.add(plain[0])
    return Modules(frozenset(found), frozenset(packages), version, has_activate, is_open)


_DISTRIBUTIONS: Mapping[str, str] = MappingProxyType(
    {
        "Crypto": "pycryptodome",
        "MeCab": "mecab-python3",
        "PIL": "pillow",
        "attr": "attrs",
        "bs4": "beautifulsoup4",
        "cupy": "cupy-cuda12x",
        "cv2": "opencv-python-headless",
        "dateutil": "python-dateutil",
        "dotenv": "python-dotenv",
        "faiss": "faiss-cpu",
        "fitz": "pymupdf",
        "google.cloud.storage": "google-cloud-storage",
        "google.protobuf": "protobuf",
        "gi": "pygobject",
        "jwt": "pyjwt",
        "magic": "python-magic",
        "nvidia.dali": "nvidia-dali-cuda120",
        "osgeo": "gdal",
        "pkg_resources": "setuptools<81",
        "skimage": "scikit-image",
        "sklearn": "scikit-learn",
        "tritonclient": "tritonclient[all]",
        "yaml": "pyyaml",
    }
)
"""What to install for a module whose distribution has another name."""

_OWN_NAMES = frozenset(
    {
        *("app", "common", "config", "configs", "constants", "core", "data", "inference", "lib", "model", "models"),
        *("schemas", "scripts", "service", "settings", "src", "tools"),
    }
)
"""Names of modules that people give to files of their own: what an index has under them is something else."""
_OWN_WORDS = frozenset(
    {"helper", "helpers", "postprocess", "postprocessing", "preprocess", "preprocessing", "util", "utils"}
)
"""Words in such names, as in `det_preprocess`."""


FROM_SOURCE = frozenset({"clip", "detectron2", "groundingdino", "segment_anything"})
"""Modules that no index has: their projects are installed from source."""


def distribution_of(module: str) -> str:
    """What `pip install` gets for a module; empty if no index has it, as far as its name tells."""
    parts = module.split(".")
    if not parts[0] or parts[0] in _OWN_NAMES | FROM_SOURCE or _OWN_WORDS.intersection(parts[0].split("_")):
        return ""
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    named = next((_DISTRIBUTIONS[prefix] for prefix in prefixes if prefix in _DISTRIBUTIONS), "")
    # The parts of a namespace package are distributions of their own.
    return named or ("-".join(parts[:3]) if parts[0] == "google" else parts[0].replace("_", "-"))
