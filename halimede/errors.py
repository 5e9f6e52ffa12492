"""The error tree: one class per kind of failure, carrying the words that a client will read.

No HTTP status and no gRPC code here: each front end owns the table from kind to code (contract H6, G3).
Raised and passed as values on any thread.
"""

from typing import ClassVar


class Error(Exception):
    """A failure with a text for the client. Use the subclass that names its kind."""

    word: ClassVar[str] = "Unknown"
    """How the kind is written inside load errors (contract R19)."""

    refused = False
    """Set where a request was turned away before it could be queued (contract G28 tells the two apart)."""

    advice = ""
    """Where a model cannot be loaded: what may help, for the log. Clients get the message alone."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message

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
