"""The interpreter of a Python environment, and the variables that its `bin/activate` sets.

The script runs once, with those of packages (conda's `activate.d`). Workers then start the interpreter directly.
Variables of the server's own environment are removed before. Any thread; blocks.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Protocol

from halimede.errors import Internal
from halimede.workers.host.process import Interpreter

OLDEST = (3, 9)
"""The oldest Python that `workers.child` runs under."""
ACTIVATE = "bin/activate"
ACTIVATION_LIMIT = 60.0
"""Seconds that `bin/activate` may take."""

_PREFIXES = ("VIRTUAL_ENV", "CONDA_PREFIX")
_OF_THE_SERVER = frozenset(
    {
        *(*_PREFIXES, "VIRTUAL_ENV_PROMPT", "CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER", "CONDA_SHLVL"),
        *("PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"),
    }
)
_OF_THE_SHELL = ("_", "PWD", "OLDPWD", "SHLVL")
_ASK = "import json, os, sys; json.dump([list(sys.version_info[:3]), dict(os.environ)], sys.stdout)"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. The status is None if it took too long."""

    status: int | None
    output: bytes
    errors: bytes

    def why(self) -> str:
        """The status in words, with the last characters of its standard error."""
        how = "it took too long" if self.status is None else f"exit status {self.status}"
        said = " ".join(self.errors.decode(errors="replace").split())[-_SAID:]
        return f"{how}: {said}" if said else how


_SAID = 500


class Run(Protocol):
    """Runs a program with these variables, for up to `limit` seconds. Raises OSError."""

    def __call__(self, command: Sequence[str], variables: Mapping[str, str], limit: float) -> Ended: ...


def outside(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables without those of the active environment. PYTHONPATH stays: Triton passes it on, and an operator who
    sets it for a server means its models."""
    bins = {f"{variables[name]}/bin" for name in _PREFIXES if variables.get(name)}
    kept = {name: value for name, value in variables.items() if name not in _OF_THE_SERVER}
    if "PATH" in kept:
        kept["PATH"] = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if part not in bins)
    return kept


def python_of(folder: Path, called: str) -> Path:
    """The interpreter of an environment. `called` is its name in messages. Raises Internal (P71)."""
    if not os.access(folder / ACTIVATE, os.F_OK):  # also False if the folder cannot be searched
        raise Internal(
            f"Path {called}/{ACTIVATE} does not exist. The Python environment should contain an 'activate' script."
        )
    for name in ("python", "python3"):
        python = folder / "bin" / name
        if os.access(python, os.X_OK) and python.is_file():
            return python
    raise Internal(f"The Python environment '{called}' has no interpreter: {called}/bin/python cannot be executed.")


def activate(folder: Path, called: str, variables: Mapping[str, str], run: Run) -> Interpreter:
    """Runs `bin/activate` of an environment in bash. Raises Internal if that fails, or if its Python is too old.

    The loader searches `<folder>/lib` first for the interpreter's libraries, as with Triton.
    """
    python, libraries = python_of(folder, called), str(folder / "lib")
    script = (
        f"source {quote(str(folder / ACTIVATE))} >&2 && "
        f"export LD_LIBRARY_PATH={quote(libraries)}:${{LD_LIBRARY_PATH:-}} && "
        f"LD_LIBRARY_PATH=${{LD_LIBRARY_PATH%:}} && "
        f"exec {quote(str(python))} -S -E -c {quote(_ASK)}"
    )
    before = outside(variables)
    try:
        ended = run(["bash", "-c", script], before, ACTIVATION_LIMIT)
    except OSError as error:
        raise Internal(f"The Python environment '{called}' cannot be activated: bash: {error.strerror}") from error
    try:
        if ended.status != 0:
            raise ValueError(ended.why())
        version, after = json.loads(ended.output)
    except ValueError as error:
        raise Internal(f"The Python environment '{called}' cannot be activated: {error}") from error
    if tuple(version) < OLDEST:
        has, needed = ".".join(map(str, version)), ".".join(map(str, OLDEST))
        raise Internal(f"The Python environment '{called}' has Python {has}; models need Python {needed} or newer.")
    for name in _OF_THE_SHELL:
        after.pop(name, None)
        if name in before:
            after[name] = before[name]
    after["LD_LIBRARY_PATH"] = after.get("LD_LIBRARY_PATH", "").removeprefix(libraries).removeprefix(":")
    if not after["LD_LIBRARY_PATH"]:
        del after["LD_LIBRARY_PATH"]
    return Interpreter(str(python), moved(after, folder), libraries)


def moved(variables: dict[str, str], folder: Path) -> dict[str, str]:
    """Replaces the folder in which a virtual environment was made, which its `activate` names, by the present one."""
    made = variables.get("VIRTUAL_ENV")
    if made is not None and made != str(folder):
        parts = variables.get("PATH", "").split(os.pathsep)
        old, new = f"{made}/bin", f"{folder}/bin"
        variables["PATH"] = os.pathsep.join(new if part == old else part for part in parts)
        variables["VIRTUAL_ENV"] = str(folder)
    return variables
