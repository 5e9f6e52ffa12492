"""The errors: one class per kind of failure, with the text for the client.

Knows no HTTP status and no gRPC code: each front end maps kinds to codes (H6, G3). Errors are raised, and passed as
values, on any thread.
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
        Cause.CONFIGURATION: "correct its configuration; 'halimede check REPOSITORY' names its problems, and with "
        "--load those that only a load shows",
        Cause.FILE: "its backend cannot read the file: export or copy it again",
        Cause.ENVIRONMENT: "the runtime as it is installed lacks something: install what the message names",
        Cause.MACHINE: "this machine cannot run it: look at its devices and its free memory, or change instance_group",
    }
)


def shortened(text: str, most: int) -> str:
    """The text, cut after `most` characters. The text of an error may repeat a value of any length."""
    return text if len(text) <= most else text[:most] + "..."


class Error(Exception):
    """A failure with a text for the client. Use the subclass that names its kind."""

    word: ClassVar[str] = "Unknown"
    """The name of the kind in load errors (R19)."""

    refused = False
    """Whether a request was refused before it was queued (G28 makes a difference)."""

    advice = ""
    """For a model that cannot be loaded: what the operator can do. It goes to the log only, not to clients."""

    cause: Cause | None = None
    """For a model that cannot be loaded: what is to blame, as far as its backend knows."""

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
        """An error of the same kind, with `prefix` before its text."""
        return type(self)(prefix + self.message)

    def bare(self) -> Self:
        """The same error without context and traceback. These refer to frames, and frames to requests and to the error
        itself, which would all live until the garbage collector runs."""
        self.__context__ = self.__cause__ = None
        return self.with_traceback(None)


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


class Unauthenticated(Error):
    """The client has not shown who it is, or its key does not count (`--auth`)."""

    word = "Unauthenticated"


class Forbidden(Error):
    """The client may not do this (`--auth`)."""

    word = "Permission denied"


class TooMany(Error):
    """The client sends more than it may at a time (`--auth`). `retry_secs` is when it may try again."""

    word = "Resource exhausted"
    retry_secs = 1.0


class DecoupledModel(Unsupported):
    """The model is decoupled, and the caller accepts one response only. Each front end has its own text (H31, G24)."""
