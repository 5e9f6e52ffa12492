"""Which Python an environment is built for: the server's own, or another one on PATH if a project asks for it.

Any thread; runs an interpreter for a moment.
"""

import json
import operator
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from halimede.workers.host.activation import OLDEST, Run
from halimede.workers.host.package_lists import BadList

NEWEST_MINOR = 14
"""Of the `python3.N` that are looked for on PATH."""
ASK_LIMIT = 30.0
"""Seconds that an interpreter may take to say what it is."""
_ASK = (
    "import json, os, platform, sys, sysconfig; print(json.dumps([list(sys.version_info[:3]), [sys.version, "
    "sysconfig.get_platform(), platform.libc_ver()[1], os.path.realpath(sys.executable)]]))"
)
_CLAUSE = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?")

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter. `build` is equal for two that can share an environment."""

    path: str
    version: Version
    build: str

    def __str__(self) -> str:
        return "Python " + ".".join(map(str, self.version))


def choose(requires: str, variables: Mapping[str, str], run: Run, own: str = sys.executable) -> Python:
    """The server's own Python if `requires` (as in `requires-python`) allows it, else the newest one on PATH. Raises
    BadList if there is none."""
    seen = []
    for path in _candidates(requires, variables, own):
        python = _ask(path, variables, run)
        if python is None:
            continue
        if fits(requires, python.version) and python.version >= OLDEST:
            return python
        seen.append(".".join(map(str, python.version)))
    others = ", ".join(dict.fromkeys(seen)) or "no other"
    raise BadList(f"it asks for Python {requires}, and there is none on PATH; there is {others}")


def _candidates(requires: str, variables: Mapping[str, str], own: str) -> Iterator[str]:
    yield own
    for minor in range(NEWEST_MINOR, OLDEST[1] - 1, -1) if requires else ():
        path = shutil.which(f"python3.{minor}", path=variables.get("PATH"))
        if path is not None:
            yield path


def _ask(path: str, variables: Mapping[str, str], run: Run) -> Python | None:
    """None if it does not run, as a script that only knows where one may be."""
    try:
        ended = run([path, "-I", "-c", _ASK], variables, ASK_LIMIT)
        version, build = json.loads(ended.output)
    except (OSError, ValueError):
        return None
    return Python(path, tuple(version), json.dumps(build))


def fits(requires: str, version: Version) -> bool:
    """Whether a version satisfies all clauses of a `requires-python`. Raises BadList for one that is no version
    clause."""
    return all(_holds(clause.strip(), version) for clause in requires.split(",") if clause.strip())


def _holds(clause: str, version: Version) -> bool:
    found = _CLAUSE.fullmatch(clause)
    if found is None:
        raise BadList(f"'{clause}' in 'requires-python' is no clause such as '>=3.10'")
    sign, text, is_prefix = found.groups()
    asked = tuple(map(int, text.split(".")))
    if is_prefix or sign == "~=":
        prefix = asked if is_prefix else asked[:-1]
        matches = version[: len(prefix)] == prefix
        if sign == "~=":
            return matches and version >= asked
        return matches if sign == "==" else not matches
    padded = (*asked, 0, 0)[: len(version)]
    return _COMPARISONS[sign](version, padded)


_COMPARISONS: Mapping[str, Callable[[Version, Version], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
