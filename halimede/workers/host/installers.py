"""The programs that build an environment: uv if it is there, else `venv` and pip. Their commands, and what they say
when they fail.

Pure, except that `find_uv` looks for a program. Any thread.
"""

import re
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.workers.host.package_lists import PackageList

WORKER_NEEDS = "numpy"
"""The package that `workers.child` imports. It is installed together with those of the list, so that the list decides
about its version."""
MOST_LINES = 6
"""Lines of an installer's output in an error text."""
MOST_CHARACTERS = 800

_UNREACHABLE = re.compile(
    r"name resolution|Name or service not known|NewConnectionError|Network is unreachable|Connection refused"
    r"|ConnectTimeout|dns error|error sending request|Max retries exceeded",
    re.IGNORECASE,
)
_NO_VERSION = "(from versions: none)"
_NOISE = re.compile(
    r"\[notice\]|WARNING: (Retrying|You are using pip|There was an error checking)|Looking in (indexes|links)"
    r"|Collecting |Requirement already|Using cached|Downloading |Preparing |Installing build|Getting requirements"
    r"|ERROR: Ignored the following|note: |hint: "
)
_SIGN_OF_UV = "\u00d7"
"""uv begins an error with a multiplication sign."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FRAMES = re.compile("[\u2500-\u257f\u25b6]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Installer:
    """`uv` is the path of the program; empty for pip."""

    uv: str = ""

    def __str__(self) -> str:
        return "uv" if self.uv else "pip"

    def commands(self, base: str, folder: Path, names: Sequence[str]) -> list[list[str]]:
        """What makes the environment `folder` for the interpreter `base`, with the packages `names` (arguments of the
        installer)."""
        python = str(folder / "bin" / "python")
        if self.uv:
            return [
                [self.uv, "venv", "--no-project", "--python", base, str(folder)],
                [self.uv, "pip", "install", "--no-progress", "--python", python, *names],
            ]
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--no-color"]
        return [[base, "-m", "venv", str(folder)], [python, "-m", "pip", "install", *quiet, *names]]


def find_uv(variables: Mapping[str, str]) -> str:
    """The path of uv: on PATH, or installed beside the server. Empty if there is none."""
    beside = Path(sysconfig.get_path("scripts"))
    return shutil.which("uv", path=variables.get("PATH")) or shutil.which("uv", path=str(beside)) or ""


def variables_of(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment variables for installers: without PYTHONPATH, whose packages would count as installed. uv must
    not fetch an interpreter."""
    kept = {name: value for name, value in variables.items() if name not in ("PYTHONPATH", "UV_PYTHON", "VIRTUAL_ENV")}
    return {"UV_PYTHON_DOWNLOADS": "never", **kept, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


def names_of(listed: PackageList, written: Path) -> list[str]:
    """The arguments that name the packages. `written` has the requirements of a project."""
    source = listed.file if listed.requirements is None else written
    # With hashes an installer refuses every package without one.
    return ["-r", str(source), *([] if listed.hashed else [WORKER_NEEDS])]


def reason_in(output: bytes) -> str:
    """The last lines of an installer's output that say something, on one line."""
    lines = [line for line in said(output) if not _NOISE.match(line)]
    errors = [i for i, line in enumerate(lines) if line.lower().startswith(("error", _SIGN_OF_UV))]
    # What follows the first error explains it. With too many lines, the last ones do.
    kept = lines[errors[0] if errors else 0 :][-MOST_LINES:]
    text = "; ".join(kept)[-MOST_CHARACTERS:] or "it said nothing"
    whole = output.decode("utf-8", "replace")
    if _UNREACHABLE.search(whole):
        return f"the package index cannot be reached: {text}"
    # Without retries pip does not mention that it reached nothing.
    if _NO_VERSION in whole:
        return f"there is no such package, or no index was reached: {text}"
    return text


def said(output: bytes) -> list[str]:
    """The lines of an output that have a letter or a digit, without colours, frames and controls."""
    text = _COLOURS.sub("", output.decode("utf-8", "replace")).replace("\r", "\n")
    text = _CONTROLS.sub(" ", _FRAMES.sub(" ", text))
    return [line.strip() for line in text.split("\n") if any(character.isalnum() for character in line)]
