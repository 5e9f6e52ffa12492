"""The status with which a failed gRPC call ends, by kind of error (G3). Event-loop thread only."""

import logging

from halimede.errors import (
    AlreadyExists,
    Cancelled,
    Error,
    Forbidden,
    Internal,
    Invalid,
    NotFound,
    TooMany,
    Unauthenticated,
    Unavailable,
    Unknown,
    Unsupported,
    shortened,
)
from halimede.transport.grpc.calls import GrpcCall

log = logging.getLogger(__name__)

CODES: dict[type[BaseException], int] = {
    Cancelled: 1,
    Unknown: 2,
    Invalid: 3,
    NotFound: 5,
    AlreadyExists: 6,
    Forbidden: 7,
    TooMany: 8,
    Unsupported: 12,
    Internal: 13,
    Unavailable: 14,
    Unauthenticated: 16,
}
"""The status of each kind of error (G3). A derived kind has the status of its base."""


MAX_TEXT_CHARACTERS = 1 << 13
"""Characters of the text of a gRPC status, which is a header, and of an error in a stream. Beyond: the text is cut."""


def finish_with(call: GrpcCall, error: Error) -> None:
    """Ends the call with the status of an error."""
    # The nearest base counts, so a refined kind may have a status of its own.
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), CODES[Unknown])
    call.finish(code, text_of(error))


def text_of(error: Error) -> str:
    """Returns the text of an error for a client. It may have a name of any length that a client has sent."""
    return shortened(error.message, MAX_TEXT_CHARACTERS)


def internal_error(what: str) -> Internal:
    """Logs the exception that is being handled, and returns the error for the client. Call it in an `except` clause."""
    log.exception("%s failed", what)
    return Internal("internal error")
