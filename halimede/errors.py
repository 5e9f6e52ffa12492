"""The error tree: one class per kind of failure, carrying the words that a client will read.

No HTTP status and no gRPC code here: each front end owns the table from kind to code (contract H6, G3).
Raised and passed as values on any thread.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, Self


class Cause(Enum):
    """What is to blame if a model cannot be loaded. The log and `halimede check` derive their advice from it."""

    CONFIGURATION = "configuration"
    FILE = "file"
    """The model's own file."""
    ENVIRONMENT = "environment"
    """What is installed: a runtime, a library, an interpreter."""
    MACHINE = "machine"
    """Devices, memory, processes."""


ADVICE: Mapping[Cause, str] = MappingProxyType(
    {
        Cause.CONFIGURATION: "correct its configuration; 'halimede check REPOSITORY' names every problem",
        Cause.FILE: "its backend cannot read the file: export or copy it again",
        Cause.ENVIRONMENT: "the runtime as it is installed lacks something: install what the message names",
        Cause.MACHINE: "this machine cannot run it: look at its devices and its free memory, or change instance_group",
    }
)


class Error(Exception):
    """A failure with a text for the client. Use the subclass that names its kind."""

    word: ClassVar[str] = "Unknown"
    """How the kind is written inside load errors (contract R19)."""

    refused = False
    """Set where a request was turned away before it could be queued (contract G28 tells the two apart)."""

    advice = ""
    """If a model cannot be loaded: what may help, for the log. Clients get the message alone."""

    cause: Cause | None = None
    """If a model cannot be loaded: what is to blame, as far as its backend knows."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message

    def blaming(self, cause: Cause) -> Self:
        """The same error, which says what is to blame, with the advice for that."""
        self.cause = cause
        self.advice = self.advice or ADVICE[cause]
        return self

    def prefixed(self, prefix: str) -> "Error":
        """The same kind of failure with `prefix` before its text."""
        return type(self)(prefix + self.message)


class Unknown(Error):
    """A failure whose kind nobody knows."""


class Internal(Error):
    """The server, a backend or a model broke."""

    word = "Internal"


class NotFound(Error):
    """What the client named does not exist."""

    word = "Not found"


class Invalid(Error):
    """The request, the configuration or an option is wrong."""

    word = "Invalid argument"


class Unavailable(Error):
    """It exists and cannot serve now."""

    word = "Unavailable"


class TimedOut(Unavailable):
    """A time limit passed while the request waited; clients read it as unavailable (contract S30)."""


class Unsupported(Error):
    """It is understood and not offered."""

    word = "Unsupported"


class AlreadyExists(Error):
    """What the client wants to create is there already."""

    word = "Already exists"


class Cancelled(Error):
    """The client went away or took the request back."""

    word = "Cancelled"


class DecoupledModel(Unsupported):
    """The model is decoupled and the caller takes one response only; each front end says it in its words (H31, G24)."""
