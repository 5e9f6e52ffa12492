"""A problem of a model or of its repository, as `halimede check` names it. Plain values; pure, any thread."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Severity(Enum):
    """`ERROR`: the server would not load the model, or would refuse what it is asked. `WARNING`: it would, and not as
    somebody meant. `NOTE`: what could not be seen without running code."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Problem:
    """`code` is the kind, for tools: it stays the same where words change. `line` is 0 where no line is to blame.
    `instead` is what to write or do instead; empty where that is plain."""

    code: str
    text: str
    file: Path
    line: int = 0
    instead: str = ""
    severity: Severity = Severity.ERROR
