"""Errors of OpenVINO in Triton's words (BV14). Needs no runtime."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from halimede.errors import Cause, Error, Internal

_PLACE = re.compile(r"(?:Caught exception: )?Exception from src/\S+:|Check '.*' failed at src/\S+:")
"""A line that only says where in the runtime's source something happened."""


@contextmanager
def step(what: str, cause: Cause | None = None) -> Iterator[None]:
    """Whatever the runtime raises inside becomes Internal: `openvino error in reading model : ...`."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        raise failed(what, error, cause) from error


def failed(what: str, error: Exception, cause: Cause | None = None) -> Internal:
    """The failure of a step. The runtime's texts have several lines, which begin with places of its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line and not _PLACE.fullmatch(line)) or type(error).__name__
    translated = Internal(f"openvino error in {what} : {text}")
    return translated if cause is None else translated.blaming(cause)
