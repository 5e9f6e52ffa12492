"""What a file of torch is, by the names in its archive. Reads no pickle and needs no torch. Any thread."""

import zipfile
from enum import Enum
from pathlib import Path

from halimede.backends.api import ModelFolder
from halimede.backends.traits import Home

RUNTIME = "model.py"
"""The value of the field `runtime` for a model in Python (BT33)."""


class Kind(Enum):
    """The kinds of files that torch writes; the value is what error texts call it."""

    SCRIPT = "a TorchScript archive (torch.jit.save)"
    EXPORTED = "an exported program (torch.export.save)"
    PACKAGE = "an AOTInductor package (torch._inductor.aoti_compile_and_package)"
    PICKLE = "a pickle (torch.save)"
    FOREIGN = "no file of torch"
    MISSING = "missing"


def kind_of(path: Path) -> Kind:
    """The kind of a file. A file that is cut off is FOREIGN: the names are at its end."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
            if start[:1] == b"\x80" and start[1:] <= b"\x05":  # a pickle without an archive, as torch wrote before 1.6
                return Kind.PICKLE
            with zipfile.ZipFile(file) as archive:
                # A file that was cut off may end with an archive that was in it.
                if min((entry.header_offset for entry in archive.infolist()), default=1):
                    return Kind.FOREIGN
                return _kind_of_names(archive.namelist())
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return Kind.MISSING
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return Kind.FOREIGN


def _kind_of_names(names: list[str]) -> Kind:
    inside = [name.partition("/")[2] for name in names]
    if "constants.pkl" in inside:
        return Kind.SCRIPT
    if "archive_format" in inside:
        has_code = any(name.startswith("data/aotinductor/") for name in inside)
        return Kind.PACKAGE if has_code else Kind.EXPORTED
    return Kind.PICKLE if "data.pkl" in inside else Kind.FOREIGN


def usual_home(folder: ModelFolder, filename: str, runtime: str) -> Home:
    """The home of a model whose operator chose none: a process for code of users and for AOTInductor, which holds the
    interpreter lock while it computes (docs/contract/15-runtimes.md)."""
    if runtime == RUNTIME:
        return Home.CHILD
    is_package = filename.endswith(".pt2") and kind_of(folder.version / filename) is Kind.PACKAGE
    return Home.CHILD if is_package else Home.SERVER
