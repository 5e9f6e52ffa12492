"""A problem of a model or of its repository, as `halimede check` reports it. Plain values; any thread."""

from dataclasses import dataclass
from pathlib import Path

from halimede.backends.api import Severity
from halimede.errors import Cause


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and what would be right.

    `code` is the kind of problem. Tools compare it, so it stays the same when texts change. `line` is 0 if the problem
    is not about a line. `instead` says what to write or do; it is empty if that is obvious.
    """

    code: str
    text: str
    file: Path
    line: int = 0
    instead: str = ""
    severity: Severity = Severity.ERROR
    cause: Cause | None = None
    """What is to blame, as far as the backend knows: there is general advice for it."""
    module: str = ""
    """A module that the model's code imports and that is not installed."""
    installs: str = ""
    """What `pip install` must get, so that the module is there."""
    missing: str = ""
    """The path of a file or directory that the model needs and that is not there."""
