"""The errors: one class per kind of failure, with the text for the client.

Knows no HTTP status and no gRPC code: each front end maps kinds to codes (H6, G3). Errors are raised, and passed as
values, on any thread.
"""

from typing import ClassVar


class Error(Exception):
    """A failure with a text for the client. Use the subclass that names its kind."""

    word: ClassVar[str] = "Unknown"
    """The name of the kind in load errors (R19)."""

    refused = False
    """Whether a request was refused before it was queued (G28 makes a difference)."""

    advice = ""
    """For a model that cannot be loaded: what the operator can do. It goes to the log only, not to clients."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message

    def prefixed(self, prefix: str) -> "Error":
        """An error of the same kind, with `prefix` before its text."""
        return type(self)(prefix + self.message)


class Unknown(Error):
    """A failure of an unknown kind."""


class Internal(Error):
    """The server, a backend or a model failed."""

    word = "Internal"


class NotFound(Error):
    """Something that the client named does not exist."""

    word = "Not found"


class Invalid(Error):
    """The request, the configuration or an option is wrong."""

    word = "Invalid argument"


class Unavailable(Error):
    """The model or server exists, but cannot serve now."""

    word = "Unavailable"


class TimedOut(Unavailable):
    """The request waited for longer than its timeout. Clients get the code of Unavailable (S30)."""


class Unsupported(Error):
    """The request is valid, but this server or model does not support it."""

    word = "Unsupported"


class AlreadyExists(Error):
    """Something that the client wants to create already exists."""

    word = "Already exists"


class Cancelled(Error):
    """The client disconnected, or cancelled the request."""

    word = "Cancelled"


class DecoupledModel(Unsupported):
    """The model is decoupled, and the caller accepts one response only. Each front end has its own text (H31, G24)."""
